"""Sums over the whole state: the supply check and what each account has locked or held.

One pass over the records that hold credits, kept until the head moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from contracts.records import Network
from gdf_market.errors import StorageError
from ledger.explorer.queries import Reader

S = TypeVar("S", bound=msgspec.Struct)

POOLS = (
    "Account.balance",
    "Account.stake",
    "Job.escrow",
    "Job.audit_escrow",
    "Bid.bond",
    "Unit.held_pay",
    "Unit.held_merit",
    "Audit.bond",
)


class _Account(msgspec.Struct):
    balance: int
    stake: int


class _Job(msgspec.Struct):
    status: str
    escrow: int
    audit_escrow: int


class _Bid(msgspec.Struct):
    worker: str
    bond: int


class _Unit(msgspec.Struct):
    job: str
    worker: str
    status: str
    held_pay: int
    held_merit: int
    paid: int
    release_ms: int
    auditors: list[str]


class _Audit(msgspec.Struct):
    auditor: str
    bond: int


@dataclass
class Locked:
    """Micro-credits of one account outside its balance."""

    bid_bonds: int = 0
    audit_bonds: int = 0
    held: int = 0
    paid: int = 0  # pay received so far
    units: Counter[str] = field(default_factory=Counter)  # units by status
    paid_units: Counter[str] = field(default_factory=Counter)  # units that were paid, by job
    paid_by_job: Counter[str] = field(default_factory=Counter)  # micro-credits


@dataclass(frozen=True)
class Totals:
    """``pools``: the eight fields that hold credits, in the order of the rules, with their sums."""

    height: int
    pools: tuple[tuple[str, int], ...]
    supply: int
    paid: int
    jobs: dict[str, int]  # by status
    units: dict[str, int]  # by status
    judged: int  # units that were accepted at some time
    audited: int  # of these, by at least one auditor
    locked: dict[str, Locked]

    @property
    def total(self) -> int:
        return sum(amount for _, amount in self.pools)

    def pool(self, *names: str) -> int:
        """Return the sum of the named pools."""
        return sum(amount for name, amount in self.pools if name in names)


def _each(reader: Reader, kind_name: str, kind: type[S]) -> Iterator[S]:
    decoder = msgspec.json.Decoder(kind)
    for key, value in reader.values(kind_name):
        try:
            yield decoder.decode(value)
        except msgspec.MsgspecError as error:
            raise StorageError(f"the record {key} is damaged ({error}); run `gdf-market ledger verify`") from None


def compute_totals(reader: Reader, height: int) -> Totals:
    """Return the sums over the state after ``height``.  Raises StorageError on a damaged record."""
    pools: Counter[str] = Counter()
    locked: defaultdict[str, Locked] = defaultdict(Locked)
    jobs: Counter[str] = Counter()
    units: Counter[str] = Counter()
    judged = audited = 0
    for account in _each(reader, "account", _Account):
        pools["Account.balance"] += account.balance
        pools["Account.stake"] += account.stake
    for job in _each(reader, "job", _Job):
        pools["Job.escrow"] += job.escrow
        pools["Job.audit_escrow"] += job.audit_escrow
        jobs[job.status] += 1
    for bid in _each(reader, "bid", _Bid):
        pools["Bid.bond"] += bid.bond
        locked[bid.worker].bid_bonds += bid.bond
    for unit in _each(reader, "unit", _Unit):
        pools["Unit.held_pay"] += unit.held_pay
        pools["Unit.held_merit"] += unit.held_merit
        units[unit.status] += 1
        judged += unit.release_ms > 0
        audited += unit.release_ms > 0 and bool(unit.auditors)
        own = locked[unit.worker]
        own.held += unit.held_pay + unit.held_merit
        own.paid += unit.paid
        own.units[unit.status] += 1
        if unit.status == "paid":
            own.paid_units[unit.job] += 1
            own.paid_by_job[unit.job] += unit.paid
    for audit in _each(reader, "audit", _Audit):
        pools["Audit.bond"] += audit.bond
        locked[audit.auditor].audit_bonds += audit.bond
    network = reader.record("network", Network)
    return Totals(
        height=height,
        pools=tuple((name, pools[name]) for name in POOLS),
        supply=network.supply if network else 0,
        paid=sum(own.paid for own in locked.values()),
        jobs=dict(jobs),
        units=dict(units),
        judged=judged,
        audited=audited,
        locked=dict(locked),
    )
