"""Who may audit: declared device classes, and challenges by accounts that nobody asked."""

from __future__ import annotations

import pytest

from contracts.audits import compute_challenge_bond, count_tickets
from contracts.draws import get_eligible_auditors
from contracts.parameters import MAX_CHALLENGES
from contracts.records import Staking, Unit
from contracts.views import Action, eligible_auditors, pending_actions
from gdf_market.messages import AuditClasses, AuditCommit, Bid, Entry
from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    BISECTION,
    Actor,
    World,
    cast_all,
    key_of,
    lottery_proof,
    make_staking_world,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
    text_hash,
)

AUDITING = frozenset({"audit_lottery", "audit_targeted", "audit_committee"})
VALIDATORS = ("val", "val2", "val3", "val4")


def accepted(world: World, *names: str, **changes: object) -> str:
    """Return a job of one round whose units are accepted and not yet audited by anybody."""
    job = start(world, *(names or ("w1", "w2")), **({"rounds": 1, "hold_ms": 500_000} | changes))
    cast_all(world, *(names or ("w1", "w2")), skips=AUDITING)
    play_to(world, job, "settled")
    return job


def challenge(world: World, name: str, job: str, **plays: object) -> Entry:
    actor = Actor(name, **plays)  # type: ignore[arg-type]
    world.cast(actor)
    entry = ACTS["audit_challenge"](world, actor, Action("audit_challenge", job, 0, 0, 0))
    assert entry is not None
    return entry


def declare(world: World, name: str, *classes: str) -> Entry:
    return world.entry(name, AuditClasses, classes=classes)


# classes


@pytest.mark.parametrize(("device_class", "may"), [("cpu-fp32", True), ("cuda-fp32", False)])
def test_without_a_word_an_account_audits_what_every_machine_can_run(device_class: str, may: bool) -> None:
    world = make_world(validators=VALIDATORS)
    job = post(world, device_class=device_class, rounds=1)
    fields = {"job": job, "price": 1, "units": 1, "device_class": device_class}
    world.block(*(world.entry(name, Bid, **fields) for name in ("w1", "w2")))
    world.wake()
    cast_all(world, "w1", "w2", skips=AUDITING)
    round_ = play_to(world, job, "settled")
    for slot in (0, 1):
        # the round's workers are in the class by their bids
        other = world.unit(job, 0, 1 - slot).worker
        others = [*(key_of(name).account for name in VALIDATORS if may), other]
        assert eligible_auditors(world.state, job, 0, slot) == others
        assert world.unit(job, 0, slot).audit_chance_ppm == -(-1_000_000 // len(others))
    assert all(target.auditor in eligible_auditors(world.state, job, 0, target.slot) for target in round_.targets)


def test_a_declaration_replaces_what_was_said_before() -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    unit, round_ = world.unit(job, 0, 0), world.round(job, 0)
    validators = [key_of(name).account for name in VALIDATORS]

    def eligible() -> list[str]:
        return [a for a in get_eligible_auditors(world.state, round_, unit.worker) if a in validators]

    world.block(declare(world, "val", "cuda-fp32"), declare(world, "val2", "cpu-fp32", "cuda-fp32"))
    assert eligible() == validators[1:]
    world.block(declare(world, "val"))
    assert eligible() == validators[1:]
    world.block(declare(world, "val", "cpu-fp32"))
    assert eligible() == validators
    # a worker of the round stays in its job's class whatever it declares
    world.block(declare(world, "w2", "cuda-fp32"))
    assert key_of("w2").account in get_eligible_auditors(world.state, round_, unit.worker)


def test_a_ticket_of_another_class_is_refused() -> None:
    world = make_world(validators=("val",))
    job = accepted(world, audit_floor_ppm=1_000_000)
    named = world.round(job, 0).targets[0].auditor
    name = next(name for name in ("val", "w2") if key_of(name).account != named)
    world.block(declare(world, "val", "cuda-fp32"))
    fields = {"job": job, "round": 0, "slot": 0, "role": "lottery", "digest": text_hash("d")}
    if name == "val":
        proof = lottery_proof(world, "val", Action("audit_lottery", job, 0, 0, 0)) or "00" * 80
        world.refuse(world.entry("val", AuditCommit, **fields, proof=proof), "may not audit this unit")
    actions = pending_actions(world.state, key_of("val").account, world.time_ms)
    assert "audit_lottery" not in {action.kind for action in actions}


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (("cpu-fp32", "tpu-fp32"), r"\['tpu-fp32'\] have no thresholds; known are"),
        (("cuda-fp32", "cpu-fp32"), "not distinct and ascending"),
        (("cpu-fp32", "cpu-fp32"), "not distinct and ascending"),
    ],
)
def test_what_nobody_can_declare(classes: tuple[str, ...], reason: str) -> None:
    world = make_world()
    world.refuse(declare(world, "val", *classes), reason)


