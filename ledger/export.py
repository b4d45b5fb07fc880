"""The finalized ledger as one immutable text file, and its verification with no node.

The file is JSON lines, each canonical: the genesis; then for every height the block (header, proposer's signature,
entries as signed) with the finalize certificate that covers it, if it is the block's own, and after an epoch's last
block the closing blocks that prove it final, if there are any; then the count, the head's hash and the SHA-256 of all
bytes before that last line.  ``verify`` replays everything from the genesis: signatures, VRF proofs and beacons,
certificates, the contract rules, state roots, and that every block conserves credits; what was verified can be handed
on (``ledger/importing.py``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import immutables
import msgspec

from contracts.records import Genesis
from contracts.state import Changes, State
from gdf_market.codec import Hash, Record, UInt, decode, encode
from gdf_market.errors import (
    MalformedError,
    OversizedError,
    PeerError,
    StorageError,
    UsageError,
    UserError,
    VerificationFailedError,
    ensure,
)
from gdf_market.messages import Entry
from ledger import chain, limits
from ledger.block import FINAL, Block, Certificate, open_block, verify_certificate
from ledger.effects import Executed, SaveBlocks, Tip
from ledger.envelopes import OpenMany, open_each
from ledger.epochs import Epoch, epoch_after
from ledger.opening import OpenPool
from ledger.rules import MARKET, Rules
from ledger.store import LedgerStore
from ledger.wire import SyncBlock

MAX_LINE_BYTES = 256 * 1024  # a genesis of 1000 allocations and 100 validators is the longest line
_PAGE = 256
_Format = Annotated[str, msgspec.Meta(pattern=r"\Agdf-ledger/1\Z")]


class First(Record, frozen=True, kw_only=True):
    """The file's first line."""

    format: _Format
    genesis: Genesis
    network: Hash


class Last(Record, frozen=True, kw_only=True):
    """The file's last line."""

    blocks: UInt
    head: Hash
    sha256: Hash


@dataclass(frozen=True)
class Report:
    """What a verified file holds; ``supply`` is in micro-credits."""

    network: str
    height: int
    head: str
    state_root: str
    time_ms: int
    entries: int
    supply: int
    state: State


# ---- writing


def export(store: LedgerStore, target: Path) -> int:
    """Write the finalized ledger of ``store`` to ``target``; return the number of blocks.

    The file appears under its name only when it is complete.  Raises StorageError, and UsageError for a ledger whose
    first blocks were pruned or never fetched.
    """
    oldest = store.oldest()
    ensure(
        oldest == 1,
        UsageError(f"{store.path} has no blocks before {oldest}; export from a node that keeps all (an archive)"),
    )
    genesis = store.genesis()
    partial = target.with_name(target.name + ".part")
    try:
        with partial.open("wb") as file:
            count = _write(file, store, genesis)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {target}: {error}") from error
    return count


def _write(file: BinaryIO, store: LedgerStore, genesis: Genesis) -> int:
    total = hashlib.sha256()

    def line(record: Record) -> None:
        data = encode(record) + b"\n"
        total.update(data)
        file.write(data)

    network = store.rules.network_id(genesis)
    line(First(format="gdf-ledger/1", genesis=genesis, network=network))
    head, count = network, 0
    awaited = store.sealed_head() or head  # a damaged file may have lost it
    while rows := store.blocks_from(count + 1, _PAGE):
        for row in rows:
            for item in store.sync_blocks(row):
                line(item)
            head, count = row.hash, row.height
            awaited = "" if head == awaited else awaited
    ensure(awaited in ("", network), StorageError(f"{store.path} is damaged: it lacks its last block {awaited[:16]}"))
    file.write(encode(Last(blocks=count, head=head, sha256=total.hexdigest())) + b"\n")
    return count


# ---- reading


