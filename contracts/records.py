"""What the ledger's state is made of: one immutable record per key.

Keys are text; ``account/<id>``, ``reputation/<id>/<class>``, ``job/<id>``,
``bid/<job>/<account>``, ``round/<job>/<n>``, ``unit/<job>/<n>/<slot>``,
``audit/<job>/<n>/<slot>/<account>``, ``dispute/<job>/<n>/<slot>``,
``judge/<job>/<account>``, ``spent/<n>``, ``validator/<account>``, ``auditor/<account>`` and the singletons
``network`` and ``active``.
Credits live in exactly these fields: Account.balance, Account.stake,
Job.escrow, Job.audit_escrow, Bid.bond, Unit.held_pay, Unit.held_merit and
Audit.bond.  Their sum is the supply fixed by the genesis.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from contracts.parameters import ARBITERS, COMMITTEE_SIZE, MAX_PANEL
from gdf_market.codec import AccountId, Hash, Int, Positive, Ppm, Record, Text, UInt
from gdf_market.messages import JobPost, Outcome

RULES_VERSION = 4  # raised whenever a change of contracts/ could give another state for the same blocks


Panel = Annotated[int, msgspec.Meta(ge=1, le=MAX_PANEL)]


class Allocation(Record, frozen=True, kw_only=True):
    """Credits that one account has at genesis; ``stake`` is locked as a validator's bond."""

    account: AccountId
    balance: UInt
    stake: UInt


class Staking(Record, frozen=True, kw_only=True):
    """How the validator set changes; the set of an epoch is computed in the last block of the one before."""

    epoch_blocks: Positive = 1_000  # blocks per epoch
    bond: UInt = 0  # micro-credits that a joining validator locks
    floor: Positive = 1  # members that leaving, or the eviction of silent ones, does not take the set below
    silent_epochs: Positive = 3  # epochs in a row without a block of its own that evict a validator
    evidence_epochs: Positive = 24  # for so many epochs an equivocation is punished and a left bond stays locked