# challenges


def test_a_challenge_that_passes_earns_nothing_and_costs_the_fee() -> None:
    world = make_staking_world(2, entry_fee=1_000)
    job = accepted(world)
    before, escrow = world.balance("other"), world.job(job).audit_escrow
    entry = challenge(world, "other", job)
    world.block(entry)
    assert world.balance("other") == before - 1_000 - 5 * CREDIT
    cast_all(world, "w1", "w2", skips=AUDITING)
    world.cast(Actor("other"))
    world.play(lambda: world.audit(job, 0, 0, "other").verdict != "")
    audit = world.audit(job, 0, 0, "other")
    assert (audit.role, audit.verdict, audit.status, audit.fee) == ("challenge", "pass", "opened", 0)
    assert world.balance("other") == before - 1_000
    assert world.job(job).audit_escrow == escrow


def test_a_challenger_finds_the_cheat_and_is_rewarded() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=500_000)
    cast_all(world, skips=AUDITING)
    world.cast(Actor("w1", flavour="cheat", skips=AUDITING))
    play_to(world, job, "settled")
    before = world.balance("other")
    world.block(challenge(world, "other", job))
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    assert world.balance("other") == before + CREDIT + 2_500_000  # a fee, and a fourth of half of the bond of 20
    play_to_end(world)


@pytest.mark.parametrize("excess", [500_000, 50_000_000])
def test_a_challenger_answers_for_its_doubts(excess: int) -> None:
    """Nobody asked it: a committee that it calls for nothing is paid from its bond, grey or fail."""
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    world.block(challenge(world, "other", job, audit_excess=lambda unit: excess))
    before = world.balance("other")
    cast_all(world, skips=frozenset({"audit_lottery", "audit_targeted", "arbiter_commit"}))
    world.cast(Actor("w1", skips=BISECTION))
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    world.play(lambda: settled_by(world, job) == "cleared")
    audit = world.audit(job, 0, 0, "other")
    assert (audit.bond, audit.fee) == (0, 0)
    assert world.balance("other") == before
    play_to_end(world)


def settled_by(world: World, job: str) -> str:
    dispute = world.state.dispute(job, 0, 0)
    assert dispute is not None
    return dispute.status


def passed(world: World, name: str, job: str) -> None:
    """Let an account challenge w1's unit and find nothing."""
    world.block(challenge(world, name, job))
    world.play(lambda: world.audit(job, 0, 0, name).verdict == "pass")


def crowd(count: int, **changes: int | Staking) -> World:
    """Return a network with strangers s0, s1, … that have credits."""
    names = ("owner", "w1", "w2", "val", *(f"s{number}" for number in range(count)))
    terms: dict[str, int | Staking] = {"arbiters": 3, "committee": 3}
    return World({name: 1_000 * CREDIT for name in names}, ("val",), terms | changes)


def test_two_challenges_wait_at_once_and_more_come_when_they_are_judged() -> None:
    world = crowd(3)
    job = accepted(world)
    world.block(*(challenge(world, name, job) for name in ("s0", "s1")))
    world.refuse(challenge(world, "s2", job), "2 challenges of the unit are not judged yet; try again")
    world.play(lambda: world.audit(job, 0, 0, "s0").verdict == world.audit(job, 0, 0, "s1").verdict == "pass")
    passed(world, "s2", job)


def test_a_unit_is_challenged_sixteen_times_at_most_and_each_time_at_twice_the_fee() -> None:
    fee = 1_000
    world = crowd(MAX_CHALLENGES + 1, entry_fee=fee)
    world.rotates = True
    job = accepted(world, hold_ms=5_000_000, deadline_ms=world.time_ms + 10_000_000)
    for count in range(MAX_CHALLENGES):
        passed(world, f"s{count}", job)
        assert world.balance(f"s{count}") == 1_000 * CREDIT - fee * 2**count
    entry = challenge(world, f"s{MAX_CHALLENGES}", job)
    world.refuse(entry, "was challenged 16 times; no more are taken")
    # challengers crowd nobody out whose ticket won
    assert count_tickets(world.state, world.unit(job, 0, 0)) == 0
    assert "audit_lottery" in {a.kind for a in pending_actions(world.state, key_of("w2").account, world.time_ms)}


