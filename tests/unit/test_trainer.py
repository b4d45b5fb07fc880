"""The runner as a real process: what it computes, and that nothing it does takes the node with it."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import trio
from train_kit import CONTEXT, dataset, graph, program, recipe, write_job

from gdf_market.node.runner_process import RequestFailedError, RunnerCrashedError, RunnerTimeoutError, TrainerError
from gdf_market.node.trainer import Trainer, UnitRequest
from gdf_market.train.program import Program
from gdf_market.train.protocol import MAX_LINE_BYTES
from gdf_market.train.runner import serve


@pytest.fixture
def unit(tmp_path: Path) -> UnitRequest:
    return write_job(tmp_path)


async def hash_of_outcome(trainer: Trainer, unit: UnitRequest, updates: dict[int, Path], out: Path) -> str:
    result = await trainer.outcome(
        program=unit.program,
        checkpoint=unit.checkpoint,
        recipe=unit.recipe,
        updates=updates,
        shards={0: 1, 2: 3, 5: 2},
        out=out,
    )
    assert result.included == (0, 2)
    assert [(rejected.slot, rejected.reason) for rejected in result.rejected] == [(5, "the update does not decode")]
    return hashlib.sha256(result.checkpoint.read_bytes()).hexdigest()


@pytest.mark.e2e
async def test_two_runners_with_other_threads_agree(unit: UnitRequest, tmp_path: Path) -> None:
    first, second, junk = tmp_path / "first", tmp_path / "second", tmp_path / "junk"
    junk.write_bytes(b"x" * 10_000)
    async with Trainer(threads=1) as one, Trainer(threads=2) as two:
        done = await one.train(unit, out=first)
        await two.train(replace(unit, shard=3), out=second)
        assert done.update == first
        assert done.loss_last < done.loss_first
        updates = {0: first, 2: second, 5: junk}
        hashes = [await hash_of_outcome(one, unit, updates, tmp_path / "one")]
        hashes.append(await hash_of_outcome(two, unit, updates, tmp_path / "two"))
        assert hashes[0] == hashes[1]
        audit = await two.audit(unit, claim=first)
        assert audit.excess_ppb < 100_000  # 1e-4 of the update's norm
        assert audit.distance_ppb < 10_000_000
        for step, (own, other) in enumerate(zip(done.sketches, audit.sketches, strict=True)):
            far = sum((a - b) ** 2 for a, b in zip(own, other, strict=True)) ** 0.5
            assert far < 1e-4 * sum(a**2 for a in own) ** 0.5, f"sketches differ at step {step}"
        given = [await each.state(unit, step=4, out=tmp_path / name) for each, name in ((one, "s1"), (two, "s2"))]
        assert given[0].sketch == done.sketches[3]
        judged = await two.replay(
            unit, step=4, worker_state=given[0].state, accuser_state=given[1].state, seed="5e" * 32
        )
        assert judged.state_distance_ppb < 100_000
        far = sum((a - b) ** 2 for a, b in zip(judged.sketch, done.sketches[4], strict=True)) ** 0.5
        assert far < 1e-4 * sum(a**2 for a in judged.sketch) ** 0.5
        cheat = await one.train(unit, out=second, poison="sign-flip")
        assert cheat.sketches[0] == tuple(-value for value in done.sketches[0])
        assert (await two.audit(unit, claim=second)).excess_ppb > 1_000_000_000
        before = await one.evaluate(unit.program, unit.data, unit.content, unit.checkpoint)
        after = await one.evaluate(unit.program, unit.data, unit.content, tmp_path / "one")
        assert after < before
        files = (unit.program, unit.data, unit.content, unit.checkpoint)
        assert await one.statistics(*files, out=tmp_path / "statistics") == 0  # a program without any
        assert (tmp_path / "statistics").exists()
        probed = await one.probe(
            program=unit.program, data=unit.data, content=unit.content, checkpoint=unit.checkpoint, recipe=unit.recipe
        )
        assert 0 < probed.step_s < 10
        assert 0 <= probed.excess_ppb < 20_000
        # a request that fails costs nothing but itself
        process = one.pid
        with pytest.raises(RequestFailedError, match="cannot read") as caught:
            await one.train(replace(unit, program=tmp_path / "none"), out=first)
        assert caught.value.kind == "StorageError"
        await one.train(unit, out=first)
        assert one.pid == process
        pids = [one.pid, two.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert None not in pids
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]


# The rest needs no torch in the process: a stand-in that misbehaves as asked.

STAND_IN = """
import json, sys, time
for line in sys.stdin:
    how = json.loads(line)["out"].rsplit("-", 1)[-1]
    if how == "crash":
        sys.exit("this is the reason")
    if how == "hang":
        time.sleep(3600)
    if how == "garbage":
        print("nonsense", flush=True)
    if how == "endless":
        while True:
            sys.stdout.write("x" * 1_000_000)
    if how == "progress":
        print('{"progress": 3, "of": 6}', flush=True)
        time.sleep(3600)
    if how == "ok":
        print('{"progress": 1, "of": 1}', flush=True)
        reply = {"update_path": "u", "sketches": [[1, 2]], "loss_first": 2.0, "loss_last": 1.0, "seconds": 0.5}
        print(json.dumps(reply), flush=True)
