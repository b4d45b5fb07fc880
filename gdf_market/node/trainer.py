"""The node's side of training: typed calls to the runner, one at a time (see runner_process)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict

from gdf_market.messages import Flag, Recipe, Rejected
from gdf_market.node.runner_process import SILENCE_TIMEOUT_S, RunnerProcess
from gdf_market.train import protocol
from gdf_market.train.protocol import UnitParts

COMMAND = (sys.executable, "-P", "-m", "gdf_market.train.runner")  # -P: the current folder is no place to import from


class _Resources(TypedDict):
    threads: int
    device: str
    memory_bytes: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class UnitRequest:
    """What a unit is computed from; paths of local files."""

    program: Path
    data: Path
    content: Path
    checkpoint: Path
    recipe: Recipe
    job: str
    round: int
    done: int  # rounds that were completed before it
    shard: int
    shards: int
    parts: UnitParts | None = None  # in which batches are computed; by default the largest that fit


@dataclass(frozen=True)
class TrainResult:
    update: Path
    sketches: tuple[tuple[int, ...], ...]
    loss_first: float
    loss_last: float
    seconds: float
    parts: UnitParts


@dataclass(frozen=True)
class AuditResult:
    excess_ppb: int
    distance_ppb: int
    sketches: tuple[tuple[int, ...], ...]
    seconds: float
    parts: UnitParts


@dataclass(frozen=True)
class StateResult:
    """``state`` is the file; ``sketch`` that of the unit's change after its last step."""

    state: Path
    sketch: tuple[int, ...]


@dataclass(frozen=True)
class ReplayResult:
    """What an arbiter commits to; see protocol.ReplayReply."""

    state_distance_ppb: int
    sketch: tuple[int, ...]
    seeded: tuple[int, ...]
    excess_ppb: int


@dataclass(frozen=True)
class OutcomeResult:
    """The fields of messages.Outcome but the checkpoint's id; ``checkpoint`` is the file."""

    checkpoint: Path
    included: tuple[int, ...]
    rejected: tuple[Rejected, ...]
    merit_ppm: tuple[int, ...]
    cosine_ppm: tuple[int, ...]
    suspicion: tuple[int, ...]
    flags: tuple[Flag, ...]


@dataclass(frozen=True)
class ProbeResult:
    """Seconds of one step, and how far the same steps in another order of additions are from the first ones."""

    step_s: float
    excess_ppb: int


