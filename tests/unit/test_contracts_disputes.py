"""Disputes that a committee decides: convictions, and who pays when an accusation was wrong."""

from collections.abc import Callable

import pytest

from contracts.disputes import compute_decision, is_undecided
from contracts.draws import compute_audit_chance_ppm, get_eligible_auditors
from contracts.records import Dispute, Unit
from contracts.views import Action
from gdf_market.messages import AuditCommit, BidWithdraw
from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    BISECTION,
    Actor,
    World,
    assert_nothing_locked,
    bid_entry,
    cast_all,
    key_of,
    lottery_proof,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
    text_hash,
)

VALIDATORS = ("val", "val2", "val3", "val4", "val5")
NAMES = ("owner", "other", "w1", "w2", "w3", *VALIDATORS, "val6")
FAIL, GREY, PASS = 50_000_000, 500_000, 0


def name_of(account: str) -> str:
    return next(name for name in NAMES if key_of(name).account == account)


def says(excess: int) -> Callable[[Unit], int]:
    return lambda unit: excess


def dispute_of(world: World, job: str, slot: int = 0) -> Dispute:
    dispute = world.state.dispute(job, 0, slot)
    assert dispute is not None
    return dispute


def accuser_of(world: World, job: str) -> str:
    return name_of(dispute_of(world, job).accuser)


def committee_of(world: World, job: str) -> list[str]:
    return [name_of(account) for account in dispute_of(world, job).committee]


def disputed(world: World, *, flavour: str = "cheat", excess: int | None = None, **changes: object) -> str:
    """Return a job whose unit in slot 0 (w1's) was audited and is in dispute; its committee has not acted.

    The auditors tell the truth unless ``excess`` is what they claim.  What fails comes to the committee because the
    worker and the arbiters keep silent.
    """
    terms: dict[str, object] = {"rounds": 1, "hold_ms": 500_000}
    job = start(world, "w1", "w2", **(terms | changes))
    quiet = frozenset({"audit_lottery", "audit_committee", "arbiter_commit"})
    cast_all(world, skips=quiet, audit_excess=None if excess is None else says(excess))
    world.cast(Actor("w1", flavour=flavour, skips=quiet | BISECTION))
    world.play(lambda: at_committee(world, job))
    return job


def at_committee(world: World, job: str, index: int = 0) -> bool:
    dispute = world.state.dispute(job, index, 0)
    return dispute is not None and dispute.status == "committing"


def members_say(world: World, job: str, **excess: int) -> None:
    """Let committee members act with these findings; the others (and only they) stay silent."""
    for name in committee_of(world, job):
        skips = frozenset() if name in excess else frozenset({"audit_committee"})
        world.cast(Actor(name, skips=skips, audit_excess=says(excess.get(name, 0))))


def decide(world: World, job: str) -> Dispute:
    world.play(lambda: not is_undecided(world.state.dispute(job, 0, 0)) and world.state.dispute(job, 0, 0) is not None)
    return dispute_of(world, job)


def decide_all(world: World, job: str, excess: int) -> Dispute:
    """Let every member of every committee find the same."""
    for name in (*VALIDATORS, "w2"):
        if name in world.actors:
            world.cast(Actor(name, audit_excess=says(excess)))
    return decide(world, job)


@pytest.mark.parametrize(
    ("verdicts", "committee", "decision"),
    [
        (["fail", "fail", "fail"], 3, "convicted"),
        (["fail", "fail", "pass"], 3, "convicted"),
        (["pass", "pass", "fail"], 3, "cleared"),
        (["fail", "pass", "grey"], 3, ""),
        (["grey", "grey", "fail"], 3, ""),
        (["fail", "fail"], 3, "convicted"),
        (["fail", "pass"], 3, ""),
        (["fail"], 3, ""),  # fewer than half opened
        (["fail"], 2, "convicted"),
        (["pass"], 1, "cleared"),
        (["grey"], 1, ""),
        ([], 1, ""),
    ],
)
def test_more_than_half_of_those_that_opened_decide(verdicts: list[str], committee: int, decision: str) -> None:
    assert compute_decision(verdicts, committee) == decision


# opening


