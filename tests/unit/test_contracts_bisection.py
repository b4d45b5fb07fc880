"""Bisection: the step in question is found, arbiters replay it, and who pays when one side is wrong or silent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from contracts.bisection import (
    ACCUSER,
    NOBODY,
    WORKER,
    compute_bounds,
    compute_finding,
    compute_half,
    compute_ruling,
    get_middle,
    is_found,
)
from contracts.disputes import is_undecided
from contracts.parameters import MAX_AUDITS_PER_UNIT, MAX_REDRAWS, thresholds
from contracts.records import Arbiter, Audit, Bisection, Dispute, Side, Unit
from contracts.views import Action, pending_actions
from gdf_market.messages import (
    MAX_STEPS,
    SKETCH_DIM,
    ArbiterCommit,
    ArbiterOpen,
    AuditCommit,
    BisectOpen,
    Entry,
    StateOffer,
)
from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    BISECTION,
    STEPS,
    Actor,
    World,
    act_bisect_open,
    arbiter_fields,
    cast_all,
    key_of,
    make_world,
    open_steps,
    play_to,
    play_to_end,
    start,
    text_hash,
)

VALIDATORS = ("val", "val2", "val3", "val4", "val5")
NAMES = ("w1", "w2", "w3", *VALIDATORS, "other")
FAIL, GREY = 50_000_000, 500_000
LIMITS = thresholds("cpu-fp32")
QUIET = frozenset({"audit_lottery", "audit_committee"})


def name_of(account: str) -> str:
    return next(name for name in NAMES if key_of(name).account == account)


def says(excess: int) -> Callable[[Unit], int]:
    return lambda unit: excess


def dispute_of(world: World, job: str) -> Dispute:
    dispute = world.state.dispute(job, 0, 0)
    assert dispute is not None
    return dispute


def bisection_of(world: World, job: str) -> Bisection:
    bisection = dispute_of(world, job).bisection
    assert bisection is not None
    return bisection


def in_dispute(world: World, flavour: str = "", **auditing: object) -> str:
    """Return a job whose unit in slot 0 (w1's, of a flavour) was accused by its targeted auditor; nobody acts now."""
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=QUIET, **auditing)
    world.cast(Actor("w1", flavour=flavour, skips=QUIET))
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    return job


def accuser_of(world: World, job: str) -> str:
    return name_of(dispute_of(world, job).accuser)


def play_to_phase(world: World, job: str, phase: str) -> Bisection:
    world.play(lambda: bisection_of(world, job).phase == phase)
    return bisection_of(world, job)


def play_out(world: World, job: str) -> Dispute:
    """Let the actors act until the bisection is over."""
    world.play(lambda: dispute_of(world, job).status != "bisecting")
    return dispute_of(world, job)


def arbiters_of(world: World, job: str) -> list[str]:
    return [name_of(arbiter.account) for arbiter in bisection_of(world, job).arbiters]


# the search, by itself


def flat(value: int) -> tuple[int, ...]:
    return (value,) * SKETCH_DIM


def audit_with(steps: tuple[int, ...], worker: list[int], accuser: list[int]) -> Audit:
    return Audit(
        job="aa" * 32,
        round=0,
        slot=0,
        auditor=key_of("val").account,
        role="lottery",
        digest="aa" * 32,
        bond=0,
        committed_ms=0,
        steps=steps,
        status="opened",
        worker_sketches=tuple(map(flat, worker)),
        auditor_sketches=tuple(map(flat, accuser)),
    )


