"""The state of a network as an immutable map, and the draft in which one block changes it.

Rules kept here:
1. A State never changes; keeping an old one, or dropping a failed attempt, costs nothing.
2. Every change of a Draft goes through ``put``, ``drop`` or ``update``, which note
   what was there before, so that a Transition names exactly what changed.
3. ``update`` reads the record it changes at that moment: no change is lost to a stale copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import immutables
import msgspec

from contracts.records import (
    RULES_VERSION,
    Account,
    Active,
    Audit,
    Auditor,
    Bid,
    Dispute,
    Event,
    Genesis,
    Job,
    Judge,
    Network,
    Reputation,
    Round,
    Spent,
    StateRecord,
    Unit,
    Validator,
)
from gdf_market import identity
from gdf_market.codec import digest, encode
from gdf_market.errors import RuleError, UsageError, ensure
from gdf_market.units import MAX_INT

T = TypeVar("T")
R = TypeVar("R", bound=StateRecord)
Records = immutables.Map[str, StateRecord]
Used = immutables.Map[str, immutables.Map[int, None]]  # nonces by author
Changes = Mapping[str, tuple[StateRecord | None, StateRecord | None]]


def account_key(account: str) -> str:
    return f"account/{account}"


def reputation_key(account: str, device_class: str) -> str:
    return f"reputation/{account}/{device_class}"


def job_key(job: str) -> str:
    return f"job/{job}"


def bid_key(job: str, worker: str) -> str:
    return f"bid/{job}/{worker}"


def round_key(job: str, index: int) -> str:
    return f"round/{job}/{index}"


def unit_key(job: str, index: int, slot: int) -> str:
    return f"unit/{job}/{index}/{slot}"


def audit_key(job: str, index: int, slot: int, auditor: str) -> str:
    return f"audit/{job}/{index}/{slot}/{auditor}"


def unit_key_of(unit: Unit) -> str:
    return unit_key(unit.job, unit.round, unit.slot)


def audit_key_of(audit: Audit) -> str:
    return audit_key(audit.job, audit.round, audit.slot, audit.auditor)


def dispute_key(job: str, index: int, slot: int) -> str:
    return f"dispute/{job}/{index}/{slot}"


def judge_key(job: str, account: str) -> str:
    return f"judge/{job}/{account}"


def validator_key(account: str) -> str:
    return f"validator/{account}"


def auditor_key(account: str) -> str:
    return f"auditor/{account}"


def spent_key(number: int) -> str:
    return f"spent/{number}"


def require(value: T | None, message: str) -> T:
    """Return what an entry refers to; RuleError when it is not there."""
    if value is None:
        raise RuleError(message)
    return value


def present(value: T | None) -> T:
    """Return a record that our own invariants say exists."""
    assert value is not None
    return value


@dataclass(frozen=True)
class BlockContext:
    """What a block adds to its entries; ``beacon`` is 64 hex digits, made after all earlier blocks."""

    height: int
    time_ms: int
    beacon: str
    proposer: str


class View:
    """Typed reading of records; ``State`` and ``Draft`` are views."""

    records: Records

    def get(self, key: str) -> StateRecord | None:
        """Return the record under ``key``, if any."""
        return self.records.get(key)

    def _typed(self, key: str, kind: type[R]) -> R | None:
        record = self.records.get(key)
        assert record is None or isinstance(record, kind), key
        return record

    def account(self, account: str) -> Account:
        """Return an account; one that nobody paid yet is empty."""
        return self._typed(account_key(account), Account) or Account()

    def reputation(self, account: str, device_class: str) -> Reputation:
        """Return an account's record on a device class; empty before its first unit."""
        return self._typed(reputation_key(account, device_class), Reputation) or Reputation()

    def validator(self, account: str) -> Validator | None:
        """Return what is kept of an account that is, will be or was a validator."""
        return self._typed(validator_key(account), Validator)

    def auditor(self, account: str) -> Auditor | None:
        """Return what an account declared about its audits."""
        return self._typed(auditor_key(account), Auditor)

    def network(self) -> Network:
        """Return the constants of the genesis and the current validator set."""
        return present(self._typed("network", Network))

    def active(self) -> Active:
        """Return the index of jobs under way."""
        return present(self._typed("active", Active))

    def job(self, job: str) -> Job | None:
        return self._typed(job_key(job), Job)

    def bid(self, job: str, worker: str) -> Bid | None:
        return self._typed(bid_key(job, worker), Bid)

    def round(self, job: str, index: int) -> Round | None:
        return self._typed(round_key(job, index), Round)

    def unit(self, job: str, index: int, slot: int) -> Unit | None:
        return self._typed(unit_key(job, index, slot), Unit)

    def unit_at(self, key: str) -> Unit:
        """Return the unit of a key in ``Job.unsettled``."""
        return present(self._typed(key, Unit))

    def audit(self, job: str, index: int, slot: int, auditor: str) -> Audit | None:
        return self._typed(audit_key(job, index, slot, auditor), Audit)

    def dispute(self, job: str, index: int, slot: int) -> Dispute | None:
        return self._typed(dispute_key(job, index, slot), Dispute)

    def judge(self, job: str, account: str) -> Judge | None:
        """Return what an account's wrong accusations in a job came to; None if there was none."""
        return self._typed(judge_key(job, account), Judge)


