"""How finalized blocks and changed records become rows: one bulk statement per table.

What comes with every block goes to SQLite's driver as tuples, within SQLAlchemy's transaction: compiling and
dispatching it there would cost as much as SQLite itself.
"""

from __future__ import annotations

import functools
import sqlite3
import typing
from collections.abc import Iterator, Sequence

import msgspec
import sqlalchemy
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import SQLModel, col, select

from contracts.records import Event, StateRecord
from gdf_market.codec import encode
from gdf_market.units import MAX_INT
from ledger.effects import Executed, SaveBlocks, SaveSnapshot
from ledger.epochs import Epoch
from ledger.handover import Handover
from ledger.kinds import kind_of
from ledger.recovery import seal
from ledger.tables import (
    BlockRow,
    CandidateRow,
    ClosingRow,
    EntryRow,
    EpochRow,
    EventRow,
    MetaRow,
    RecordRow,
    UndoRow,
    VoteRow,
)

_BLOCK = (
    *("height", "hash", "slot", "time_ms", "proposer", "entry_count"),
    *("state_root", "header", "signature", "certified_height", "certificate"),
)
_ENTRY = ("id", "height", "position", "kind", "author", "job", "raw")
_EVENT = ("height", "position", *Event.__struct_fields__)
_DELETE_RECORD = 'DELETE FROM "record" WHERE "key" = ?'
# in place, where OR REPLACE would move the row and touch every index for it; a key says of which kind its record is
_PUT_RECORD = (
    'INSERT INTO "record" ("key", "kind", "value", "height") VALUES (?, ?, ?, ?) '
    'ON CONFLICT ("key") DO UPDATE SET "value" = "excluded"."value", "height" = "excluded"."height"'
)
_DELETE_VOTES = 'DELETE FROM "vote" WHERE "slot" <= ?'
_DELETE_CANDIDATES = 'DELETE FROM "candidate" WHERE "slot" <= ?'
_DELETE_UNDO = 'DELETE FROM "undo"'


def put_records(connection: sqlalchemy.Connection, records: dict[str, StateRecord], height: int) -> None:
    """Write records that are new or changed at a height."""
    rows = [(key, kind_of(record), encode(record), height) for key, record in records.items()]
    _run(connection, _PUT_RECORD, rows)