@pytest.mark.parametrize(
    ("worker", "low", "high"),
    [
        ([10, 20, 30], 19, 20),  # all agree: the encoding
        ([10, 20, 99], 7, 19),
        ([10, 99, 30], 3, 7),  # the first that differs counts, though a later one agrees
        ([10, 99, 99], 3, 7),
        ([99, 20, 30], -1, 3),
    ],
)
def test_the_search_begins_between_the_opened_steps(worker: list[int], low: int, high: int) -> None:
    found = compute_bounds(audit_with((3, 7, 19), worker, [10, 20, 30]), 20, LIMITS.sketch_accept)
    assert (found.low, found.high, found.turns) == (low, high, 0)
    assert found.accuser.low == (flat({3: 10, 7: 20, 19: 30}[low]) if low >= 0 else ())
    assert found.worker.high == (flat({3: worker[0], 7: worker[1], 19: worker[2]}[high]) if high < 20 else ())


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 100, MAX_STEPS])
def test_the_first_false_step_is_found_in_log2_turns(steps: int) -> None:
    for first in {0, 1, steps // 3, steps - 1} & set(range(steps)):
        worker = [step + 1 if step < first else -step - 1 for step in range(steps)]
        search = Bisection(
            phase="halving",
            low=-1,
            high=steps - 1,
            worker=Side(high=flat(worker[-1])),
            accuser=Side(high=flat(steps)),
        )
        while not is_found(search):
            middle = get_middle(search)
            assert search.low < middle < search.high
            opened = msgspec.structs.replace(
                search,
                worker=msgspec.structs.replace(search.worker, middle=flat(worker[middle])),
                accuser=msgspec.structs.replace(search.accuser, middle=flat(middle + 1)),
            )
            search = compute_half(opened, LIMITS.sketch_accept)
        assert (search.low, search.high) == (first - 1, first)
        assert search.turns <= steps.bit_length()
        assert search.worker.high == flat(worker[first])
        assert search.accuser.low == (flat(first) if first else ())


# what a replay says


def found_at(low: int, high: int, worker: int, accuser: int) -> Bisection:
    """Return a search that is over: both have 1000 after ``low``, and these values at ``high``."""
    before = flat(1_000) if low >= 0 else ()
    return Bisection(
        phase="opening",
        low=low,
        high=high,
        worker=Side(low=before, high=flat(worker)),
        accuser=Side(low=before, high=flat(accuser)),
    )


def shown(sketch: int, *, seeded: int | None = None, distance: int = 0, excess: int = 0, name: str = "val") -> Arbiter:
    return Arbiter(
        account=key_of(name).account,
        digest="aa" * 32,
        opened=True,
        state_distance_ppb=distance,
        excess_ppb=excess,
        sketch=flat(sketch),
        seeded=flat(sketch if seeded is None else seeded),
    )


@pytest.mark.parametrize(
    ("worker", "accuser", "finding"),
    [
        (2_000, 3_000, WORKER),
        (3_000, 2_000, ACCUSER),
        (1_000, 2_000, ACCUSER),  # the worker left the step out
        (2_000, 2_000, NOBODY),  # both are right: there was nothing to accuse
        (3_000, 3_000, NOBODY),  # both are wrong
        (2_100, 2_000, ACCUSER),  # a learning rate of 1.1 is a tenth of a step
        (2_000, 2_100, WORKER),
        (2_010, 2_000, NOBODY),  # a hundredth is no proof
        (2_000, 2_010, NOBODY),
        (2_001, 3_000, WORKER),  # a thousandth is drift
        (3_000, 2_005, NOBODY),
    ],
)
def test_a_replayed_step_is_compared_with_both(worker: int, accuser: int, finding: str) -> None:
    assert compute_finding(found_at(4, 5, worker, accuser), 20, shown(2_000), LIMITS) == finding
    from_checkpoint = found_at(-1, 0, worker - 1_000, accuser - 1_000)
    assert compute_finding(from_checkpoint, 20, shown(1_000), LIMITS) == finding


def test_the_drift_of_earlier_steps_does_not_count() -> None:
    drifted = found_at(4, 5, 3_000, 2_090)
    drifted = msgspec.structs.replace(drifted, accuser=Side(low=flat(1_090), high=flat(2_090)))
    assert compute_finding(drifted, 20, shown(2_000), LIMITS) == ACCUSER


@pytest.mark.parametrize(("low", "most"), [(0, 2_000_000), (4, 400_000), (99, 20_000)])
def test_states_agree_if_they_differ_by_little_beside_a_step(low: int, most: int) -> None:
    search = found_at(low, low + 1, 3_000, 2_000)
    assert compute_finding(search, 200, shown(2_000, distance=most), LIMITS) == ACCUSER
    assert compute_finding(search, 200, shown(2_000, distance=most + 1), LIMITS) == NOBODY


@pytest.mark.parametrize(
    ("excess", "finding"),
    [(0, WORKER), (100_000, WORKER), (100_001, NOBODY), (1_000_000, NOBODY), (1_000_001, ACCUSER)],
)
def test_an_encoding_is_judged_by_its_excess(excess: int, finding: str) -> None:
    search = msgspec.structs.replace(found_at(19, 20, 0, 0), worker=Side(low=flat(9)), accuser=Side(low=flat(9)))
    assert compute_finding(search, 20, shown(9, excess=excess), LIMITS) == finding
    assert compute_finding(search, 20, shown(9, excess=excess, distance=FAIL), LIMITS) == NOBODY


def ruling_of(*arbiters: Arbiter, finding: str = ACCUSER) -> tuple[str, int]:
    search = found_at(4, 5, 3_000, 2_000)
    given = tuple(msgspec.structs.replace(each, finding=finding if each.opened else "") for each in arbiters)
    ruling = compute_ruling(msgspec.structs.replace(search, arbiters=given), 20, LIMITS)
    return ruling.finding, len(ruling.agreeing)


def test_more_than_half_of_the_arbiters_must_have_seen_the_same() -> None:
    a, b, c = (shown(2_000, name=name) for name in ("val", "val2", "val3"))
    silent = Arbiter(account=c.account)
    assert ruling_of(a, b, c) == (ACCUSER, 3)
    assert ruling_of(a, b, silent) == (ACCUSER, 2)
    assert ruling_of(a, silent, silent) == (NOBODY, 0)
    assert ruling_of(a, b, finding=WORKER) == (WORKER, 2)
    assert ruling_of(a, b, c, finding=NOBODY) == (NOBODY, 3)
    # somebody that did not replay knows the public projection, and not the one drawn since
    lazy = shown(2_000, seeded=1_000, name="val3")
    assert ruling_of(a, b, lazy) == (ACCUSER, 2)
    assert ruling_of(a, lazy) == (NOBODY, 0)
    assert ruling_of(a, shown(2_001, name="val2")) == (ACCUSER, 2)


# in a market


def test_a_cheat_is_convicted_by_one_step() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    accuser = accuser_of(world, job)
    before = {name: world.balance(name) for name in NAMES}
    assert dispute_of(world, job).status == "bisecting"
    search = play_to_phase(world, job, "offering")
    assert (search.low, search.high) == (1, 2)
    assert search.turns <= 2
    search = play_to_phase(world, job, "replaying")
    assert search.worker.state == search.accuser.state != ""
    arbiters = arbiters_of(world, job)
    assert len(set(arbiters) - {accuser, "w1"}) == world.genesis.arbiters
    dispute = play_out(world, job)
    assert (dispute.status, dispute.reason) == ("convicted", "3 of 3 arbiters find step 2 false")
    assert dispute.committee == ()
    assert [arbiter.finding for arbiter in bisection_of(world, job).arbiters] == [ACCUSER] * 3
    unit = world.unit(job, 0, 0)
    assert (unit.status, unit.held_pay, unit.auditors) == ("convicted", 0, (key_of(accuser).account,))
    # half of the bond of 20 is shared by four; the arbiters' fees together are those of one audit
    assert world.balance(accuser) == before[accuser] + (5 + 1) * CREDIT + 2_500_000
    for name in arbiters:
        assert world.balance(name) == before[name] + CREDIT // 3 + 2_500_000
    assert world.bid(job, "w1").bond == 0
    play_to_end(world)


def test_a_cheat_from_the_first_step_needs_no_state() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat")
    search = play_to_phase(world, job, "replaying")
    assert (search.low, search.high, search.worker.state) == (-1, 0, "")
    assert play_out(world, job).status == "convicted"
    assert "StateOffer" not in {type(entry.body).__name__ for entry in world.entries}


@pytest.mark.parametrize(
    ("lie", "place"),
    [
        ({"audit_excess": says(FAIL)}, "the encoding"),
        ({"audit_flavour": "other@3"}, "step 3"),
        ({"audit_flavour": "other"}, "step 0"),
    ],
)
def test_an_accuser_that_lies_loses_its_bond_and_the_worker_is_paid(lie: dict[str, object], place: str) -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "", **lie)
    accuser = accuser_of(world, job)
    cast_all(world, skips=QUIET)  # only the accuser lies
    world.cast(Actor(accuser, skips=QUIET, **lie))  # type: ignore[arg-type]
    before, escrow = world.balance(accuser), world.job(job).audit_escrow
    dispute = play_out(world, job)
    assert (dispute.status, dispute.reason) == ("refuted", f"3 of 3 arbiters find {place} right")
    audit = world.audit(job, 0, 0, accuser)
    assert (audit.status, audit.verdict, audit.bond, audit.fee) == ("refuted", "fail", 0, 0)
    assert world.balance(accuser) == before
    assert world.job(job).audit_escrow == escrow + 5 * CREDIT - 3 * (CREDIT // 3)
    assert world.unit(job, 0, 0).held_pay == 10 * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def test_after_a_refutation_another_auditor_is_named_and_finds_the_cheat() -> None:
    """A colluding accuser whose accusation is false cannot keep others from a true one."""
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat", audit_flavour="other")
    colluder = accuser_of(world, job)
    for name in NAMES:  # the arbiters collude too: they say what the worker says
        if name in world.actors:
            skips = QUIET | {"audit_targeted"}
            world.cast(Actor(name, arbiter_flavour="cheat", audit_flavour="other", skips=skips))
    world.cast(Actor("w1", flavour="cheat", skips=QUIET))
    assert play_out(world, job).status == "refuted"
    (target,) = world.round(job, 0).targets
    assert (target.status, target.attempt) == ("pending", 1)
    assert name_of(target.auditor) != colluder
    cast_all(world, skips=QUIET)
    world.cast(Actor("w1", flavour="cheat", skips=QUIET))
    world.play(lambda: dispute_of(world, job).status == "bisecting")
    assert dispute_of(world, job).accuser == target.auditor
    assert play_out(world, job).status == "convicted"
    play_to_end(world)
    assert world.unit(job, 0, 0).paid == 0


def test_a_named_auditor_waits_for_no_bisection() -> None:
    """While one accusation is bisected, others audit as if nothing had been."""
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "", audit_excess=says(FAIL))
    fields = {"job": job, "round": 0, "slot": 0, "proof": "", "digest": text_hash("d")}
    world.block(world.entry("other", AuditCommit, **fields, role="challenge"))
    assert world.audit(job, 0, 0, "other").status == "committed"
    assert dispute_of(world, job).status == "bisecting"


