"""Audits: lottery and targets, openings, verdicts, and what silence costs."""

import pytest

from contracts.audits import compute_targets
from contracts.block import check_entry
from contracts.parameters import MAX_REDRAWS
from contracts.records import Staking, Target
from contracts.views import Action, pending_actions
from gdf_market import vrf
from gdf_market.errors import RuleError
from gdf_market.messages import (
    AuditCommit,
    AuditOpen,
    Entry,
    Flag,
    Result,
    SketchOpen,
    ValidatorLeave,
    audit_alpha,
)
from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    Actor,
    World,
    audit_fields,
    bid_entry,
    cast_all,
    end_epoch,
    key_of,
    lottery_proof,
    make_world,
    open_steps,
    outcome_of,
    play_to,
    play_to_end,
    post,
    start,
    text_hash,
)

AUDITING = frozenset({"audit_lottery", "audit_targeted", "audit_committee"})


def accepted(world: World, *names: str, **changes: object) -> str:
    """Return a job of one round whose units are accepted and not yet audited by anybody."""
    terms: dict[str, object] = {"rounds": 1, "hold_ms": 500_000}
    job = start(world, *(names or ("w1", "w2")), **(terms | changes))
    cast_all(world, skips=AUDITING)
    play_to(world, job, "settled")
    return job


def at(job: str, slot: int = 0) -> dict[str, object]:
    return {"job": job, "round": 0, "slot": slot}


def action(job: str, slot: int = 0, kind: str = "audit_targeted", steps: tuple[int, ...] = ()) -> Action:
    return Action(kind, job, 0, slot, 0, steps)


def name_of(account: str) -> str:
    names = ("owner", "other", "w1", "w2", "w3", "val", "val2", "val3", "val4", "val5")
    return next(name for name in names if key_of(name).account == account)


def target_of(world: World, job: str, slot: int = 0) -> Target:
    return next(target for target in world.round(job, 0).targets if target.slot == slot)


def targeted_commit(world: World, job: str, name: str = "") -> Entry:
    actor = Actor(name or name_of(target_of(world, job).auditor))
    entry = ACTS["audit_targeted"](world, actor, action(job))
    assert entry is not None
    return entry


def committed(world: World, **changes: object) -> tuple[str, str]:
    """Return a job whose slot 0 has a targeted audit with steps drawn, and its auditor."""
    job = accepted(world, **changes)
    auditor = name_of(target_of(world, job).auditor)
    world.block(targeted_commit(world, job))
    world.wake()
    return job, auditor


def worker_opens(world: World, job: str, flavour: str = "", slot: int = 0) -> Entry:
    unit = world.unit(job, 0, slot)
    steps = sorted({step for a in unit.auditors for step in world.audit(job, 0, slot, name_of(a)).steps})
    entry = ACTS["sketch_open"](
        world, Actor(name_of(unit.worker), flavour=flavour), action(job, slot, steps=tuple(steps))
    )
    assert entry is not None
    return entry


def auditor_opens(world: World, job: str, name: str) -> Entry:
    steps = world.audit(job, 0, 0, name).steps
    entry = ACTS["audit_open"](world, Actor(name), action(job, steps=steps))
    assert entry is not None
    return entry


# who may audit


def test_the_most_suspicious_unit_is_audited_by_whom_the_beacon_names() -> None:
    named = set()
    for salt in range(8):
        world = make_world()
        for _ in range(salt):
            world.block()
        job = accepted(world)
        target = target_of(world, job)
        assert (target.status, target.attempt) == ("pending", 0)
        assert target.phase_end_ms == world.time_ms + 20_000
        assert len(world.round(job, 0).targets) == 1
        named.add(name_of(target.auditor))
    assert named == {"w2", "val"}


