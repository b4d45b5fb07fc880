"""How much of a batch is computed at once, so that a unit fits into the memory that it is given."""

from __future__ import annotations

from dataclasses import dataclass

from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.messages import Recipe
from gdf_market.train.data import DataManifest, sample_types
from gdf_market.train.dry_run import dry_run
from gdf_market.train.program import Program
from gdf_market.train.unit import Parts

BOUND = 4  # times the memory given, for all values together: estimates of what is alive at once may be too low


@dataclass(frozen=True)
class Fit:
    """The parts in which a batch is computed; that takes about ``memory_bytes`` a process."""

    parts: Parts
    memory_bytes: int


def check_samples(program: Program, manifest: DataManifest) -> None:
    """Raise MalformedError unless the program takes the samples that the data gives."""
    wanted = sample_types(manifest)
    given = [(sample.dtype, sample.shape) for sample in program.graph.samples]
    ensure(given == wanted, MalformedError(f"the program takes {given}, the data gives {wanted}"))


def fit_unit(program: Program, recipe: Recipe, memory_bytes: int, processes: int = 1) -> Fit:
    """Return the largest part of a batch, by halving, whose step fits into ``memory_bytes`` of each process.

    Raises OversizedError when no part fits or the batch cannot be computed in parts, MalformedError when it cannot be
    divided over the processes, and what ``dry_run`` raises.
    """
    graph = program.graph
    parts = graph.separable and not graph.batch
    ensure(
        processes == 1 or parts,
        MalformedError(
            f"a batch of this program cannot be divided over {processes} devices: its loss is no mean over rows"
        ),
    )
    rows = share = -(-recipe.batch // processes)
    while True:
        try:
            needed = _step_bytes(program, recipe, rows, memory_bytes)
            return Fit(Parts(0 if rows == share else rows, processes), needed)
        except OversizedError as error:
            hint = "not even one row of a batch fits" if parts else "its batches cannot be computed in parts"
            ensure(parts and rows > 1, OversizedError(f"{error}, and {hint}; a machine with more memory is needed"))
            rows = -(-rows // 2)


def fit_exactly(program: Program, recipe: Recipe, memory_bytes: int, parts: Parts) -> Fit:
    """Return what these parts of a batch take.  Raises OversizedError if they do not fit, and as ``dry_run`` does."""
    share = -(-recipe.batch // parts.processes)
    return Fit(parts, _step_bytes(program, recipe, min(parts.rows or share, share), memory_bytes))


def _step_bytes(program: Program, recipe: Recipe, rows: int, memory_bytes: int) -> int:
    cost = dry_run(program, rows, BOUND * memory_bytes, inner=recipe.inner, precision=recipe.precision)
    ensure(
        cost.expected_bytes <= memory_bytes,
        OversizedError(f"a step of {rows} rows takes about {cost.expected_bytes:,} bytes; {memory_bytes:,} are given"),
    )
    return cost.expected_bytes


def fit_evaluation(program: Program, batch: int, memory_bytes: int) -> int:
    """Return ``batch`` or, where the program takes any, the largest half, quarter, ... of it that fits.

    Raises what ``dry_run`` raises.
    """
    while True:
        try:
            dry_run(program, batch, memory_bytes)
            return batch
        except OversizedError:
            if program.graph.batch or batch == 1:
                raise
            batch = -(-batch // 2)