def test_an_audit_that_fails_opens_a_dispute_with_a_drawn_committee() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    dispute = dispute_of(world, job)
    assert (dispute.status, dispute.attempt) == ("committing", 0)
    assert dispute.phase_end_ms == world.time_ms + 20_000
    accuser = accuser_of(world, job)
    committee = committee_of(world, job)
    assert len(set(committee)) == 3
    assert not {accuser, "w1"} & set(committee)
    audit = world.audit(job, 0, 0, accuser)
    assert (audit.verdict, audit.bond, audit.fee) == ("fail", 5 * CREDIT, 0)
    assert audit.sketch_distance_ppb > 10_000_000
    assert world.unit(job, 0, 0).status == "accepted"


def test_a_grey_audit_opens_a_dispute_too() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="", excess=GREY)
    assert world.audit(job, 0, 0, accuser_of(world, job)).verdict == "grey"
    assert dispute_of(world, job).status == "committing"


def test_another_path_to_the_same_update_is_accused_by_its_sketches() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="cheat", excess=PASS)
    audit = world.audit(job, 0, 0, accuser_of(world, job))
    assert (audit.excess_ppb, audit.verdict) == (0, "fail")


def test_only_members_commit_and_no_lottery_goes_on() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    outsider = ({*VALIDATORS, "w2"} - {accuser_of(world, job), *committee_of(world, job)}).pop()
    fields = {"job": job, "round": 0, "slot": 0, "digest": text_hash("d"), "proof": ""}
    world.refuse(world.entry(outsider, AuditCommit, **fields, role="committee"), "sits on no committee")
    world.refuse(world.entry(outsider, AuditCommit, **fields, role="targeted"), "is in dispute, or was")
    proof = "00" * 80
    world.refuse(world.entry(outsider, AuditCommit, **(fields | {"proof": proof}), role="lottery"), "is in dispute")


def test_steps_are_drawn_once_all_members_committed() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    first, *others = committee_of(world, job)
    action = Action("audit_committee", job, 0, 0, 0)
    world.block(*filter(None, [ACTS[action.kind](world, Actor(first), action)]))
    world.block()
    assert world.audit(job, 0, 0, first).steps == ()  # or the worker's opening would tell the others
    world.block(*filter(None, [ACTS[action.kind](world, Actor(name), action) for name in others]))
    world.wake()
    dispute = dispute_of(world, job)
    assert dispute.status == "opening"
    for name in (first, *others):
        audit = world.audit(job, 0, 0, name)
        assert len(audit.steps) == 3
        assert audit.phase_end_ms == dispute.phase_end_ms == world.time_ms + 20_000


# convicted


def test_a_conviction_takes_pay_and_bond() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    accuser, committee = accuser_of(world, job), committee_of(world, job)
    escrow = world.job(job).escrow
    before = {name: world.balance(name) for name in (accuser, *committee)}
    dispute = decide_all(world, job, FAIL)
    assert (dispute.status, dispute.reason) == ("convicted", "3 of 3 members say fail")
    unit = world.unit(job, 0, 0)
    assert (unit.status, unit.held_pay, unit.held_merit) == ("convicted", 0, 0)
    # half of the bond of 20 is shared by four, the rest and the held 11 go back to the escrow
    assert world.job(job).escrow == escrow + 10 * CREDIT + 11 * CREDIT
    assert world.balance(accuser) == before[accuser] + (5 + 1) * CREDIT + 2_500_000  # bond, fee, share
    for name in committee:
        assert world.balance(name) == before[name] + 1 * CREDIT + 2_500_000
        assert world.audit(job, 0, 0, name).bond == 0
    bid = world.bid(job, "w1")
    assert (bid.status, bid.bond, bid.reason) == ("closed", 0, "convicted: round 0, slot 0")
    record = world.state.reputation(key_of("w1").account, "cpu-fp32")
    assert (record.consecutive, record.invalid) == (0, 1)
    assert world.balance("w1") == 980 * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 1).status == "paid"


def test_a_conviction_takes_all_unsettled_units_of_the_worker_and_frees_its_slots() -> None:
    world = make_world(validators=VALIDATORS)
    job = post(world, units_per_round=3, rounds=2, merit_ppm=0, hold_ms=500_000)
    world.block(bid_entry(world, "w1", job, 1, units=2), bid_entry(world, "w2", job, 2))
    world.wake()
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat"))
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    assert world.unit(job, 0, 1).status == "convicted"
    assert world.unit(job, 0, 1).held_pay == 0
    assert world.unit(job, 0, 2).status == "accepted"
    assert key_of("w1").account not in world.job(job).slots
    assert not [key for key in world.job(job).unsettled if world.state.unit_at(key).worker == key_of("w1").account]
    play_to_end(world)
    assert world.balance("w1") == 960 * CREDIT