def _run(connection: sqlalchemy.Connection, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Carry out a statement for each row."""
    if rows:
        _cursor(connection).executemany(sql, rows)


def _cursor(connection: sqlalchemy.Connection) -> sqlite3.Cursor:
    """Return a cursor within SQLAlchemy's transaction."""
    return typing.cast(sqlite3.Connection, connection.connection.driver_connection).cursor()


def _put(
    connection: sqlalchemy.Connection,
    conflict: str,
    model: type[SQLModel],
    columns: tuple[str, ...],
    rows: Sequence[tuple[object, ...]],
) -> None:
    """Insert rows in bulk; ``conflict`` is SQLite's word for what a taken primary key does ("" refuses the rows)."""
    _run(connection, _insert_of(conflict, str(model.__tablename__), columns), rows)


@functools.cache
def _insert_of(conflict: str, name: str, columns: tuple[str, ...]) -> str:
    listed = ", ".join(f'"{column}"' for column in columns)
    return f'INSERT {conflict} INTO "{name}" ({listed}) VALUES ({", ".join("?" * len(columns))})'  # noqa: S608 - names


def put_blocks(connection: sqlalchemy.Connection, write: SaveBlocks) -> None:
    """Write finalized blocks, their entries, events and changed records; delete older votes and candidates."""
    last = write.blocks[-1]
    certificate = encode(write.certificate)
    _put(connection, "", BlockRow, _BLOCK, [_block_row(each, last.tip.height, certificate) for each in write.blocks])
    _put(connection, "", EntryRow, _ENTRY, [row for executed in write.blocks for row in _entry_rows(executed)])
    _put(connection, "", EventRow, _EVENT, [row for executed in write.blocks for row in _event_rows(executed)])
    for executed in write.blocks:
        changes = executed.transition.changes
        put_records(connection, {key: new for key, (_, new) in changes.items() if new is not None}, executed.tip.height)
        removed = [(key,) for key, (_, new) in changes.items() if new is None]
        _run(connection, _DELETE_RECORD, removed)
    put_meta(connection, "state_sum", last.tip.sum.to_bytes())
    _put_undo(connection, write)
    slot = last.tip.slot
    if write.next is not None:
        _put_epoch(connection, write.next, last.tip.height, [block.raw for block in write.closing])
        slot = MAX_INT
    _run(connection, _DELETE_VOTES, [(slot,)])
    _run(connection, _DELETE_CANDIDATES, [(slot,)])


def _put_undo(connection: sqlalchemy.Connection, write: SaveBlocks) -> None:
    """Keep what records were at the last boundary block, or begin anew at this one."""
    if write.next is not None:
        _run(connection, _DELETE_UNDO, [()])
        return
    if write.blocks[0].block.header.epoch == 0:
        return  # nobody starts from the genesis by a snapshot
    rows = [
        (key, kind_of(old) if old else "", encode(old) if old else None)
        for executed in write.blocks
        for key, (old, _) in executed.transition.changes.items()
    ]
    _put(connection, "OR IGNORE", UndoRow, ("key", "kind", "value"), rows)  # the first change counts


def put_snapshot(connection: sqlalchemy.Connection, write: SaveSnapshot) -> None:
    """Replace the state, and write the epochs and boundary blocks that lead to it."""
    for model in (RecordRow, UndoRow, VoteRow, CandidateRow):
        connection.execute(sqlalchemy.delete(model))
    put_records(connection, dict(write.tip.state.records.items()), write.tip.height)
    known = set(connection.execute(select(BlockRow.height)).scalars())
    for handover in write.handovers:
        if handover.header.height not in known:
            connection.execute(insert(BlockRow), _boundary_row(handover))
            _put_epoch(connection, handover.next, handover.header.height, [encode(each) for each in handover.closing])
    put_meta(connection, "state_sum", write.tip.sum.to_bytes())
    put_meta(connection, "oldest", str(write.tip.height + 1).encode())


def _boundary_row(handover: Handover) -> dict[str, object]:
    header = handover.header
    return {
        "height": header.height,
        "hash": handover.hash,
        "slot": header.slot,
        "time_ms": header.time_ms,
        "proposer": header.proposer,
        "entry_count": header.entry_count,
        "state_root": header.state_root,
        "header": bytes(handover.link.header),
        "signature": handover.sig,
        "certified_height": header.height,
        "certificate": encode(handover.link.certificate),
    }


def put_meta(connection: sqlalchemy.Connection, key: str, value: bytes) -> None:
    """Write one fact."""
    _put(connection, "OR REPLACE", MetaRow, ("key", "value"), [(key, value)])


def put_seal(connection: sqlalchemy.Connection) -> None:
    """Seal what the transaction leaves (ledger/recovery.py): its last writing step."""
    cursor = _cursor(connection)
    head = cursor.execute("SELECT hash FROM block ORDER BY height DESC LIMIT 1").fetchone()
    oldest = cursor.execute("SELECT value FROM meta WHERE key = 'oldest'").fetchone()
    votes = cursor.execute("SELECT raw FROM vote ORDER BY epoch, slot, kind").fetchall()
    put_meta(connection, "seal", seal(head[0] if head else "", oldest[0] if oldest else b"", [raw for (raw,) in votes]))


def prune(connection: sqlalchemy.Connection, before: int) -> None:
    """Delete blocks below a height, their entries and events; boundary blocks' headers stay."""
    boundaries = select(EpochRow.first_height - 1)
    connection.execute(
        sqlalchemy.delete(BlockRow).where(col(BlockRow.height) < before, col(BlockRow.height).not_in(boundaries))
    )
    for model in (EntryRow, EventRow):
        connection.execute(sqlalchemy.delete(model).where(col(model.height) < before))
    put_meta(connection, "oldest", str(before).encode())


def put_first_epoch(connection: sqlalchemy.Connection, epoch: Epoch) -> None:
    """Write the genesis's validator set."""
    _put_epoch(connection, epoch, 0, ())


def _put_epoch(connection: sqlalchemy.Connection, epoch: Epoch, boundary: int, closing: Sequence[bytes]) -> None:
    row = {"number": epoch.number, "first_height": epoch.first, "validators": encode(list(epoch.validators))}
    connection.execute(insert(EpochRow), row)
    rows = [{"boundary": boundary, "position": index, "raw": raw} for index, raw in enumerate(closing)]
    if rows:
        connection.execute(insert(ClosingRow), rows)


def _block_row(executed: Executed, certified_height: int, certificate: bytes) -> tuple[object, ...]:
    header, block = executed.block.header, executed.block
    return (
        *(header.height, block.hash, header.slot, header.time_ms, header.proposer, header.entry_count),
        *(header.state_root, block.header_bytes, block.signature, certified_height, certificate),
    )


def _entry_rows(executed: Executed) -> Iterator[tuple[object, ...]]:
    height = executed.tip.height
    for position, entry in enumerate(executed.entries):
        kind = type(entry.body).__struct_config__.tag
        job = entry.id if kind == "job_post" else getattr(entry.body, "job", "")
        yield entry.id, height, position, kind, entry.body.author, job, entry.raw


def _event_rows(executed: Executed) -> Iterator[tuple[object, ...]]:
    height = executed.tip.height
    for position, event in enumerate(executed.transition.events):
        yield height, position, *msgspec.structs.astuple(event)
