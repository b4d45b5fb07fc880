"""A bisection between nodes, against the real rules: a lying auditor is refuted, and what a restart must not forget."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from contracts.records import Bisection, Dispute
from contracts.views import Action
from gdf_market.errors import RuleError, StorageError
from gdf_market.messages import ArbiterCommit, ArbiterOpen, AuditOpen, StateOffer
from gdf_market.node.disputing import LIE, LIE_EXCESS_PPB, make_lie
from gdf_market.node.roles import Roles
from gdf_market.node.trainer import AuditResult
from gdf_market.train.protocol import UnitParts
from tests.contracts_world import STEPS, World, key_of, make_world, start
from tests.node_kit import SKETCHES, Kit, live, make_kit, turn

VALIDATORS = ("val", "val2", "val3", "val4")


@pytest.fixture
def world() -> World:
    return make_world(validators=VALIDATORS)


@pytest.fixture
def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> dict[str, Kit]:
    """The nodes of one worker and four validators, with one blob store."""
    first = make_kit(tmp_path, monkeypatch, world, "w1")
    others = {name: make_kit(tmp_path, monkeypatch, world, name, near=first) for name in VALIDATORS}
    return {"w1": first} | others


def job_of(kits: dict[str, Kit], **changes: object) -> str:
    return start(kits["w1"].world, "w1", **(kits["w1"].blobs_of_job() | {"rounds": 1, "hold_ms": 300_000} | changes))


def dispute_of(world: World, job: str) -> Dispute | None:
    return world.state.dispute(job, 0, 0)


def phase_of(world: World, job: str) -> str:
    dispute = dispute_of(world, job)
    if dispute is None or dispute.status != "bisecting":
        return ""
    assert dispute.bisection is not None
    return dispute.bisection.phase


async def accused(world: World, kits: dict[str, Kit]) -> tuple[str, str, list[Roles]]:
    """Return (job, liar, nodes) once the unit's named auditor has lied about it; the other nodes have not audited."""
    job = job_of(kits)
    honest = [Roles(kit.context) for kit in kits.values()]
    await live(world, *honest, until=lambda: world.round(job, 0).phase == "settled")
    (target,) = world.round(job, 0).targets
    liar = next(name for name in VALIDATORS if key_of(name).account == target.auditor)
    nodes = [Roles(kit.context, poison=LIE if name == liar else "") for name, kit in kits.items()]
    pair = [node for node, name in zip(nodes, kits, strict=True) if name in ("w1", liar)]
    await live(world, *pair, until=lambda: dispute_of(world, job) is not None)
    assert phase_of(world, job) in ("halving", "offering")
    return job, liar, nodes


async def in_phase(world: World, kits: dict[str, Kit], phase: str) -> tuple[str, list[Roles]]:
    """Return (job, nodes) once the liar's accusation is bisected as far as ``phase``."""
    job, _, nodes = await accused(world, kits)
    await live(world, *nodes, until=lambda: phase_of(world, job) == phase)
    return job, nodes


def bisection_of(world: World, job: str) -> Bisection:
    dispute = dispute_of(world, job)
    assert dispute is not None
    assert dispute.bisection is not None
    return dispute.bisection


def first_arbiter(world: World, job: str) -> str:
    account = bisection_of(world, job).arbiters[0].account
    return next(name for name in VALIDATORS if key_of(name).account == account)


