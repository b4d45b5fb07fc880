"""A unit on several devices: the same result, and no process left whatever happens."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import trio
from train_kit import program, recipe, write_job

from gdf_market.errors import MalformedError, UsageError
from gdf_market.node.trainer import Trainer, UnitRequest
from gdf_market.train.fitting import fit_unit
from gdf_market.train.operations import Operations, Verification
from gdf_market.train.parallel import RankLostError, Ranks, check_devices
from gdf_market.train.protocol import (
    MAX_DEVICES,
    AuditRequest,
    Failure,
    ProbeRequest,
    StatisticsRequest,
    TrainRequest,
)
from gdf_market.train.team import loopback
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure

TWO = ("cpu", "cpu")


@pytest.fixture
def unit(tmp_path: Path) -> UnitRequest:
    return write_job(tmp_path)


@pytest.fixture
def alone() -> Operations:
    return Operations(Verification(sketch, measure, compute_outcome), lambda _done, _of: None)


def fields(unit: UnitRequest, **changes: Any) -> dict[str, Any]:
    paths = {name: str(getattr(unit, name)) for name in ("program", "data", "content", "checkpoint")}
    place = {"job": unit.job, "round": unit.round, "done": unit.done, "shard": unit.shard, "shards": unit.shards}
    return {**paths, **place, "recipe": unit.recipe, "devices": TWO} | changes


def excess(alone: Operations, unit: UnitRequest, claim: str, **changes: Any) -> int:
    reply: Any = alone.perform(AuditRequest(**fields(unit, devices=(), claim=claim, **changes)))
    return int(reply.excess_ppb)


@pytest.mark.e2e
def test_two_processes_compute_what_one_does(unit: UnitRequest, alone: Operations, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    two, out = Ranks(lambda done, of: seen.append((done, of))), str(tmp_path / "two")
    try:
        done: Any = two.perform(TrainRequest(**fields(unit, out=out)), 2)
        assert seen == [(step, 6) for step in range(1, 7)]
        assert excess(alone, unit, out) < 20_000  # a fifth of what passes
        own: Any = alone.perform(TrainRequest(**fields(unit, devices=(), out=str(tmp_path / "one"))))
        assert done.loss_first == pytest.approx(own.loss_first, rel=1e-6)
        assert len(done.sketches) == unit.recipe.steps
        audit: Any = two.perform(AuditRequest(**fields(unit, claim=str(tmp_path / "one"))), 2)
        assert audit.excess_ppb < 20_000
        processes = [rank.process for rank in two._ranks]
        odd = recipe(batch=5, steps=2)  # rows that two cannot share evenly
        two.perform(TrainRequest(**fields(unit, out=out, recipe=odd)), 2)
        assert excess(alone, unit, out, recipe=odd) < 20_000
        probed: Any = two.perform(ProbeRequest(**probe_fields(unit), steps=2), 2)
        assert probed.seconds_per_step > 0
        failed = two.perform(TrainRequest(**fields(unit, out=out, program=str(tmp_path / "none"))), 2)
        assert isinstance(failed, Failure)
        assert failed.kind == "StorageError"
        assert all(process.poll() is not None for process in processes)
        assert sorted(path.name for path in tmp_path.glob("*.partial")) == []
    finally:
        two.stop()


def probe_fields(unit: UnitRequest) -> dict[str, Any]:
    return {
        name: value for name, value in fields(unit).items() if name not in ("job", "round", "done", "shard", "shards")
    }


@pytest.mark.e2e
def test_a_process_that_dies_ends_the_unit_and_the_next_one_works(unit: UnitRequest, tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def kill_one(done: int, _of: int) -> None:
        if not processes:
            processes.extend(rank.process for rank in two._ranks)
            processes[1].kill()

    two = Ranks(kill_one)
    try:
        request = TrainRequest(**fields(unit, out=str(tmp_path / "out"), recipe=recipe(steps=500)))
        with pytest.raises(RankLostError, match=r"process \d of 2 of the unit \(cpu\) ended while it worked"):
            two.perform(request, 2)
        assert len(processes) == 2
        assert all(process.poll() is not None for process in processes)
        two.perform(TrainRequest(**fields(unit, out=str(tmp_path / "out"))), 2)
    finally:
        two.stop()


@pytest.mark.e2e
async def test_no_process_outlives_its_runner(unit: UnitRequest, tmp_path: Path) -> None:
    async with Trainer(threads=2, devices=TWO) as trainer:
        await trainer.train(unit, out=tmp_path / "out")
        assert trainer.pid is not None
        runner = psutil.Process(trainer.pid)
        helpers = runner.children(recursive=True)
        assert len(helpers) == 2
        runner.kill()  # as a machine that runs out of memory does
        for process in helpers:
            await trio.to_thread.run_sync(wait_for_end, process)


def wait_for_end(process: psutil.Process) -> None:
    """Wait until a process has ended; where nobody collects orphans, their remains stay."""
    try:
        process.wait(timeout=60)
    except psutil.TimeoutExpired:
        assert process.status() == psutil.STATUS_ZOMBIE


def test_a_program_that_cannot_be_divided_is_refused(unit: UnitRequest) -> None:
    with pytest.raises(MalformedError, match="cannot be divided over 2 devices"):
        fit_unit(program(separable=False), unit.recipe, 2**30, 2)


def test_devices_that_cannot_work_together_are_refused() -> None:
    check_devices(("cpu", "cpu"))
    check_devices(("cuda:0", "cuda:1"))
    with pytest.raises(UsageError, match="several kinds"):
        check_devices(("cpu", "cuda:0"))
    with pytest.raises(UsageError, match="twice"):
        check_devices(("cuda:0", "cuda:0"))


def test_processes_meet_where_nobody_else_can_come() -> None:
    name = loopback()
    assert name == "" or any(address.address == "127.0.0.1" for address in psutil.net_if_addrs()[name])


def test_a_request_names_a_few_devices_at_most() -> None:
    given = {"op": "statistics", "program": "p", "data": "d", "content": "c", "checkpoint": "k", "out": "o"}
    made = msgspec.convert(given | {"devices": ["cpu"] * MAX_DEVICES}, StatisticsRequest)
    assert len(made.devices) == MAX_DEVICES
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given | {"devices": ["cpu"] * (MAX_DEVICES + 1)}, StatisticsRequest)
