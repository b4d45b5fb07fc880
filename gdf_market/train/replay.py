"""Giving a unit's state away, and judging two states of one: what decides a dispute about a single step.

The step is run from the worker's state, so an honest worker's own sketch comes out whatever the accuser says; whether
the two states are the same is measured in full, because anybody can make a state that has a given sketch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.messages import Recipe
from gdf_market.train.codec import Codec
from gdf_market.train.files import load_parameters, read, write
from gdf_market.train.optimizers import state_layout
from gdf_market.train.program import Program
from gdf_market.train.protocol import ReplayReply, ReplayRequest, StateReply, StateRequest
from gdf_market.train.unit import UnitRun
from gdf_market.train.unit_state import UnitState, pack_state, state_bytes, state_distance_ppb, unpack_state

Floats = npt.NDArray[np.float32]
Excess = Callable[[bytes, Floats, Codec], int]  # claim, pseudo-gradient f32[n]


class SeededSketch(Protocol):
    """verifier.sketch.sketch"""

    def __call__(self, delta: Floats, /, seed: bytes = b"") -> tuple[int, ...]:
        """Return the sketch of a change f32[n] under the projection of ``seed``."""


class RunSteps(Protocol):
    """Runs steps of a request's unit."""

    def __call__(self, begin: UnitState | None, count: int) -> UnitRun:
        """Return the run of ``count`` steps from ``begin`` (None: the checkpoint), with its last state."""


def give_state(request: StateRequest, run: RunSteps) -> StateReply:
    """Run the unit's first steps and write its state.  Raises MalformedError for a step that the unit has not."""
    steps = request.recipe.steps
    ensure(request.step <= steps, MalformedError(f"the state after step {request.step}; the unit has {steps}"))
    done = run(None, request.step)
    assert done.state is not None
    write(request.out, pack_state(done.state))
    return StateReply(path=request.out, sketch=done.sketches[-1])


def replay(
    request: ReplayRequest, program: Program, run: RunSteps, sketch: SeededSketch, excess: Excess
) -> ReplayReply:
    """Compare two states and run one step; see ReplayRequest.

    Raises MalformedError for a request that says too little or too much, StateError or OversizedError for a file that
    is no state of the unit, SketchError or DivergedError where the step from the worker's state leaves all bounds.
    """
    _check(request)
    start = load_parameters(request.checkpoint, program)
    worker = load_state(request.worker_state, program, request.recipe, request.step)
    accuser = load_state(request.accuser_state, program, request.recipe, request.step)
    distance = state_distance_ppb(start, worker, accuser) if worker and accuser else 0
    measured = 0
    if request.step == request.recipe.steps:
        assert worker is not None
        codec, change = Codec.of(request.recipe), start - worker.parameters
        measured = excess(read(request.claim, codec.max_bytes(change.size)), change, codec)
    else:
        change = run(worker, 1).delta
    return ReplayReply(
        state_distance_ppb=distance,
        sketch=sketch(change),
        seeded=sketch(change, seed=bytes.fromhex(request.seed)),
        excess_ppb=measured,
    )


def _check(request: ReplayRequest) -> None:
    step, steps = request.step, request.recipe.steps
    ensure(step <= steps, MalformedError(f"a replay of step {step}; the unit has {steps}"))
    given = bool(request.worker_state), bool(request.accuser_state)
    wanted = "both states" if step else "no state, but the checkpoint"
    ensure(given == (step > 0, step > 0), MalformedError(f"a replay of step {step} takes {wanted}"))
    last = "takes the claim" if step == steps else "takes no claim"
    ensure(bool(request.claim) == (step == steps), MalformedError(f"a replay of step {step} of {steps} {last}"))


def load_state(path: str, program: Program, recipe: Recipe, step: int) -> UnitState | None:
    """Return the state in a file, None for no file.  Raises StorageError, OversizedError or StateError."""
    if not path:
        return None
    layout, n = state_layout(program.graph, recipe), program.size
    return unpack_state(read(path, state_bytes(layout, n, step)), layout, n, step)