def test_targets_are_the_most_suspicious_and_twins_at_most_four() -> None:
    world = make_world()
    names = ("w1", "w2", "w3")
    job = post(world, units_per_round=6, rounds=1)
    world.block(*(bid_entry(world, name, job, price, units=2) for price, name in enumerate(names, 1)))
    world.wake()
    cast_all(world, skips=AUDITING)
    round_ = play_to(world, job, "result")
    flags = (
        Flag(slot=5, other=1, reason="twin-differs", value_ppm=0),
        Flag(slot=0, other=2, reason="duplicate", value_ppm=990_000),
        Flag(slot=3, other=3, reason="outlier", value_ppm=0),
    )
    outcome = outcome_of(round_, suspicion=(4, 3, 2), flags=flags)
    assert compute_targets(outcome) == [4, 0, 1, 2, 5]
    assert compute_targets(outcome_of(round_, suspicion=())) == []
    voters = [name_of(account) for account in round_.attesters]
    world.block(*(world.entry(name, Result, job=job, round=0, outcome=outcome, loss_e6=-1) for name in voters))
    world.wake()
    assert [target.slot for target in world.round(job, 0).targets] == [4, 0, 1, 2]


def test_a_commit_locks_the_bond_and_the_next_block_draws_the_steps() -> None:
    world = make_world()
    job = accepted(world)
    auditor = name_of(target_of(world, job).auditor)
    before = world.balance(auditor)
    world.block(targeted_commit(world, job))
    assert world.balance(auditor) == before - 5 * CREDIT
    audit = world.audit(job, 0, 0, auditor)
    assert (audit.status, audit.role, audit.bond, audit.steps) == ("committed", "targeted", 5 * CREDIT, ())
    assert world.unit(job, 0, 0).auditors == (key_of(auditor).account,)
    world.wake()
    audit = world.audit(job, 0, 0, auditor)
    assert audit.steps[-1] == 5
    assert len(audit.steps) == 3
    assert audit.phase_end_ms == world.time_ms + 20_000


def commit_fields(job: str, **changes: object) -> dict[str, object]:
    return at(job) | {"role": "targeted", "proof": "", "digest": text_hash("d")} | changes


def test_audit_commit_refusals() -> None:
    world = make_world()
    job = accepted(world)
    named = name_of(target_of(world, job).auditor)
    other = {"w2": "val", "val": "w2"}[named]
    cases = [
        ("w1", {}, "was not named to audit"),
        ("w3", {}, "was not named to audit"),
        ("w1", {"role": "lottery"}, "may not audit this unit"),  # the unit's own worker
        ("w3", {"role": "lottery"}, "may not audit this unit"),  # neither validator nor worker of the round
        (other, {}, "was not named to audit"),
        (other, {"role": "committee"}, "sits on no committee"),
        (named, {"slot": 9}, "no unit in slot 9"),
        (named, {"round": 9}, "no unit in slot 0 of round 9"),
        (named, {"proof": "00" * 80}, "carries no lottery proof"),
        (named, {"role": "lottery"}, "carries the proof of its ticket"),
        (named, {"role": "lottery", "proof": "00" * 80}, "is refused"),
    ]
    for name, changes, reason in cases:
        world.refuse(world.entry(name, AuditCommit, **commit_fields(job, **changes)), reason)
    world.block(targeted_commit(world, job))
    world.refuse(targeted_commit(world, job), "audits this unit already")


def test_an_auditor_that_cannot_lock_the_bond_is_refused() -> None:
    world = World({"owner": 1_000 * CREDIT, "w1": 40 * CREDIT, "val": 5 * CREDIT - 1})
    job = start(world, "w1", rounds=1)
    cast_all(world, skips=AUDITING)
    play_to(world, job, "settled")
    assert target_of(world, job).status == "dropped"  # nobody could be named
    proof = lottery_proof(world, "val", action(job))
    assert proof  # one eligible auditor, a beginner's unit: the ticket wins for sure
    entry = world.entry("val", AuditCommit, **commit_fields(job, role="lottery", proof=proof))
    world.refuse(entry, "the audit's bond takes 5 credits")


def test_units_that_are_not_accepted_cannot_be_audited() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=1, hold_ms=1)
    cast_all(world, skips=AUDITING - {"audit_targeted"})
    play_to(world, job, "result")
    world.refuse(world.entry("val", AuditCommit, **commit_fields(job)), "slot 0 of round 0 is revealed")
    play_to_end(world)
    world.refuse(world.entry("val", AuditCommit, **commit_fields(job)), "slot 0 of round 0 is paid")