@pytest.mark.parametrize(("second", "status"), [(FAIL, "refuted"), (GREY, "cleared")])
def test_the_next_accuser_begins_its_own_dispute(second: int, status: str) -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=QUIET | {"audit_targeted"})
    play_to(world, job, "settled")
    named = name_of(world.round(job, 0).targets[0].auditor)
    liar = Actor(named, audit_excess=says(FAIL))
    world.cast(liar)
    entry = ACTS["audit_targeted"](world, liar, Action("audit_targeted", job, 0, 0, 0))
    assert entry is not None
    world.block(entry, *challenge(world, "other", job, says(second)))
    world.play(lambda: dispute_or_none(world, job) is not None)
    assert accuser_of(world, job) == named
    assert [world.audit(job, 0, 0, name).bond for name in (named, "other")] == [5 * CREDIT] * 2
    cast_all(world)
    world.cast(liar)
    world.play(lambda: world.audit(job, 0, 0, named).status == "refuted")
    assert accuser_of(world, job) == "other"
    assert dispute_of(world, job).status == ("bisecting" if second == FAIL else "committing")
    world.play(lambda: not is_undecided(dispute_or_none(world, job)))
    assert dispute_of(world, job).status == status
    assert world.audit(job, 0, 0, "other").bond == 0
    assert world.balance("other") == 995 * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def dispute_or_none(world: World, job: str) -> Dispute | None:
    return world.state.dispute(job, 0, 0)


