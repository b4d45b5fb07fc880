"""Reads of a ledger's SQLite file for the explorer: never writes, needs no node (opening it: ``files``).

Every list has a limit; nothing is read by an unbounded offset.
"""

from __future__ import annotations

import sqlite3
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    String,
    and_,
    case,
    cast,
    func,
    or_,
    tuple_,
)
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from contracts.records import Account, Genesis
from gdf_market.codec import Record, decode
from gdf_market.errors import MalformedError, OversizedError, StorageError, UsageError
from ledger.limits import MAX_BLOCK_ENTRIES
from ledger.store import SCHEMA
from ledger.tables import BlockRow, ClosingRow, EntryRow, EpochRow, EventRow, MetaRow, RecordRow

MAX_PAGE = 100  # rows of any list on one page
MAX_RECORD_BYTES = 16 * 1024 * 1024  # own state, not a peer's message
KEY_CHUNK = 500  # keys in one IN (…), below SQLite's limit of bound variables

R = TypeVar("R", bound=Record)


class Moved(NamedTuple):
    """What one block did to a balance, and the fees in it that the account paid and earned; micro-credits."""

    height: int
    change: int
    fees_paid: int
    fees_earned: int


class Reader:
    """Typed reads within one snapshot."""

    def __init__(self, session: Session, path: Path) -> None:
        self._session = session
        self._path = path

    def genesis(self) -> Genesis:
        """Return the genesis.  Raises UsageError when the file holds no ledger."""
        exists = self._session.connection().exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'meta'").first()
        row = self._session.get(MetaRow, "genesis") if exists else None
        if row is None:
            raise UsageError(f"{self._path} holds no ledger; give the file of a node that has joined a network")
        schema = self._session.get(MetaRow, "schema")
        if schema is not None and schema.value != SCHEMA:
            raise StorageError(f"{self._path} was written by another version of this program; use the explorer of that")
        return self._decode("genesis", row.value, Genesis)

    def oldest(self) -> int:
        """Return the height from which on all blocks are here; 1 unless the ledger was pruned or began later."""
        row = self._session.get(MetaRow, "oldest")
        return int(row.value) if row is not None else 1

    # epochs

    def epochs(self, limit: int, before: int | None = None) -> list[EpochRow]:
        """Return the latest epochs below number ``before``, newest first."""
        query = select(EpochRow).order_by(col(EpochRow.number).desc()).limit(min(limit, MAX_PAGE + 1))
        if before is not None:
            query = query.where(col(EpochRow.number) < before)
        return list(self._session.exec(query))

    def boundary(self) -> int:
        """Return the height of the last boundary block; 0 in the first epoch."""
        return next((row.first_height - 1 for row in self.epochs(1)), 0)

    def validators_at(self, height: int) -> tuple[str, ...]:
        """Return the set that agreed on the block of a height; () when this file does not know it."""
        query = select(EpochRow).where(col(EpochRow.first_height) <= height)
        row = self._session.exec(query.order_by(col(EpochRow.first_height).desc()).limit(1)).first()
        return validators_of(row) if row is not None else ()

    def closing(self, boundaries: Sequence[int]) -> dict[int, list[bytes]]:
        """Return the closing blocks of some boundary blocks' heights, as the bytes of their proposals."""
        found: dict[int, list[bytes]] = {height: [] for height in boundaries}
        query = select(ClosingRow).where(col(ClosingRow.boundary).in_(sorted(found)))
        for row in self._session.exec(query.order_by(col(ClosingRow.boundary), col(ClosingRow.position))):
            found[row.boundary].append(row.raw)
        return found

    def proposed_since(self, height: int) -> dict[str, int]:
        """Return how many blocks from a height on each account proposed."""
        query = select(BlockRow.proposer, func.count()).where(col(BlockRow.height) >= height)
        return dict(self._session.exec(query.group_by(BlockRow.proposer)).all())

    # blocks and entries

    def head(self) -> BlockRow | None:
        """Return the last finalized block, None before the first."""
        return self._session.exec(select(BlockRow).order_by(col(BlockRow.height).desc()).limit(1)).first()

    def height(self) -> int:
        """Return the height of the head, 0 before the first block."""
        head = self.head()
        return head.height if head is not None else 0

    def block(self, height: int) -> BlockRow | None:
        """Return the block of one height."""
        return self._session.get(BlockRow, height)

    def blocks(self, limit: int, before: int | None = None) -> list[BlockRow]:
        """Return the latest blocks below height ``before``, newest first."""
        query = select(BlockRow).order_by(col(BlockRow.height).desc()).limit(min(limit, MAX_PAGE))
        if before is not None:
            query = query.where(col(BlockRow.height) < before)
        return list(self._session.exec(query))

    def block_times(self, heights: Sequence[int]) -> dict[int, int]:
        """Return {height: block time in ms} of the given heights."""
        query = select(BlockRow.height, BlockRow.time_ms).where(col(BlockRow.height).in_(sorted(set(heights))))
        return dict(self._session.exec(query).all())

    def entry(self, entry_id: str) -> EntryRow | None:
        """Return one entry."""
        return self._session.get(EntryRow, entry_id)

    def entries(
        self,
        limit: int,
        *,
        height: int | None = None,
        author: str = "",
        job: str = "",
        kind: str = "",
        before: tuple[int, int] | None = None,
    ) -> list[EntryRow]:
        """Return the latest entries that match, newest first; ``before`` is a (height, position)."""
        query = select(EntryRow)
        if height is not None:
            query = query.where(EntryRow.height == height)
        for column, value in ((EntryRow.author, author), (EntryRow.job, job), (EntryRow.kind, kind)):
            if value:
                query = query.where(column == value)
        if before is not None:
            query = query.where(tuple_(col(EntryRow.height), col(EntryRow.position)) < before)
        newest_first = query.order_by(col(EntryRow.height).desc(), col(EntryRow.position).desc())
        return list(self._session.exec(newest_first.limit(min(limit, MAX_PAGE))))

    def block_entries(self, height: int) -> list[EntryRow]:
        """Return all entries of a block, in order; a valid block has at most ``MAX_BLOCK_ENTRIES``."""
        query = select(EntryRow).where(EntryRow.height == height).order_by(col(EntryRow.position))
        return list(self._session.exec(query.limit(MAX_BLOCK_ENTRIES)))

    def unit_entries(self, job: str, round_index: int, slot: int, kinds: Sequence[str], limit: int) -> list[EntryRow]:
        """Return entries of some kinds whose bytes name this unit, oldest first; the caller decodes to be sure."""
        text = cast(col(EntryRow.raw), String)
        query = (
            select(EntryRow)
            .where(EntryRow.job == job, col(EntryRow.kind).in_(kinds))
            .where(text.contains(f'"round":{round_index},'), text.contains(f'"slot":{slot}'))
            .order_by(col(EntryRow.height), col(EntryRow.position))
        )
        return list(self._session.exec(query.limit(limit)))

    # events

    def events(
        self,
        limit: int,
        *,
        job: str = "",
        account: str = "",
        unit: tuple[int, int] | None = None,
        height: int | None = None,
        entry: str = "",
        kind: str = "",
        before: int | None = None,
        oldest_first: bool = False,
    ) -> list[EventRow]:
        """Return the latest events that match; ``unit`` is (round, slot), ``before`` an event id.

        An account's events are those that name it in any role.
        """
        query: Select[EventRow] = select_columns(EventRow)
        for column, value in ((EventRow.job, job), (EventRow.entry, entry), (EventRow.kind, kind)):
            if value:
                query = query.where(col(column) == value)
        if account:
            roles = (EventRow.account, EventRow.source, EventRow.target)
            query = query.where((col(roles[0]) == account) | (col(roles[1]) == account) | (col(roles[2]) == account))
        if unit is not None:
            query = query.where(col(EventRow.round) == unit[0], col(EventRow.slot) == unit[1])
        if height is not None:
            query = query.where(col(EventRow.height) == height)
        if before is not None:
            query = query.where(col(EventRow.id) < before)
        order = col(EventRow.id).asc() if oldest_first else col(EventRow.id).desc()
        return list(self._session.scalars(query.order_by(order).limit(min(limit, MAX_PAGE + 1))))

    def sample(self, kind: str, limit: int) -> list[EventRow]:
        """Return the latest events of one kind; ``limit`` is the caller's bound."""
        query = select(EventRow).where(EventRow.kind == kind).order_by(col(EventRow.id).desc())
        return list(self._session.exec(query.limit(limit)))

    def sum_events(
        self, kind: str, *, height: int | None = None, entry: str = "", source: str = "", target: str = ""
    ) -> int:
        """Return the micro-credits that all events of one kind moved, in one block, for one entry, from or to one."""
        query = select(func.sum(EventRow.amount)).where(EventRow.kind == kind)
        for column, value in ((EventRow.entry, entry), (EventRow.source, source), (EventRow.target, target)):
            if value:
                query = query.where(column == value)
        if height is not None:
            query = query.where(EventRow.height == height)
        return int(self._session.scalar(query) or 0)

    def account_moves(self, account: str) -> list[Moved]:
        """Return what the events of each block did to an account's balance, by height; one pass over the events."""
        target, source = col(EventRow.target) == account, col(EventRow.source) == account
        fee = col(EventRow.kind) == "fee"

        def total(condition: ColumnElement[bool]) -> ColumnElement[int]:
            return func.coalesce(func.sum(case((condition, EventRow.amount), else_=0)), 0)

        query = (
            select_columns(
                col(EventRow.height),
                total(target) - total(source),
                total(and_(fee, source)),
                total(and_(fee, target)),
            )
            .where(or_(target, source))
            .group_by(col(EventRow.height))
            .order_by(col(EventRow.height))
        )
        return [Moved(int(height), int(a), int(b), int(c)) for height, a, b, c in self.rows(query)]

    def fields(self, keys: Sequence[str], *names: str) -> dict[str, tuple[Any, ...]]:
        """Return some fields (``a`` or ``a.b``) of the records among ``keys``, without decoding all of these."""
        text = cast(col(RecordRow.value), String)  # canonical JSON; SQLite would read a blob as its own format
        columns = [func.json_extract(text, f"$.{name}") for name in names]
        found: dict[str, tuple[Any, ...]] = {}
        for start in range(0, len(keys), KEY_CHUNK):
            query = select_columns(col(RecordRow.key), *columns)
            rows = self.rows(query.where(col(RecordRow.key).in_(keys[start : start + KEY_CHUNK])))
            found |= {row[0]: tuple(row[1:]) for row in rows}
        return found

    def balance_moves(self, account: str, from_event: int) -> int:
        """Return what the events with an id of at least ``from_event`` added to an account's balance."""
        change = case((col(EventRow.target) == account, EventRow.amount), else_=0) - case(
            (col(EventRow.source) == account, EventRow.amount), else_=0
        )
        return int(self._session.scalar(select_columns(func.sum(change)).where(col(EventRow.id) >= from_event)) or 0)

    def flows(self, job: str) -> list[tuple[str, str, str, int, int]]:
        """Return a job's money movements added up: (kind, source, target, micro-credits, events)."""
        columns = (col(EventRow.kind), col(EventRow.source), col(EventRow.target))
        query = (
            select_columns(*columns, func.sum(EventRow.amount), func.count())
            .where(col(EventRow.job) == job, col(EventRow.amount) > 0)
            .group_by(*columns)
        )
        rows = self._session.execute(query).all()
        return [(kind, source, target, int(total), count) for kind, source, target, total, count in rows]

    def rows(self, query: Executable) -> Sequence[Any]:
        """Return the rows of a query that adds up or bounds what it reads."""
        return self._session.execute(query).all()

    # state

    def record(self, key: str, kind: type[R]) -> R | None:
        """Return the state record of ``key``."""
        row = self._session.get(RecordRow, key)
        return None if row is None else self._decode(key, row.value, kind)

    def records(self, keys: Sequence[str], kind: type[R]) -> dict[str, R]:
        """Return the records that exist among ``keys``, in the order of ``keys``."""
        found: dict[str, R] = {}
        for start in range(0, len(keys), KEY_CHUNK):
            query = select(RecordRow).where(col(RecordRow.key).in_(keys[start : start + KEY_CHUNK]))
            found |= {row.key: self._decode(row.key, row.value, kind) for row in self._session.exec(query)}
        return {key: found[key] for key in keys if key in found}

    def records_under(self, prefix: str, kind: type[R], limit: int, after: str = "") -> dict[str, R]:
        """Return up to ``limit`` records whose key starts with ``prefix``, by key, above key ``after``."""
        query = select(RecordRow).where(col(RecordRow.key) >= prefix, col(RecordRow.key) < _end(prefix))
        if after:
            query = query.where(col(RecordRow.key) > after)
        rows = self._session.exec(query.order_by(col(RecordRow.key)).limit(limit))
        return {row.key: self._decode(row.key, row.value, kind) for row in rows}

    def records_ending(self, kind_name: str, suffix: str, kind: type[R], limit: int) -> dict[str, R]:
        """Return up to ``limit`` records of one kind whose key ends with ``/suffix``, last changed first."""
        query = (
            select(RecordRow)
            .where(RecordRow.kind == kind_name, col(RecordRow.key).endswith("/" + suffix, autoescape=True))
            .order_by(col(RecordRow.height).desc(), col(RecordRow.key))
            .limit(limit)
        )
        return {row.key: self._decode(row.key, row.value, kind) for row in self._session.exec(query)}

    def latest(self, kind_name: str, kind: type[R], limit: int, skip: int = 0) -> list[R]:
        """Return records of one kind, last changed first."""
        query = (
            select(RecordRow)
            .where(RecordRow.kind == kind_name)
            .order_by(col(RecordRow.height).desc(), col(RecordRow.key))
            .limit(min(limit, MAX_PAGE))
            .offset(skip)
        )
        return [self._decode(row.key, row.value, kind) for row in self._session.exec(query)]

    def values(self, kind_name: str) -> Iterator[tuple[str, bytes]]:
        """Yield (key, canonical bytes) of every record of one kind, in batches."""
        # straight from SQLite's driver, within the same transaction: all records pass here for every new block
        driver = typing.cast(sqlite3.Connection, self._session.connection().connection.driver_connection)
        yield from driver.execute("SELECT key, value FROM record WHERE kind = ?", (kind_name,))

    def held_of_job(self, job: str) -> tuple[int, int]:
        """Return micro-credits held for a job's units, and locked in bonds of its audits."""
        held = self._sum(f"unit/{job}/", ("held_pay", "held_merit"))
        return held, self._sum(f"audit/{job}/", ("bond",))

    def _sum(self, prefix: str, fields: Sequence[str]) -> int:
        text = cast(col(RecordRow.value), String)  # canonical JSON; SQLite would read a blob as its own format
        terms = [func.json_extract(text, f"$.{field}") for field in fields]
        query = select(func.sum(sum(terms[1:], terms[0])))
        total = self._session.scalar(query.where(col(RecordRow.key) >= prefix, col(RecordRow.key) < _end(prefix)))
        return int(total or 0)

    def stakes(self, accounts: Sequence[str]) -> dict[str, int]:
        """Return the micro-credits that accounts have at stake."""
        found = self.records([f"account/{account}" for account in accounts], Account)
        return {key.removeprefix("account/"): account.stake for key, account in found.items()}

    # search

    def find(self, prefix: str, limit: int) -> dict[str, list[str]]:
        """Return ids that start with a hex prefix: ``entry`` ids, ``job`` ids, ``block`` heights as text."""
        entries = select(EntryRow.id).where(col(EntryRow.id) >= prefix, col(EntryRow.id) < _end(prefix)).limit(limit)
        job_prefix = "job/" + prefix
        jobs = select(RecordRow.key).where(col(RecordRow.key) >= job_prefix, col(RecordRow.key) < _end(job_prefix))
        blocks = select(BlockRow.height).where(col(BlockRow.hash) >= prefix, col(BlockRow.hash) < _end(prefix))
        return {
            "entry": list(self._session.exec(entries)),
            "job": [key.removeprefix("job/") for key in self._session.exec(jobs.limit(limit))],
            "block": [str(height) for height in self._session.exec(blocks.limit(limit))],
        }

    def _decode(self, key: str, data: bytes, kind: type[R]) -> R:
        try:
            return decode(data, kind, max_bytes=MAX_RECORD_BYTES)
        except (MalformedError, OversizedError) as error:
            raise StorageError(
                f"the record {key} in {self._path} is damaged ({error}); run `gdf-market ledger verify`"
            ) from None


def validators_of(row: EpochRow) -> tuple[str, ...]:
    """Return the validators of an epoch; () when its row is damaged."""
    try:
        return tuple(msgspec.json.decode(row.validators, type=list[str]))
    except msgspec.MsgspecError:
        return ()


def _end(prefix: str) -> str:
    """Return the least text above everything that starts with ``prefix``."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