def test_a_conviction_makes_audits_denser_for_a_while() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, rounds=20)
    before = world.job(job).round
    decide_all(world, job, FAIL)
    after = world.job(job).alert_round
    assert after == world.job(job).round + 1 > before
    world.play(lambda: world.state.round(job, after) is not None and world.round(job, after).audit_seed != "")
    eligible = len(get_eligible_auditors(world.state, world.round(job, after), key_of("w2").account))
    assert eligible == len(VALIDATORS)  # without the convict
    units = [world.unit(job, after, slot) for slot in world.round(job, after).units]
    assert {unit.audit_chance_ppm for unit in units if unit.worker == key_of("w2").account} == {
        compute_audit_chance_ppm(world.job(job).spec.audit_floor_ppm, 0, eligible)
    }


def test_a_convict_is_out_of_the_round_under_way() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=2, hold_ms=500_000, audit_ms=10_000)
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat"), Actor("w2", skips=frozenset({"commit"})))
    world.cast(*(Actor(name, skips=frozenset({"receipt"})) for name in VALIDATORS[:1]))
    play_to(world, job, "settled")
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    round_ = world.round(job, 1)
    assert round_.phase in ("work", "reveal", "receipt")
    unit = world.unit(job, 1, 0)
    assert (unit.status, unit.reason) == ("convicted", "convicted: round 0, slot 0")
    assert key_of("w1").account not in round_.attesters
    world.cast(Actor("w2"))
    play_to_end(world)
    assert world.unit(job, 1, 0).paid == 0


def test_a_convict_whose_update_is_in_the_outcome_is_not_paid_for_it() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=2, hold_ms=500_000, audit_ms=10_000, result_ms=300_000)
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat"))
    play_to(world, job, "settled")
    # everybody is slow to vote in round 1, so that the conviction comes first
    for name, actor in list(world.actors.items()):
        world.cast(Actor(name, flavour=actor.flavour, skips=frozenset({"result"})))
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    round_ = world.round(job, 1)
    assert (round_.phase, round_.included) == ("result", (0, 1))
    cast_all(world)
    play_to(world, job, "settled", 1)
    assert world.unit(job, 1, 0).status == "convicted"
    assert world.unit(job, 1, 1).held_pay == 10 * CREDIT
    play_to_end(world)


def test_a_convict_cannot_bid_on_the_job_again_but_on_others() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, rounds=9)
    decide_all(world, job, FAIL)
    world.refuse(bid_entry(world, "w1", job), "was convicted in this job")
    other = post(world, name="other")
    world.block(bid_entry(world, "w1", other))
    world.refuse(world.entry("w1", BidWithdraw, job=job), "is closed: convicted")


def test_a_worker_that_left_is_convicted_all_the_same() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=3, hold_ms=500_000)
    world.block(world.entry("w1", BidWithdraw, job=job))
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat"))
    play_to(world, job, "work", 1)
    bid = world.bid(job, "w1")
    assert (bid.status, bid.bond) == ("closed", 20 * CREDIT)
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    bid = world.bid(job, "w1")
    assert (bid.bond, bid.reason) == (0, "convicted: round 0, slot 0")
    play_to_end(world)


def test_a_member_that_disagrees_gets_its_bond_but_no_fee() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    a, b, c = committee_of(world, job)
    before = world.balance(c)
    world.cast(*(Actor(name, audit_excess=says(FAIL)) for name in (a, b)))
    # its sketches follow the worker's, or they would say fail whatever its excess
    fake = Actor(c, audit_excess=says(PASS))
    world.cast(fake)
    world.sketches = lambda unit, shard, flavour: World.sketches(world, unit, shard, "cheat")  # type: ignore[method-assign]
    dispute = decide(world, job)
    assert (dispute.status, dispute.reason) == ("convicted", "2 of 3 members say fail")
    audit = world.audit(job, 0, 0, c)
    assert (audit.verdict, audit.fee, audit.bond) == ("pass", 0, 0)
    assert world.balance(c) == before
    assert world.audit(job, 0, 0, a).fee == CREDIT


