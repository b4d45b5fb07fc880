"""Random markets: honest, cheating, silent and hostile actors, random terms and time steps.

Every block is checked by the world (conservation, events, wake-up times,
canonical records, how much of the validator set changed); at the end every job
must have ended with nothing locked, everybody paid once, and pay equal to the
evidence, and the bonds of everybody that left the validator set must return.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from contracts.block import next_wake_ms, select_entries
from contracts.records import Job, Round, Staking
from contracts.views import Action, pending_actions
from gdf_market.messages import (
    SKETCH_DIM,
    ArbiterCommit,
    ArbiterOpen,
    AuditClasses,
    AuditCommit,
    AuditOpen,
    Bid,
    BidWithdraw,
    BisectOpen,
    Commit,
    Entry,
    Evidence,
    Flag,
    JobCancel,
    Opening,
    Receipt,
    Rejected,
    Result,
    Reveal,
    SketchOpen,
    StateOffer,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
)
from gdf_market.statements import FINAL, NOTAR, SKIP
from gdf_market.units import CREDIT, PPM
from tests.contracts_staking import HASH_A, HASH_B, sign_header, sign_vote
from tests.contracts_world import (
    BISECTION,
    Actor,
    World,
    assert_nothing_locked,
    key_of,
    outcome_of,
    text_hash,
)

EXAMPLES = int(os.environ.get("GDF_TEST_EXAMPLES", "40"))
MOST_TURNS = 10  # of so many examples
WORKERS = ("w1", "w2", "w3", "w4")
VALIDATORS = ("val", "val2", "w4")
PLAYERS = (*WORKERS, "val", "val2")
KINDS = (
    "commit",
    "reveal",
    "receipt",
    "result",
    "audit_lottery",
    "audit_targeted",
    "audit_committee",
    "sketch_open",
    "audit_open",
    "bisect_open",
    "state_offer",
    "arbiter_commit",
    "arbiter_open",
)
names = st.sampled_from(PLAYERS)
flavours = st.sampled_from(["", "", "", "cheat", "cheat@2"])
shown = st.sampled_from(["", "", "", "other", "other@2", "third"])  # by auditors and arbiters
skips = st.one_of(
    st.just(frozenset()),
    st.sampled_from([BISECTION, *(frozenset({kind}) for kind in KINDS)]),
    st.frozensets(st.sampled_from(KINDS), max_size=2),
)
declared = st.sampled_from([("cpu-fp32",), ("cpu-bf16", "cpu-fp32"), ("cuda-fp32",)])
excesses = st.sampled_from([None, None, 0, 500_000, 500_000, 50_000_000, 50_000_000])
TROUBLES: list[dict[str, Any]] = [
    {"flavour": "cheat"},
    {"flavour": "cheat@2"},
    {"flavour": "cheat@2", "skips": BISECTION},
    {"audit_excess": lambda unit: 50_000_000},
    {"audit_excess": lambda unit: 500_000},
    {"audit_flavour": "other", "skips": BISECTION},
    {"audit_flavour": "other@2", "arbiter_flavour": "third"},
]  # of one worker and one validator, at the beginning
small = st.integers(0, 3)


class Market(RuleBasedStateMachine):
    """One network, at most three jobs; actors change their behaviour at any time."""

    @initialize(
        bond=st.sampled_from([0, 1, 5 * CREDIT]),
        void=st.integers(0, 3),
        fee=st.sampled_from([0, 0, 1_000]),
        seat=st.sampled_from([0, 7, 7, 100 * CREDIT + 3]),
        blocks=st.sampled_from([1, 6, 12, 12, 40]),
        floor=st.sampled_from([1, 1, 2, 4]),
        trouble=st.sampled_from(TROUBLES),
    )
    def found(
        self, bond: int, void: int, fee: int, seat: int, blocks: int, floor: int, trouble: dict[str, Any]
    ) -> None:
        balances = {name: 300 * CREDIT for name in ("owner", *PLAYERS)} | {"w3": 0}
        staking = Staking(epoch_blocks=blocks, bond=seat, floor=floor, silent_epochs=2, evidence_epochs=3)
        terms = {"audit_bond": bond, "max_void_rounds": void, "entry_fee": fee, "staking": staking}
        self.world = World(balances, VALIDATORS, terms, rotates=True)
        self.world.cast(*(Actor(name, lottery=True) for name in PLAYERS))
        self.world.cast(*(Actor(name, **trouble) for name in ("w1", "val")))
        self.jobs: list[str] = []

    # actors

    @rule(name=names, flavour=flavours, skip=skips, excess=excesses, audit=shown, arbiter=shown)
    def behave(
        self, name: str, flavour: str, skip: frozenset[str], excess: int | None, audit: str, arbiter: str
    ) -> None:
        claim = None if excess is None else lambda unit: excess
        shows = {"audit_flavour": audit, "arbiter_flavour": arbiter}
        self.world.cast(Actor(name, flavour=flavour, skips=skip, lottery=True, audit_excess=claim, **shows))

    @precondition(lambda self: self.jobs)
    @rule(name=st.sampled_from(["owner", *PLAYERS]), which=small, classes=declared)
    def volunteer(self, name: str, which: int, classes: tuple[str, ...]) -> None:
        """Challenge the first unit that can be, and open what was committed to; or declare what one can audit."""
        actor = self.world.actors.get(name) or Actor(name)
        self.world.cast(actor)
        for key in self.world.job(self.job_at(which)).unsettled:
            unit = self.world.state.unit_at(key)
            entry = self.world.act(actor, Action("audit_challenge", unit.job, unit.round, unit.slot, 0))
            assert entry is not None
            if self.offer(entry):
                return
        self.offer(self.world.entry(name, AuditClasses, classes=classes))

    @precondition(lambda self: len(self.jobs) < 3)
    @rule(
        units=st.integers(1, 4),
        rounds=st.integers(1, 3),
        least=st.integers(1, 2),
        price=st.sampled_from([1, 7, 3 * CREDIT]),
        bond=st.sampled_from([0, 5, 5, 2 * CREDIT + 1]),
        merit=st.sampled_from([0, 1, 333_333, PPM]),
        fee=st.sampled_from([0, 3, CREDIT, CREDIT]),
        budget=st.sampled_from([0, 4, 20 * CREDIT, 20 * CREDIT]),
        hold=st.sampled_from([1, 5_000, 120_000]),
        life=st.sampled_from([30_000, 3_600_000]),
    )
    def post(self, life: int, **terms: int) -> None:
        entry = self.world.job_entry(
            units_per_round=terms["units"],
            rounds=terms["rounds"],
            min_workers=min(terms["least"], terms["units"]),
            reserve_price=terms["price"],
            unit_bond=terms["bond"],
            merit_ppm=terms["merit"],
            audit_fee=terms["fee"],
            audit_budget=terms["budget"],
            hold_ms=terms["hold"],
            bid_ms=60_000,
            deadline_ms=self.world.time_ms + life,
        )
        if self.offer(entry):
            self.jobs.append(entry.id)
            for part, name in enumerate(WORKERS, 1):
                self.bid(name, len(self.jobs) - 1, part, 2)
            self.act(12)

    @precondition(lambda self: self.jobs)
    @rule(name=names, which=small, part=st.integers(1, 4), units=st.integers(1, 4))
    def bid(self, name: str, which: int, part: int, units: int) -> None:
        job = self.world.job(self.job_at(which))
        price = max(1, job.spec.reserve_price * part // 4)
        self.offer(
            self.world.entry(name, Bid, job=job.id, price=price, units=units, device_class=job.spec.device_class)
        )

    @precondition(lambda self: self.jobs)
    @rule(name=names, which=small)
    def withdraw(self, name: str, which: int) -> None:
        self.offer(self.world.entry(name, BidWithdraw, job=self.job_at(which)))

    @precondition(lambda self: self.jobs)
    @rule(which=small, name=st.sampled_from(["owner", "owner", "w1"]), blocks=st.sampled_from([0, 20]))
    def cancel(self, which: int, name: str, blocks: int) -> None:
        live = [job for job in self.jobs if self.world.job(job).status in ("bidding", "running")] or self.jobs
        self.offer(self.world.entry(name, JobCancel, job=live[which % len(live)]))
        for _ in range(blocks):  # what is held is settled, or forfeited, after a while
            self.world.block(dt=10_000)

    @rule(source=st.sampled_from(["owner", *PLAYERS]), to=names, amount=st.integers(1, 400 * CREDIT))
    def transfer(self, source: str, to: str, amount: int) -> None:
        self.offer(self.world.entry(source, Transfer, to=key_of(to).account, amount=amount, memo=""))

    # time and honest work

    @rule(turns=st.integers(5, 30))
    def act(self, turns: int) -> None:
        for _ in range(turns):
            selected, _ = select_entries(self.world.state, self.world.due(), self.world.context())
            if selected:
                self.world.block(*selected)
            elif next_wake_ms(self.world.state) is not None:
                self.world.wake()

    @rule(dt=st.sampled_from([0, 1, 999, 5_000, 20_000, 70_000]), blocks=st.sampled_from([1, 1, 1, 20]))
    def pass_time(self, dt: int, blocks: int) -> None:
        for _ in range(blocks):
            self.world.block(dt=dt // blocks)

    # hostility: well-formed entries that say anything

    @precondition(lambda self: self.jobs)
    @rule(name=names, which=small, index=small, slot=small, kind=st.integers(0, 10), salt=small)
    def lie(self, name: str, which: int, index: int, slot: int, kind: int, salt: int) -> None:
        world, job = self.world, self.job_at(which)
        where = {"job": job, "round": index, "slot": slot}
        noise, proof, sketch = text_hash("noise", salt), "00" * 80, (salt,) * SKETCH_DIM
        measured = {"state_distance_ppb": 0, "excess_ppb": 0, "sketch": sketch, "seeded": sketch}
        outcome = {"checkpoint": noise, "rejected": (), "merit_ppm": (PPM,), "cosine_ppm": (0,), "flags": ()}
        entries = [
            lambda: world.entry(name, Commit, **where, digest=noise),
            lambda: world.entry(name, Reveal, **where, update=noise, proof=proof, sketch_root=noise, salt=noise),
            lambda: world.entry(name, Receipt, job=job, round=index, holds=tuple(range(salt))),
            lambda: world.entry(
                name,
                Result,
                job=job,
                round=index,
                outcome=outcome_of(_AnyRound, included=(slot,), suspicion=(slot,), **outcome),
                loss_e6=-1,
            ),
            lambda: world.entry(name, AuditCommit, **where, role="targeted", proof="", digest=noise),
            lambda: world.entry(name, SketchOpen, **where, openings=()),
            lambda: world.entry(
                name, AuditOpen, **where, excess_ppb=0, distance_ppb=0, sketch_root=noise, salt=noise, openings=()
            ),
            lambda: world.entry(name, BisectOpen, **where, opening=Opening(step=salt, sketch=sketch, path=())),
            lambda: world.entry(name, StateOffer, **where, state=noise),
            lambda: world.entry(name, ArbiterCommit, **where, digest=noise),
            lambda: world.entry(name, ArbiterOpen, **where, **measured, salt=noise),
        ]
        self.offer(entries[kind]())

    @precondition(lambda self: self.jobs)
    @rule(which=small, rejected=small, flag=st.sampled_from(["twin-differs", "duplicate", "outlier"]), merit=small)
    def agree_on_something_odd(self, which: int, rejected: int, flag: str, merit: int) -> None:
        """All attesters vote for one outcome that rejects, flags and shares as it likes."""
        job = self.world.job(self.job_at(which))
        round_ = self.world.state.round(job.id, job.round)
        if round_ is None or round_.phase != "result" or rejected not in round_.included:
            return
        included = tuple(slot for slot in round_.included if slot != rejected)
        outcome = outcome_of(
            msgspec.structs.replace(round_, included=included or (0,)),
            included=included,
            rejected=(Rejected(slot=rejected, reason="norm"),),
            merit_ppm=tuple(PPM if place == merit else 0 for place in range(len(included))),
            cosine_ppm=tuple(0 for _ in included),
            suspicion=included,
            flags=tuple(Flag(slot=a, other=included[0], reason=flag, value_ppm=0) for a in included),
        )
        for name in PLAYERS:
            if key_of(name).account in round_.attesters:
                fields = {"job": job.id, "round": round_.index, "outcome": outcome, "loss_e6": 5}
                self.offer(self.world.entry(name, Result, **fields))

    @rule(salt=st.integers(0, 50))
    def repeat(self, salt: int) -> None:
        """An entry that was in a block before is never taken again."""
        if self.world.entries:
            old = self.world.entries[salt % len(self.world.entries)]
            assert not self.offer(old)

    def job_at(self, which: int) -> str:
        return self.jobs[which % len(self.jobs)]

    def offer(self, entry: Entry) -> bool:
        """Put an entry into the next block if the rules take it; whatever it is, they refuse it cleanly."""
        selected, refused = select_entries(self.world.state, [entry], self.world.context(10))
        assert len(selected) + len(refused) == 1
        if selected:
            self.world.block(entry, dt=10)
        return bool(selected)

    # what must hold

    @invariant()
    def nobody_is_asked_for_what_would_be_refused(self) -> None:
        if not hasattr(self, "world"):
            return
        for name in ("val", "w1"):
            actions = pending_actions(self.world.state, key_of(name).account, self.world.time_ms)
            assert len({(a.kind, a.job, a.round, a.slot) for a in actions}) == len(actions)
            assert all(action.deadline_ms > self.world.time_ms for action in actions)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        # everybody falls silent: time alone must end every job
        wakes = 0
        while world.state.active().jobs:
            world.wake()
            wakes += 1
            assert wakes < 2_000
        assert_nothing_locked(world)
        for job_id in self.jobs:
            check_ended(world, world.job(job_id))
        check_bonds_return(world)
        SEEN.update(f"{event.kind} {event.reason}" for event in world.events)


class Republic(Market):
    """A market whose validator set changes, too: members come, go, fall silent and sign what convicts them."""

    @rule(name=names, turns=st.integers(1, 2), odd=st.booleans())
    def move(self, name: str, turns: int, odd: bool) -> None:
        """Join, or leave where one has a place (the odd ones try the other thing)."""
        for _ in range(turns):
            outside = self.world.state.validator(key_of(name).account) is None
            self.offer(self.world.entry(name, ValidatorJoin if outside != (odd and turns == 1) else ValidatorLeave))

    @rule(name=names)
    def fall_silent_or_come_back(self, name: str) -> None:
        self.world.down = self.world.down ^ {key_of(name).account}
        for _ in range(min(24, 2 * self.world.genesis.staking.epoch_blocks)):
            self.world.block(dt=50)

    @rule(
        author=st.sampled_from(["owner", *PLAYERS]),
        name=names,
        back=st.sampled_from([0, 0, 0, 1, 3, 4, -1]),
        kinds=st.sampled_from(
            [(NOTAR, NOTAR), (FINAL, SKIP), ("header", "header"), (NOTAR, FINAL), (NOTAR, SKIP), ("header", FINAL)]
        ),
        hash=st.sampled_from([HASH_A, HASH_B, HASH_B]),
        slot=st.integers(1, 3),
    )
    def accuse(self, author: str, name: str, back: int, kinds: tuple[str, str], hash: str, slot: int) -> None:
        """Bring evidence that may be none, or about an epoch that is over, or against nobody who could be punished."""
        world, key = self.world, key_of(name)
        where = {"epoch": max(0, world.state.network().epoch - back), "slot": slot}
        statements = [
            sign_header(key, world.network, parent=at, **where)
            if kind == "header"
            else sign_vote(key, world.network, kind, "" if kind == SKIP else at, **where)
            for kind, at in zip(kinds, (HASH_A, hash), strict=True)
        ]
        self.offer(world.entry(author, Evidence, first=statements[0], second=statements[1]))


def check_bonds_return(world: World) -> None:
    """Let the evidence window of everybody that is out of the set pass; then only members and candidates are bound."""
    leavers = world.state.network().unlocking
    world.check = False  # hundreds of empty blocks
    world.down = set()
    for _ in range((1 + world.genesis.staking.evidence_epochs) * world.genesis.staking.epoch_blocks):
        world.block()
    network = world.state.network()
    assert not set(leavers) & set(network.unlocking)
    bound = {*network.validators, *network.candidates, *network.unlocking}
    for account in leavers:
        assert account in bound or world.state.account(account).stake == 0
    assert world.state.supply_check() == network.supply


class _AnyRound:
    """Stands for a round where an outcome is made up."""

    index = 0
    included = (0,)


def check_ended(world: World, job: Job) -> None:
    """Check that a job ended in bounded time and that pay equals the evidence."""
    spec = job.spec
    # each step of an audit or dispute takes audit_ms; their number per unit is limited
    assert job.ended_ms <= max(spec.deadline_ms, job.posted_ms) + spec.hold_ms + 30 * spec.audit_ms + 100_000
    assert job.status in ("done", "cancelled", "expired")
    paid: Counter[tuple[int, int]] = Counter()
    for event in world.events:
        if event.job == job.id and event.kind in ("paid", "merit") and event.source == "held":
            paid[(event.round, event.slot)] += event.amount
            if event.kind == "paid":
                assert event.amount == world.round(job.id, event.round).price
    settled = [world.round(job.id, index) for index in range(job.round)]
    assert job.completed == sum(round_.phase == "settled" for round_ in settled)
    total = 0
    for round_ in settled:
        total += check_round(world, round_, paid)
    assert total == sum(paid.values())
    locked = sum(escrow for escrow in (e.amount for e in world.events if e.job == job.id and e.kind == "escrow"))
    flows = Counter[str]()
    for event in world.events:
        if event.job == job.id:
            flows[event.target] += event.amount
            flows[event.source] -= event.amount
    assert flows["escrow"] == flows["audit_escrow"] == flows["held"] == flows["bond"] == 0
    assert job.refunded >= 0
    assert locked >= total


def check_round(world: World, round_: Round, paid: Counter[tuple[int, int]]) -> int:
    """Return what a round's units were paid; each paid unit is in the agreed outcome, revealed, and not convicted."""
    total = 0
    for slot in round_.units:
        unit = world.unit(round_.job, round_.index, slot)
        assert unit.paid == paid[(round_.index, slot)]
        assert unit.held_pay == unit.held_merit == 0
        assert unit.status in ("missed", "rejected", "convicted", "paid")
        dispute = world.state.dispute(round_.job, round_.index, slot)
        if unit.status == "paid":
            assert round_.outcome is not None
            assert slot in round_.outcome.included
            assert slot in round_.included
            assert unit.update
            assert dispute is None or dispute.status in ("cleared", "unresolved", "refuted")
            total += unit.paid
        else:
            assert unit.paid == 0
        if dispute is not None and dispute.status == "convicted":
            assert unit.status == "convicted"
            bid = world.state.bid(round_.job, unit.worker)
            assert bid is not None
            assert bid.reason.startswith("convicted")
        for auditor in unit.auditors:
            audit = world.state.audit(round_.job, round_.index, slot, auditor)
            assert audit is not None
            assert audit.bond == 0
            assert audit.status in ("opened", "late", "void", "refuted")
            assert auditor != unit.worker
    return total