async def test_a_lying_auditor_loses_its_bond_and_the_worker_is_paid(world: World, kits: dict[str, Kit]) -> None:
    job, liar, nodes = await accused(world, kits)
    before = world.balance(liar)
    await live(world, *nodes, until=lambda: not world.state.active().jobs)
    audit = world.audit(job, 0, 0, liar)
    assert (audit.status, audit.verdict, audit.excess_ppb) == ("refuted", "fail", LIE_EXCESS_PPB)
    assert world.balance(liar) == before
    dispute, search = dispute_of(world, job), bisection_of(world, job)
    assert dispute is not None
    assert dispute.status == "refuted"
    assert (search.low, search.high) == (STEPS // 2 - 1, STEPS // 2)
    assert search.worker.state == search.accuser.state
    assert world.unit(job, 0, 0).status == "paid"
    assert kits["w1"].trainer.calls["state"] == kits[liar].trainer.calls["state"] == 1
    assert sum(kits[name].trainer.calls["replay"] for name in VALIDATORS) == 3
    assert list(kits["w1"].context.scratch.iterdir()) == []


async def test_an_arbiter_opens_after_a_restart_what_it_committed_to_before(world: World, kits: dict[str, Kit]) -> None:
    job, _ = await in_phase(world, kits, "replaying")
    await live(world, *(Roles(kit.context) for kit in kits.values()), until=lambda: phase_of(world, job) == "opening")
    commits = {entry.body.author for entry in world.entries if isinstance(entry.body, ArbiterCommit)}
    await live(world, *(Roles(kit.context) for kit in kits.values()), until=lambda: phase_of(world, job) == "")
    opened = {entry.body.author for entry in world.entries if isinstance(entry.body, ArbiterOpen)}
    assert opened == commits
    assert all(kit.trainer.calls["replay"] <= 1 for kit in kits.values())


async def test_nothing_is_committed_that_the_journal_did_not_take(
    world: World, kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = await in_phase(world, kits, "replaying")
    kit = kits[first_arbiter(world, job)]

    def full(note: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(kit.journal, "save", full)
        await turn(Roles(kit.context)._start_due)
    assert "disk is full" in kit.notes["action"]
    assert "ArbiterCommit" not in kit.ledger.kinds


async def test_a_replay_for_another_accuser_is_not_the_one_that_was_noted(world: World, kits: dict[str, Kit]) -> None:
    job, _ = await in_phase(world, kits, "replaying")
    kit, search = kits[first_arbiter(world, job)], bisection_of(world, job)
    roles = Roles(kit.context)
    await turn(roles._start_due)
    note = kit.journal.arbiter(job, 0, 0)
    assert note is not None
    action = Action("arbiter_open", job, 0, 0, 0)
    assert roles._disputing._arbiter_note(action, search) == note
    assert roles._disputing._arbiter_note(action, msgspec.structs.replace(search, seed="00" * 32)) is None


async def test_a_state_that_nobody_serves_brings_the_committee(world: World, kits: dict[str, Kit]) -> None:
    job, _, nodes = await accused(world, kits)
    await live(world, *nodes, until=lambda: phase_of(world, job) == "offering")
    world.block(world.entry("w1", StateOffer, job=job, round=0, slot=0, state="ab" * 32))
    await live(world, *nodes, until=lambda: phase_of(world, job) == "replaying")
    await live(world, *nodes, until=lambda: phase_of(world, job) == "")
    assert "committee: 0 of 3 arbiters committed" in {event.reason for event in world.events}
    assert any("no peer has blob" in kit.notes.get("action", "") for kit in kits.values())
    await live(world, *nodes, until=lambda: not world.state.active().jobs)
    assert world.unit(job, 0, 0).status == "paid"  # the committee ran the unit


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_malformed_state_is_a_finding_and_is_not_tried_again(
    world: World, kits: dict[str, Kit], tmp_path: Path, size: int
) -> None:
    job, liar, nodes = await accused(world, kits)
    await live(world, *nodes, until=lambda: phase_of(world, job) == "offering")
    (tmp_path / "garbage").write_bytes(bytes(size))  # of 100,000 bytes: more than any state of the job has
    root = await nodes[0]._files.store(tmp_path / "garbage")
    world.block(world.entry("w1", StateOffer, job=job, round=0, slot=0, state=root))
    await live(world, *nodes, until=lambda: phase_of(world, job) == "")
    arbiters = [kits[name] for name in VALIDATORS if name != liar]
    calls = [kit.trainer.calls["replay"] for kit in arbiters]
    assert calls == [1 if size == 100 else 0] * 3
    assert all("arbiter_commit" not in kit.notes.get("action", "") for kit in arbiters)
    reason = "committee: 3 of 3 arbiters agree, and find nothing that decides"
    assert reason in {event.reason for event in world.events}
    search = bisection_of(world, job)
    assert {arbiter.finding for arbiter in search.arbiters} == {""}
    await live(world, *nodes, until=lambda: not world.state.active().jobs)
    assert world.unit(job, 0, 0).status == "paid"  # the committee ran the unit
    assert [kit.trainer.calls["replay"] for kit in arbiters] == calls


async def test_a_challenge_runs_the_unit_again_and_is_opened(world: World, kits: dict[str, Kit]) -> None:
    job = job_of(kits)
    nodes = {name: Roles(kit.context) for name, kit in kits.items()}
    await live(world, *nodes.values(), until=lambda: world.round(job, 0).phase == "settled")
    (target,) = world.round(job, 0).targets
    name = next(name for name in VALIDATORS if key_of(name).account != target.auditor)
    note = await nodes[name].challenge(job, 0, 0)
    audit = world.audit(job, 0, 0, name)
    assert (audit.role, note.excess_ppb) == ("challenge", 0)
    await live(world, nodes["w1"], nodes[name], until=lambda: world.audit(job, 0, 0, name).verdict != "")
    audit = world.audit(job, 0, 0, name)
    assert (audit.verdict, audit.fee, audit.bond) == ("pass", 0, 0)


async def test_a_challenge_that_the_ledger_would_refuse_runs_nothing(world: World, kits: dict[str, Kit]) -> None:
    job = job_of(kits)
    nodes = [Roles(kit.context) for kit in kits.values()]
    with pytest.raises(RuleError, match="is assigned") as refused:
        await nodes[1].challenge(job, 0, 0)
    assert str(refused.value).startswith(f"slot 0 of round 0 of job {job[:12]} is not challenged: ")  # no entry's id
    await live(world, *nodes, until=lambda: world.round(job, 0).phase == "settled")
    with pytest.raises(RuleError, match="cannot challenge its own unit"):
        await nodes[0].challenge(job, 0, 0)
    with pytest.raises(RuleError, match="not on the ledger"):
        await nodes[1].challenge(job, 0, 9)
    assert sum(kit.trainer.calls["audit"] for kit in kits.values()) == 0
    assert all(node._busy == set() for node in nodes)


def test_a_lie_fails_and_is_another_path_from_the_middle_on() -> None:
    run = AuditResult(0, 0, SKETCHES, 0.1, UnitParts())
    lie = make_lie(run)
    assert lie.excess_ppb == LIE_EXCESS_PPB
    assert lie.sketches[: STEPS // 2] == SKETCHES[: STEPS // 2]
    assert all(told != true for told, true in zip(lie.sketches[STEPS // 2 :], SKETCHES[STEPS // 2 :], strict=True))


async def test_an_honest_nodes_audits_are_its_own(world: World, kits: dict[str, Kit]) -> None:
    job_of(kits)
    nodes = [Roles(kit.context) for kit in kits.values()]
    await live(world, *nodes, until=lambda: not world.state.active().jobs)
    opened = [entry.body for entry in world.entries if isinstance(entry.body, AuditOpen)]
    assert opened
    assert all(body.excess_ppb == 0 for body in opened)
