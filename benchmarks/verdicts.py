"""Do the verdict's thresholds separate honest reruns from cheats?  Real units of the example model.

    python -m benchmarks.verdicts                          # about two minutes on one core; prints Markdown
    python -m benchmarks.verdicts --adam-epsilon 1e-8      # why the inner optimizer's epsilon is not PyTorch's default

Every unit is run by an auditor (one thread) and by workers: honest ones on other thread counts and other
instruction sets, and cheats.  A worker's claim is encoded at 8, 4 and 2 bits and measured as an audit does.
Honest rows show the largest value over all scenes, cheating rows the smallest.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.evidence import compute_distance_ppb
from contracts.parameters import thresholds, verdict
from gdf_market.messages import Recipe
from gdf_market.train import unit
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.codec import Codec
from gdf_market.train.data import Batch, Content, DataManifest, unit_batches
from gdf_market.train.job_file import load_job
from gdf_market.train.program import Program
from verifier.sketch import sketch
from verifier.verdict import measure

Floats = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "char_gpt.py"
WIDTHS = (8, 4, 2)
SHARDS = 8
CLASS = "cpu-fp32"
OTHER_INSTRUCTIONS = {  # what a worker with an older processor would compute with
    "no vector instructions in ATen": {"ATEN_CPU_CAPABILITY": "default"},
    "SSE4.1 and compatible BLAS": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "NEHALEM",
    },
}


@dataclasses.dataclass(frozen=True)
class Scene:
    """One unit to do: where it starts, and its batches."""

    program: Program
    recipe: Recipe
    parameters: Floats
    batches: tuple[Batch, ...]
    others: tuple[Batch, ...]  # of another shard
    vocab: int

    def run(self, batches: Sequence[Batch] | None = None, *, threads: int = 1, lr: float = 1.0) -> unit.UnitRun:
        recipe = msgspec.structs.replace(self.recipe, lr_e9=round(self.recipe.lr_e9 * lr))
        given = self.batches if batches is None else batches
        return unit.run_unit(self.program, self.parameters, given, recipe, sketch=sketch, threads=threads)


def scenes(trained: Floats | None = None) -> list[Scene]:
    """Return units from a fresh and from a ``trained`` model (made here unless given), two shards each."""
    job = load_job(EXAMPLE)
    program, recipe = capture(job), job.recipe
    manifest, tokens = job.dataset.manifest("0" * 64, job.context), job.dataset.content
    fresh = np.asarray(initial_parameters(job.model, program), np.float32)

    def batches(round_index: int, shard: int, steps: int = recipe.steps) -> tuple[Batch, ...]:
        return _batches(manifest, tokens, recipe, round_index, shard, steps)

    if trained is None:
        trained = fresh - unit.run_unit(program, fresh, batches(9, 7, 200), recipe, sketch=sketch).delta
    return [
        Scene(program, recipe, start, batches(0, shard), batches(0, shard + 3), manifest.vocab)
        for start in (fresh, trained)
        for shard in (0, 1)
    ]


def _batches(
    manifest: DataManifest, tokens: Content, recipe: Recipe, round_index: int, shard: int, steps: int
) -> tuple[Batch, ...]:
    return tuple(
        unit_batches(
            manifest,
            tokens,
            job="ab" * 32,
            round_index=round_index,
            shard=shard,
            shards=SHARDS,
            steps=steps,
            batch=recipe.batch,
        )
    )


def skip_first(scene: Scene) -> unit.UnitRun:
    """Leave out the cheapest step to leave out: the first of the re-warm-up."""
    original = unit.learning_rate
    with patch.object(unit, "learning_rate", lambda recipe, step: original(recipe, step + 1)):
        done = scene.run(scene.batches[1:])
    return dataclasses.replace(done, sketches=done.sketches[:1] + done.sketches)


def some_labels(scene: Scene, share: float) -> unit.UnitRun:
    """Flip a random share of the labels."""
    random = np.random.default_rng(0)
    flipped = [
        (inputs, np.where(random.random(targets.shape) < share, scene.vocab - 1 - targets, targets))
        for inputs, targets in scene.batches
    ]
    return scene.run(flipped)


def negated(scene: Scene) -> unit.UnitRun:
    """Hand in the opposite of an honest update."""
    done = scene.run()
    return dataclasses.replace(done, delta=-done.delta, sketches=tuple(tuple(-x for x in s) for s in done.sketches))


HONEST: dict[str, Callable[[Scene], unit.UnitRun]] = {
    "rerun, one thread": lambda scene: scene.run(),
    "two threads": lambda scene: scene.run(threads=2),
}
CHEATS: dict[str, Callable[[Scene], unit.UnitRun]] = {
    "skip the first of 20 steps (re-warm-up)": skip_first,
    "skip the last of 20 steps": lambda scene: scene.run(scene.batches[:-1]),
    "skip a step in the middle": lambda scene: scene.run(scene.batches[:10] + scene.batches[11:]),
    "half the steps": lambda scene: scene.run(scene.batches[: len(scene.batches) // 2]),
    "half the batch": lambda scene: scene.run([(x[: len(x) // 2], y[: len(y) // 2]) for x, y in scene.batches]),
    "1% of labels flipped": lambda scene: some_labels(scene, 0.01),
    "another shard": lambda scene: scene.run(scene.others),
    "sign flip": negated,
}
PROBES: dict[str, Callable[[Scene], unit.UnitRun]] = {  # finer than any cheat that pays: how sharp the measure is
    "0.1% of labels flipped": lambda scene: some_labels(scene, 0.001),
    "learning rate x 1.01": lambda scene: scene.run(lr=1.01),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """Distances in ppb of one variant in one scene; per codec width, excess and decoded distance."""

    dense: int
    excess: tuple[int, ...]
    decoded: tuple[int, ...]
    sketches: tuple[int, ...]  # per step


def compare(scene: Scene, auditor: unit.UnitRun, worker: unit.UnitRun) -> Row:
    """Measure a worker's run as an audit does."""
    block = scene.recipe.codec_block
    codecs = [Codec(bits, block) for bits in WIDTHS]
    both = [measure(codec.encode(worker.delta), auditor.delta, codec) for codec in codecs]
    padded = worker.sketches + worker.sketches[-1:] * (len(auditor.sketches) - len(worker.sketches))
    difference = np.linalg.norm(worker.delta - auditor.delta) / np.linalg.norm(auditor.delta)
    return Row(
        dense=round(float(difference) * 1e9),
        excess=tuple(distances.excess_ppb for distances in both),
        decoded=tuple(distances.distance_ppb for distances in both),
        sketches=tuple(compute_distance_ppb(claim, own) for claim, own in zip(padded, auditor.sketches, strict=True)),
    )