def lines_of(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield (line without its end, whether it is the last); MalformedError for one that is cut off or too long."""
    line = file.readline(MAX_LINE_BYTES)
    while line:
        ensure(line.endswith(b"\n"), MalformedError("the line does not end; the file is cut off or altered"))
        following = file.readline(MAX_LINE_BYTES)
        yield line[:-1], not following
        line = following


def genesis_of(file: BinaryIO, rules: Rules = MARKET) -> Genesis:
    """Return the genesis in the first line of an export (nothing after it is read as a ledger).

    Raises MalformedError or OversizedError.
    """
    data, _ = next(lines_of(file), (b"", True))
    return open_first(data, rules).genesis


def open_first(data: bytes, rules: Rules) -> First:
    """Decode a first line; raises MalformedError unless its genesis founds the network that it names."""
    first = decode(data, First, max_bytes=MAX_LINE_BYTES)
    network = rules.network_id(first.genesis)
    ensure(first.network == network, MalformedError(f"the genesis founds {network}, not {first.network}"))
    return first


def open_item(data: bytes) -> SyncBlock:
    """Decode the line of a block; raises MalformedError or OversizedError."""
    return decode(data, SyncBlock, max_bytes=MAX_LINE_BYTES)


# ---- verifying


class Follower(Protocol):
    """Takes what a replay has verified, in order; a file may still turn out to be bad after that."""

    def started(self, genesis: Genesis) -> None: ...

    def finalized(self, blocks: SaveBlocks) -> None: ...


def verify(source: Path, *, rules: Rules = MARKET, follower: Follower | None = None) -> Report:
    """Replay an exported ledger; return what it holds.

    Raises VerificationFailedError naming the height at which the file stops being a valid ledger (0: the genesis).
    """
    open_many = OpenPool()
    try:
        with source.open("rb") as file:
            return _Replay(rules, follower, open_many).run(file)
    except OSError as error:
        raise VerificationFailedError(f"cannot read {source}: {error}") from error
    finally:
        open_many.close()


class _Replay:
    """One pass over a file; at any time only the state and the uncertified blocks are in memory."""

    def __init__(self, rules: Rules, follower: Follower | None, open_many: OpenMany = open_each) -> None:
        self._rules = rules
        self._follower = follower
        self._open_many = open_many
        self._total = hashlib.sha256()
        self._height = 0
        self._entries = 0
        self._pending: list[Executed] = []
        self._genesis: Genesis
        self._epoch: Epoch

    def run(self, file: BinaryIO) -> Report:
        try:
            return self._run(file)
        except (PeerError, UserError, ValueError) as error:
            raise VerificationFailedError(f"height {self._height}: {error}") from error

    def _lines(self, file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        for line, is_last in lines_of(file):
            yield line, is_last
            self._total.update(line + b"\n")

    def _run(self, file: BinaryIO) -> Report:
        lines = self._lines(file)
        data, is_last = next(lines, (b"", True))
        first = open_first(data, self._rules)
        network = first.network
        self._genesis = first.genesis
        tip = chain.genesis_tip(first.genesis, self._rules)
        self._epoch = epoch_after(first.genesis, 0, tip.state, self._rules)
        _check_supply(tip.state)
        if self._follower is not None:
            self._follower.started(first.genesis)
        for data, is_last in lines:
            self._height = tip.height + 1
            if is_last:
                return self._finish(decode(data, Last), tip, network)
            tip = self._block(open_item(data), tip, network)
        raise MalformedError("the file has no last line; it is cut off")

    def _block(self, item: SyncBlock, parent: Tip, network: str) -> Tip:
        """Execute a block; return what the next one builds on."""

        def open_entries(block: Block) -> tuple[Entry, ...]:
            return tuple(self._open_many(block.entries, network))

        block = open_block(item.block, network)
        leader = self._epoch.leader(block.header.slot)
        ensure(block.header.proposer == leader, MalformedError(f"slot {block.header.slot} belongs to {leader}"))
        executed = chain.execute(block, parent, self._epoch, self._rules, open_entries)
        _check_conservation(executed.transition.changes)
        self._entries += len(executed.entries)
        self._pending.append(executed)
        ensure(
            len(self._pending) <= limits.SYNC_BUFFER_BLOCKS,
            OversizedError(f"{len(self._pending)} blocks without a finalize certificate"),
        )
        if item.certificate is None:
            return executed.tip
        named = (item.certificate.kind, item.certificate.slot, item.certificate.hash)
        ensure(named == (FINAL, block.header.slot, block.hash), MalformedError("the certificate is of another block"))
        verify_certificate(item.certificate, network, self._epoch.validators, self._epoch.number)
        return self._finalize(item.certificate)

    def _finalize(self, certificate: Certificate) -> Tip:
        finality = chain.split(self._pending, self._epoch, self._genesis, self._rules)
        if self._follower is not None:
            self._follower.finalized(SaveBlocks(finality.blocks, certificate, finality.closing, finality.next))
        self._pending.clear()
        self._epoch = finality.next or self._epoch
        return finality.blocks[-1].tip

    def _finish(self, last: Last, tip: Tip, network: str) -> Report:
        ensure(
            not self._pending,
            MalformedError(f"no finalize certificate covers the last {len(self._pending)} blocks"),
        )
        ensure(
            (last.blocks, last.head) == (tip.height, tip.hash),
            MalformedError(f"the last line names block {last.blocks}, the file holds {tip.height}"),
        )
        ensure(last.sha256 == self._total.hexdigest(), MalformedError("the file's checksum does not match its lines"))
        supply = _check_supply(tip.state)
        return Report(network, tip.height, tip.hash, tip.sum.root(), tip.time_ms, self._entries, supply, tip.state)


def _check_supply(state: State) -> int:
    supply, found = state.network().supply, state.supply_check()
    ensure(found == supply, MalformedError(f"credits add up to {found} micro-credits, the genesis made {supply}"))
    return supply


def _check_conservation(changes: Changes) -> None:
    """Raise MalformedError unless the changed records hold as many credits after the block as before."""
    old = {key: record for key, (record, _) in changes.items() if record is not None}
    new = {key: record for key, (_, record) in changes.items() if record is not None}
    before, after = (State(immutables.Map(records)).supply_check() for records in (old, new))
    ensure(before == after, MalformedError(f"the block turns {before} micro-credits into {after}"))
