"""The operations of a runner: files in, files and numbers out.

What belongs to verification comes in as functions (``Verification``), because
``verifier`` is built on this package and not the other way round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gdf_market.codec import decode
from gdf_market.errors import MalformedError, OversizedError, StorageError, ensure
from gdf_market.messages import Flag, Recipe, Rejected
from gdf_market.train.checkpoint import packed_size, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.data import (
    Batch,
    Content,
    DataManifest,
    evaluation_batches,
    load_content,
    sample_types,
    unit_batches,
)
from gdf_market.train.dry_run import Cost, dry_run
from gdf_market.train.poison import run_poisoned
from gdf_market.train.program import MAX_PROGRAM_BYTES, Program
from gdf_market.train.protocol import (
    AnyRequest,
    AuditReply,
    AuditRequest,
    EvaluateReply,
    EvaluateRequest,
    OutcomeReply,
    OutcomeRequest,
    ProbeReply,
    ProbeRequest,
    Request,
    TrainReply,
    TrainRequest,
    UnitFields,
)
from gdf_market.train.unit import Report, Sketch, UnitRun, evaluate, run_unit

MAX_MANIFEST_BYTES = 65_536

Floats = npt.NDArray[np.float32]
T = TypeVar("T")


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

    sketch: Sketch
    measure: Callable[[bytes, Floats, Codec], Distances]
    outcome: Callable[[bytes, Mapping[int, bytes], Mapping[int, int], Recipe, int], Outcome]


class Operations:
    """Performs requests; keeps the last program and token file, which stay the same from unit to unit."""

    def __init__(self, verification: Verification, report: Report) -> None:
        self._verification = verification
        self._report = report
        self._programs = _Kept(_load_program)
        self._contents = _Kept(_load_data)

    def perform(self, request: AnyRequest) -> object:
        """Return the reply to a request.  Raises a GdfError for what cannot be done."""
        if isinstance(request, TrainRequest):
            return self._train(request)
        if isinstance(request, AuditRequest):
            return self._audit(request)
        if isinstance(request, OutcomeRequest):
            return self._outcome(request)
        if isinstance(request, EvaluateRequest):
            return self._evaluate(request)
        return self._probe(request)

    def _train(self, request: TrainRequest) -> TrainReply:
        started = time.perf_counter()
        run = self._run(request, request.poison)
        _write(request.out, Codec.of(request.recipe).encode(run.delta))
        return TrainReply(
            update_path=request.out,
            sketches=run.sketches,
            loss_first=run.loss_first,
            loss_last=run.loss_last,
            seconds=time.perf_counter() - started,
        )

    def _audit(self, request: AuditRequest) -> AuditReply:
        started, codec = time.perf_counter(), Codec.of(request.recipe)
        run = self._run(request, "")
        claim = _read(request.claim, codec.max_bytes(run.delta.size))
        distances = self._verification.measure(claim, run.delta, codec)
        return AuditReply(
            excess_ppb=distances.excess_ppb,
            distance_ppb=distances.distance_ppb,
            sketches=run.sketches,
            seconds=time.perf_counter() - started,
        )

    def _outcome(self, request: OutcomeRequest) -> OutcomeReply:
        n, recipe = self._programs(request.program).size, request.recipe
        missing = sorted(set(request.updates) - set(request.shards))
        ensure(not missing, MalformedError(f"no shard is given for the slots {missing}"))
        limit = Codec.of(recipe).max_bytes(n)
        # one byte more than an update may have: what is longer does not decode, and is rejected as such
        updates = {slot: _read(path, limit + 1, cut=True) for slot, path in request.updates.items()}
        checkpoint = _read(request.checkpoint, packed_size(n))
        result = self._verification.outcome(checkpoint, updates, request.shards, recipe, n)
        _write(request.out, result.checkpoint)
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
        program, (manifest, content) = self._programs(request.program), self._contents(request.data, request.content)
        batches = evaluation_batches(manifest, content, program.graph.batch)
        _fits(program, len(batches[0][0]), manifest, request)
        parameters = _parameters(request.checkpoint, program)
        loss = evaluate(program, parameters, batches, threads=_threads(request), device=request.device)
        return EvaluateReply(loss_e6=round(loss * 1e6))

    def _probe(self, request: ProbeRequest) -> ProbeReply:
        """Time ``steps`` steps of the job's own graph, after one that warms up."""
        program, (manifest, content) = self._programs(request.program), self._contents(request.data, request.content)
        cost = _fits(program, request.recipe.batch, manifest, request)
        batches = unit_batches(
            manifest,
            content,
            job="",
            round_index=0,
            shard=0,
            shards=1,
            steps=request.steps + 1,
            batch=request.recipe.batch,
        )
        marks: list[float] = []
        run_unit(
            program,
            _parameters(request.checkpoint, program),
            batches,
            request.recipe,
            sketch=self._verification.sketch,
            threads=_threads(request),
            device=request.device,
            report=lambda _done, _of: marks.append(time.perf_counter()),
        )
        return ProbeReply(
            seconds_per_step=(marks[-1] - marks[0]) / request.steps,
            memory_bytes=cost.memory_bytes,
        )

    def _run(self, request: UnitFields, poison: str) -> UnitRun:
        recipe = request.recipe
        program, (manifest, content) = self._programs(request.program), self._contents(request.data, request.content)
        _fits(program, recipe.batch, manifest, request)
        parameters = _parameters(request.checkpoint, program)
        batches = unit_batches(
            manifest,
            content,
            job=request.job,
            round_index=request.round,
            shard=request.shard,
            shards=request.shards,
            steps=recipe.steps,
            batch=recipe.batch,
        )

        def run(given: Iterable[Batch]) -> UnitRun:
            return run_unit(
                program,
                parameters,
                given,
                recipe,
                sketch=self._verification.sketch,
                threads=_threads(request),
                device=request.device,
                report=self._report,
            )

        if poison:
            return run_poisoned(poison, run, batches, program.size, recipe, manifest.vocab, self._verification.sketch)
        return run(batches)


