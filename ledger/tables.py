"""SQLite tables of a node's ledger (SQLModel), shared by the store that writes and all that only read.

Finalized history: ``block``, ``entry``, ``event``, ``epoch``, ``closing``.  Current state after the
last finalized block: ``record``; ``undo`` leads back to the last boundary block's.  Agreement in progress: ``vote``,
``candidate``, ``evidence``.  One row per fact of its own: ``meta``.
"""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class MetaRow(SQLModel, table=True):
    """``genesis`` (canonical bytes), ``schema`` (version), ``state_sum`` (the state hash's accumulator), ``seal`` (over
    head and votes, ledger/recovery.py), and, unless all blocks are here, ``oldest`` (the height from which on they are,
    decimal)."""

    __tablename__ = "meta"
    key: str = Field(primary_key=True)
    value: bytes


class BlockRow(SQLModel, table=True):
    """A finalized block; ``header`` are its exact bytes, ``certificate`` the canonical finalize certificate
    of this block, of the nearest finalized descendant (``certified_height``), or of an epoch's last closing block."""

    __tablename__ = "block"
    height: int = Field(primary_key=True)
    hash: str = Field(index=True)
    slot: int
    time_ms: int
    proposer: str
    entry_count: int
    state_root: str
    header: bytes
    signature: str
    certified_height: int
    certificate: bytes


class EntryRow(SQLModel, table=True):
    """A finalized entry; ``raw`` is the signed envelope as received."""

    __tablename__ = "entry"
    id: str = Field(primary_key=True)
    height: int = Field(index=True)
    position: int
    kind: str = Field(index=True)
    author: str = Field(index=True)
    job: str = Field(index=True)  # "" if none
    raw: bytes


class EventRow(SQLModel, table=True):
    """One contracts.records.Event, in order of application."""

    __tablename__ = "event"
    id: int | None = Field(default=None, primary_key=True)
    height: int = Field(index=True)
    position: int
    kind: str = Field(index=True)
    job: str = Field(index=True)
    round: int
    slot: int
    account: str
    source: str
    target: str
    amount: int
    reason: str
    entry: str


class RecordRow(SQLModel, table=True):
    """The state: canonical bytes of one contracts record per key."""

    __tablename__ = "record"
    key: str = Field(primary_key=True)
    kind: str = Field(index=True)  # the record's class name in lower case
    value: bytes
    height: int  # last changed


class EpochRow(SQLModel, table=True):
    """An epoch that has begun: the height of its first block, and its validators (canonical list)."""

    __tablename__ = "epoch"
    number: int = Field(primary_key=True)
    first_height: int = Field(index=True)
    validators: bytes


class ClosingRow(SQLModel, table=True):
    """A closing block: with others it leads from an epoch's boundary block to the one that the certificate is of."""

    __tablename__ = "closing"
    boundary: int = Field(primary_key=True)  # height of the boundary block
    position: int = Field(primary_key=True)
    raw: bytes  # the block's proposal message


class UndoRow(SQLModel, table=True):
    """What a record was at the last boundary block, if it changed since: with ``record`` it gives that state."""

    __tablename__ = "undo"
    key: str = Field(primary_key=True)
    kind: str
    value: bytes | None  # None: it did not exist


class EvidenceRow(SQLModel, table=True):
    """An equivocation seen here that is not yet in the ledger; ``raw`` is the last entry that reported it."""

    __tablename__ = "evidence"
    accused: str = Field(primary_key=True)
    epoch: int = Field(primary_key=True)
    raw: bytes


class VoteRow(SQLModel, table=True):
    """Own votes, durable before they are sent: at most one per (epoch, slot, vote kind)."""

    __tablename__ = "vote"
    epoch: int = Field(primary_key=True)
    slot: int = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    raw: bytes


class CandidateRow(SQLModel, table=True):
    """Blocks and certificates above the last finalized height that this node relies on."""

    __tablename__ = "candidate"
    id: str = Field(primary_key=True)  # block hash, or certificate kind/slot
    kind: str  # block | certificate
    slot: int = Field(index=True)
    raw: bytes