def elsewhere(trained: Floats, environment: dict[str, str], epsilon: float) -> list[unit.UnitRun]:
    """Run all scenes in a process whose libraries use other instructions."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "trained.npy", trained)
        command = [sys.executable, __file__, "--honest-runs", folder, "--adam-epsilon", str(epsilon)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, env={**os.environ, **environment, "PYTHONPATH": path}, check=True)
        with np.load(Path(folder) / "runs.npz") as data:
            return [
                unit.UnitRun(delta, tuple(tuple(s) for s in sketches.tolist()), 0.0, 0.0)
                for delta, sketches in zip(data["deltas"], data["sketches"], strict=True)
            ]


def write_honest_runs(folder: Path) -> None:
    """Write the honest runs of all scenes (the other end of ``elsewhere``)."""
    runs = [scene.run() for scene in scenes(np.load(folder / "trained.npy"))]
    np.savez(folder / "runs.npz", deltas=[run.delta for run in runs], sketches=[run.sketches for run in runs])


def line(name: str, rows: list[Row], pick: Callable[[Iterable[int]], int], sketch_of: Callable[[Row], int]) -> str:
    """Return a Markdown row: dense distance, then excess / decoded distance per width, sketch distance, verdicts."""
    widths = [
        f"**{pick(row.excess[i] for row in rows) / 1e9:.1e}** / {pick(row.decoded[i] for row in rows) / 1e9:.1e}"
        for i in range(len(WIDTHS))
    ]
    verdicts = {verdict(CLASS, excess, sketch_of(row)) for row in rows for excess in row.excess}
    cells = [name, f"{pick(row.dense for row in rows) / 1e9:.1e}", *widths]
    return _row([*cells, f"{pick(map(sketch_of, rows)) / 1e9:.1e}", ", ".join(sorted(verdicts))])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(epsilon: float) -> None:
    """Print the table and the margins to the thresholds."""
    everything = scenes()
    auditors = [scene.run() for scene in everything]

    def rows_of(runs: Iterable[unit.UnitRun]) -> list[Row]:
        return [compare(scene, own, run) for scene, own, run in zip(everything, auditors, runs, strict=True)]

    def all_of(variants: dict[str, Callable[[Scene], unit.UnitRun]]) -> dict[str, list[Row]]:
        return {name: rows_of(map(do, everything)) for name, do in variants.items()}

    honest = all_of(HONEST) | {
        name: rows_of(elsewhere(everything[-1].parameters, environment, epsilon))
        for name, environment in OTHER_INSTRUCTIONS.items()
    }
    cheats, probes = all_of(CHEATS), all_of(PROBES)
    print(f"AdamW epsilon {epsilon:.0e}; {len(everything)} units of {everything[0].parameters.size} parameters\n")
    print(_row(["variant", "dense", *[f"{bits} bits: **excess** / decoded" for bits in WIDTHS], "sketch", "verdict"]))
    print("|---" * (len(WIDTHS) + 4) + "|")
    for name, rows in honest.items():
        print(line(name, rows, max, lambda row: max(row.sketches)))
    for name, rows in (cheats | probes).items():
        print(line(name, rows, min, lambda row: row.sketches[-1]))
    _print_margins([r for rows in honest.values() for r in rows], [r for rows in cheats.values() for r in rows])


def _print_margins(honest: list[Row], cheats: list[Row]) -> None:
    limits = thresholds(CLASS)
    print()
    for i, bits in enumerate(WIDTHS):
        worst, least = max(row.excess[i] for row in honest), min(row.excess[i] for row in cheats)
        _print_margin(f"{bits} bits, excess", worst, limits.excess_accept, least, limits.excess_fail)
    worst, least = max(max(row.sketches) for row in honest), min(row.sketches[-1] for row in cheats)
    _print_margin(
        "sketches (honest: any step, cheats: last step)", worst, limits.sketch_accept, least, limits.sketch_fail
    )


def _print_margin(what: str, worst: int, accept: int, least: int, fail: int) -> None:
    holds = "holds" if worst < accept and least > fail else "DOES NOT HOLD"
    print(
        f"- {what}: honest {worst / 1e9:.1e}, accepted to {accept / 1e9:.0e} (factor {accept / max(worst, 1):.1f}); "
        f"cheats {least / 1e9:.1e}, failing above {fail / 1e9:.0e} (factor {least / fail:.1f}): {holds}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adam-epsilon", type=float, default=unit.ADAM_EPSILON)
    parser.add_argument("--honest-runs", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unit.ADAM_EPSILON = arguments.adam_epsilon
    write_honest_runs(arguments.honest_runs) if arguments.honest_runs else main(arguments.adam_epsilon)
