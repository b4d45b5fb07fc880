"""Who judges: the bar after a wrong accusation, and accusers where nobody else is left."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from contracts.block import next_wake_ms
from contracts.disputes import is_undecided
from contracts.draws import compute_audit_chance_ppm, get_eligible_auditors, is_barred
from contracts.judges import get_majority, process_doubt
from contracts.parameters import MAX_DOUBTS, MIN_ACCUSERS
from contracts.records import Dispute, Unit
from contracts.state import Draft
from contracts.views import Action, pending_actions
from gdf_market.messages import AuditCommit, Entry
from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    BISECTION,
    Actor,
    World,
    cast_all,
    key_of,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
    text_hash,
)

VALIDATORS = ("val", "val2", "val3", "val4", "val5")
EVERYBODY = ("w1", "w2", "w3", "other", *VALIDATORS)
AUDITING = frozenset({"audit_lottery", "audit_targeted"})
FAIL, GREY, PASS = 50_000_000, 500_000, 0
LIAR: dict[str, Any] = {"audit_flavour": "other@2"}


def name_of(account: str) -> str:
    return next(name for name in EVERYBODY if key_of(name).account == account)


def says(excess: int) -> Callable[[Unit], int]:
    return lambda unit: excess


def dispute_of(world: World, job: str, slot: int = 0) -> Dispute:
    dispute = world.state.dispute(job, 0, slot)
    assert dispute is not None
    return dispute


def barred(world: World, job: str) -> list[str]:
    return [name for name in EVERYBODY if is_barred(world.state, job, key_of(name).account)]


def accepted(world: World, *names: str, flavour: str = "", **changes: object) -> str:
    """Return a job whose units are accepted and not audited by anybody; w1's is of a flavour."""
    workers = names or ("w1", "w2")
    job = start(world, *workers, **({"rounds": 1, "hold_ms": 900_000} | changes))
    cast_all(world, *workers, skips=AUDITING)
    world.cast(Actor("w1", flavour=flavour, skips=AUDITING))
    play_to(world, job, "settled")
    return job


def challenge(world: World, name: str, job: str, slot: int = 0, **plays: Any) -> Entry:
    """Return a challenge by an account that from now on plays so."""
    actor = Actor(name, **({"skips": AUDITING} | plays))
    world.cast(actor)
    entry = ACTS["audit_challenge"](world, actor, Action("audit_challenge", job, 0, slot, 0))
    assert entry is not None
    return entry


def accused(world: World, name: str, job: str, slot: int = 0, **plays: Any) -> Dispute:
    """Let an account challenge a unit, and return the dispute once it is over."""
    world.block(challenge(world, name, job, slot, **plays))
    world.play(lambda: world.audit(job, 0, slot, name).bond == 0)  # there is one in these worlds
    world.play(lambda: not is_undecided(world.state.dispute(job, 0, slot)))
    return dispute_of(world, job, slot)


def in_dispute(**plays: object) -> tuple[World, str, str]:
    """Return (world, job, accuser) once the auditor named for an honest unit accused it; nobody else audits it."""
    world = make_world(validators=VALIDATORS)
    job = start(world, "w1", "w2", rounds=1, hold_ms=900_000)
    cast_all(world, skips=frozenset({"audit_lottery"}), **plays)
    world.cast(Actor("w1", skips=frozenset({"audit_lottery"}) | (BISECTION if "audit_excess" in plays else set())))
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    return world, job, name_of(dispute_of(world, job).accuser)


# the bar


def test_whoever_is_refuted_judges_nothing_in_that_job_any_more() -> None:
    world, job, liar = in_dispute(**LIAR)
    cast_all(world, skips=frozenset({"audit_lottery"}))
    world.cast(Actor(liar, skips=frozenset({"audit_lottery"}), **LIAR))
    world.play(lambda: dispute_of(world, job).status == "refuted")
    assert barred(world, job) == [liar]
    account = key_of(liar).account
    judge = world.state.judge(job, account)
    assert judge is not None
    assert judge.reason == "round 0, slot 0: its accusation was refuted"
    assert [event.account for event in world.events if event.kind == "barred"] == [account]
    for slot in (0, 1):
        unit, round_ = world.unit(job, 0, slot), world.round(job, 0)
        assert account not in get_eligible_auditors(world.state, round_, unit.worker)
    asked = {action.kind for action in pending_actions(world.state, account, world.time_ms)}
    assert not {kind for kind in asked if kind.startswith("audit_") and kind != "audit_open"}
    fields = {"job": job, "round": 0, "slot": 1, "digest": text_hash("d")}
    for role, proof in (("targeted", ""), ("lottery", "00" * 80), ("challenge", "")):
        world.refuse(world.entry(liar, AuditCommit, **fields, role=role, proof=proof), "judges nothing in it any more")
    assert not is_barred(world.state, post(world, name="other"), account)  # another job is another matter
    world.play(lambda: world.unit(job, 0, 0).status == "paid")