class Trainer:
    """An async context manager; its methods raise TrainerError, and a cancelled one kills the runner.

    Use: ``async with Trainer(threads=2) as trainer: await trainer.train(...)``.

    ``devices``: units are computed by one process on each of them, which share the threads; ``memory_bytes`` is what
    one process may take.  Everything else happens on ``device``.  ``environment``: further variables of the process.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        device: str = "cpu",
        devices: tuple[str, ...] = (),
        memory_bytes: int = protocol.DEFAULT_MEMORY_BYTES,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        command: tuple[str, ...] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._resources = _Resources(threads=threads, device=device, memory_bytes=memory_bytes, devices=devices)
        own = {"GDF_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)} | dict(environment or {})
        self._runner = RunnerProcess(command, own, silence_timeout_s)

    async def __aenter__(self) -> Trainer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.stop()

    @property
    def pid(self) -> int | None:
        """The runner's process id, while it runs."""
        return self._runner.pid

    @property
    def progress(self) -> tuple[int, int] | None:
        """(steps done, steps) of the request at work, for display."""
        return self._runner.progress

    async def train(self, request: UnitRequest, *, out: Path, poison: str = "") -> TrainResult:
        """Run a unit and write its encoded update to ``out``."""
        message = protocol.TrainRequest(**_unit(request, self._resources), out=_text(out), poison=poison)
        reply = await self._runner.ask(message, protocol.TrainReply)
        return TrainResult(
            update=Path(reply.update_path),
            sketches=reply.sketches,
            loss_first=reply.loss_first,
            loss_last=reply.loss_last,
            seconds=reply.seconds,
            parts=reply.parts,
        )

    async def audit(self, request: UnitRequest, *, claim: Path) -> AuditResult:
        """Run a unit again and measure how far the encoded update ``claim`` is from it."""
        message = protocol.AuditRequest(**_unit(request, self._resources), claim=_text(claim))
        reply = await self._runner.ask(message, protocol.AuditReply)
        return AuditResult(reply.excess_ppb, reply.distance_ppb, reply.sketches, reply.seconds, reply.parts)

    async def state(self, request: UnitRequest, *, step: int, out: Path) -> StateResult:
        """Run the first ``step`` steps of a unit and write its state after them to ``out``."""
        message = protocol.StateRequest(**_unit(request, self._resources), step=step, out=_text(out))
        reply = await self._runner.ask(message, protocol.StateReply)
        return StateResult(Path(reply.path), reply.sketch)

    async def replay(
        self,
        request: UnitRequest,
        *,
        step: int,
        seed: str,
        worker_state: Path | None = None,
        accuser_state: Path | None = None,
        claim: Path | None = None,
    ) -> ReplayResult:
        """Compare two states of a unit before step ``step`` and run that step from the worker's.

        Without states (step 0) it runs from the checkpoint; at the number of steps only ``claim`` is measured.
        ``seed``: 32 bytes in hex, of the second projection.
        """
        message = protocol.ReplayRequest(
            **_unit(request, self._resources),
            step=step,
            worker_state=_text(worker_state) if worker_state else "",
            accuser_state=_text(accuser_state) if accuser_state else "",
            claim=_text(claim) if claim else "",
            seed=seed,
        )
        reply = await self._runner.ask(message, protocol.ReplayReply)
        return ReplayResult(reply.state_distance_ppb, reply.sketch, reply.seeded, reply.excess_ppb)

    async def outcome(
        self,
        *,
        program: Path,
        checkpoint: Path,
        recipe: Recipe,
        updates: Mapping[int, Path],
        shards: Mapping[int, int],
        out: Path,
    ) -> OutcomeResult:
        """Compute a round's outcome from its updates by slot and write the next checkpoint to ``out``."""
        message = protocol.OutcomeRequest(
            **self._resources,
            program=_text(program),
            checkpoint=_text(checkpoint),
            recipe=recipe,
            updates={slot: _text(path) for slot, path in updates.items()},
            shards=dict(shards),
            out=_text(out),
        )
        reply = await self._runner.ask(message, protocol.OutcomeReply)
        return OutcomeResult(
            checkpoint=Path(reply.checkpoint_path),
            included=reply.included,
            rejected=reply.rejected,
            merit_ppm=reply.merit_ppm,
            cosine_ppm=reply.cosine_ppm,
            suspicion=reply.suspicion,
            flags=reply.flags,
        )

    async def evaluate(self, program: Path, data: Path, content: Path, checkpoint: Path) -> int:
        """Return the validation loss of a checkpoint in micro-nats."""
        message = protocol.EvaluateRequest(
            **self._resources,
            program=_text(program),
            data=_text(data),
            content=_text(content),
            checkpoint=_text(checkpoint),
        )
        return (await self._runner.ask(message, protocol.EvaluateReply)).loss_e6

    async def statistics(self, program: Path, data: Path, content: Path, checkpoint: Path, *, out: Path) -> int:
        """Write the running statistics of batch norm that belong to a checkpoint to ``out``, as safetensors.

        Return how many tensors they are.
        """
        message = protocol.StatisticsRequest(
            **self._resources,
            program=_text(program),
            data=_text(data),
            content=_text(content),
            checkpoint=_text(checkpoint),
            out=_text(out),
        )
        return (await self._runner.ask(message, protocol.StatisticsReply)).tensors

    async def probe(
        self, *, program: Path, data: Path, content: Path, checkpoint: Path, recipe: Recipe, steps: int = 5
    ) -> ProbeResult:
        """Measure ``steps`` steps of the job here."""
        message = protocol.ProbeRequest(
            **self._resources,
            program=_text(program),
            data=_text(data),
            content=_text(content),
            checkpoint=_text(checkpoint),
            recipe=recipe,
            steps=steps,
        )
        reply = await self._runner.ask(message, protocol.ProbeReply)
        return ProbeResult(reply.seconds_per_step, reply.excess_ppb)


class _UnitFields(_Resources):
    program: str
    data: str
    content: str
    checkpoint: str
    recipe: Recipe
    job: str
    round: int
    done: int  # rounds that were completed before it
    shard: int
    shards: int
    parts: UnitParts | None


def _unit(request: UnitRequest, resources: _Resources) -> _UnitFields:
    return _UnitFields(
        **resources,
        program=_text(request.program),
        data=_text(request.data),
        content=_text(request.content),
        checkpoint=_text(request.checkpoint),
        recipe=request.recipe,
        job=request.job,
        round=request.round,
        done=request.done,
        shard=request.shard,
        shards=request.shards,
        parts=request.parts,
    )


def _text(path: Path) -> str:
    return str(path.absolute())
