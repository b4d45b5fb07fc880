"""The operations of a runner: files in, files and numbers out.

What belongs to verification comes in as functions (``Verification``), because
``verifier`` is built on this package and not the other way round.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors.torch

from gdf_market.errors import MalformedError, ensure
from gdf_market.messages import Flag, Recipe, Rejected
from gdf_market.train.checkpoint import packed_size
from gdf_market.train.codec import Codec
from gdf_market.train.data import (
    Batch,
    Content,
    DataManifest,
    evaluation_batches,
    statistics_batches,
    unit_batches,
)
from gdf_market.train.evaluate import evaluate, gather_statistics
from gdf_market.train.files import Kept, load_data, load_parameters, load_program, read, write
from gdf_market.train.fitting import Fit, check_samples, fit_evaluation, fit_exactly, fit_unit
from gdf_market.train.poison import Labels, run_poisoned
from gdf_market.train.program import Program
from gdf_market.train.protocol import (
    AnyRequest,
    AuditReply,
    AuditRequest,
    DataFields,
    EvaluateReply,
    EvaluateRequest,
    Helped,
    OutcomeReply,
    OutcomeRequest,
    ProbeReply,
    ProbeRequest,
    ReplayReply,
    ReplayRequest,
    Request,
    StateReply,
    StateRequest,
    StatisticsReply,
    StatisticsRequest,
    TrainReply,
    TrainRequest,
    UnitFields,
    UnitParts,
)
from gdf_market.train.replay import SeededSketch, give_state, replay
from gdf_market.train.unit import ALONE, WHOLE, Parts, Report, Team, UnitPlace, UnitRun, run_unit
from gdf_market.train.unit_state import UnitState

Floats = npt.NDArray[np.float32]


class Distances(Protocol):
    """verifier.verdict.Distances"""

    @property
    def excess_ppb(self) -> int: ...
    @property
    def distance_ppb(self) -> int: ...


class Outcome(Protocol):
    """verifier.outcome.OutcomeResult"""

    @property
    def checkpoint(self) -> bytes: ...
    @property
    def included(self) -> tuple[int, ...]: ...
    @property
    def rejected(self) -> tuple[Rejected, ...]: ...
    @property
    def merit_ppm(self) -> tuple[int, ...]: ...
    @property
    def cosine_ppm(self) -> tuple[int, ...]: ...
    @property
    def suspicion(self) -> tuple[int, ...]: ...
    @property
    def flags(self) -> tuple[Flag, ...]: ...


@dataclass(frozen=True)
class Verification:
    """verifier.sketch.sketch, verifier.verdict.measure and verifier.outcome.compute_outcome."""

    sketch: SeededSketch
    measure: Callable[[bytes, Floats, Codec], Distances]
    outcome: Callable[[bytes, Mapping[int, bytes], Mapping[int, int], Recipe, int], Outcome]


class Operations:
    """Performs requests; keeps the last program and content file, which stay the same from unit to unit.

    ``team``: the processes that compute the units together with this one.
    """

    def __init__(self, verification: Verification, report: Report, team: Team = ALONE) -> None:
        self._verification = verification
        self._report = report
        self._team = team
        self._programs = Kept(load_program)
        self._contents = Kept(load_data)
        self._fit: tuple[Program, tuple[Recipe, int], Fit] | None = None

    def perform(self, request: AnyRequest) -> object:
        """Return the reply to a request.  Raises a GdfError for what cannot be done."""
        if self._team.rank > 0:
            return self._help(request)
        if isinstance(request, TrainRequest):
            return self._train(request)
        if isinstance(request, AuditRequest):
            return self._audit(request)
        if isinstance(request, StateRequest):
            return self._state(request)
        if isinstance(request, ReplayRequest):
            return self._replay(request)
        if isinstance(request, OutcomeRequest):
            return self._outcome(request)
        if isinstance(request, EvaluateRequest):
            return self._evaluate(request)
        if isinstance(request, StatisticsRequest):
            return self._statistics(request)
        return self._probe(request)

    def _help(self, request: AnyRequest) -> Helped:
        """Compute this process's part of a unit; the first process has the result."""
        if isinstance(request, ProbeRequest):
            self._probe(request)
        else:
            assert isinstance(request, TrainRequest | AuditRequest)
            self._run(request, request.poison if isinstance(request, TrainRequest) else "")
        return Helped()

    def _train(self, request: TrainRequest) -> TrainReply:
        started = time.perf_counter()
        parts, run = self._run(request, request.poison)
        write(request.out, Codec.of(request.recipe).encode(run.delta))
        return TrainReply(
            update_path=request.out,
            sketches=run.sketches,
            loss_first=run.loss_first,
            loss_last=run.loss_last,
            seconds=time.perf_counter() - started,
            parts=_named(parts),
        )

    def _audit(self, request: AuditRequest) -> AuditReply:
        started, codec = time.perf_counter(), Codec.of(request.recipe)
        parts, run = self._run(request, "")
        claim = read(request.claim, codec.max_bytes(run.delta.size))
        distances = self._verification.measure(claim, run.delta, codec)
        return AuditReply(
            excess_ppb=distances.excess_ppb,
            distance_ppb=distances.distance_ppb,
            sketches=run.sketches,
            seconds=time.perf_counter() - started,
            parts=_named(parts),
        )

    def _state(self, request: StateRequest) -> StateReply:
        return give_state(request, lambda begin, count: self._some_steps(request, begin, count))

    def _replay(self, request: ReplayRequest) -> ReplayReply:
        return replay(
            request,
            self._programs(request.program),
            lambda begin, count: self._some_steps(request, begin, count),
            self._verification.sketch,
            lambda claim, dense, codec: self._verification.measure(claim, dense, codec).excess_ppb,
        )

    def _outcome(self, request: OutcomeRequest) -> OutcomeReply:
        n, recipe = self._programs(request.program).size, request.recipe
        missing = sorted(set(request.updates) - set(request.shards))
        ensure(not missing, MalformedError(f"no shard is given for the slots {missing}"))
        limit = Codec.of(recipe).max_bytes(n)
        # one byte more than an update may have: what is longer does not decode, and is rejected as such
        updates = {slot: read(path, limit + 1, cut=True) for slot, path in request.updates.items()}
        checkpoint = read(request.checkpoint, packed_size(n))
        result = self._verification.outcome(checkpoint, updates, request.shards, recipe, n)
        write(request.out, result.checkpoint)
        return OutcomeReply(
            checkpoint_path=request.out,
            included=result.included,
            rejected=result.rejected,
            merit_ppm=result.merit_ppm,
            cosine_ppm=result.cosine_ppm,
            suspicion=result.suspicion,
            flags=result.flags,
        )

    def _evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        program, manifest, content = self._load(request)
        batches = evaluation_batches(manifest, content, program.graph.batch)
        size = fit_evaluation(program, len(batches[0][0]), request.memory_bytes)
        loss = evaluate(
            program,
            load_parameters(request.checkpoint, program),
            evaluation_batches(manifest, content, size),
            statistics=statistics_batches(manifest, content, size),
            threads=threads_of(request),
            device=request.device,
        )
        return EvaluateReply(loss_e6=round(loss * 1e6))

    def _statistics(self, request: StatisticsRequest) -> StatisticsReply:
        """Write the running statistics of batch norm that belong to a checkpoint, as safetensors."""
        program, manifest, content = self._load(request)
        batches = evaluation_batches(manifest, content, program.graph.batch)
        size = fit_evaluation(program, len(batches[0][0]), request.memory_bytes)
        found = gather_statistics(
            program,
            load_parameters(request.checkpoint, program),
            statistics_batches(manifest, content, size),
            threads=threads_of(request),
            device=request.device,
        )
        write(request.out, safetensors.torch.save(found))
        return StatisticsReply(path=request.out, tensors=len(found))

    def _probe(self, request: ProbeRequest) -> ProbeReply:
        """Time ``steps`` steps of the job's own graph, after one that warms up; see whether they can be repeated."""
        marks: list[float] = []
        unit = replace(_Unit.first_of(request), steps=request.steps + 1)
        fit, run = self._unit(unit, lambda _done, _of: marks.append(time.perf_counter()))
        again = self._unit(self._other_order(unit, fit.parts), lambda _done, _of: None)[1]
        codec = Codec.of(request.recipe)
        return ProbeReply(
            seconds_per_step=(marks[-1] - marks[0]) / request.steps,
            excess_ppb=self._verification.measure(codec.encode(again.delta), run.delta, codec).excess_ppb,
            memory_bytes=fit.memory_bytes,
            rows=fit.parts.rows,
        )

    def _other_order(self, unit: _Unit, parts: Parts) -> _Unit:
        """Return the same unit on another number of threads and, where the program takes any, in smaller parts."""
        threads = 2 if threads_of(unit.request) == 1 else 1
        smaller = replace(parts, rows=max(1, -(-(parts.rows or unit.recipe.batch // parts.processes) // 2)))
        return replace(unit, request=msgspec.structs.replace(unit.request, threads=threads), parts=smaller)

    def _run(self, request: UnitFields, poison: str) -> tuple[Parts, UnitRun]:
        fit, run = self._unit(_Unit.of(request, request.recipe.steps, poison), self._report)
        return fit.parts, run

    def _some_steps(self, request: UnitFields, begin: UnitState | None, count: int) -> UnitRun:
        """Run ``count`` steps of a unit from a state of it, or from its first one, and keep the last state."""
        end = count + (begin.step if begin else 0)
        unit = replace(_Unit.of(request, end), begin=begin, keep_state=True)
        return self._unit(unit, self._report)[1]

    def _unit(self, unit: _Unit, report: Report) -> tuple[Fit, UnitRun]:
        request, recipe, place = unit.request, unit.recipe, unit.place
        program, manifest, content = self._load(request)
        fit = self._fitting(program, recipe, request.memory_bytes, unit.parts)
        parameters = load_parameters(request.checkpoint, program)
        batches = unit_batches(
            manifest,
            content,
            job=place.job,
            round_index=place.round,
            shard=place.shard,
            shards=unit.shards,
            steps=unit.steps,
            batch=recipe.batch,
        )

        def run(given: Iterable[Batch]) -> UnitRun:
            return run_unit(
                program,
                parameters,
                given,
                recipe,
                sketch=self._verification.sketch,
                place=place,
                threads=threads_of(request),
                device=request.device,
                parts=fit.parts,
                team=self._team,
                report=report,
                begin=unit.begin,
                keep_state=unit.keep_state,
            )

        if unit.poison:
            labels = Labels.of(manifest)
            sketch = self._verification.sketch
            return fit, run_poisoned(unit.poison, run, batches, program.size, recipe, labels, sketch)
        return fit, run(itertools.islice(batches, unit.begin.step if unit.begin else 0, None))

    def _load(self, request: DataFields) -> tuple[Program, DataManifest, Content]:
        """Return the program and its data.  Raises a PeerError unless they fit together."""
        program, (manifest, content) = self._programs(request.program), self._contents(request.data, request.content)
        check_samples(program, manifest)
        return program, manifest, content

    def _fitting(self, program: Program, recipe: Recipe, memory_bytes: int, parts: Parts | None) -> Fit:
        """Return the part of a batch that fits; kept, because a dry run takes as long as a step or two."""
        if parts is not None:
            return fit_exactly(program, recipe, memory_bytes, parts if program.graph.separable else WHOLE)
        given = recipe, memory_bytes
        if self._fit is None or self._fit[0] is not program or self._fit[1] != given:
            self._fit = program, given, fit_unit(program, recipe, memory_bytes, self._team.size)
        return self._fit[2]


@dataclass(frozen=True)
class _Unit:
    """A unit to run up to ``steps``, also only as a measurement; ``begin``: from this state of it."""

    request: DataFields
    recipe: Recipe
    place: UnitPlace
    shards: int
    steps: int
    parts: Parts | None = None
    poison: str = ""
    begin: UnitState | None = None
    keep_state: bool = False

    @classmethod
    def of(cls, request: UnitFields, steps: int, poison: str = "") -> _Unit:
        place = UnitPlace(request.job, request.round, request.shard, request.done)
        parts = Parts(request.parts.rows, request.parts.processes) if request.parts else None
        return cls(request, request.recipe, place, request.shards, steps, parts, poison)

    @classmethod
    def first_of(cls, request: ProbeRequest) -> _Unit:
        return cls(request, request.recipe, UnitPlace(), 1, request.recipe.steps)


def _named(parts: Parts) -> UnitParts:
    return UnitParts(rows=parts.rows, processes=parts.processes)


def threads_of(request: Request) -> int:
    """Return the threads that a request may use."""
    text = os.environ.get("GDF_THREADS", "")
    return request.threads or (int(text) if text.isdecimal() else 0) or 1
