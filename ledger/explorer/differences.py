"""The state before and after one entry: the blocks up to it are executed again, from the nearest state that is known.

Rules kept here:
1. Every block that is executed again must give the state root of its header.
2. An entry's own effect is the difference between its block with the entries before it and with itself, too; deadlines
   and draws of the block come before either.
3. No more than ``MAX_ENTRIES`` entries and ``MAX_BLOCKS`` blocks are executed for one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import immutables
import msgspec
from sqlmodel import select

from contracts.records import StateRecord
from contracts.state import BlockContext, State
from gdf_market.codec import decode, encode
from gdf_market.errors import StorageError, UsageError, ensure
from gdf_market.messages import Entry, open_entry
from ledger.block import Block, Proposal, open_block, open_header
from ledger.chain import execute, genesis_tip
from ledger.effects import Tip
from ledger.epochs import epoch_after
from ledger.kinds import MAX_RECORD_BYTES, RECORD_KINDS
from ledger.rules import MARKET
from ledger.state_hash import StateHash
from ledger.store import LedgerStore
from ledger.tables import BlockRow, UndoRow

MAX_ENTRIES = 20_000
MAX_BLOCKS = 5_000
MAX_RECORDS = 200  # shown
MAX_TEXT = 600  # of one value
_PAGE = 256

Say = Callable[[int, int], None]


@dataclass(frozen=True)
class FieldChange:
    """One field of a record, as canonical text; "" where the record did not exist."""

    field: str
    before: str
    after: str


@dataclass(frozen=True)
class RecordChange:
    """What an entry did to one record; ``what``: made | changed | removed."""

    key: str
    what: str
    fields: list[FieldChange]


@dataclass(frozen=True)
class Differences:
    """Records that an entry changed; ``replayed`` blocks were executed from the state after block ``start``."""

    entry: str
    height: int
    start: int
    replayed: int
    state_root: str
    records: list[RecordChange]
    more: int  # records beyond those shown


def differences(store: LedgerStore, entry_id: str, say: Say = lambda done, of: None) -> Differences:
    """Return what an entry changed.

    Raises UsageError when it is not here or too far from any known state, StorageError when the file is damaged.
    """
    row = store.entry(entry_id)
    ensure(row is not None, UsageError(f"no entry {entry_id!r} in this ledger"))
    assert row is not None
    tip = _start(store, row.height)
    first = tip.height
    ensure(
        row.height - first <= MAX_BLOCKS,
        UsageError(
            f"the nearest state that is known is {row.height - first} blocks before; at most {MAX_BLOCKS} are replayed"
        ),
    )
    executed = 0
    while tip.height < row.height - 1:
        for block_row in store.blocks_from(tip.height + 1, min(_PAGE, row.height - 1 - tip.height)):
            executed += block_row.entry_count
            ensure(
                executed <= MAX_ENTRIES,
                UsageError(f"more than {MAX_ENTRIES} entries lie between it and the nearest state that is known"),
            )
            tip = _next(store, block_row, tip)
        say(tip.height - first, row.height - first)
    block_row = _row(store, row.height)
    after_block = _next(store, block_row, tip)
    before, after = _around(store, block_row, row.position, tip)
    changes = _changes(before, after)
    return Differences(
        entry=entry_id,
        height=row.height,
        start=first,
        replayed=row.height - first,
        state_root=after_block.sum.root(),
        records=changes[:MAX_RECORDS],
        more=max(0, len(changes) - MAX_RECORDS),
    )


def _row(store: LedgerStore, height: int) -> BlockRow:
    row = store.block(height)
    if row is None:
        raise StorageError(f"{store.path} lacks block {height}")
    return row


def _start(store: LedgerStore, height: int) -> Tip:
    """Return the nearest known state before a block: that of the last boundary block, or the genesis's."""
    boundary = store.boundary()
    if 0 < boundary < height:
        return _boundary_tip(store, boundary)
    oldest = store.oldest()
    ensure(
        oldest == 1,
        UsageError(f"blocks before {oldest} were pruned from this file; ask the explorer of a node that keeps all"),
    )
    return genesis_tip(store.genesis(), MARKET)


def _boundary_tip(store: LedgerStore, boundary: int) -> Tip:
    row = _row(store, boundary)
    header = open_header(row.header, MARKET.network_id(store.genesis()))
    records = dict(store.state().records.items())
    for undo in store.all(select(UndoRow)):
        if undo.value is None:
            records.pop(undo.key, None)
        else:
            records[undo.key] = decode(undo.value, RECORD_KINDS[undo.kind], max_bytes=MAX_RECORD_BYTES)
    total = StateHash.of(records.items())
    # a node that wrote meanwhile gives a mixture, too
    ensure(
        total.root() == row.state_root,
        StorageError(f"the state after block {boundary} could not be restored; load the page again"),
    )
    return Tip(boundary, row.slot, row.hash, row.time_ms, header.beacon, State(immutables.Map(records)), total)


def _block(store: LedgerStore, row: BlockRow) -> Block:
    entries = tuple(msgspec.Raw(entry.raw) for entry in store.block_entries(row.height)) if row.entry_count else ()
    proposal = Proposal(header=msgspec.Raw(row.header), sig=row.signature, entries=entries)
    return open_block(proposal, MARKET.network_id(store.genesis()))


def _open(block: Block) -> tuple[Entry, ...]:
    # the entries' own pages check signatures; the state root says that these are the ones that were executed
    return tuple(open_entry(raw, block.header.network, check_signature=False) for raw in block.entries)


def _next(store: LedgerStore, row: BlockRow, tip: Tip) -> Tip:
    epoch = epoch_after(store.genesis(), tip.height, tip.state, MARKET)
    return execute(_block(store, row), tip, epoch, MARKET, _open).tip


def _around(store: LedgerStore, row: BlockRow, position: int, parent: Tip) -> tuple[State, State]:
    """Return the states without and with the entry at a position, each with the entries before it."""
    block = _block(store, row)
    header, entries = block.header, _open(block)
    context = BlockContext(height=header.height, time_ms=header.time_ms, beacon=header.beacon, proposer=header.proposer)
    before, after = (
        MARKET.apply_block(parent.state, entries[:count], context).state for count in (position, position + 1)
    )
    return before, after


def _changes(before: State, after: State) -> list[RecordChange]:
    keys = sorted(
        {key for key, record in after.records.items() if before.get(key) != record}
        | {key for key in before.records if after.get(key) is None}
    )
    return [_record_change(key, before.get(key), after.get(key)) for key in keys]


def _record_change(key: str, before: StateRecord | None, after: StateRecord | None) -> RecordChange:
    what = "made" if before is None else "removed" if after is None else "changed"
    kept = after if after is not None else before
    assert kept is not None
    fields = [
        FieldChange(name, old, new)
        for name in kept.__struct_fields__
        if (old := _text(before, name)) != (new := _text(after, name))
    ]
    return RecordChange(key, what, fields)


def _text(record: StateRecord | None, field: str) -> str:
    if record is None:
        return ""
    value = getattr(record, field)
    text = encode(list(value) if isinstance(value, tuple) else value).decode() if not isinstance(value, bool) else ""
    text = text or str(value).lower()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"


def blocks_to_replay(height: int, boundary: int) -> int:
    """Return how many blocks ``differences`` would execute for an entry of a height."""
    return height - boundary if 0 < boundary < height else height


__all__: Sequence[str] = ("MAX_BLOCKS", "Differences", "blocks_to_replay", "differences")