def test_runs_that_differ_among_themselves_convict_nobody() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    accuser = accuser_of(world, job)
    for name in (*VALIDATORS, "w2"):
        if name != accuser:  # a program that rounding decides gives each machine another result
            world.cast(Actor(name, audit_excess=says(FAIL), audit_flavour=f"chaos of {name}"))
    dispute = decide(world, job)
    assert dispute.status == "unresolved"
    assert world.bid(job, "w1").bond == 20 * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def test_a_single_run_that_differs_does_not_save_a_cheat() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    a, b, c = committee_of(world, job)
    world.cast(*(Actor(name, audit_excess=says(FAIL)) for name in (a, b)))
    world.cast(Actor(c, audit_excess=says(FAIL), audit_flavour="its own"))
    before = world.balance(c)
    dispute = decide(world, job)
    assert (dispute.status, dispute.reason) == ("convicted", "2 of 3 members say fail")
    assert world.balance(c) == before + CREDIT  # its fee, and no part of what was slashed


# cleared


def test_a_false_accuser_loses_its_bond() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="", excess=FAIL)
    accuser, committee = accuser_of(world, job), committee_of(world, job)
    before = {name: world.balance(name) for name in (accuser, *committee)}
    escrow = world.job(job).audit_escrow
    dispute = decide_all(world, job, PASS)
    assert dispute.status == "cleared"
    audit = world.audit(job, 0, 0, accuser)
    assert (audit.verdict, audit.bond, audit.fee) == ("fail", 0, 0)
    assert world.balance(accuser) == before[accuser]
    assert world.job(job).audit_escrow == escrow + 5 * CREDIT - 3 * CREDIT
    for name in committee:
        assert world.balance(name) == before[name] + CREDIT
    assert world.bid(job, "w1").bond == 20 * CREDIT  # the unit is not released yet
    play_to_end(world)
    assert world.unit(job, 0, 0).paid == 11 * CREDIT
    assert world.state.reputation(key_of("w1").account, "cpu-fp32").valid == 1


def test_a_grey_accuser_gets_bond_and_fee() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="", excess=GREY)
    accuser = accuser_of(world, job)
    before = world.balance(accuser)
    assert decide_all(world, job, PASS).status == "cleared"
    assert world.balance(accuser) == before + 6 * CREDIT


def test_a_member_that_cries_fail_on_a_cleared_unit_earns_nothing() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="", excess=FAIL)
    a, b, c = committee_of(world, job)
    before = world.balance(c)
    members_say(world, job, **{a: PASS, b: PASS, c: FAIL})
    assert decide(world, job).status == "cleared"
    assert world.balance(c) == before
    assert world.audit(job, 0, 0, c).fee == 0
    assert world.audit(job, 0, 0, a).fee == CREDIT


# undecided


def test_a_divided_committee_is_redrawn_and_paid() -> None:
    world = make_world(validators=(*VALIDATORS, "val6"))
    job = disputed(world, flavour="", excess=FAIL)
    a, b, c = committee_of(world, job)
    members_say(world, job, **{a: PASS, b: FAIL, c: GREY})
    world.play(lambda: dispute_of(world, job).attempt == 1)
    for name in (a, b, c):
        audit = world.audit(job, 0, 0, name)
        assert (audit.status, audit.bond, audit.fee) == ("opened", 0, CREDIT)
    again = {account for account in dispute_of(world, job).committee}
    assert not again & {key_of(name).account for name in (a, b, c)}
    assert dispute_of(world, job).status == "committing"


def test_when_nobody_is_left_to_ask_nobody_is_punished() -> None:
    world = make_world(validators=("val",))
    job = start(world, "w1", rounds=1, hold_ms=100_000)
    cast_all(world, "w1", audit_excess=says(FAIL))
    dispute = decide(world, job)
    assert (dispute.status, dispute.reason) == ("unresolved", "nobody is left to ask")
    audit = world.audit(job, 0, 0, "val")
    assert (audit.verdict, audit.bond, audit.fee) == ("fail", 0, 0)
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"
    assert world.balance("val") == 1_000 * CREDIT
    assert world.balance("w1") > 1_000 * CREDIT