def challenge(world: World, name: str, job: str, excess: Callable[[Unit], int] | None = None) -> list[Entry]:
    actor = Actor(name, audit_excess=excess)
    world.cast(actor)
    entry = ACTS["audit_challenge"](world, actor, Action("audit_challenge", job, 0, 0, 0))
    assert entry is not None
    return [entry]


# silence, and what decides nothing


@pytest.mark.parametrize("flavour", ["cheat@2", ""])
@pytest.mark.parametrize("skip", ["bisect_open", "state_offer"])
def test_a_silent_worker_meets_the_committee(skip: str, flavour: str) -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, flavour, audit_flavour="" if flavour else "other@2")
    accuser = accuser_of(world, job)
    cast_all(world, skips=frozenset({"audit_lottery"}))
    world.cast(Actor("w1", flavour=flavour, skips=frozenset({skip, "audit_lottery"})))
    world.cast(Actor(accuser, audit_flavour="" if flavour else "other@2"))
    world.play(lambda: dispute_of(world, job).status == "committing")
    assert world.audit(job, 0, 0, accuser).bond == 5 * CREDIT
    world.play(lambda: dispute_of(world, job).status not in ("committing", "opening"))
    assert dispute_of(world, job).status == ("convicted" if flavour else "cleared")
    assert "committee: the worker kept silent" in {event.reason for event in world.events}
    play_to_end(world)