def lottery_entry(world: World, job: str, name: str, slot: int) -> Entry | None:
    proof = lottery_proof(world, name, action(job, slot))
    fields = commit_fields(job, role="lottery", slot=slot, proof=proof)
    return world.entry(name, AuditCommit, **fields) if proof else None


def test_a_winning_ticket_audits_and_a_losing_one_does_not() -> None:
    winners = losers = 0
    for salt in range(6):
        world = make_world(validators=("val", "val2", "val3"))
        for _ in range(salt):
            world.block()
        job = accepted(world, audit_floor_ppm=0)
        for name in ("val", "val2", "val3", "w2"):
            entry = lottery_entry(world, job, name, 0)
            if entry is None:
                losers += 1
                alpha = audit_alpha(job, 0, 0, world.round(job, 0).audit_seed)
                proof = vrf.prove(key_of(name).seed, alpha).hex()
                loser = world.entry(name, AuditCommit, **commit_fields(job, role="lottery", proof=proof))
                world.refuse(loser, "the ticket does not win: the chance is 250000 ppm")
            else:
                winners += 1
                world.block(entry, dt=1)
                assert world.audit(job, 0, 0, name).role == "lottery"
    assert winners
    assert losers > winners


def test_a_ticket_of_another_unit_or_key_is_refused() -> None:
    world = World({"owner": 1_000 * CREDIT, "w1": 100 * CREDIT, "val": 100 * CREDIT})
    job = post(world, units_per_round=2, rounds=1, hold_ms=500_000)
    world.block(bid_entry(world, "w1", job, 1, units=2))
    world.wake()
    cast_all(world, "w1", skips=AUDITING)
    play_to(world, job, "settled")
    proof = lottery_proof(world, "val", action(job, 0))
    entry = world.entry("val", AuditCommit, **commit_fields(job, role="lottery", slot=1, proof=proof))
    world.refuse(entry, "AuditCommit .* is refused")
    world.block(world.entry("val", AuditCommit, **commit_fields(job, role="lottery", proof=proof)))


def test_lottery_audits_of_a_unit_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contracts.audits.MAX_AUDITS_PER_UNIT", 1)
    world = make_world()
    job = accepted(world)
    world.block(targeted_commit(world, job))
    other = {"w2": "val", "val": "w2"}[name_of(target_of(world, job).auditor)]
    entry = world.entry(other, AuditCommit, **commit_fields(job, role="lottery", proof="00" * 80))
    world.refuse(entry, "the unit has 1 auditors; no more than 1 tickets are taken")


# opening


def test_an_honest_audit_passes() -> None:
    world = make_world()
    job, auditor = committed(world)
    before = world.balance(auditor)
    world.block(worker_opens(world, job), auditor_opens(world, job, auditor))
    assert world.audit(job, 0, 0, auditor).verdict == ""  # judged by the next block
    world.wake()
    audit = world.audit(job, 0, 0, auditor)
    assert (audit.status, audit.verdict, audit.bond, audit.fee) == ("opened", "pass", 0, CREDIT)
    assert audit.sketch_distance_ppb == 0
    assert world.balance(auditor) == before + 6 * CREDIT
    assert world.job(job).audit_escrow == 19 * CREDIT
    assert target_of(world, job).status == "done"
    assert world.state.dispute(job, 0, 0) is None
    play_to_end(world)
    assert world.unit(job, 0, 0).status == "paid"


def test_the_fee_is_never_above_the_clearing_price() -> None:
    world = make_world()
    job, auditor = committed(world, audit_fee=19 * CREDIT, audit_budget=20 * CREDIT)
    world.block(worker_opens(world, job), auditor_opens(world, job, auditor))
    world.wake()
    price = world.round(job, 0).price
    assert 0 < price < 19 * CREDIT
    assert world.audit(job, 0, 0, auditor).fee == price


