"""Do the verdict's thresholds separate honest reruns from cheats?  Real units of the example model.

    python -m benchmarks.verdicts                          # about two minutes on one core; prints Markdown
    python -m benchmarks.verdicts --adam-epsilon 1e-8      # why the inner optimizer's epsilon is not PyTorch's default
    python -m benchmarks.verdicts --inner muon             # the same for Muon
    python -m benchmarks.verdicts --inner muon --newton-schulz bf16      # why it is not torch's own
    python -m benchmarks.verdicts --precision bf16 --steps 100           # the same for bfloat16

Every unit is run by an auditor (one thread) and by workers: honest ones on other thread counts, other parts of a
batch and other instruction sets, and cheats.  A worker's claim is encoded at 8, 4 and 2 bits and measured as an audit
does.  Honest rows show the largest value over all scenes, cheating rows the smallest.
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
import torch
from torch.optim._muon import _zeropower_via_newtonschulz

from contracts.evidence import compute_distance_ppb
from contracts.parameters import DEVICE_CLASSES, thresholds, verdict
from gdf_market.messages import Recipe
from gdf_market.train import optimizers, unit
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.codec import Codec
from gdf_market.train.data import Batch, Content, DataManifest, unit_batches
from gdf_market.train.graph import Group
from gdf_market.train.job_file import load_job
from gdf_market.train.program import Program
from gdf_market.train.schedule import learning_rate
from verifier.sketch import sketch
from verifier.verdict import measure

Floats = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "char_gpt.py"
WIDTHS = (8, 4, 2)
SHARDS = 8
FULL = 8  # rows of the example's batch
OTHER_INSTRUCTIONS = {  # what a worker with an older processor would compute with
    "no vector instructions in ATen": {"ATEN_CPU_CAPABILITY": "default"},
    "AVX2 in ATen and oneDNN": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
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

    def run(
        self, batches: Sequence[Batch] | None = None, *, threads: int = 1, lr: float = 1.0, rows: int = 0
    ) -> unit.UnitRun:
        recipe = msgspec.structs.replace(self.recipe, lr_e9=round(self.recipe.lr_e9 * lr))
        given = self.batches if batches is None else batches
        parts = unit.Parts(rows)
        return unit.run_unit(self.program, self.parameters, given, recipe, sketch=sketch, threads=threads, parts=parts)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What kind of unit is measured."""

    inner: str
    precision: str
    steps: int
    newton_schulz: str
    epsilon: float

    def options(self) -> list[str]:
        """Return the command line that asks for it."""
        values = {"--inner": self.inner, "--precision": self.precision, "--steps": str(self.steps)}
        values |= {"--newton-schulz": self.newton_schulz, "--adam-epsilon": str(self.epsilon)}
        return [text for pair in values.items() for text in pair]

    @property
    def device_class(self) -> str:
        return f"cpu-{self.precision}"

    def recipe(self, given: Recipe) -> Recipe:
        rewarm = given.rewarm_steps * self.steps // given.steps
        return msgspec.structs.replace(
            given, inner=self.inner, precision=self.precision, steps=self.steps, rewarm_steps=rewarm
        )

    def program(self, given: Program) -> Program:
        """Return the example's program, separable, with Muon for the matrices of its blocks."""
        group = Group(muon=True)
        parameters = tuple(
            msgspec.structs.replace(p, group=len(given.graph.groups)) if len(p.shape) > 1 and "blocks." in p.name else p
            for p in given.graph.parameters
        )
        assert any("blocks." in p.name for p in given.graph.parameters)
        groups = (*given.graph.groups, group)
        graph = msgspec.structs.replace(given.graph, parameters=parameters, groups=groups, separable=True)
        return Program(graph, given.constants)


def scenes(kind: Kind, trained: Floats | None = None) -> list[Scene]:
    """Return units from a fresh and from a ``trained`` model (made here unless given), two shards each."""
    job = load_job(EXAMPLE)
    program, recipe = kind.program(capture(job)), kind.recipe(job.recipe)
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


def _without(batches: tuple[Batch, ...], step: int) -> tuple[Batch, ...]:
    return batches[:step] + batches[step + 1 :]