def test_undecided_committees_end_unresolved() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world, flavour="", excess=FAIL)
    accuser = accuser_of(world, job)
    before = world.balance(accuser)
    dispute = decide_all(world, job, GREY)
    assert (dispute.status, dispute.attempt) == ("unresolved", 1)  # five others: three, then two
    assert world.balance(accuser) == before + 5 * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def test_committees_are_redrawn_at_most_three_times() -> None:
    validators = tuple(f"v{number}" for number in range(14))
    world = make_world(validators=validators)
    job = start(world, "w1", "w2", rounds=1, hold_ms=500_000)
    cast_all(world, audit_excess=says(FAIL), skips=frozenset({"arbiter_commit"}))
    world.cast(Actor("w1", skips=BISECTION))
    world.play(lambda: at_committee(world, job))
    cast_all(world, audit_excess=says(GREY))
    dispute = decide(world, job)
    assert (dispute.status, dispute.attempt, dispute.reason) == ("unresolved", 3, "undecided 4 times")
    assert len(world.unit(job, 0, 0).auditors) == 1 + 4 * 3


def test_a_committee_that_does_not_commit_is_redrawn_without_punishment() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    a, b, c = committee_of(world, job)
    before = {name: world.balance(name) for name in (a, b, c)}
    members_say(world, job, **{a: FAIL})
    world.play(lambda: dispute_of(world, job).attempt == 1)
    audit = world.audit(job, 0, 0, a)
    assert (audit.status, audit.bond, audit.fee) == ("void", 0, 0)  # alone it could not decide
    assert {name: world.balance(name) for name in (a, b, c)} == before


def test_a_member_that_commits_and_does_not_open_loses_its_bond() -> None:
    world = make_world(validators=VALIDATORS)
    job = disputed(world)
    a, b, c = committee_of(world, job)
    before = world.balance(c)
    world.cast(*(Actor(name) for name in (a, b)), Actor(c, skips=frozenset({"audit_open"})))
    escrow = world.job(job).audit_escrow
    assert decide(world, job).status == "convicted"  # two of two
    audit = world.audit(job, 0, 0, c)
    assert (audit.status, audit.bond) == ("late", 0)
    assert world.balance(c) == before - 5 * CREDIT
    assert world.job(job).audit_escrow == escrow + 5 * CREDIT - 3 * CREDIT


def test_a_worker_silent_in_a_dispute_is_judged_by_the_excess_alone() -> None:
    for flavour, claimed, decision in (("cheat", None, "convicted"), ("", FAIL, "cleared")):
        world = make_world(validators=VALIDATORS)
        job = disputed(world, flavour=flavour, excess=claimed)
        for name in committee_of(world, job):
            world.cast(Actor(name))
        world.cast(Actor("w1", flavour=flavour, skips=frozenset({"sketch_open"})))
        assert decide(world, job).status == decision
        member = world.audit(job, 0, 0, committee_of(world, job)[0])
        assert not member.worker_opened
        assert member.sketch_distance_ppb == 0


# several accusers


def with_second_audit(flavour: str, second_excess: int) -> tuple[World, str, str, str]:
    """Return (world, job, accuser, second auditor): the second committed by lottery before the dispute opened."""
    for salt in range(60):
        world = make_world(validators=VALIDATORS)
        for _ in range(salt):
            world.block()
        job = start(world, "w1", "w2", rounds=1, hold_ms=500_000, audit_ms=60_000)
        quiet = frozenset({"audit_lottery", "audit_committee", "audit_targeted"})
        cast_all(world, skips=quiet)
        # arbiters that see different things bring the committee at once
        world.cast(*(Actor(name, skips=quiet, arbiter_flavour=name) for name in VALIDATORS))
        world.cast(Actor("w1", flavour=flavour, skips=quiet))
        play_to(world, job, "settled")
        named = name_of(world.round(job, 0).targets[0].auditor)
        action = Action("audit_lottery", job, 0, 0, 0)
        for second in sorted({*VALIDATORS} - {named}):
            actor = Actor(second, lottery=True, audit_excess=says(second_excess))
            if lottery_proof(world, second, action):
                entry = ACTS["audit_lottery"](world, actor, action)
                assert entry is not None
                first = ACTS["audit_targeted"](
                    world, Actor(named, audit_excess=says(FAIL)), Action("audit_targeted", job, 0, 0, 0)
                )
                assert first is not None
                world.block(first)
                world.block()
                world.block(entry)
                skips = frozenset({"audit_open", "audit_committee"})
                world.cast(Actor(second, audit_excess=says(second_excess), skips=skips))
                world.cast(Actor(named, audit_excess=says(FAIL), skips=frozenset({"audit_committee"})))
                world.play(lambda w=world, j=job: at_committee(w, j))
                return world, job, named, second
    raise AssertionError("no second ticket won")