class Genesis(Record, frozen=True, kw_only=True):
    """The first agreement of a network; its canonical bytes hash to the network id."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"\A[a-z0-9][a-z0-9-]*\Z")]
    test_network: bool
    time_ms: UInt
    allocations: Annotated[tuple[Allocation, ...], msgspec.Meta(min_length=1, max_length=1_000)]
    validators: Annotated[tuple[AccountId, ...], msgspec.Meta(min_length=1, max_length=100)]
    block_ms: UInt  # least time between two blocks that carry entries
    heartbeat_ms: UInt  # an idle network makes one block in this time
    audit_bond: UInt  # micro-credits an auditor locks for each audit
    committee: Panel = COMMITTEE_SIZE  # members that re-execute a unit in dispute, if so many can be drawn
    arbiters: Panel = ARBITERS  # who replay the one step that a bisection found
    max_void_rounds: UInt  # rounds in a row without a result before a job expires
    staking: Staking = Staking()
    entry_fee: UInt = 0  # micro-credits per started KiB of an entry that pays a fee (docs/rules.md, Fees)
    rules: UInt = RULES_VERSION  # version of the contract rules that this network runs


class Account(Record, frozen=True, kw_only=True):
    balance: UInt = 0
    stake: UInt = 0


class Reputation(Record, frozen=True, kw_only=True):
    """Consecutive valid units of an account on one device class, and totals."""

    consecutive: UInt = 0
    valid: UInt = 0
    invalid: UInt = 0


class Network(Record, frozen=True, kw_only=True):
    """Constants from the genesis that rules read, the fixed supply, and the validator set of the current epoch."""

    id: Hash
    supply: UInt
    test_network: bool
    validators: tuple[AccountId, ...]  # ordered; agrees on the blocks of ``epoch``
    epoch: UInt = 0
    candidates: tuple[AccountId, ...] = ()  # waiting for a seat, in the order of joining
    leaving: tuple[AccountId, ...] = ()  # members that give up their seat, in the order in which they asked
    unlocking: tuple[AccountId, ...] = ()  # accounts that left, whose bond is still locked
    audit_bond: UInt
    committee: Panel
    arbiters: Panel
    max_void_rounds: UInt
    staking: Staking
    entry_fee: UInt


class Validator(Record, frozen=True, kw_only=True):
    """An account that is, waits to be, or was a validator and still has a locked bond (Account.stake)."""

    status: str  # candidate | member | unlocking
    since_epoch: UInt = 0  # in which it got its status
    proposed_epoch: UInt = 0  # the last epoch in which it proposed a finalized block (its first one counts)
    silent: UInt = 0  # epochs in a row without one
    unlock_epoch: UInt = 0  # when an unlocking bond returns
    convicted: bool = False  # of equivocation: its bond is slashed, and it leaves the set at the end of the epoch


class Auditor(Record, frozen=True, kw_only=True):
    """What an account declared: the device classes whose units it can audit."""

    classes: tuple[str, ...]


class Active(Record, frozen=True, kw_only=True):
    """Index: jobs that are not ended, in posting order; ``spent/<n>`` exists for spent_first <= n < spent_next."""

    jobs: tuple[Hash, ...] = ()
    spent_first: UInt = 0
    spent_next: UInt = 0


class Spent(Record, frozen=True, kw_only=True):
    """The (author, nonce) pairs that one block used: forgotten together once none of its entries could come again."""

    time_ms: UInt  # of the block
    nonces: tuple[tuple[AccountId, UInt], ...]


class Target(Record, frozen=True, kw_only=True):
    """A unit that must be audited, by the auditor the beacon named; redrawn if it fails to act."""

    slot: UInt
    auditor: AccountId
    attempt: UInt = 0
    phase_end_ms: UInt
    status: str = "pending"  # pending | done | dropped


class Bid(Record, frozen=True, kw_only=True):
    """``status``: open | matched | closed; ``reason`` says why it is closed or not matched."""

    job: Hash
    worker: AccountId
    price: UInt
    units: UInt
    device_class: str
    bond: UInt  # locked now
    status: str
    reason: Text = ""
    misses: UInt = 0  # rounds in a row with a missed deadline
    leaving: bool = False
    unsettled: UInt = 0  # units of this worker with held pay; the bond stays while there are any
    entry: Hash


class Job(Record, frozen=True, kw_only=True):
    """``status``: open | bidding | running | draining | done | cancelled | expired.

    ``slots[i]`` is the worker of slot i ("" if vacant).  ``draining`` means no
    more rounds start and held pay waits for its audits.
    """

    id: Hash
    spec: JobPost
    status: str
    ending: str = ""  # "" | done | cancelled | expired: what the job becomes once drained
    reason: Text = ""
    posted_ms: UInt
    phase_end_ms: UInt  # end of the bidding window
    escrow: UInt
    audit_escrow: UInt
    clearing_price: UInt = 0
    bidders: tuple[AccountId, ...] = ()  # every account with a Bid record, in bidding order
    slots: tuple[str, ...] = ()
    round: UInt = 0  # index of the current (or next) round
    completed: UInt = 0  # rounds with an agreed outcome
    void_in_row: UInt = 0
    alert_round: UInt = (
        0  # from this round on, audits are denser for a while: the one after the last conviction; 0: none
    )
    checkpoint: Hash
    unsettled: tuple[str, ...] = ()  # keys of units with held pay or open audits
    wake_ms: UInt = 0  # earliest block time at which advance changes something here
    ended_ms: UInt = 0
    refunded: UInt = 0


class Round(Record, frozen=True, kw_only=True):
    """``phase``: work | reveal | receipt | result | settled | void."""

    job: Hash
    index: UInt
    phase: str
    started_ms: UInt
    phase_end_ms: UInt
    seed: Hash  # draws shards
    checkpoint: Hash  # what the round starts from
    price: UInt  # clearing price of the round
    units: tuple[UInt, ...]  # slots at work in this round
    done: UInt = 0  # rounds of the job that were completed when it began
    audit_seed: str = ""  # draws audits; set when the commits are final
    attesters: tuple[AccountId, ...] = ()
    receipts: tuple[tuple[AccountId, tuple[UInt, ...]], ...] = ()
    results: tuple[tuple[AccountId, Hash], ...] = ()  # attester, hash of its outcome
    outcomes: tuple[tuple[Hash, Outcome], ...] = ()  # distinct outcomes seen
    losses: tuple[tuple[AccountId, Int], ...] = ()
    included: tuple[UInt, ...] = ()  # slots held by more than two thirds of the attesters
    outcome: Outcome | None = None
    targets: tuple[Target, ...] = ()
    ended_ms: UInt = 0
    reason: Text = ""


class Unit(Record, frozen=True, kw_only=True):
    """``status``: assigned | committed | revealed | accepted | missed | rejected | convicted | paid."""

    job: Hash
    round: UInt
    slot: UInt
    worker: AccountId
    status: str
    reason: Text = ""
    commit: str = ""
    update: str = ""
    shard: UInt = 0
    sketch_root: str = ""
    rows: UInt = 0  # of a batch that the worker computed at once; 0 for all
    processes: UInt = 1  # that it divided each batch over
    audit_chance_ppm: Ppm = 0
    held_pay: UInt = 0
    held_merit: UInt = 0
    paid: UInt = 0
    release_ms: UInt = 0
    auditors: tuple[AccountId, ...] = ()
    openings_digest: str = ""  # set when the worker opened its sketches


class Audit(Record, frozen=True, kw_only=True):
    """``status``: committed | opened | late | void | refuted.  ``verdict``: "" | pass | grey | fail | silent.

    ``role``: lottery | targeted | committee | challenge.  ``silent``: the worker did not open.  ``refuted``: arbiters
    found that the auditor's own run is wrong.  An audit is pending while it is
    committed or opened and has no verdict.
    """

    job: Hash
    round: UInt
    slot: UInt
    auditor: AccountId
    role: str
    digest: Hash
    bond: UInt
    committed_ms: UInt
    phase_end_ms: UInt = 0
    steps: tuple[UInt, ...] = ()  # steps to open, chosen by the beacon after the commit
    worker_sketches: tuple[tuple[Int, ...], ...] = ()
    auditor_sketches: tuple[tuple[Int, ...], ...] = ()
    worker_opened: bool = False
    sketch_root: str = ""  # of the auditor's tree, once opened
    status: str
    verdict: str = ""
    excess_ppb: UInt = 0
    distance_ppb: UInt = 0
    sketch_distance_ppb: UInt = 0
    fee: UInt = 0


class Side(Record, frozen=True, kw_only=True):
    """What the worker or the accuser showed in a bisection; a sketch is () until it is known."""

    low: tuple[Int, ...] = ()  # its sketch at ``Bisection.low``; () for the checkpoint
    middle: tuple[Int, ...] = ()
    high: tuple[Int, ...] = ()  # its sketch at ``Bisection.high``; () where that is the encoding
    state: str = ""  # blob id of its state after step ``Bisection.low``


class Arbiter(Record, frozen=True, kw_only=True):
    """One of those who replay the step in question.  ``finding``: whose claim it supports, "" for nobody's."""

    account: AccountId
    digest: str = ""  # "" until it committed
    opened: bool = False
    state_distance_ppb: UInt = 0
    excess_ppb: UInt = 0
    sketch: tuple[Int, ...] = ()
    seeded: tuple[Int, ...] = ()
    finding: str = ""  # worker | accuser | ""
    fee: UInt = 0