SEEN: Counter[str] = Counter()
ENDINGS = {
    *("paid", "merit", "missed", "rejected", "convicted", "slashed", "forfeited", "returned", "refund", "audit"),
    *("fee", "epoch"),
    *("job done", "job expired", "job cancelled", "verdict pass", "verdict fail", "verdict grey", "phase void"),
    *("dispute halving", "dispute offering", "dispute replaying", "dispute opening", "dispute refuted"),
    *("dispute convicted", "dispute cleared", "dispute unresolved", "dispute committee: ", "audit arbiter's fee"),
    *("auditing challenge", "auditor"),
}


CHANGES = {
    *(
        "bond",
        "validator waits",
        "validator joined",
        "validator left; ",
        "returned left",
        "returned the bond is unlocked",
    ),
    *("slashed reward", "slashed shared", "evicted made no block", "evicted signed", "convicted signed", "paid", "fee"),
}


def run(machine: type[Market], endings: set[str]) -> None:
    """Try the same markets on every run, more and more of them until all endings were seen."""
    SEEN.clear()
    missing = endings
    for turn in range(MOST_TURNS):
        run_state_machine_as_test(
            seed(turn)(machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=50,
                deadline=None,
                database=None,
                phases=(Phase.generate,),  # shrinking a market of hundreds of blocks takes longer than reading it
                suppress_health_check=list(HealthCheck),
            ),
        )
        missing = {ending for ending in endings if not any(seen.startswith(ending) for seen in SEEN)}
        if not missing:
            return
    # a machine that never gets there would prove little
    raise AssertionError(f"never seen: {sorted(missing)}; seen: {SEEN}")


def test_random_markets_keep_the_rules() -> None:
    run(Market, ENDINGS)


def test_random_validator_sets_keep_the_rules() -> None:
    run(Republic, CHANGES)