def test_whoever_is_barred_goes_on_working_and_is_drawn_for_no_panel() -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world, "w1", "w2", "w3", rounds=20)
    assert accused(world, "w2", job, **LIAR).status == "refuted"
    assert accused(world, "w3", job, slot=0, audit_excess=says(FAIL)).status == "refuted"
    assert barred(world, job) == ["w2", "w3"]
    world.refuse(challenge(world, "w2", job, slot=2), "judges nothing in it any more")
    arbiters = dispute_of(world, job).bisection.arbiters  # type: ignore[union-attr]
    assert key_of("w2").account not in {arbiter.account for arbiter in arbiters}
    cast_all(world)
    later = world.job(job).round + 2
    play_to(world, job, "settled", later)
    units = [world.unit(job, later, slot) for slot in range(3)]
    assert {unit.worker for unit in units} == {key_of(name).account for name in ("w1", "w2", "w3")}
    validators = [key_of(name).account for name in VALIDATORS]
    for unit in units:
        judges = [*validators, *([key_of("w1").account] if unit.worker != key_of("w1").account else [])]
        assert get_eligible_auditors(world.state, world.round(job, later), unit.worker) == judges
        assert unit.audit_chance_ppm == compute_audit_chance_ppm(50_000, 0, len(judges))
    world.play(lambda: world.unit(job, 0, 1).status == "paid")


@pytest.mark.parametrize("silent", [False, True])
def test_an_accuser_that_calls_the_committee_is_barred_when_it_is_overruled(silent: bool) -> None:
    """By a false state or by silence it costs nothing more than a bond to call the committee; it does so once."""
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    before = world.balance("val")
    plays = {"skips": AUDITING | BISECTION} if silent else {"audit_flavour": "third@2"}
    if not silent:
        world.cast(*(Actor(name, skips=AUDITING, arbiter_flavour=name) for name in VALIDATORS))
    dispute = accused(world, "val", job, audit_excess=says(FAIL), **plays)
    assert dispute.status == "cleared"
    assert barred(world, job) == ["val"]
    assert world.balance("val") == before - 5 * CREDIT
    play_to_end(world)


def test_a_committee_that_decides_nothing_bars_nobody() -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    world.cast(*(Actor(name, skips=AUDITING, audit_excess=says(GREY)) for name in (*VALIDATORS, "w2")))
    assert accused(world, "val", job, audit_excess=says(GREY)).status == "unresolved"
    assert barred(world, job) == []


def test_one_doubt_may_be_honest_and_many_are_not() -> None:
    world, job, doubter = in_dispute(audit_excess=says(GREY))
    cast_all(world, skips=frozenset({"audit_lottery"}))
    world.cast(Actor(doubter, audit_excess=says(GREY)))
    before = world.balance(doubter)
    world.play(lambda: dispute_of(world, job).status == "cleared")
    assert world.balance(doubter) == before + 6 * CREDIT  # bond and fee: nothing says that it lied
    judge = world.state.judge(job, key_of(doubter).account)
    assert judge is not None
    assert (judge.doubts, judge.barred) == (1, False)
    draft = Draft(world.state, world.context())
    for count in range(2, MAX_DOUBTS + 2):
        process_doubt(draft, world.audit(job, 0, 0, doubter))
        judge = draft.judge(job, key_of(doubter).account)
        assert judge is not None
        assert (judge.doubts, judge.barred) == (count, count >= MAX_DOUBTS)
    assert [event.reason for event in draft.events] == [f"{MAX_DOUBTS} doubts were cleared"]  # once


@pytest.mark.parametrize("excess", [GREY, FAIL])
def test_a_challenger_is_barred_for_its_doubts_too(excess: int) -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    world.cast(Actor("w1", skips=AUDITING | BISECTION))
    assert accused(world, "other", job, audit_excess=says(excess)).status == "cleared"
    assert barred(world, job) == ["other"]


def test_a_target_is_redrawn_at_once_when_its_auditor_is_barred() -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world, "w1", "w2", "w3", audit_ms=600_000)
    (target,) = world.round(job, 0).targets
    named = name_of(target.auditor)
    other = next(slot for slot in range(3) if slot != target.slot and world.unit(job, 0, slot).worker != target.auditor)
    assert accused(world, named, job, slot=other, **LIAR).status == "refuted"
    assert barred(world, job) == [named]
    assert next_wake_ms(world.state) == 0
    world.wake()
    (again,) = world.round(job, 0).targets
    assert (again.status, again.attempt) == ("pending", 1)
    assert again.auditor != target.auditor
    assert world.time_ms < target.phase_end_ms


@pytest.mark.parametrize("first", [0, 1])
def test_two_accusers_are_barred_in_whatever_order_they_come(first: int) -> None:
    world = make_world(validators=VALIDATORS)
    job = accepted(world)
    pair = ("val", "val2") if first == 0 else ("val2", "val")
    world.block(*(challenge(world, name, job, **LIAR) for name in pair))
    world.play(lambda: barred(world, job) == ["val", "val2"])
    assert dispute_of(world, job).status == "refuted"
    assert world.balance("val") == world.balance("val2") == 995 * CREDIT
    play_to_end(world)


# nobody left