@pytest.mark.parametrize("flavour", ["cheat@2", ""])
@pytest.mark.parametrize("skip", ["bisect_open", "state_offer"])
def test_a_silent_accuser_loses_its_bond_and_the_committee_decides_all_the_same(skip: str, flavour: str) -> None:
    world = make_world(validators=VALIDATORS)
    shows = "" if flavour else "other@2"
    job = in_dispute(world, flavour, audit_flavour=shows)
    accuser = accuser_of(world, job)
    cast_all(world, skips=frozenset({"audit_lottery"}))
    world.cast(Actor("w1", flavour=flavour), Actor(accuser, audit_flavour=shows, skips=frozenset({skip})))
    before = world.balance(accuser)
    world.play(lambda: dispute_of(world, job).status == "committing")
    audit = world.audit(job, 0, 0, accuser)
    assert (audit.status, audit.bond) == ("late", 0)
    world.play(lambda: dispute_of(world, job).status not in ("committing", "opening"))
    assert dispute_of(world, job).status == ("convicted" if flavour else "cleared")
    assert world.balance(accuser) == before  # no reward, and no fee either
    play_to_end(world)


def test_two_silent_sides_end_at_the_committee_too() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    for name, actor in list(world.actors.items()):
        world.cast(Actor(name, flavour=actor.flavour, skips=BISECTION | {"audit_lottery"}))
    world.play(lambda: dispute_of(world, job).status == "committing")
    assert "committee: the worker and the accuser kept silent" in {event.reason for event in world.events}
    world.play(lambda: dispute_of(world, job).status == "convicted")


def test_states_that_differ_bring_the_committee() -> None:
    """A worker may make a state that has the sketch both agree on; the comparison in full sees it."""
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    play_to_phase(world, job, "offering")
    world.block(world.entry("w1", StateOffer, job=job, round=0, slot=0, state=text_hash("forged")))
    play_to_phase(world, job, "opening")
    arbiters = arbiters_of(world, job)
    before = {name: world.balance(name) for name in arbiters}
    assert play_out(world, job).status == "committing"
    assert {name: world.balance(name) - before[name] for name in arbiters} == dict.fromkeys(arbiters, CREDIT // 3)
    assert "committee: 3 of 3 arbiters agree, and find nothing that decides" in {e.reason for e in world.events}
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat@2"))
    world.play(lambda: dispute_of(world, job).status == "convicted")


@pytest.mark.parametrize(("skip", "said"), [("arbiter_commit", "1 of 3 arbiters committed"), ("arbiter_open", "no ar")])
def test_silent_arbiters_bring_the_committee_at_no_cost_to_anybody(skip: str, said: str) -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat")
    play_to_phase(world, job, "replaying")
    first, *others = arbiters_of(world, job)
    before = {name: world.balance(name) for name in (first, *others)}
    world.cast(*(Actor(name, skips=QUIET | {skip}) for name in others))
    assert play_out(world, job).status == "committing"
    assert {name: world.balance(name) for name in (first, *others)} == before
    assert any(event.reason.startswith(f"committee: {said}") for event in world.events)
    assert set(others) <= {name_of(account) for account in dispute_of(world, job).committee} | set(others)


def test_arbiters_may_sit_on_the_committee() -> None:
    """Where few nodes are left, forging a state must not use up everybody that could re-execute the unit."""
    world = make_world(validators=("val", "val2"))
    job = in_dispute(world, "cheat@2")
    play_to_phase(world, job, "offering")
    world.block(world.entry("w1", StateOffer, job=job, round=0, slot=0, state=text_hash("forged")))
    play_to_phase(world, job, "opening")
    arbiters = set(arbiters_of(world, job))
    assert play_out(world, job).status == "committing"
    assert {name_of(account) for account in dispute_of(world, job).committee} == arbiters
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat@2"))
    world.play(lambda: dispute_of(world, job).status == "convicted")


def test_who_audited_the_unit_may_replay_its_step_unless_it_accused() -> None:
    world = make_world(validators=("val", "val2"))
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=QUIET | {"audit_targeted"})
    play_to(world, job, "settled")
    named = name_of(world.round(job, 0).targets[0].auditor)
    liar = Actor(named, audit_flavour="other", skips=QUIET)
    others = [name for name in ("w2", "val", "val2") if name != named]
    for name in others:  # honest auditors, who pass the unit before it is accused
        world.block(*challenge(world, name, job))
        world.play(lambda name=name: world.audit(job, 0, 0, name).verdict == "pass")  # type: ignore[misc]
    world.cast(liar)
    world.play(lambda: dispute_or_none(world, job) is not None)
    play_to_phase(world, job, "replaying")
    assert set(arbiters_of(world, job)) == set(others)
    assert play_out(world, job).status == "refuted"