def test_the_fee_is_what_is_left_of_the_audit_escrow() -> None:
    for budget, fee in ((0, 0), (400_000, 400_000)):
        world = make_world()
        job, auditor = committed(world, audit_budget=budget)
        world.block(worker_opens(world, job), auditor_opens(world, job, auditor))
        world.wake()
        assert world.audit(job, 0, 0, auditor).fee == fee
        assert world.job(job).audit_escrow == 0


def test_sketch_open_refusals() -> None:
    world = make_world()
    job = accepted(world)
    unit = world.unit(job, 0, 0)
    sketches = world.sketches(unit, unit.shard, "")

    def opening(name: str, *steps: int, **changes: object) -> Entry:
        fields = at(job) | {"openings": open_steps(sketches, steps)} | changes
        return world.entry(name, SketchOpen, **fields)

    world.refuse(opening("w1", 5), "no audit of this unit waits")
    world.block(targeted_commit(world, job))
    with pytest.raises(RuleError, match="no audit of this unit waits"):  # its steps are not drawn yet
        check_entry(world.state, opening("w1", 5), world.time_ms)
    world.wake()
    auditor = name_of(target_of(world, job).auditor)
    steps = world.audit(job, 0, 0, auditor).steps
    extra = next(step for step in range(6) if step not in steps)
    world.refuse(opening("w2", *steps), "the unit is .*'s, not")
    world.refuse(opening("w1", *steps[1:]), "answer no audit")
    world.refuse(opening("w1"), "answer no audit")
    world.refuse(opening("w1", *steps, extra), rf"no audit asks for steps \[{extra}\]")
    cheat = world.sketches(unit, unit.shard, "cheat")
    world.refuse(opening("w1", openings=open_steps(cheat, steps)), "is not in the sketch root")
    world.refuse(opening("w1", *steps, slot=7), "no unit in slot 7")
    world.block(opening("w1", *steps))
    assert world.audit(job, 0, 0, auditor).worker_opened
    assert world.unit(job, 0, 0).openings_digest
    world.refuse(opening("w1", *steps), "no audit of this unit waits")


def test_audit_open_refusals() -> None:
    world = make_world()
    job = accepted(world)
    auditor = name_of(target_of(world, job).auditor)
    actor = Actor(auditor)
    world.block(targeted_commit(world, job))
    fields = audit_fields(world, actor, action(job))
    unit = world.unit(job, 0, 0)
    sketches = world.sketches(unit, unit.shard, "")

    def opening(name: str, *steps: int, **changes: object) -> Entry:
        return world.entry(name, AuditOpen, **(at(job) | fields | {"openings": open_steps(sketches, steps)} | changes))

    world.wake()
    steps = world.audit(job, 0, 0, auditor).steps
    world.refuse(opening("w3", *steps), "did not commit to an audit here")
    world.refuse(opening(auditor, *steps, excess_ppb=1), "the opening hashes to")
    world.refuse(opening(auditor, *steps, salt=text_hash("other")), "the opening hashes to")
    world.refuse(opening(auditor, *steps[1:]), "the audit asks for")
    world.refuse(opening(auditor, *range(6)), "the audit asks for")
    cheat = world.sketches(unit, unit.shard, "cheat")
    world.refuse(opening(auditor, openings=open_steps(cheat, steps)), "is not in the sketch root")
    world.block(opening(auditor, *steps))
    world.refuse(opening(auditor, *steps), "the audit is opened already")


def test_openings_before_the_steps_are_drawn_are_refused() -> None:
    world = make_world()
    job = accepted(world)
    auditor = name_of(target_of(world, job).auditor)
    world.block(targeted_commit(world, job))
    entry = ACTS["audit_open"](world, Actor(auditor), action(job, steps=(5,)))
    assert entry is not None
    with pytest.raises(RuleError, match="not drawn yet"):
        check_entry(world.state, entry, world.time_ms)