def is_judged(world: World, job: str, name: str) -> bool:
    return world.audit(job, 0, 0, name).verdict != ""


def all_accuse(world: World, job: str, **flavours: str) -> None:
    """Let accounts challenge w1's unit, each with its own run; the bisection waits for the worker all the while."""
    for name, flavour in flavours.items():
        world.block(challenge(world, name, job, audit_flavour=flavour, audit_excess=says(FAIL)))
        world.play(functools.partial(is_judged, world, job, name))
        assert dispute_of(world, job).status == "bisecting"


def lonely(flavour: str, *validators: str, **changes: object) -> tuple[World, str]:
    """Return a world in which only the validators may judge w1's unit, and w1 does not help to bisect."""
    world = make_world(validators=validators)
    job = accepted(world, "w1", flavour=flavour, audit_ms=120_000, **changes)
    world.cast(Actor("w1", flavour=flavour, skips=AUDITING | BISECTION))
    return world, job


def test_where_all_accuse_the_accusers_convict() -> None:
    world, job = lonely("cheat@2", "val", "val2", "val3")
    before = [world.balance(name) for name in ("val", "val2", "val3")]
    all_accuse(world, job, val="", val2="", val3="")
    assert len(get_majority(world.state, world.unit(job, 0, 0))) == MIN_ACCUSERS
    world.play(lambda: dispute_of(world, job).status == "convicted")
    assert dispute_of(world, job).reason == "nobody is left to ask, and 3 accusers found the same"
    after = [world.balance(name) for name in ("val", "val2", "val3")]
    # a third of half of the bond of 20, and the fee
    assert [b - a for a, b in zip(before, after, strict=True)] == [10 * CREDIT // 3 + CREDIT] * 3
    assert world.bid(job, "w1").bond == 0
    assert barred(world, job) == []
    play_to_end(world)


def test_a_majority_of_all_that_could_judge_is_needed() -> None:
    """Two are too few, strangers do not count, runs must agree, and who is silent or barred counts among all."""
    world, job = lonely("cheat@2", "val", "val2")
    all_accuse(world, job, val="", val2="", other="")
    assert get_majority(world.state, world.unit(job, 0, 0)) == []
    world.play(lambda: dispute_of(world, job).status != "bisecting")
    assert dispute_of(world, job).status == "unresolved"
    assert dispute_of(world, job).reason == "nobody is left to ask"

    world, job = lonely("cheat@2", "val", "val2", "val3")
    all_accuse(world, job, val="chaos", val2="", val3="mess")
    assert get_majority(world.state, world.unit(job, 0, 0)) == []

    world, job = lonely("cheat@2", *VALIDATORS, "val6")
    all_accuse(world, job, val="", val2="", val3="")
    assert get_majority(world.state, world.unit(job, 0, 0)) == []  # half of six
    all_accuse(world, job, val4="")
    assert len(get_majority(world.state, world.unit(job, 0, 0))) == 4


@pytest.mark.parametrize("order", list(itertools.permutations(("val", "val2", "val3")))[::2])
def test_accusers_convict_in_whatever_order_they_came(order: tuple[str, ...]) -> None:
    world, job = lonely("cheat@2", "val", "val2", "val3")
    all_accuse(world, job, **dict.fromkeys(order, ""))
    world.play(lambda: dispute_of(world, job).status != "bisecting")
    assert dispute_of(world, job).status == "convicted"
    assert {world.balance(name) for name in order} == {1_000 * CREDIT + 10 * CREDIT // 3 + CREDIT}


def test_a_worker_that_helps_to_bisect_finds_no_arbiter_either() -> None:
    world, job = lonely("cheat@2", "val", "val2", "val3")
    all_accuse(world, job, val="", val2="", val3="")
    world.cast(Actor("w1", flavour="cheat@2", skips=AUDITING))
    world.play(lambda: dispute_of(world, job).status != "bisecting")
    assert dispute_of(world, job).status == "convicted"
    assert "committee: there is no arbiter" in {event.reason for event in world.events}


@pytest.mark.parametrize("helps", [False, True])
def test_one_friend_that_is_left_does_not_overrule_three_accusers(helps: bool) -> None:
    """Nor does it convict: the unit is released, and nobody is barred."""
    world, job = lonely("cheat@2", "val", "val2", "val3", "val4")
    all_accuse(world, job, val="", val2="", val3="")
    world.cast(
        Actor("val4", skips=AUDITING, audit_excess=says(PASS), audit_flavour="cheat@2", arbiter_flavour="cheat@2")
    )
    if helps:
        world.cast(Actor("w1", flavour="cheat@2", skips=AUDITING))
    before = world.balance("val")
    world.play(lambda: dispute_of(world, job).status not in ("bisecting", "committing", "opening"))
    assert dispute_of(world, job).status == "unresolved"
    assert dispute_of(world, job).reason == "3 accusers found the same, and only 1 were left to ask"
    assert barred(world, job) == []
    assert world.balance("val") == before + 5 * CREDIT
    fewer = "committee: there are fewer arbiters than accusers" in {event.reason for event in world.events}
    assert fewer == helps
    play_to_end(world)