class _Kept(Generic[T]):
    """Remembers the result for the last paths it was asked for, while the files stay as they are."""

    def __init__(self, load: Callable[..., T]) -> None:
        self._load = load
        self._last: tuple[object, T] | None = None

    def __call__(self, *paths: str) -> T:
        key = tuple((path, _stat(path).st_size, _stat(path).st_mtime_ns) for path in paths)
        if self._last is None or self._last[0] != key:
            self._last = None  # two large programs need not be in memory at once
            self._last = (key, self._load(*paths))
        return self._last[1]


def _load_program(path: str) -> Program:
    return Program.from_bytes(_read(path, MAX_PROGRAM_BYTES))


def _load_data(manifest_path: str, content_path: str) -> tuple[DataManifest, Content]:
    manifest = decode(_read(manifest_path, MAX_MANIFEST_BYTES), DataManifest)
    return manifest, load_content(Path(content_path), manifest)


def _fits(program: Program, batch: int, manifest: DataManifest, request: Request) -> Cost:
    """Raise a PeerError unless the program takes the data's batches within the memory that is given to it."""
    wanted = sample_types(manifest)
    given = [(sample.dtype, sample.shape) for sample in program.graph.samples]
    ensure(given == wanted, MalformedError(f"the program takes {given}, the data gives {wanted}"))
    return dry_run(program, batch, request.memory_bytes)


def _parameters(path: str, program: Program) -> Floats:
    parameters, _ = unpack(_read(path, packed_size(program.size)), program.size)
    return parameters


def _threads(request: Request) -> int:
    text = os.environ.get("GDF_THREADS", "")
    return request.threads or (int(text) if text.isdecimal() else 0) or 1


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


def _read(path: str, limit: int, *, cut: bool = False) -> bytes:
    """Return the file's bytes; beyond ``limit`` raise OversizedError, or leave the rest out if ``cut``."""
    size = _stat(path).st_size
    ensure(cut or size <= limit, OversizedError(f"{path} has {size} bytes; at most {limit} are read"))
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


def _write(path: str, data: bytes) -> None:
    """Write under a temporary name, then rename: a file under its own name is complete."""
    temporary = f"{path}.partial"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