def with_winner() -> tuple[World, str, str, str, Entry]:
    """Return (world, job, targeted auditor, other validator, its winning ticket) after the target's steps are drawn."""
    for salt in range(50):
        world = make_world(validators=("val", "val2"))
        for _ in range(salt):
            world.block()
        job = accepted(world, "w1")
        first = name_of(target_of(world, job).auditor)
        second = ({"val", "val2"} - {first}).pop()
        entry = lottery_entry(world, job, second, 0)
        if entry is not None:
            world.block(targeted_commit(world, job))
            world.wake()
            return world, job, first, second, entry
    raise AssertionError("a chance of one half did not win in 50 draws")


def test_one_opening_answers_several_audits() -> None:
    world, job, *names, entry = with_winner()
    world.block(entry)
    world.wake()
    (todo,) = [a for a in pending_actions(world.state, key_of("w1").account, world.time_ms) if a.kind == "sketch_open"]
    asked = {step for name in names for step in world.audit(job, 0, 0, name).steps}
    assert set(todo.steps) == asked
    world.block(worker_opens(world, job))
    assert all(world.audit(job, 0, 0, name).worker_opened for name in names)


def test_an_opening_may_answer_one_audit_of_several() -> None:
    world, job, first, second, entry = with_winner()
    world.block(entry)
    world.wake()
    unit = world.unit(job, 0, 0)
    steps = world.audit(job, 0, 0, first).steps
    sketches = world.sketches(unit, unit.shard, "")
    world.block(world.entry("w1", SketchOpen, **at(job), openings=open_steps(sketches, steps)))
    assert world.audit(job, 0, 0, first).worker_opened
    same = set(world.audit(job, 0, 0, second).steps) <= set(steps)
    assert world.audit(job, 0, 0, second).worker_opened == same


# silence


def test_a_silent_auditor_loses_its_bond_and_the_target_is_redrawn() -> None:
    world = make_world()
    job, auditor = committed(world)
    before = world.balance(auditor)
    world.block(worker_opens(world, job))
    world.wake()
    audit = world.audit(job, 0, 0, auditor)
    assert (audit.status, audit.verdict, audit.bond, audit.fee) == ("late", "", 0, 0)
    assert world.job(job).audit_escrow == 25 * CREDIT
    assert world.balance(auditor) == before
    target = target_of(world, job)
    assert (target.status, target.attempt) == ("pending", 1)
    assert target.auditor != key_of(auditor).account
    assert world.unit(job, 0, 0).status == "accepted"


def test_a_target_whose_auditor_never_commits_is_redrawn_at_most_three_times() -> None:
    world = make_world(validators=("val", "val2"))
    job = accepted(world)
    attempts = []
    while world.unit(job, 0, 0).status == "accepted":
        attempts.append(target_of(world, job).attempt)
        world.wake()
    assert max(attempts) == MAX_REDRAWS + 1
    assert target_of(world, job).status == "dropped"
    assert world.unit(job, 0, 0).status == "paid"  # nobody audited it: that is not its fault


def test_a_silent_worker_loses_the_units_pay_and_one_unit_bond() -> None:
    world = make_world()
    job, auditor = committed(world)
    before, escrow = world.balance(auditor), world.job(job).escrow
    bond = world.bid(job, "w1").bond
    world.block(auditor_opens(world, job, auditor))
    world.wake()
    unit = world.unit(job, 0, 0)
    assert (unit.status, unit.held_pay, unit.held_merit, unit.paid) == ("rejected", 0, 0, 0)
    assert unit.reason == "round 0, slot 0: the worker did not open its sketches"
    assert world.job(job).escrow == escrow + 11 * CREDIT + 20 * CREDIT
    assert world.bid(job, "w1").bond == bond - 20 * CREDIT
    audit = world.audit(job, 0, 0, auditor)
    assert (audit.verdict, audit.bond, audit.fee) == ("silent", 0, CREDIT)
    assert world.balance(auditor) == before + 6 * CREDIT
    assert world.state.reputation(key_of("w1").account, "cpu-fp32").invalid == 0  # silence is no fraud
    assert world.job(job).unsettled == (f"unit/{job}/0/1",)