def test_the_second_of_two_challenges_in_one_block_pays_twice() -> None:
    for names in (("s0", "s1"), ("s1", "s0")):
        world = crowd(2, entry_fee=1_000)
        world.rotates = True
        job = accepted(world)
        world.block(*(challenge(world, name, job) for name in names))
        paid = [
            event.amount for event in world.events if event.kind == "fee" and event.account != key_of("owner").account
        ]
        assert paid[-2:] == [1_000, 2_000]
        assert [event.account for event in world.events if event.kind == "fee"][-2:] == [
            key_of(n).account for n in names
        ]


@pytest.mark.parametrize(
    ("bond", "audit_fee", "committee", "locked"),
    [
        (5 * CREDIT, CREDIT, 3, 5 * CREDIT),
        (0, 4 * CREDIT, 11, 44 * CREDIT),
        (0, 99 * CREDIT, 2, 20 * CREDIT),
        (0, 0, 3, 0),
    ],
)
def test_a_challenger_locks_what_its_committee_may_cost(bond: int, audit_fee: int, committee: int, locked: int) -> None:
    """The network's bond, or the members' fees, which are never above the price that the round cleared at."""
    world = make_world(validators=VALIDATORS, audit_bond=bond, committee=committee)
    job = accepted(world, audit_fee=audit_fee, audit_budget=200 * CREDIT)
    assert world.round(job, 0).price == 10 * CREDIT
    assert compute_challenge_bond(world.state, world.unit(job, 0, 0)) == locked
    world.block(challenge(world, "other", job))
    assert world.audit(job, 0, 0, "other").bond == locked
    assert world.balance("other") == 1_000 * CREDIT - locked


def test_who_cannot_lock_it_challenges_nobody() -> None:
    names = {"owner": 1_000, "w1": 100, "w2": 100, "val": 100, "other": 29}
    world = World({name: amount * CREDIT for name, amount in names.items()}, ("val",), {"committee": 3})
    job = accepted(world, audit_fee=10 * CREDIT, audit_budget=200 * CREDIT)
    world.refuse(challenge(world, "other", job), "the audit's bond takes 30 credits; .* has 29")


@pytest.mark.parametrize("excess", [500_000, 50_000_000])
def test_a_false_challenge_leaves_the_audit_escrow_whole(excess: int) -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world, audit_fee=4 * CREDIT, audit_budget=100 * CREDIT)
    before = world.job(job).audit_escrow
    world.block(challenge(world, "other", job, audit_excess=lambda unit: excess))
    cast_all(world, skips=frozenset({"audit_lottery", "audit_targeted", "arbiter_commit"}))
    world.cast(Actor("w1", skips=BISECTION))
    world.play(lambda: world.state.dispute(job, 0, 0) is not None and settled_by(world, job) == "cleared")
    assert len(world.unit(job, 0, 0).auditors) == 1 + 3  # a committee of three was paid
    assert world.job(job).audit_escrow >= before
    assert world.balance("other") == 1_000 * CREDIT - 12 * CREDIT
    play_to_end(world)


def test_who_may_not_challenge() -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    world.refuse(challenge(world, "w1", job), "cannot challenge its own unit")
    fields = {"job": job, "round": 0, "slot": 0, "role": "challenge", "digest": text_hash("d")}
    world.refuse(world.entry("other", AuditCommit, **fields, proof="00" * 80), "carries no lottery proof")
    world.block(declare(world, "other", "cuda-fp32"))
    world.refuse(challenge(world, "other", job), "did not declare that it can audit units of cpu-fp32")
    world.block(challenge(world, "val", job))
    world.refuse(challenge(world, "val", job), "audits this unit already")


def test_a_convict_challenges_nobody_in_its_job() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=frozenset({"audit_lottery"}))
    world.cast(Actor("w1", flavour="cheat"))
    world.play(lambda: world.unit(job, 0, 0).status == "convicted")
    fields = {"job": job, "round": 0, "slot": 1, "role": "challenge", "proof": "", "digest": text_hash("d")}
    world.refuse(world.entry("w1", AuditCommit, **fields), "was convicted in this job")


def test_a_unit_that_its_committee_decides_on_is_not_challenged() -> None:
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)

    def grey(unit: Unit) -> int:
        return 500_000

    cast_all(world, skips=frozenset({"audit_lottery", "audit_committee"}), audit_excess=grey)
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    world.refuse(challenge(world, "other", job), "only its committee audits it")