"""


@pytest.fixture
async def stand_in() -> AsyncIterator[Trainer]:
    async with Trainer(silence_timeout_s=60.0, command=(sys.executable, "-c", STAND_IN)) as trainer:
        yield trainer


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        # the state of a real process: there is no event to wait for
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def check_works(trainer: Trainer, unit: UnitRequest) -> None:
    assert (await trainer.train(unit, out=Path("/x-ok"))).sketches == ((1, 2),)
    assert trainer.progress is None


@pytest.mark.parametrize(
    ("how", "message"), [("crash", "this is the reason"), ("garbage", "nonsense"), ("endless", "a line beyond")]
)
async def test_a_runner_that_breaks_is_replaced(stand_in: Trainer, unit: UnitRequest, how: str, message: str) -> None:
    with pytest.raises(RunnerCrashedError, match=message):
        await stand_in.train(unit, out=Path(f"/x-{how}"))
    assert stand_in.pid is None
    await check_works(stand_in, unit)


async def test_a_silent_runner_is_killed(unit: UnitRequest) -> None:
    async with Trainer(silence_timeout_s=0.2, command=(sys.executable, "-c", STAND_IN)) as trainer:
        await check_works(trainer, unit)
        process = trainer.pid
        with pytest.raises(RunnerTimeoutError, match="silent"):
            await trainer.train(unit, out=Path("/x-hang"))
        assert process is not None
        assert not psutil.pid_exists(process)
        await check_works(trainer, unit)


async def test_cancelling_kills_the_runner(stand_in: Trainer, unit: UnitRequest) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: stand_in.train(unit, out=Path("/x-progress")))
        await until(lambda: stand_in.progress == (3, 6))
        process = stand_in.pid
        nursery.cancel_scope.cancel()
    assert process is not None
    assert not psutil.pid_exists(process)
    await check_works(stand_in, unit)


async def test_a_runner_that_died_while_idle_is_replaced(stand_in: Trainer, unit: UnitRequest) -> None:
    await check_works(stand_in, unit)
    assert stand_in.pid is not None
    psutil.Process(stand_in.pid).kill()
    await until(lambda: stand_in.pid is None)
    await check_works(stand_in, unit)


async def test_a_runner_that_cannot_be_started(unit: UnitRequest, tmp_path: Path) -> None:
    async with Trainer(command=(str(tmp_path / "nothing"),)) as trainer:
        with pytest.raises(TrainerError, match="cannot be started"):
            await trainer.train(unit, out=Path("/x-ok"))


async def test_requests_take_turns(stand_in: Trainer, unit: UnitRequest) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(check_reply, stand_in, unit)


async def check_reply(trainer: Trainer, unit: UnitRequest) -> None:
    assert (await trainer.train(unit, out=Path("/x-ok"))).seconds == 0.5


# What the runner answers to bad requests, without a process.


def answers(*lines: bytes) -> list[dict[str, Any]]:
    target = io.BytesIO()
    serve(io.BytesIO(b"".join(line + b"\n" for line in lines)), target)
    return [msgspec.json.decode(line) for line in target.getvalue().splitlines()]


def as_request(unit: UnitRequest, **changes: Any) -> bytes:
    values = {name: str(getattr(unit, name)) for name in ("program", "data", "content", "checkpoint")}
    content = {"op": "train", **values, "recipe": unit.recipe, "job": unit.job, "round": 0}
    content |= {"done": 0, "shard": 1, "shards": 4}
    return msgspec.json.encode(content | {"out": str(unit.program) + ".out"} | changes)


def test_bad_requests_are_answered_and_the_next_is_served(unit: UnitRequest) -> None:
    found = answers(
        b"nonsense",
        b"{}",
        b'{"op":"format"}',
        as_request(unit, extra=1),
        as_request(unit, poison="worse"),
        as_request(unit, shard=4),
        as_request(unit, job="short"),
        as_request(unit, memory_bytes=1000),
        as_request(unit),
    )
    failures = [answer for answer in found if "error" in answer]
    kinds = ["MalformedError"] * 7 + ["OversizedError"]
    assert [failure["kind"] for failure in failures] == kinds
    assert found[-1]["update_path"].endswith(".out")
    assert [answer["progress"] for answer in found if "progress" in answer] == list(range(1, recipe().steps + 1))


def test_a_request_without_end_stops_the_runner() -> None:
    (answer,) = answers(b"x" * (MAX_LINE_BYTES + 1), b"{}")
    assert answer["kind"] == "OversizedError"


def test_programs_for_other_data_are_refused(tmp_path: Path) -> None:
    made = graph(dataset().vocab)
    other = replace_sample(made, CONTEXT + 1)
    (answer,) = answers(as_request(write_job(tmp_path, Program(other, program().constants))))
    assert answer["kind"] == "MalformedError"
    assert "the data gives" in answer["error"]


def replace_sample(made: Any, context: int) -> Any:
    samples = tuple(msgspec.structs.replace(sample, shape=(context,)) for sample in made.samples)
    return msgspec.structs.replace(made, samples=samples)


def test_files_that_change_are_read_again(unit: UnitRequest) -> None:
    target = io.BytesIO()

    class Requests:
        """Damages the program after the first request was read."""

        count = 0

        def readline(self, limit: int) -> bytes:
            self.count += 1
            if self.count == 2:
                unit.program.write_bytes(b"damaged")
            return as_request(unit) + b"\n" if self.count <= 2 else b""

    serve(Requests(), target)  # type: ignore[arg-type]
    found = [msgspec.json.decode(line) for line in target.getvalue().splitlines()]
    assert "update_path" in found[-2]
    assert found[-1]["kind"] == "MalformedError"