def test_silence_costs_one_unit_bond_of_several() -> None:
    world = make_world()
    job = post(world, units_per_round=3, rounds=1, merit_ppm=0, hold_ms=500_000)
    world.block(bid_entry(world, "w1", job, 1, units=3))
    world.wake()
    cast_all(world, "w1", skips=AUDITING | {"sketch_open"})
    play_to(world, job, "settled")
    world.block(targeted_commit(world, job))
    world.wake()
    world.wake()
    assert world.unit(job, 0, 0).status == "rejected"
    assert [world.unit(job, 0, slot).status for slot in (1, 2)] == ["accepted", "accepted"]
    assert world.bid(job, "w1").bond == 40 * CREDIT
    play_to_end(world)
    assert world.balance("w1") == 980 * CREDIT + 2 * 10 * CREDIT


def test_when_both_are_silent_both_pay() -> None:
    world = make_world()
    job, auditor = committed(world)
    world.wake()
    assert world.audit(job, 0, 0, auditor).status == "late"
    assert world.unit(job, 0, 0).status == "rejected"
    assert target_of(world, job).status == "dropped"
    assert world.job(job).audit_escrow == 25 * CREDIT


def test_silence_ends_the_units_other_audits_with_their_bonds_back() -> None:
    world, job, _, second, entry = with_winner()
    before = world.balance(second)
    world.block(entry, dt=15_000)
    world.block(dt=5_000)  # the first audit's deadline, not the second's
    audit = world.audit(job, 0, 0, second)
    assert (audit.status, audit.bond, audit.fee) == ("void", 0, 0)
    assert world.balance(second) == before


def test_a_unit_waits_for_its_audit_before_it_is_paid() -> None:
    world = make_world()
    job, auditor = committed(world, hold_ms=3_000)
    world.block(dt=10_000)
    assert world.unit(job, 0, 0).status == "accepted"
    assert world.unit(job, 0, 1).status == "paid"
    world.block(worker_opens(world, job), auditor_opens(world, job, auditor))
    world.wake()
    assert world.unit(job, 0, 0).status == "paid"


def test_release_pays_worker_and_counts_a_valid_unit() -> None:
    world = make_world()
    job = accepted(world, hold_ms=30_000)
    cast_all(world)
    before = world.balance("w2")
    unit = world.unit(job, 0, 1)
    world.block(dt=29_999)
    assert world.unit(job, 0, 1).status == "accepted"
    world.block(dt=1)
    paid = world.unit(job, 0, 1)
    assert (paid.status, paid.paid, paid.held_pay, paid.held_merit) == ("paid", 11 * CREDIT, 0, 0)
    assert unit.held_pay + unit.held_merit == paid.paid
    assert world.balance("w2") >= before + 11 * CREDIT
    record = world.state.reputation(key_of("w2").account, "cpu-fp32")
    assert (record.consecutive, record.valid, record.invalid) == (1, 1, 0)


def test_a_record_makes_audits_rarer() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=6, hold_ms=1)
    cast_all(world)
    chances = []
    for index in range(6):
        play_to(world, job, "settled", index)
        chances.append(world.unit(job, index, 1).audit_chance_ppm)
    assert chances[0] == 500_000
    assert chances[-1] < chances[0]
    assert sorted(chances, reverse=True) == chances


def test_who_was_named_audits_though_it_left_the_validator_set() -> None:
    names = ("val", "val2", "val3", "val4", "val5", "val6")
    world = make_world(validators=names, staking=Staking(epoch_blocks=30, silent_epochs=100))
    job = accepted(world, audit_ms=600_000)
    named = name_of(target_of(world, job).auditor)
    assert named in names
    other = next(name for name in names if name != named)
    end_epoch(world, *(world.entry(name, ValidatorLeave) for name in (named, other)))
    assert not {key_of(name).account for name in (named, other)} & set(world.state.network().validators)
    assert name_of(target_of(world, job).auditor) == named
    # a ticket of the lottery counts only for who is eligible now
    ticket = world.entry(other, AuditCommit, **commit_fields(job, role="lottery", proof="00" * 80))
    world.refuse(ticket, "may not audit this unit")
    world.block(targeted_commit(world, job))
    play_to_end(world)
    audit = world.audit(job, 0, 0, named)
    assert (audit.status, audit.verdict) == ("opened", "pass")
