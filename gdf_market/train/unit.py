"""One unit of work: H steps of the inner optimizer from the agreed checkpoint, a pure function of its arguments.

The optimizer state is fresh in each unit, with a linear re-warm-up of the
learning rate, so that anyone can run the unit again.  A batch may be computed
in parts, and by several processes, where the program's loss is a mean over
rows: the gradient is then the weighted sum of the parts'.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from gdf_market.codec import digest
from gdf_market.errors import MalformedError, ensure
from gdf_market.messages import Recipe
from gdf_market.train.data import Batch
from gdf_market.train.determinism import deterministic
from gdf_market.train.errors import DivergedError
from gdf_market.train.flat import FlatModule
from gdf_market.train.noise import Noise
from gdf_market.train.optimizers import InnerOptimizer
from gdf_market.train.program import Program
from gdf_market.train.schedule import learning_rate
from gdf_market.train.unit_state import UnitState
from gdf_market.units import PPM

Floats = npt.NDArray[np.float32]
Sketch = Callable[[Floats], tuple[int, ...]]
Report = Callable[[int, int], None]  # (steps done, steps)


@dataclass(frozen=True)
class UnitPlace:
    """Which unit of which job (id in hex) this is: what its noise depends on, and where the schedule stands.

    ``done``: rounds that were completed before this one; a round without result moves no schedule on.
    """

    job: str = ""
    round: int = 0
    shard: int = 0
    done: int = 0

    def noise_seed(self) -> bytes:
        """Return the 32 bytes that the unit's dropout masks are drawn from."""
        return digest(
            "gdf/noise", bytes.fromhex(self.job), self.round.to_bytes(8, "big"), self.shard.to_bytes(4, "big")
        )


@dataclass(frozen=True)
class Parts:
    """How a batch is divided: over ``processes`` in order, and each one's share into parts of ``rows`` (0: one part).

    Other parts add up in another order, so a unit that is to be the same is computed in the same ones.
    """

    rows: int = 0
    processes: int = 1

    def of(self, total: int, process: int) -> list[tuple[int, int]]:
        """Return the parts of one process's share of a batch of ``total`` rows, as [start, end) each."""
        first, end = (total * number // self.processes for number in (process, process + 1))
        width = self.rows or total
        return [(start, min(end, start + width)) for start in range(first, end, width)]

    @property
    def is_whole(self) -> bool:
        """Say whether each batch is computed at once."""
        return self.rows == 0 and self.processes == 1


WHOLE = Parts()


class Team(Protocol):
    """The processes that compute one unit together; all of them take the same steps."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def sum(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""


@dataclass(frozen=True)
class _Alone:
    rank: int = 0
    size: int = 1

    def sum(self, tensor: torch.Tensor) -> None:
        """Nobody else: nothing to add."""


ALONE = _Alone()


@dataclass(frozen=True)
class UnitRun:
    """``delta`` f32[n] is the pseudo-gradient: checkpoint minus trained parameters, so that the outer step
    is a descent.  ``sketches[i]`` is the sketch of the pseudo-gradient after step i, counted from the first one
    that was run.  ``state`` is there where it was asked for."""

    delta: Floats
    sketches: tuple[tuple[int, ...], ...]
    loss_first: float
    loss_last: float
    state: UnitState | None = None


def run_unit(
    program: Program,
    parameters: Floats,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    sketch: Sketch,
    place: UnitPlace = UnitPlace(),
    threads: int = 1,
    device: str = "cpu",
    parts: Parts = WHOLE,
    team: Team = ALONE,
    report: Report | None = None,
    begin: UnitState | None = None,
    keep_state: bool = False,
) -> UnitRun:
    """Train from ``parameters`` f32[n] on one batch per step; see UnitRun.

    ``parts``: of a batch, computed one after another, those of each process by the ``team``'s own if there are several
    processes here.  ``begin``: go on from this state of the unit; ``batches`` are then those of its further steps.
    ``keep_state``: return the state at the end.

    Raises DivergedError when a loss is not finite, MalformedError when parts are asked for of a program whose
    batches cannot be computed in parts, and what ``sketch`` raises.
    """
    assert team.size in (1, parts.processes)
    whole = parts.is_whole
    ensure(whole or program.graph.separable, MalformedError("the program's batches cannot be computed in parts"))
    sketches: list[tuple[int, ...]] = []
    losses: list[float] = []
    with deterministic(threads):
        trainee = FlatModule(program, parameters, device)
        optimizer = InnerOptimizer(list(trainee.module.weights), program.graph, recipe)
        work = _Work(trainee, recipe, place.noise_seed(), parts, team)
        if begin is not None:
            trainee.move_to(begin.parameters)
            optimizer.restore(begin.optimizer, begin.step)
        delta, first = trainee.change(), begin.step if begin else 0
        for step, batch in enumerate(batches, first):
            losses.append(work.differentiate(batch, step))
            optimizer.step(learning_rate(recipe, step, place.done))
            delta = trainee.change()
            sketches.append(sketch(delta))
            if report is not None:
                report(step + 1, recipe.steps)
        assert losses
        state = None
        if keep_state:
            state = UnitState(first + len(losses), trainee.values.cpu().numpy().copy(), optimizer.state())
    return UnitRun(delta, tuple(sketches), losses[0], losses[-1], state)


@dataclass(frozen=True)
class _Work:
    """How the gradient of a batch is computed here."""

    trainee: FlatModule
    recipe: Recipe
    seed: bytes
    parts: Parts
    team: Team

    def differentiate(self, batch: Batch, step: int) -> float:
        """Leave the gradient of the batch's loss in the trainee and return the loss."""
        total = len(batch[0])
        own = range(self.parts.processes) if self.team.size == 1 else (self.team.rank,)
        self.trainee.gradient.zero_()
        loss = torch.zeros((), device=self.trainee.values.device)
        for start, stop in (part for process in own for part in self.parts.of(total, process)):
            part = self._loss(tuple(array[start:stop] for array in batch), step, start)
            part = part if stop - start == total else part * ((stop - start) / total)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        self.team.sum(self.trainee.gradient)
        self.team.sum(loss)
        if self.recipe.clip_ppm:
            self.trainee.clip(self.recipe.clip_ppm / PPM)
        value = float(loss.item())
        ensure(math.isfinite(value), DivergedError(f"the loss of step {step} is {value}; lower the learning rate"))
        return value

    def _loss(self, samples: Batch, step: int, first_row: int) -> torch.Tensor:
        module = self.trainee.module
        module.noise = Noise(self.seed, step, len(samples[0]), first_row)
        with precision(self.recipe.precision, module.device):
            loss: torch.Tensor = module(*tensors(samples, module.device))
        return loss.float()


def precision(name: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return the context of a forward pass: float32, or bfloat16 where autocast says so over float32 weights."""
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def tensors(batch: Batch, device: torch.device | str) -> list[torch.Tensor]:
    """Return a batch's samples on ``device``."""
    return [torch.from_numpy(array).to(device) for array in batch]
