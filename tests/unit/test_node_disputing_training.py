"""A bisection over real training and the real rules: nodes in one process, each running its units for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from train_kit import CONTEXT, dataset, program, recipe, write_job

from gdf_market.codec import encode
from gdf_market.node.disputing import LIE
from gdf_market.node.roles import Roles
from gdf_market.node.trainer import Trainer
from gdf_market.train.operations import Operations, Verification
from tests.contracts_world import World, key_of, make_world, start
from tests.node_kit import Kit, live, make_kit
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure

VALIDATORS = ("val", "val2", "val3", "val4")
STEPS = 12


class InProcess:
    """A runner's operations without its process."""

    def __init__(self) -> None:
        self._operations = Operations(Verification(sketch, measure, compute_outcome), lambda _done, _of: None)

    async def ask(self, message: Any, _kind: type) -> Any:
        await trio.lowlevel.checkpoint()
        return self._operations.perform(message)


def make_kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> dict[str, Kit]:
    first = make_kit(tmp_path, monkeypatch, world, "w1")
    kits = {"w1": first} | {name: make_kit(tmp_path, monkeypatch, world, name, near=first) for name in VALIDATORS}
    for kit in kits.values():
        trainer = Trainer(threads=1)
        monkeypatch.setattr(trainer, "_runner", InProcess())
        kit.context.trainer = trainer
    return kits


def job_of(kit: Kit, folder: Path) -> str:
    folder.mkdir()
    files = write_job(folder)
    content = kit.blobs.put_file(files.content)
    terms = {
        "program": kit.blobs.put_file(files.program),
        "data": kit.blobs.put_bytes(encode(dataset().manifest(content, CONTEXT))),
        "checkpoint": kit.blobs.put_file(files.checkpoint),
        "parameters": program().size,
        "recipe": recipe(steps=STEPS),
        "rounds": 1,
        "audit_ms": 300_000,  # of real time, too, on a busy machine
        "hold_ms": 9_000_000,
    }
    return start(kit.world, "w1", **terms)


async def play(kits: dict[str, Kit], job: str, *, worker: str = "", liar: bool = False) -> str:
    """Let the unit be trained and audited by its named auditor, and the rest take part afterwards; return its name."""
    world = next(iter(kits.values())).world
    nodes = {name: Roles(kit.context, poison=worker if name == "w1" else "") for name, kit in kits.items()}
    await live(world, *nodes.values(), until=lambda: world.round(job, 0).phase == "settled")
    (target,) = world.round(job, 0).targets
    auditor = next(name for name in VALIDATORS if key_of(name).account == target.auditor)
    if liar:
        nodes[auditor] = Roles(kits[auditor].context, poison=LIE)
    pair = [nodes["w1"], nodes[auditor]]
    await live(world, *pair, until=lambda: world.state.dispute(job, 0, 0) is not None)
    await live(world, *nodes.values(), until=lambda: not world.state.active().jobs)
    return auditor


async def test_a_lie_about_real_training_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(validators=VALIDATORS)
    kits = make_kits(tmp_path, monkeypatch, world)
    job = job_of(kits["w1"], tmp_path / "job")
    liar = await play(kits, job, liar=True)
    dispute = world.state.dispute(job, 0, 0)
    assert dispute is not None
    assert dispute.status == "refuted"
    search = dispute.bisection
    assert search is not None
    assert (search.low, search.high) == (STEPS // 2 - 1, STEPS // 2)
    assert search.worker.state == search.accuser.state  # of equal runs, equal bytes
    assert [arbiter.finding for arbiter in search.arbiters] == ["worker"] * 3
    assert {arbiter.state_distance_ppb for arbiter in search.arbiters} == {0}
    assert world.audit(job, 0, 0, liar).status == "refuted"
    assert world.unit(job, 0, 0).status == "paid"


@pytest.mark.parametrize("poison", ["sign-flip", "label-flip", "lazy", "noise"])
async def test_a_real_cheat_is_convicted_by_its_first_false_step(
    poison: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(validators=VALIDATORS)
    kits = make_kits(tmp_path, monkeypatch, world)
    job = job_of(kits["w1"], tmp_path / "job")
    await play(kits, job, worker=poison)
    dispute = world.state.dispute(job, 0, 0)
    assert dispute is not None
    assert dispute.status == "convicted", (poison, dispute)
    assert world.unit(job, 0, 0).paid == 0
    reasons = [event.reason for event in world.events if event.kind == "dispute"]
    crowded = (
        "committee: there are fewer arbiters than accusers" in reasons
    )  # another one drew a ticket and accused, too
    assert crowded or dispute.committee == (), (poison, reasons)
