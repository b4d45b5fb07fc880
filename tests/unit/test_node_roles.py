"""Worker, attester and auditor against the real rules: what they submit, and what survives failures and restarts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from contracts.views import Action, pending_actions
from gdf_market.errors import LocalError, RuleError, StorageError
from gdf_market.messages import AuditCommit, Commit, Receipt, Result, Reveal
from gdf_market.node import roles as module
from gdf_market.node.ledger_service import NotFinalError
from gdf_market.node.roles import Roles
from gdf_market.train.protocol import UnitParts
from gdf_market.units import CREDIT
from ledger.mempool import MempoolFullError
from tests.contracts_world import Actor, World, bid_entry, make_world, play_to, start
from tests.node_kit import Kit, make_kit, turn


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Kit:
    return make_kit(tmp_path, monkeypatch, world, "w1")


async def act(roles: Roles) -> None:
    """Do what is due once; with it, nothing may be left that believes to be busy."""
    await turn(roles._start_due)
    assert roles._busy == set()


def again(world: World) -> None:
    """Let the pause after a failure pass."""
    world.time_ms += module.RETRY_MS


def job_of(kit: Kit, *names: str, **changes: object) -> str:
    return start(kit.world, *names, **(kit.blobs_of_job() | changes))


async def live(world: World, *all_roles: Roles, until: Callable[[], bool]) -> None:
    """Let nodes act in turns, block by block, until a condition holds; without actions, time moves on."""
    for _ in range(200):
        if until():
            return
        height = world.height
        for roles in all_roles:
            await act(roles)
        if world.height == height:
            world.wake()
    raise AssertionError("not reached in 200 turns")


async def test_a_worker_and_a_validator_take_a_job_to_its_end(world: World, kit: Kit, auditor: Kit) -> None:
    job = job_of(kit, "w1", rounds=2, audit_floor_ppm=1_000_000)
    worker, validator = Roles(kit.context), Roles(auditor.context)
    await live(world, worker, validator, until=lambda: world.job(job).status == "done")
    assert kit.ledger.kinds[:4] == ["Commit", "Reveal", "Receipt", "Result"]
    assert "SketchOpen" in kit.ledger.kinds
    assert {"Receipt", "Result", "AuditCommit", "AuditOpen"} <= set(auditor.ledger.kinds)
    assert world.job(job).completed == 2
    assert [world.unit(job, index, 0).status for index in range(2)] == ["paid", "paid"]
    assert world.round(job, 0).losses[0][1] == 1_500_000
    assert (worker.trained, kit.trainer.calls["train"]) == (2, 2)
    assert validator.audited == auditor.trainer.calls["audit"] >= 1
    assert list(kit.context.scratch.iterdir()) == list(auditor.context.scratch.iterdir()) == []
    assert kit.blobs.has(world.job(job).checkpoint)


async def test_commit_and_reveal_fit_after_a_restart_between_them(world: World, kit: Kit, tmp_path: Path) -> None:
    job = job_of(kit, "w1")
    await act(Roles(kit.context))
    assert kit.ledger.kinds == ["Commit"]
    play_to(world, job, "reveal")
    await act(Roles(kit.context))  # nothing but the journal remembers
    assert kit.ledger.kinds == ["Commit", "Reveal"]
    assert kit.trainer.calls["train"] == 1
    assert world.unit(job, 0, 0).status == "revealed"


async def test_a_crash_between_training_and_commit_costs_no_second_training(world: World, kit: Kit) -> None:
    job_of(kit, "w1")
    kit.ledger.refuse_next = NotFinalError("the node died here")
    await act(Roles(kit.context))
    assert kit.ledger.entries == []
    (note,) = kit.context.journal._folder.iterdir()
    written = note.read_bytes()
    restarted = Roles(kit.context)
    await act(restarted)
    assert kit.ledger.kinds == ["Commit"]
    assert (kit.trainer.calls["train"], restarted.trained) == (1, 0)
    assert note.read_bytes() == written


async def test_nothing_is_committed_that_the_journal_did_not_take(
    world: World, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(kit, "w1")

    def full(note: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(kit.journal, "save", full)
        roles = Roles(kit.context)
        await act(roles)
    assert kit.ledger.entries == []
    assert "disk is full" in kit.notes["action"]
    again(world)
    await act(roles)
    assert kit.ledger.kinds == ["Commit"]


async def test_a_lost_note_costs_the_unit_and_nothing_else(world: World, kit: Kit) -> None:
    job = job_of(kit, "w1")
    roles = Roles(kit.context)
    await act(roles)
    kit.journal.forget([job])
    play_to(world, job, "reveal")
    await act(roles)
    assert kit.ledger.kinds == ["Commit"]
    assert "is lost" in kit.notes["action"]
    assert roles._retry  # and it is not tried in a tight loop
    await act(roles)
    assert kit.ledger.kinds == ["Commit"]


@pytest.mark.parametrize("error", [MempoolFullError("evicted"), NotFinalError("late"), RuleError("not now")])
async def test_a_refused_entry_comes_again_with_another_nonce(
    world: World, kit: Kit, error: LocalError, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(kit, "w1")
    sealed = []
    seal = kit.context.seal
    monkeypatch.setattr(kit.context, "seal", lambda *a, **f: sealed.append(seal(*a, **f)) or sealed[-1])
    roles = Roles(kit.context)
    kit.ledger.refuse_next = error
    await act(roles)
    await act(roles)  # too early
    assert (len(sealed), kit.ledger.entries) == (1, [])
    again(world)
    await act(roles)
    assert kit.ledger.kinds == ["Commit"]
    assert sealed[0].body.nonce != sealed[1].body.nonce
    assert sealed[0].body.digest == sealed[1].body.digest  # the same claim, whichever becomes final
    assert roles._retry == {}


async def test_a_second_commit_of_a_unit_does_no_harm(world: World, kit: Kit) -> None:
    """A commit that was thought lost becomes final later: the next one is refused and the worker goes on."""
    job = job_of(kit, "w1", "w2")
    roles = Roles(kit.context)
    (action, *_) = [a for a in pending_actions(world.state, kit.context.account, world.time_ms) if a.kind == "train"]
    await act(roles)
    await roles._perform(action, ("train", job, 0, action.slot))
    assert kit.ledger.kinds == ["Commit"]
    assert world.unit(job, 0, 0).status == "committed"


async def test_a_unit_that_is_late_is_given_up(world: World, kit: Kit, autojump_clock: trio.testing.MockClock) -> None:
    job_of(kit, "w1", work_ms=60_000)
    kit.trainer.hangs = True
    roles = Roles(kit.context)
    began = trio.current_time()
    await act(roles)
    assert math.isclose(trio.current_time() - began, 60 + module.GRACE_S, abs_tol=2)
    assert "before its deadline" in kit.notes["action"]
    assert kit.ledger.entries == []


async def test_an_update_that_does_not_arrive_is_not_receipted_and_holds_nobody_up(
    world: World, kit: Kit, mock_clock: trio.testing.MockClock
) -> None:
    job = job_of(kit, "w1", "w2")
    world.cast(Actor("w2"))
    roles = Roles(kit.context)
    await act(roles)
    play_to(world, job, "reveal")
    await act(roles)
    play_to(world, job, "receipt")
    kit.bulk.hangs.add(world.unit(job, 0, 1).update)
    left_s = (world.round(job, 0).phase_end_ms - world.time_ms) / 1_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(act, roles)
        await trio.testing.wait_all_tasks_blocked()
        assert kit.ledger.kinds[-1] != "Receipt"
        mock_clock.jump(0.7 * left_s)
    receipt = kit.ledger.entries[-1].body
    assert isinstance(receipt, Receipt)
    assert receipt.holds == (0,)


async def test_a_vote_does_not_depend_on_the_loss(world: World, kit: Kit, auditor: Kit) -> None:
    job = job_of(kit, "w1")
    kit.trainer.loss = None
    until = lambda: world.round(job, 0).phase == "settled"  # noqa: E731
    await live(world, Roles(kit.context), Roles(auditor.context), until=until)
    (result,) = [entry.body for entry in kit.ledger.entries if isinstance(entry.body, Result)]
    assert result.loss_e6 == module.NOT_MEASURED
    assert sorted(loss for _, loss in world.round(job, 0).losses) == [module.NOT_MEASURED, 1_500_000]


def settled(world: World, kit: Kit) -> str:
    """Let others finish a round, so that its unit may be audited."""
    job = job_of(kit, "w2")
    world.cast(Actor("w2"), Actor("val", skips=frozenset({"audit_lottery", "audit_targeted"})))
    update = kit.blobs.put_bytes(b"an update")
    play_to(world, job, "settled")
    claimed, fetch = world.unit(job, 0, 0).update, kit.bulk.fetch

    async def fetch_claim(root: str, *, max_bytes: int) -> Path:
        return await fetch(update if root == claimed else root, max_bytes=max_bytes)

    kit.bulk.fetch = fetch_claim  # type: ignore[method-assign]
    return job


@pytest.fixture
def auditor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World, kit: Kit) -> Kit:
    return make_kit(tmp_path, monkeypatch, world, "val", near=kit)


async def test_a_validator_that_is_named_audits_once_and_opens_after_a_restart(world: World, auditor: Kit) -> None:
    job = settled(world, auditor)
    await act(Roles(auditor.context))
    (entry,) = auditor.ledger.entries
    assert isinstance(entry.body, AuditCommit)
    assert entry.body.role in ("targeted", "lottery")
    assert auditor.trainer.calls["audit"] == 1
    world.wake()
    assert world.audit(job, 0, 0, "val").steps
    await act(Roles(auditor.context))
    assert auditor.ledger.kinds == ["AuditCommit", "AuditOpen"]
    assert auditor.trainer.calls["audit"] == 1


async def test_what_does_not_pass_is_run_again_in_the_parts_of_the_worker(world: World, kit: Kit, auditor: Kit) -> None:
    kit.trainer.parts = auditor.trainer.parts = UnitParts(rows=1)
    auditor.trainer.lies_about_parts = True
    job = job_of(kit, "w1", rounds=1, audit_floor_ppm=1_000_000)
    await live(world, Roles(kit.context), Roles(auditor.context), until=lambda: world.job(job).status == "done")
    unit = world.unit(job, 0, 0)
    assert (unit.rows, unit.processes, unit.status) == (1, 1, "paid")
    assert world.audit(job, 0, 0, "val").verdict == "pass"
    assert auditor.trainer.calls["audit"] == 2


async def test_a_lost_lottery_is_not_drawn_again(world: World, auditor: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []
    monkeypatch.setattr(module, "audit_ticket", lambda *a: draws.append(a))
    job = settled(world, auditor)
    roles = Roles(auditor.context)
    lottery = Action("audit_lottery", job, 0, 0, world.time_ms + 60_000)
    monkeypatch.setattr(module, "pending_actions", lambda *_: [lottery])
    await act(roles)
    await act(roles)
    assert len(draws) == 1
    monkeypatch.setattr(module, "MAX_LOSERS", 1)
    roles._losers = {("other", 0, 0)}
    await act(roles)
    assert roles._losers == {(job, 0, 0)}


async def test_tasks_and_memory_of_failures_are_bounded(
    world: World, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TASKS", 4)
    many = [Action("reveal", f"{number:064x}", 0, 0, world.time_ms + 1_000) for number in range(20)]
    monkeypatch.setattr(module, "pending_actions", lambda *_: many)
    roles = Roles(kit.context)
    async with trio.open_nursery() as nursery:
        roles._start_due(nursery)
        assert len(roles._busy) == 4
    for _ in range(20):
        await act(roles)
    assert len(roles._retry) <= 16


async def test_a_job_that_is_gone_is_no_failure_of_the_node(world: World, kit: Kit) -> None:
    roles = Roles(kit.context)
    for kind in (
        "train",
        "reveal",
        "receipt",
        "result",
        "audit_lottery",
        "audit_committee",
        "sketch_open",
        "audit_open",
    ):
        await roles._perform(Action(kind, "00" * 32, 0, 0, world.time_ms + 1_000), (kind, "00" * 32, 0, 0))
    assert kit.ledger.entries == []


async def test_a_bug_in_a_role_ends_the_node_instead_of_hiding(
    world: World, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(kit, "w1")
    monkeypatch.setattr(kit.trainer, "train", None)
    with pytest.raises(BaseExceptionGroup):
        await act(Roles(kit.context))


async def test_two_units_of_one_worker_have_their_own_secrets(world: World, kit: Kit) -> None:
    entry = world.job_entry(**(kit.blobs_of_job() | {"units_per_round": 2}))
    world.block(entry)
    world.block(bid_entry(world, "w1", entry.id, 1, units=2))
    world.wake()
    roles = Roles(kit.context)
    await act(roles)
    play_to(world, entry.id, "reveal")
    await act(roles)
    commits = [one.body for one in kit.ledger.entries if isinstance(one.body, Commit)]
    reveals = [one.body for one in kit.ledger.entries if isinstance(one.body, Reveal)]
    assert {body.slot for body in commits} == {body.slot for body in reveals} == {0, 1}
    assert len({body.salt for body in reveals}) == 2
    assert world.balance("w1") < 1_000 * CREDIT  # its bonds are locked