def test_a_lone_lying_arbiter_decides_nothing() -> None:
    for flavour, accused, decision in (("cheat", "", "convicted"), ("", "other", "refuted")):
        world = make_world(validators=VALIDATORS)
        job = in_dispute(world, flavour, audit_flavour=accused)
        search = play_to_phase(world, job, "replaying")
        liar, *others = [name_of(arbiter.account) for arbiter in search.arbiters]
        world.cast(Actor(liar, skips=QUIET, arbiter_flavour="made up"), *(Actor(name, skips=QUIET) for name in others))
        before = world.balance(liar)
        assert play_out(world, job).status == decision
        assert world.balance(liar) == before
        assert dispute_of(world, job).reason.startswith("2 of 3 arbiters")


def test_a_worker_silent_in_another_audit_while_it_is_bisected_meets_the_committee() -> None:
    """Else a colluding accuser's bisection would shield it from what silence costs."""
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=QUIET, audit_flavour="other")
    world.cast(Actor("w1", flavour="cheat", skips=QUIET))
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    # the bisection is kept busy while the challenge's deadline passes
    for name, actor in list(world.actors.items()):
        world.cast(Actor(name, flavour=actor.flavour, skips=BISECTION | QUIET | {"sketch_open", "arbiter_commit"}))
    world.block(*challenge(world, "other", job))
    world.wake()
    opened = pending_actions(world.state, key_of("other").account, world.time_ms)
    assert [action.kind for action in opened] == ["audit_open"]
    for _ in range(60):
        if dispute_of(world, job).status != "bisecting":
            break
        world.block(*(entry for entry in world.due()))
    assert dispute_of(world, job).status == "committing"


# what is refused


def test_only_the_two_sides_open_the_step_that_is_asked_for_once() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    assert bisection_of(world, job).phase == "halving"
    accuser = accuser_of(world, job)
    middle = get_middle(bisection_of(world, job))
    unit = world.unit(job, 0, 0)
    sketches = world.sketches(unit, unit.shard, "cheat@2")
    action = Action("bisect_open", job, 0, 0, 0, (middle,))
    right = act_bisect_open(world, world.actors["w1"], action)
    at = {"job": job, "round": 0, "slot": 0}
    (stray,) = open_steps(sketches, [(middle + 1) % STEPS])
    world.refuse(world.entry("w1", BisectOpen, **at, opening=stray), f"step {middle} is asked for")
    forged = msgspec.structs.replace(right.body.opening, sketch=flat(7))  # type: ignore[union-attr]
    world.refuse(world.entry("w1", BisectOpen, **at, opening=forged), "not in the sketch root")
    outsider = ({*VALIDATORS} - {accuser}).pop()
    opening = right.body.opening  # type: ignore[union-attr]
    world.refuse(world.entry(outsider, BisectOpen, **at, opening=opening), "neither worker nor accuser")
    world.refuse(world.entry(accuser, BisectOpen, **at, opening=forged), "not in the sketch root")
    world.refuse(world.entry("w1", StateOffer, **at, state=text_hash("x")), "halving; this entry needs offering")
    world.block(right)
    again = act_bisect_open(world, world.actors["w1"], action)
    world.refuse(again, "opened this step already")
    world.refuse(world.entry("w1", BisectOpen, **(at | {"slot": 1}), opening=opening), "no dispute about slot 1")