@dataclass(frozen=True)
class State(View):
    """Everything agreed after a block.

    ``used`` is what the ``spent`` records say, by author: an index that is part of no hash.  It is made when it is
    first asked for, unless it is handed on.
    """

    records: Records
    known_used: Used | None = field(default=None, compare=False, repr=False)

    @property
    def used(self) -> Used:
        """The nonces that cannot be used again."""
        if self.known_used is None:
            object.__setattr__(self, "known_used", _compute_used(self.records))
        assert self.known_used is not None
        return self.known_used

    def supply_check(self) -> int:
        """Return the sum of every field that holds credits; equals ``network().supply`` (walks all records)."""
        return sum(map(_credits, self.records.values()))


def _compute_used(records: Records) -> Used:
    used: dict[str, dict[int, None]] = {}
    for record in records.values():
        if isinstance(record, Spent):
            for author, nonce in record.nonces:
                used.setdefault(author, {})[nonce] = None
    return immutables.Map({author: immutables.Map(nonces) for author, nonces in used.items()})


def _credits(record: StateRecord) -> int:
    match record:
        case Account():
            return record.balance + record.stake
        case Job():
            return record.escrow + record.audit_escrow
        case Bid() | Audit():
            return record.bond
        case Unit():
            return record.held_pay + record.held_merit
    return 0


Mark = tuple[Records, Used, int]


class Draft(View):
    """A state under change by one block: records, events, and what was touched."""

    def __init__(self, state: State, context: BlockContext) -> None:
        self.base = state.records
        self.records = state.records
        self.used = state.used
        self.context = context
        self.events: list[Event] = []
        self.entry = ""  # id of the entry being applied
        self.touched_jobs: dict[str, None] = {}  # in order; their wake-up times are computed at the end
        self._touched: dict[str, None] = {}

    @property
    def now(self) -> int:
        """The block's time in milliseconds."""
        return self.context.time_ms

    def put(self, key: str, record: StateRecord) -> None:
        """Set a record."""
        self._touched[key] = None
        self.records = self.records.set(key, record)

    def drop(self, key: str) -> None:
        """Remove a record that exists."""
        self._touched[key] = None
        self.records = self.records.delete(key)

    def update(self, key: str, **changes: Any) -> None:
        """Replace fields of the record that is under ``key`` now."""
        record = present(self.records.get(key))
        self.put(key, cast(StateRecord, msgspec.structs.replace(record, **changes)))

    def mark(self) -> Mark:
        """Return a point to roll back to."""
        return self.records, self.used, len(self.events)

    def rollback(self, mark: Mark) -> None:
        """Forget everything since ``mark``."""
        self.records, self.used, events = mark
        del self.events[events:]

    def changes(self) -> Changes:
        """Return (before, after) of every record that differs from the base, by key."""
        pairs = ((key, (self.base.get(key), self.records.get(key))) for key in sorted(self._touched))
        return {key: pair for key, pair in pairs if pair[0] != pair[1]}


def network_id(genesis: Genesis) -> str:
    """Return the hex id of the network that a genesis founds."""
    return digest("gdf/genesis", encode(genesis)).hex()


def genesis_state(genesis: Genesis) -> State:
    """Return the state before the first block.

    Raises UsageError when an account is listed twice or more credits are
    allocated than fit, PeerError when an account is no usable key.
    """
    accounts = [allocation.account for allocation in genesis.allocations]
    for account in (*accounts, *genesis.validators):
        identity.public_key(account)
    ensure(len(set(accounts)) == len(accounts), UsageError("the genesis allocates credits to one account twice"))
    ensure(len(set(genesis.validators)) == len(genesis.validators), UsageError("the genesis lists one validator twice"))
    supply = sum(allocation.balance + allocation.stake for allocation in genesis.allocations)
    ensure(
        genesis.rules == RULES_VERSION,
        UsageError(f"the network runs version {genesis.rules} of the rules, this program {RULES_VERSION}; update it"),
    )
    ensure(
        genesis.test_network or (genesis.entry_fee > 0 and genesis.staking.bond > 0),
        UsageError(
            f"entries cost {genesis.entry_fee} micro-credits per KiB and a validator's seat {genesis.staking.bond};"
            " both must cost something outside test networks, or strangers fill the blocks and the validator set"
        ),
    )
    ensure(supply <= MAX_INT, UsageError(f"the genesis allocates {supply} micro-credits; at most {MAX_INT} fit"))
    records: dict[str, StateRecord] = {
        account_key(each.account): Account(balance=each.balance, stake=each.stake) for each in genesis.allocations
    }
    records["active"] = Active()
    for account in genesis.validators:
        records[validator_key(account)] = Validator(status="member")
    records["network"] = Network(
        id=network_id(genesis),
        supply=supply,
        test_network=genesis.test_network,
        validators=genesis.validators,
        audit_bond=genesis.audit_bond,
        committee=genesis.committee,
        arbiters=genesis.arbiters,
        max_void_rounds=genesis.max_void_rounds,
        staking=genesis.staking,
        entry_fee=genesis.entry_fee,
    )
    return State(immutables.Map(records))