def skip_first(scene: Scene) -> unit.UnitRun:
    """Leave out the cheapest step to leave out: the first of the re-warm-up."""
    original = learning_rate
    with patch.object(unit, "learning_rate", lambda recipe, step, index: original(recipe, step + 1, index)):
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
    "one row at a time": lambda scene: scene.run(rows=1),
    "two rows at a time": lambda scene: scene.run(rows=2),
    "four rows at a time, two threads": lambda scene: scene.run(rows=FULL // 2, threads=2),
}
CHEATS: dict[str, Callable[[Scene], unit.UnitRun]] = {
    "skip the first step (re-warm-up)": skip_first,
    "skip the last step": lambda scene: scene.run(scene.batches[:-1]),
    "skip a step in the middle": lambda scene: scene.run(_without(scene.batches, len(scene.batches) // 2)),
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


def elsewhere(kind: Kind, trained: Floats, environment: dict[str, str]) -> list[unit.UnitRun]:
    """Run all scenes in a process whose libraries use other instructions."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "trained.npy", trained)
        command = [sys.executable, __file__, "--honest-runs", folder, *kind.options()]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, env={**os.environ, **environment, "PYTHONPATH": path}, check=True)
        with np.load(Path(folder) / "runs.npz") as data:
            return [
                unit.UnitRun(delta, tuple(tuple(s) for s in sketches.tolist()), 0.0, 0.0)
                for delta, sketches in zip(data["deltas"], data["sketches"], strict=True)
            ]


def write_honest_runs(kind: Kind, folder: Path) -> None:
    """Write the honest runs of all scenes (the other end of ``elsewhere``)."""
    runs = [scene.run() for scene in scenes(kind, np.load(folder / "trained.npy"))]
    np.savez(folder / "runs.npz", deltas=[run.delta for run in runs], sketches=[run.sketches for run in runs])


def line(
    kind: Kind, name: str, rows: list[Row], pick: Callable[[Iterable[int]], int], sketch_of: Callable[[Row], int]
) -> str:
    """Return a Markdown row: dense distance, then excess / decoded distance per width, sketch distance, verdicts."""
    widths = [
        f"**{pick(row.excess[i] for row in rows) / 1e9:.1e}** / {pick(row.decoded[i] for row in rows) / 1e9:.1e}"
        for i in range(len(WIDTHS))
    ]
    verdicts = {verdict(judged_as(kind), excess, sketch_of(row)) for row in rows for excess in row.excess}
    cells = [name, f"{pick(row.dense for row in rows) / 1e9:.1e}", *widths]
    return _row([*cells, f"{pick(map(sketch_of, rows)) / 1e9:.1e}", ", ".join(sorted(verdicts))])


def judged_as(kind: Kind) -> str:
    """Return the device class whose thresholds apply; those of fp32 where there are none yet."""
    return kind.device_class if kind.device_class in DEVICE_CLASSES else "cpu-fp32"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(kind: Kind) -> None:
    """Print the table and the margins to the thresholds."""
    everything = scenes(kind)
    auditors = [scene.run() for scene in everything]

    def rows_of(runs: Iterable[unit.UnitRun]) -> list[Row]:
        return [compare(scene, own, run) for scene, own, run in zip(everything, auditors, runs, strict=True)]

    def all_of(variants: dict[str, Callable[[Scene], unit.UnitRun]]) -> dict[str, list[Row]]:
        return {name: rows_of(map(do, everything)) for name, do in variants.items()}

    honest = all_of(HONEST) | {
        name: rows_of(elsewhere(kind, everything[-1].parameters, environment))
        for name, environment in OTHER_INSTRUCTIONS.items()
    }
    cheats, probes = all_of(CHEATS), all_of(PROBES)
    print(f"{' '.join(kind.options())}; {len(everything)} units of {everything[0].parameters.size} parameters\n")
    print(_row(["variant", "dense", *[f"{bits} bits: **excess** / decoded" for bits in WIDTHS], "sketch", "verdict"]))
    print("|---" * (len(WIDTHS) + 4) + "|")
    for name, rows in honest.items():
        print(line(kind, name, rows, max, lambda row: max(row.sketches)))
    for name, rows in (cheats | probes).items():
        print(line(kind, name, rows, min, lambda row: row.sketches[-1]))
    _print_margins(kind, *([row for rows in each.values() for row in rows] for each in (honest, cheats)))


def _print_margins(kind: Kind, honest: list[Row], cheats: list[Row]) -> None:
    limits = thresholds(judged_as(kind))
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


def _in_bfloat16(matrix: torch.Tensor) -> torch.Tensor:
    """Return what torch.optim.Muon makes of a matrix."""
    found: torch.Tensor = _zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    return found.float()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner", choices=("adamw", "muon", "sgd"), default="adamw")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--newton-schulz", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--adam-epsilon", type=float, default=optimizers.ADAM_EPSILON)
    parser.add_argument("--honest-runs", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    asked = Kind(arguments.inner, arguments.precision, arguments.steps, arguments.newton_schulz, arguments.adam_epsilon)
    optimizers.ADAM_EPSILON = asked.epsilon
    if asked.newton_schulz == "bf16":
        optimizers.orthogonalise = _in_bfloat16
    write_honest_runs(asked, arguments.honest_runs) if arguments.honest_runs else main(asked)