def test_a_second_accuser_joins_the_dispute() -> None:
    world, job, accuser, second = with_second_audit("cheat", FAIL)
    assert second not in committee_of(world, job)
    world.cast(Actor(second, audit_excess=says(FAIL)))
    world.play(lambda: world.audit(job, 0, 0, second).verdict == "fail")
    assert world.audit(job, 0, 0, second).bond == 5 * CREDIT
    before = world.balance(second)
    assert decide_all(world, job, FAIL).status == "convicted"
    audit = world.audit(job, 0, 0, second)
    assert (audit.bond, audit.fee) == (0, CREDIT)
    assert world.balance(second) == before + 6 * CREDIT  # bond and fee; the reward is the first accuser's
    assert dispute_of(world, job).accuser == key_of(accuser).account


@pytest.mark.parametrize(("excess", "change"), [(FAIL, 0), (GREY, 6), (PASS, 6)])
def test_an_audit_that_ends_after_the_unit_was_cleared_is_settled_by_that(excess: int, change: int) -> None:
    world, job, _, second = with_second_audit("", excess)
    # the accuser lied; the committee clears the worker before the second auditor opens
    for name in committee_of(world, job):
        world.cast(Actor(name))
    world.play(lambda: dispute_of(world, job).status == "opening")
    before = world.balance(second)
    entries = world.due()
    world.block(*entries)
    world.wake()
    assert dispute_of(world, job).status == "cleared"
    world.cast(Actor(second, audit_excess=says(excess)))
    world.play(lambda: world.audit(job, 0, 0, second).verdict != "")
    world.block()
    audit = world.audit(job, 0, 0, second)
    assert audit.bond == 0
    assert world.balance(second) == before + change * CREDIT
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def test_silence_in_another_audit_is_no_way_out_of_a_dispute() -> None:
    world, job, _, second = with_second_audit("cheat", FAIL)
    world.cast(Actor("w1", flavour="cheat", skips=frozenset({"sketch_open"})))
    world.cast(Actor(second, audit_excess=says(FAIL)))
    for name in committee_of(world, job):
        world.cast(Actor(name))
    assert decide(world, job).status == "convicted"
    assert world.bid(job, "w1").bond == 0
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "convicted"


def test_a_conviction_ends_the_disputes_of_the_workers_other_units() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=2, hold_ms=900_000)
    quiet = frozenset({"audit_committee"})
    for name in (*VALIDATORS, "w2", "w3"):
        world.cast(Actor(name, skips=quiet, arbiter_flavour=name))
    world.cast(Actor("w1", flavour="cheat", skips=quiet))
    # the dispute of round 0 is kept open while round 1 settles and is audited
    world.play(lambda: at_committee(world, job))
    world.play(lambda: at_committee(world, job, 1))
    second = world.state.dispute(job, 1, 0)
    assert second is not None
    accuser = name_of(second.accuser)
    before = world.balance(accuser)
    if dispute_of(world, job).status == "unresolved":
        pytest.fail("the first dispute ended before the second began")
    cast_all(world)
    world.cast(Actor("w1", flavour="cheat"))
    for member in second.committee:  # the second committee stays silent until the first has decided
        if member not in dispute_of(world, job).committee:
            world.cast(Actor(name_of(member), skips=quiet))
    decide(world, job)
    ended = world.state.dispute(job, 1, 0)
    assert ended is not None
    assert (ended.status, ended.reason) == ("convicted", "convicted: round 0, slot 0")
    assert world.unit(job, 1, 0).status == "convicted"
    assert world.audit(job, 1, 0, accuser).bond == 0
    assert world.balance(accuser) >= before + 6 * CREDIT
    play_to_end(world)
    assert_nothing_locked(world)