class Bisection(Record, frozen=True, kw_only=True):
    """The search for the first step on which worker and accuser differ; ``phase``: halving | offering | replaying |
    opening.

    They agree up to step ``low`` (-1: the checkpoint) and not at ``high`` (the number of steps: the encoding of the
    final state).  ``seed`` chooses the arbiters' second projection; it is drawn after the states were named.
    """

    phase: str
    low: Int
    high: UInt
    turns: UInt = 0  # halvings so far
    worker: Side
    accuser: Side
    seed: str = ""
    arbiters: tuple[Arbiter, ...] = ()


class Dispute(Record, frozen=True, kw_only=True):
    """``status``: bisecting | refuted | committing | opening | convicted | cleared | unresolved.

    ``refuted``: the accuser was wrong, and the unit is as if it had never been accused.
    """

    job: Hash
    round: UInt
    slot: UInt
    accuser: AccountId
    committee: tuple[AccountId, ...]
    opened_ms: UInt
    phase_end_ms: UInt
    attempt: UInt = 0
    status: str
    reason: Text = ""
    bisection: Bisection | None = None  # of the last accuser whose verdict was fail


class Judge(Record, frozen=True, kw_only=True):
    """What an account's accusations in a job have come to; there is none for those that were never wrong.

    ``barred``: it judges no unit of the job any more.
    """

    job: Hash
    account: AccountId
    doubts: UInt = 0  # grey accusations that a committee cleared
    barred: bool = False
    reason: Text = ""


class Event(Record, frozen=True, kw_only=True):
    """Something that happened to money or status while a block was applied; kept for the explorer.

    ``kind`` examples: transfer, escrow, bid, matched, unmatched, round, phase,
    accepted, missed, rejected, held, paid, merit, audit, returned, forfeited,
    convicted, barred, slashed, refund, job, fee, auditor, validator, evicted, epoch.  ``amount`` is
    micro-credits moved from ``source`` to ``target`` (account ids or the pots
    ``escrow``, ``audit_escrow``, ``bond``, ``held``, ``stake``), 0 if none.  A pot
    belongs to the event's job; ``held`` is that of the unit at (round, slot);
    ``bond`` is the bid's bond of ``account``, or, where ``round`` is not -1, the
    bond of ``account``'s audit of that unit; ``stake`` is ``account``'s bond as a validator.
    """

    kind: str
    job: str = ""
    round: Int = -1
    slot: Int = -1
    account: str = ""
    source: str = ""
    target: str = ""
    amount: UInt = 0
    reason: str = ""
    entry: str = ""  # the entry that caused it; "" if a deadline or the beacon did


StateRecord = (
    Account
    | Reputation
    | Network
    | Validator
    | Auditor
    | Active
    | Spent
    | Bid
    | Job
    | Round
    | Unit
    | Audit
    | Dispute
    | Judge
)
