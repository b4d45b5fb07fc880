"""What the roles of a node are told to do."""

import msgspec

from contracts.state import audit_key
from contracts.views import Action, eligible_auditors, my_units, pending_actions
from gdf_market.messages import MAX_OPENINGS
from gdf_market.units import CREDIT
from tests.contracts_world import World, cast_all, key_of, make_world, play_to, play_to_end, start

QUIET = frozenset({"audit_lottery", "audit_targeted", "audit_committee"})


def actions(world: World, name: str) -> list[Action]:
    return pending_actions(world.state, key_of(name).account, world.time_ms)


def kinds(world: World, name: str) -> list[str]:
    return [action.kind for action in actions(world, name)]


def test_each_phase_asks_its_own_and_once() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=1)
    assert actions(world, "w1") == [
        Action(kind, job, 0, 0, world.round(job, 0).phase_end_ms) for kind in ("train", "commit")
    ]
    assert kinds(world, "val") == kinds(world, "owner") == kinds(world, "w3") == []
    cast_all(world, skips=QUIET)
    world.block(*world.due())
    assert kinds(world, "w1") == []
    world.wake()
    assert kinds(world, "w1") == ["reveal"]
    world.block(*world.due())
    world.wake()
    assert actions(world, "val") == [Action("receipt", job, 0, -1, world.round(job, 0).phase_end_ms)]
    assert kinds(world, "w1") == ["receipt"]
    world.block(*world.due())
    assert kinds(world, "w1") == []
    world.wake()
    assert kinds(world, "w1") == kinds(world, "val") == ["result"]
    world.block(*world.due())
    world.wake()
    assert set(kinds(world, "val")) <= {"audit_lottery", "audit_targeted"}


def test_what_is_overdue_is_not_asked() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    end = world.round(job, 0).phase_end_ms
    account = key_of("w1").account
    assert pending_actions(world.state, account, end - 1)
    assert pending_actions(world.state, account, end) == []


def test_audits_are_offered_to_whom_may_and_can() -> None:
    world = make_world(validators=("val", "val2"))
    job = start(world, "w1", "w2", rounds=1)
    cast_all(world, skips=QUIET)
    play_to(world, job, "settled")
    named = world.round(job, 0).targets[0].auditor
    for name in ("w2", "val", "val2"):
        offered = {(a.kind, a.slot): a for a in actions(world, name)}
        kind = "audit_targeted" if key_of(name).account == named else "audit_lottery"
        assert (kind, 0) in offered
        if kind == "audit_lottery":
            assert offered[(kind, 0)].deadline_ms == world.unit(job, 0, 0).release_ms
    # not its own unit, not a stranger, not without the bond
    assert [a.slot for a in actions(world, "w1")] == [1]
    assert actions(world, "w3") == []
    assert eligible_auditors(world.state, job, 0, 0) == [key_of(n).account for n in ("val", "val2", "w2")]
    assert eligible_auditors(world.state, job, 0, 9) == eligible_auditors(world.state, job, 9, 0) == []


def test_an_account_that_cannot_lock_the_bond_is_offered_no_audit() -> None:
    world = World({"owner": 1_000 * CREDIT, "w1": 40 * CREDIT, "val": 5 * CREDIT - 1})
    job = start(world, "w1", rounds=1)
    cast_all(world, "w1", skips=QUIET)
    play_to(world, job, "settled")
    assert kinds(world, "val") == []


def test_openings_are_asked_from_both_sides_once_the_steps_are_drawn() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=1)
    cast_all(world, skips=frozenset({"audit_lottery", "sketch_open", "audit_open"}))
    play_to(world, job, "settled")
    world.block(*world.due())
    assert "sketch_open" not in kinds(world, "w1")
    world.wake()
    auditor = next(name for name in ("w2", "val") if "audit_open" in kinds(world, name))
    audit = world.audit(job, 0, 0, auditor)
    (mine,) = [a for a in actions(world, "w1") if a.kind == "sketch_open"]
    assert mine == Action("sketch_open", job, 0, 0, audit.phase_end_ms, audit.steps)
    (theirs,) = [a for a in actions(world, auditor) if a.kind == "audit_open"]
    assert theirs == Action("audit_open", job, 0, 0, audit.phase_end_ms, audit.steps)


def test_committee_members_are_asked_and_nobody_else() -> None:
    world = make_world(validators=("val", "val2", "val3", "val4", "val5"))
    job = start(world, "w1", "w2", rounds=1, hold_ms=500_000)
    cast_all(world, skips=frozenset({"audit_lottery", "audit_committee"}), audit_excess=lambda unit: 500_000)
    world.play(lambda: world.state.dispute(job, 0, 0) is not None)
    dispute = world.state.dispute(job, 0, 0)
    assert dispute is not None
    for name in ("w2", "val", "val2", "val3", "val4", "val5"):
        member = key_of(name).account in dispute.committee
        asked = [a for a in actions(world, name) if a.slot == 0]
        assert [a.kind for a in asked] == (["audit_committee"] if member else [])
        assert all(a.deadline_ms == dispute.phase_end_ms for a in asked)


def test_my_units_are_those_under_way_and_those_held() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=2)
    account = key_of("w1").account
    assert [unit.status for unit in my_units(world.state, account)] == ["assigned"]
    cast_all(world, skips=QUIET)
    play_to(world, job, "work", 1)
    assert [(unit.round, unit.status) for unit in my_units(world.state, account)] == [(0, "accepted"), (1, "assigned")]
    assert my_units(world.state, key_of("val").account) == []
    play_to_end(world)
    assert my_units(world.state, account) == []


def test_one_opening_asks_for_no_more_steps_than_an_entry_holds() -> None:

    world = make_world(validators=("val", "val2", "val3"))
    job = start(world, "w1", "w2", rounds=1, hold_ms=500_000)
    cast_all(world, skips=QUIET - {"audit_targeted"} | {"sketch_open", "audit_open"})
    play_to(world, job, "settled")
    world.block(*world.due())
    world.wake()
    unit = world.unit(job, 0, 0)
    audit = world.state.audit(job, 0, 0, unit.auditors[0])
    assert audit is not None
    # as if three more auditors had committed, each asking for other steps
    records = world.state.records
    names = [key_of(name).account for name in ("a1", "a2", "a3")]
    for at, name in enumerate(names):
        steps = (10 + 3 * at, 11 + 3 * at, 12 + 3 * at)
        records = records.set(
            audit_key(job, 0, 0, name), msgspec.structs.replace(audit, auditor=name, steps=steps, bond=0)
        )
    records = records.set(f"unit/{job}/0/0", msgspec.structs.replace(unit, auditors=(*unit.auditors, *names)))
    (todo,) = [
        a for a in pending_actions(type(world.state)(records), unit.worker, world.time_ms) if a.kind == "sketch_open"
    ]
    assert len(todo.steps) <= MAX_OPENINGS
    assert set(audit.steps) <= set(todo.steps)