def test_states_are_named_once_by_the_two_sides() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    play_to_phase(world, job, "offering")
    at = {"job": job, "round": 0, "slot": 0, "state": text_hash("x")}
    world.refuse(world.entry("other", StateOffer, **at), "neither worker nor accuser")
    world.block(world.entry("w1", StateOffer, **at))
    world.refuse(world.entry("w1", StateOffer, **at), "named its state already")


def test_arbiters_commit_before_anything_is_opened_to_them() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat")
    play_to_phase(world, job, "replaying")
    first, second, third = arbiters_of(world, job)
    at = {"job": job, "round": 0, "slot": 0}
    action = Action("arbiter_commit", job, 0, 0, 0)
    found = arbiter_fields(world, Actor(first), action)
    world.refuse(world.entry(first, ArbiterOpen, **at, **found), "replaying; this entry needs opening")
    world.refuse(world.entry("w1", ArbiterCommit, **at, digest=text_hash("x")), "is no arbiter")
    commits = [ACTS["arbiter_commit"](world, Actor(name), action) for name in (first, second)]
    world.block(*filter(None, commits))
    world.refuse(world.entry(first, ArbiterCommit, **at, digest=text_hash("x")), "committed already")
    world.wake()  # the third is late; two of three can decide
    assert bisection_of(world, job).phase == "opening"
    world.refuse(world.entry(third, ArbiterOpen, **at, **found), "waits to be opened")
    world.refuse(world.entry(first, ArbiterOpen, **at, **(found | {"sketch": flat(1)})), "the commit was")
    world.block(world.entry(first, ArbiterOpen, **at, **found))
    world.refuse(world.entry(first, ArbiterOpen, **at, **found), "waits to be opened")


def test_nothing_is_taken_outside_a_bisection() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "", audit_excess=says(GREY))
    assert dispute_of(world, job).status == "committing"
    at = {"job": job, "round": 0, "slot": 0}
    world.refuse(world.entry("w1", StateOffer, **at, state=text_hash("x")), "is committing; this needs a bisection")
    world.refuse(world.entry("w1", ArbiterCommit, **at, digest=text_hash("x")), "is committing; this needs")


# what a node is told to do


def test_the_sides_and_the_arbiters_are_told_what_to_do() -> None:
    world = make_world(validators=VALIDATORS)
    job = in_dispute(world, "cheat@2")
    accuser = accuser_of(world, job)

    def told(name: str) -> list[Action]:
        actions = pending_actions(world.state, key_of(name).account, world.time_ms)
        return [action for action in actions if action.slot == 0 and action.kind in BISECTING]

    end = dispute_of(world, job).phase_end_ms
    middle = get_middle(bisection_of(world, job))
    for name in ("w1", accuser):
        assert told(name) == [Action("bisect_open", job, 0, 0, end, (middle,))]
    search = play_to_phase(world, job, "offering")
    end = dispute_of(world, job).phase_end_ms
    for name in ("w1", accuser):
        assert told(name) == [Action("state_offer", job, 0, 0, end, (search.low + 1,))]
    play_to_phase(world, job, "replaying")
    end = dispute_of(world, job).phase_end_ms
    arbiters = arbiters_of(world, job)
    for name in NAMES:
        asked = [Action("arbiter_commit", job, 0, 0, end, (search.high,))] if name in arbiters else []
        assert told(name) == asked
    play_to_phase(world, job, "opening")
    end = dispute_of(world, job).phase_end_ms
    assert all(told(name) == [Action("arbiter_open", job, 0, 0, end)] for name in arbiters)


BISECTING = {*BISECTION, "arbiter_commit", "arbiter_open"}


def test_refutations_are_bounded_by_the_audits_of_a_unit() -> None:
    """Everybody lies, and everybody is refuted: the job ends all the same, with every liar's bond gone."""
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000, audit_floor_ppm=1_000_000)
    cast_all(world, lottery=True, audit_flavour="other")
    world.cast(Actor("w1"))
    play_to_end(world, limit=3_000)
    unit = world.unit(job, 0, 0)
    assert unit.status == "paid"
    assert len(unit.auditors) <= MAX_AUDITS_PER_UNIT + MAX_REDRAWS + 1
    ends = [event for event in world.events if event.reason.startswith("refuted: ")]
    assert 1 <= len(ends) <= 2 * (MAX_AUDITS_PER_UNIT + MAX_REDRAWS + 1)
