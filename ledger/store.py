"""The ledger on disk: SQLite through SQLModel's tables, one durable transaction per Save.

Rules kept here:
1. ``save`` returns only after the transaction is on disk (WAL, synchronous=FULL); it is all there or not at all.
2. A finalized block, the state after it and the removal of older votes are one transaction.
3. A read-only store never writes, and works on a copied file with no node near it.
4. What is read back is checked before anyone builds on it: the records against the head's state root, the rest by
   ledger/recovery.py.  A damaged file gives a StorageError, whatever is damaged.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import immutables
import msgspec
import sqlalchemy
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Session, SQLModel, col, select

from contracts.records import Genesis, StateRecord
from contracts.state import State
from gdf_market.codec import Record, decode, encode
from gdf_market.errors import GdfError, PeerError, StorageError, ensure
from ledger import recovery
from ledger.block import Certificate, Proposal
from ledger.chain import genesis_tip
from ledger.effects import (
    DropEvidence,
    Prune,
    Restored,
    SaveBlocks,
    SaveCandidate,
    SaveEvidence,
    SaveSnapshot,
    SaveVote,
    Tip,
    Write,
)
from ledger.epochs import epoch_after
from ledger.kinds import MAX_RECORD_BYTES, RECORD_KINDS
from ledger.limits import SYNC_BYTES, SYNC_MESSAGES
from ledger.rows import prune, put_blocks, put_first_epoch, put_meta, put_records, put_seal, put_snapshot
from ledger.rules import MARKET, Rules
from ledger.state_hash import StateHash
from ledger.tables import (
    BlockRow,
    CandidateRow,
    ClosingRow,
    EntryRow,
    EpochRow,
    EventRow,
    EvidenceRow,
    MetaRow,
    RecordRow,
    UndoRow,
    VoteRow,
)
from ledger.wire import SyncBlock, SyncResponse

SCHEMA = b"7"

_MEND = "delete it and the node will sync again; a validator waits until the others finalized a newer block"
_SEALED = (SaveVote, SaveBlocks, SaveSnapshot, Prune)
_TABLES = [
    SQLModel.metadata.tables[str(model.__tablename__)]
    for model in (
        *(MetaRow, BlockRow, EntryRow, EventRow, RecordRow, VoteRow, CandidateRow),
        *(EpochRow, ClosingRow, EvidenceRow, UndoRow),
    )
]
_Row = typing.TypeVar("_Row", bound=SQLModel)
_Record = typing.TypeVar("_Record", bound=Record)


class LedgerStore:
    """One network's ledger file.  Methods may be called from any thread, writes from one at a time."""

    def __init__(self, path: Path, *, read_only: bool = False, rules: Rules = MARKET) -> None:
        """Open (or, unless ``read_only``, create) the file; raises StorageError."""
        self.path = path
        self.read_only = read_only
        self.rules = rules
        ensure(not read_only or path.is_file(), StorageError(f"there is no ledger at {path}"))
        self._immutable = False
        self._engine = self.make_engine(self._connect)
        try:
            self._prepare()
        except StorageError:
            self._engine.dispose()
            if not read_only or path.with_name(path.name + "-wal").exists():
                raise
            # a lone copy in a folder where SQLite may not create its index file
            self._immutable = True
            self._prepare()

    @staticmethod
    def make_engine(connect: Callable[[], sqlite3.Connection]) -> sqlalchemy.Engine:
        """Return an engine over connections from ``connect``, one per thread at work."""
        return sqlalchemy.create_engine("sqlite:///ledger", creator=connect, poolclass=sqlalchemy.QueuePool)

    def _connect(self) -> sqlite3.Connection:
        options = "?mode=ro" if self.read_only else ""
        options += "&immutable=1" if self._immutable else ""
        connection = sqlite3.connect(
            self.path.absolute().as_uri() + options, uri=True, check_same_thread=False, timeout=10
        )
        if not self.read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            # SQLite's default of 2 MB makes it write index pages again and again while a node catches up
            connection.execute("PRAGMA cache_size=-65536")
            connection.execute("PRAGMA wal_autocheckpoint=4000")
            connection.execute("PRAGMA fullfsync=ON")  # macOS: fsync alone leaves writes in the drive's cache
            connection.execute("PRAGMA checkpoint_fullfsync=ON")
        return connection

    def _prepare(self) -> None:
        with self._guard():
            if not self.read_only:
                SQLModel.metadata.create_all(self._engine, tables=_TABLES)
            with Session(self._engine) as session:
                schema = session.get(MetaRow, "schema")
        ensure(
            schema is None or schema.value == SCHEMA,
            StorageError(
                f"{self.path} was written by another version of this program; export it there, then import it"
            ),
        )

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn every failure of the disk or the database into a StorageError that says what to do."""
        try:
            yield
        except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(f"ledger {self.path}: {_advice(str(cause))}") from error
        except UnicodeError as error:  # SQLite quotes a damaged schema in what it says about it
            raise self._damaged(error) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Do the same for reads, where a damaged page may hand out values of another type."""
        try:
            with self._guard():
                yield
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise self._damaged(error) from error

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        """Turn the refusal of what is on disk into a StorageError."""
        try:
            yield
        except PeerError as error:
            raise self._damaged(error) from error

    def _damaged(self, what: object) -> StorageError:
        return StorageError(f"ledger {self.path} is damaged ({what}); {_MEND}")

    def close(self) -> None:
        """Release the file; a writer leaves everything in the one file."""
        with contextlib.suppress(StorageError), self._guard():
            if not self.read_only:
                with self._engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        self._engine.dispose()

    # ---- writing

    def create(self, genesis: Genesis) -> None:
        """Write the genesis and its state, once; does nothing if this genesis is there already.

        Raises StorageError when the file holds another network.
        """
        data = encode(genesis)
        with self._guard(), Session(self._engine) as session:
            known = session.get(MetaRow, "genesis")
        if known is not None:
            ensure(known.value == data, StorageError(f"{self.path} holds another network; use another data directory"))
            return
        tip = genesis_tip(genesis, self.rules)
        with self._guard(), self._engine.begin() as connection:
            put_records(connection, dict(tip.state.records.items()), 0)
            put_first_epoch(connection, epoch_after(genesis, 0, tip.state, self.rules))
            for key, value in (("genesis", data), ("schema", SCHEMA), ("state_sum", tip.sum.to_bytes())):
                put_meta(connection, key, value)
            put_seal(connection)

    def save(self, writes: Sequence[Write]) -> None:
        """Carry out one Save in one transaction; raises StorageError with nothing written."""
        with self._guard(), self._engine.begin() as connection:
            for write in writes:
                match write:
                    case SaveVote(vote):
                        row = {"epoch": vote.epoch, "slot": vote.slot, "kind": vote.kind, "raw": encode(vote)}
                        connection.execute(insert(VoteRow), row)  # a second vote is refused by the primary key
                    case SaveCandidate(name, kind, slot, raw):
                        row = {"id": name, "kind": kind, "slot": slot, "raw": raw}
                        connection.execute(insert(CandidateRow).on_conflict_do_nothing(), row)
                    case SaveBlocks():
                        put_blocks(connection, write)
                    case SaveEvidence(accused, epoch, raw):
                        row = {"accused": accused, "epoch": epoch, "raw": raw}
                        connection.execute(insert(EvidenceRow).prefix_with("OR REPLACE"), row)
                    case SaveSnapshot():
                        put_snapshot(connection, write)
                    case Prune(before):
                        prune(connection, before)
                    case DropEvidence(accused, epoch):
                        condition = (col(EvidenceRow.accused) == accused, col(EvidenceRow.epoch) == epoch)
                        connection.execute(sqlalchemy.delete(EvidenceRow).where(*condition))
            if any(isinstance(write, _SEALED) for write in writes):
                put_seal(connection)

    def compact(self) -> None:
        """Give the space of deleted rows back to the disk; needs about the file's size of free space meanwhile."""
        with self._guard(), self._engine.connect() as connection:
            plain = connection.execution_options(isolation_level="AUTOCOMMIT")
            plain.exec_driver_sql("VACUUM")
            plain.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    # ---- restart

    def restored(self) -> Restored | None:
        """Return what a replica continues from; None when no genesis was written.

        Raises StorageError unless the file is whole (ledger/recovery.py).
        """
        if self._one(MetaRow, "genesis") is None:
            return None
        votes = self.all(select(VoteRow).order_by(col(VoteRow.epoch), col(VoteRow.slot), col(VoteRow.kind)))
        candidates = self.all(select(CandidateRow).order_by(col(CandidateRow.slot), col(CandidateRow.id)))
        evidence = self.all(select(EvidenceRow))
        restored = Restored(
            genesis=self.genesis(),
            tip=self._tip(),
            votes=tuple(row.raw for row in votes),
            candidates=tuple(row.raw for row in candidates),
            evidence=tuple(row.raw for row in evidence),
            oldest=self.oldest(),
        )
        with self._checking():
            self._check(restored)
        return restored

    def _check(self, restored: Restored) -> None:
        genesis, tip = restored.genesis, restored.tip
        sealed, oldest = self._one(MetaRow, "seal"), self._one(MetaRow, "oldest")
        recovery.check_seal(
            sealed.value if sealed is not None else None,
            tip.hash if tip.height else "",
            oldest.value if oldest is not None else b"",
            restored.votes,
        )
        network, epoch = self.rules.network_id(genesis), epoch_after(genesis, tip.height, tip.state, self.rules)
        for raw in restored.candidates:
            recovery.check_candidate(raw, epoch, network)
        for raw in restored.evidence:
            recovery.check_evidence(raw, network)

    def _tip(self) -> Tip:
        genesis, row = self.genesis(), self.head()
        if row is None:
            return genesis_tip(genesis, self.rules)
        epoch, validators = self.epoch_at(row.height)
        closing = self.closing(row.height)
        with self._checking():
            header = recovery.open_head(row, closing, epoch, validators, self.rules.network_id(genesis))
        state = self.state()
        total = StateHash.of(state.records.items())
        ensure(
            total.root() == row.state_root,
            StorageError(f"ledger {self.path}: the state is damaged; {_MEND}"),
        )
        return Tip(row.height, row.slot, row.hash, row.time_ms, header.beacon, state, total)

    def sealed_head(self) -> str:
        """Return the hash of the block that the last Save left as the head; "" before the first block."""
        row = self._one(MetaRow, "seal")
        return recovery.head_of(row.value) if row is not None else ""

    # ---- reading

    def _one(self, kind: type[_Row], key: object) -> _Row | None:
        with self._reading(), Session(self._engine) as session:
            row = session.get(kind, key)
            return self._whole(row) if row is not None else None

    def all(self, statement: Any) -> list[Any]:
        """Return the rows of a query; raises StorageError."""
        with self._reading(), Session(self._engine) as session:
            return [self._whole(row) for row in session.exec(statement).all()]

    def _whole(self, row: _Row) -> _Row:
        """Return a row whose values are of the types of its columns."""
        if isinstance(row, SQLModel):
            for name, kinds in _columns(type(row)):
                value = row.__dict__[name]
                if type(value) not in kinds:
                    raise self._damaged(f"a row of {row.__tablename__} has {value!r:.50} as its {name}")
        return row

    def genesis(self) -> Genesis:
        """Return the genesis; StorageError when there is none."""
        row = self._one(MetaRow, "genesis")
        if row is None:
            raise StorageError(f"{self.path} holds no ledger")
        return self._decode(row.value, Genesis)

    def _decode(self, data: bytes, kind: type[_Record]) -> _Record:
        try:
            return decode(data, kind, max_bytes=MAX_RECORD_BYTES)
        except GdfError as error:
            raise self._damaged(error) from error

    def head(self) -> BlockRow | None:
        """Return the last finalized block."""
        rows = self.blocks(1)
        return rows[0] if rows else None

    def oldest(self) -> int:
        """Return the height from which on all blocks are here; 1 unless the ledger was pruned or began later."""
        row = self._one(MetaRow, "oldest")
        with self._reading():
            return int(row.value) if row is not None else 1

    def boundary(self) -> int:
        """Return the height of the last boundary block; 0 in the first epoch."""
        rows = self.all(select(EpochRow).order_by(col(EpochRow.number).desc()).limit(1))
        return rows[0].first_height - 1 if rows else 0

    def block(self, height: int) -> BlockRow | None:
        """Return the finalized block of a height."""
        return self._one(BlockRow, height)

    def block_by_hash(self, hash_: str) -> BlockRow | None:
        """Return the finalized block of a hash."""
        rows = self.all(select(BlockRow).where(col(BlockRow.hash) == hash_))
        return rows[0] if rows else None

    def blocks(self, limit: int, before: int | None = None) -> list[BlockRow]:
        """Return up to ``limit`` blocks below a height, newest first."""
        statement = select(BlockRow).order_by(col(BlockRow.height).desc()).limit(limit)
        return self.all(statement if before is None else statement.where(col(BlockRow.height) < before))

    def blocks_from(self, height: int, limit: int) -> list[BlockRow]:
        """Return up to ``limit`` blocks from a height on, oldest first."""
        statement = select(BlockRow).where(col(BlockRow.height) >= height)
        return self.all(statement.order_by(col(BlockRow.height)).limit(limit))

    def entry(self, entry_id: str) -> EntryRow | None:
        """Return a finalized entry."""
        return self._one(EntryRow, entry_id)

    def block_entries(self, height: int) -> list[EntryRow]:
        """Return a block's entries in order."""
        statement = select(EntryRow).where(col(EntryRow.height) == height).order_by(col(EntryRow.position))
        return self.all(statement)

    def entries(
        self,
        *,
        job: str | None = None,
        author: str | None = None,
        kind: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[EntryRow]:
        """Return entries that match, newest first, below the height ``before``."""
        statement = select(EntryRow).order_by(col(EntryRow.height).desc(), col(EntryRow.position).desc()).limit(limit)
        for column, value in ((EntryRow.job, job), (EntryRow.author, author), (EntryRow.kind, kind)):
            if value is not None:
                statement = statement.where(col(column) == value)
        return self.all(statement if before is None else statement.where(col(EntryRow.height) < before))

    def events(
        self,
        *,
        job: str | None = None,
        account: str | None = None,
        kind: str | None = None,
        height: int | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[EventRow]:
        """Return events that match, newest first, ids below ``before``; an account matches as source or target too."""
        statement = select(EventRow).order_by(col(EventRow.id).desc()).limit(limit)
        if account is not None:
            columns = (EventRow.account, EventRow.source, EventRow.target)
            statement = statement.where(sqlalchemy.or_(*(col(column) == account for column in columns)))
        for column, value in ((EventRow.job, job), (EventRow.kind, kind), (EventRow.height, height)):
            if value is not None:
                statement = statement.where(col(column) == value)
        return self.all(statement if before is None else statement.where(col(EventRow.id) < before))

    def record(self, key: str) -> StateRecord | None:
        """Return the current record under a key."""
        row = self._one(RecordRow, key)
        return self._record(row) if row is not None else None

    def records(self, prefix: str = "", *, kind: str | None = None) -> dict[str, StateRecord]:
        """Return current records by key, in key order, whose key starts with ``prefix`` and that are of a kind."""
        statement = select(RecordRow).order_by(col(RecordRow.key))
        if prefix:
            # a range uses the primary key's index; the prefix ends in ASCII
            statement = statement.where(col(RecordRow.key) >= prefix, col(RecordRow.key) < prefix + "\U0010ffff")
        if kind is not None:
            statement = statement.where(col(RecordRow.kind) == kind)
        return {row.key: self._record(row) for row in self.all(statement)}

    def _record(self, row: RecordRow) -> StateRecord:
        kind = RECORD_KINDS.get(row.kind)
        if kind is None:
            raise self._damaged(f"record {row.key} is of an unknown kind {row.kind!r}")
        return self._decode(row.value, kind)

    def state(self) -> State:
        """Return the state after the last finalized block."""
        return State(immutables.Map(self.records()))

    def validators_at(self, height: int) -> tuple[str, ...]:
        """Return the set that agreed on the block of a height (heights begin with 1)."""
        return self.epoch_at(height)[1]

    def epoch_at(self, height: int) -> tuple[int, tuple[str, ...]]:
        """Return the number of a height's epoch, and its validators.  Raises StorageError when it is not here."""
        statement = select(EpochRow).where(col(EpochRow.first_height) <= height)
        rows = self.all(statement.order_by(col(EpochRow.first_height).desc()).limit(1))
        if not rows:
            raise self._damaged(f"it knows no validators of block {height}")
        return rows[0].number, validators_of(rows[0])

    def sync_messages(self, height: int) -> list[bytes]:
        """Return the answer to a sync request: as many blocks from ``height`` on as fit into a few messages."""
        groups: list[list[SyncBlock]] = [[]]
        size = 0
        for row in self.blocks_from(height, SYNC_MESSAGES * 64):
            for item in self.sync_blocks(row):
                item_size = len(encode(item)) + 1
                if groups[-1] and (size + item_size > SYNC_BYTES or len(groups[-1]) == 256):
                    groups.append([])
                    size = 0
                groups[-1].append(item)
                size += item_size
            if len(groups) > SYNC_MESSAGES:
                break
        filled = [tuple(group) for group in groups if group][:SYNC_MESSAGES]
        return [encode(SyncResponse(blocks=group, more=index + 1 < len(filled))) for index, group in enumerate(filled)]

    def sync_blocks(self, row: BlockRow) -> list[SyncBlock]:
        """Return a finalized block as it travels, with its certificate if that is its own; then, if a closing block's
        certificate finalizes it, the closing blocks."""
        entries = tuple(msgspec.Raw(entry.raw) for entry in self.block_entries(row.height)) if row.entry_count else ()
        proposal = Proposal(header=msgspec.Raw(row.header), sig=row.signature, entries=entries)
        own = row.certified_height == row.height
        closing = self.closing(row.height) if own else []
        if not closing:
            return [SyncBlock(block=proposal, certificate=certificate_of(row) if own else None)]
        last = len(closing) - 1
        return [
            SyncBlock(block=proposal, certificate=None),
            *(
                SyncBlock(block=block, certificate=certificate_of(row) if index == last else None)
                for index, block in enumerate(closing)
            ),
        ]

    def closing(self, boundary: int) -> list[Proposal]:
        """Return the closing blocks that lead from an epoch's boundary block to the certified one; mostly none."""
        statement = select(ClosingRow).where(col(ClosingRow.boundary) == boundary).order_by(col(ClosingRow.position))
        return [self._decode(row.raw, Proposal) for row in self.all(statement)]


@functools.cache
def _columns(model: type[SQLModel]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return the columns of a table and the types that their values may have."""
    return tuple(
        (name, typing.get_args(info.annotation) or (info.annotation,)) for name, info in model.model_fields.items()
    )


def validators_of(row: EpochRow) -> tuple[str, ...]:
    """Return the validators of an epoch.  Raises StorageError when the row is damaged."""
    try:
        return tuple(msgspec.json.decode(row.validators, type=list[str]))
    except msgspec.MsgspecError as error:
        raise StorageError(f"the ledger's row of epoch {row.number} is damaged ({error}); {_MEND}") from error


def certificate_of(row: BlockRow) -> Certificate:
    """Return the finalize certificate stored with a block.  Raises StorageError when the row is damaged."""
    try:
        return decode(row.certificate, Certificate)
    except PeerError as error:
        raise StorageError(f"the ledger's row of block {row.height} is damaged ({error}); {_MEND}") from error


def _advice(cause: str) -> str:
    text = cause.lower()
    if "full" in text or "no space" in text:
        return "the disk is full; free some space and start again, nothing was lost"
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return f"the file is damaged ({cause}); {_MEND}"
    if "readonly" in text or "read-only" in text or "permission" in text:
        return f"it cannot be written ({cause}); check the folder's permissions"
    if "locked" in text:
        return "another process is writing it; is a node running already on this data directory?"
    return cause
