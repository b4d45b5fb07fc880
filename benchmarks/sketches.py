"""How small may a step's sketch be?  Real units: honest reruns against units in which one single step was altered.

    python -m benchmarks.sketches                           # about four minutes on one core; prints Markdown
    python -m benchmarks.sketches --inner muon              # the same for Muon
    python -m benchmarks.sketches --steps 100 --every 9     # longer units; every ninth step is altered
    python -m benchmarks.sketches --cost                    # what a dispute costs; a second

Honest participants use other threads, parts of a batch and instruction sets (in processes of their own).  A cheat
leaves one step out, flips 1% of its labels, or takes it with 1.1 times the learning rate; then it goes on honestly.
Two comparisons are looked at: of the sketches of the whole change, at the altered step and every later one (what audits
and bisections compare), and of the altered step alone, relative to its size (what arbiters compare).  Honest rows are
maxima over all scenes, participants and steps; altered rows are minima.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks import sketch_cost
from benchmarks.verdicts import OTHER_INSTRUCTIONS, ROOT, Kind, Scene, scenes
from contracts.parameters import thresholds
from gdf_market.messages import Recipe
from gdf_market.train import optimizers, unit
from gdf_market.train.data import Batch
from gdf_market.train.schedule import learning_rate
from gdf_market.train.unit_state import UnitState, pack_state, state_distance_ppb, unpack_state
from gdf_market.units import PPB
from verifier.sketch import SCALE, project

DIMS = (8, 16, 32, 64, 128)
# (threads, rows of the eight of a batch at a time; 0 is all of them)
HERE = tuple((threads, rows) for threads in (1, 2) for rows in (0, 1, 2, 4))
ELSEWHERE = ((1, 0), (2, 1), (1, 4))
FEW = {HERE: ((1, 0), (2, 1)), ELSEWHERE: ((1, 0),)}  # of long units
LONG = 20  # steps
SHARE_OF_LABELS = 0.01
RATE = 1.1
CHOSEN = 32

Floats = npt.NDArray[np.float64]
Quantise = Callable[[Floats], Floats]  # sums [steps, dim] to sums that are written


def _fixed(bits: int) -> Quantise:
    return lambda sums: np.rint(sums * 2.0**bits)


def _relative(bits: int) -> Quantise:
    """Keep so many bits of each sketch's largest value."""

    def quantise(sums: Floats) -> Floats:
        largest = np.abs(sums).max(axis=1, keepdims=True, initial=2.0**-40)
        found: Floats = np.rint(sums * 2.0 ** (bits - 1 - np.ceil(np.log2(largest))))
        return found

    return quantise


def _spread(bits: int) -> Quantise:
    """As ``_relative``, with the exponent put back, so that sketches of other exponents can be compared."""
    narrow = _relative(bits)

    def quantise(sums: Floats) -> Floats:
        largest = np.abs(sums).max(axis=1, keepdims=True, initial=2.0**-40)
        found: Floats = narrow(sums) / 2.0 ** (bits - 1 - np.ceil(np.log2(largest)))
        return found

    return quantise


assert SCALE == 2**30
QUANTISED: dict[str, tuple[Quantise, Quantise]] = {  # what is compared, and the integers that are written
    "units of 2^-30 (as built)": (_fixed(30), _fixed(30)),
    "units of 2^-20": (_fixed(20), _fixed(20)),
    "units of 2^-16": (_fixed(16), _fixed(16)),
    "16 bits and an exponent": (_spread(16), _relative(16)),
    "12 bits and an exponent": (_spread(12), _relative(12)),
    "8 bits and an exponent": (_spread(8), _relative(8)),
}


class Tracer:
    """Takes the place of the sketch: keeps the bucket sums of every dimension after each step."""

    def __init__(self) -> None:
        self.rows: list[Floats] = []

    def __call__(self, delta: npt.NDArray[np.float32]) -> tuple[int, ...]:
        self.rows.append(np.concatenate([project(delta, dim) for dim in DIMS]))
        return ()


@dataclass(frozen=True)
class Walk:
    """A unit, step by step: bucket sums [steps, all dimensions], and the states after the steps."""

    sums: Floats
    states: tuple[UnitState, ...]

    def of(self, dim: int) -> Floats:
        return self.sums[:, _columns(dim)]


def walk(
    scene: Scene, batches: Sequence[Batch], *, begin: UnitState | None = None, threads: int = 1, rows: int = 0
) -> Walk:
    """Take one step after the other; each begins with the state that the one before left."""
    tracer, states = Tracer(), []
    for batch in batches:
        done = unit.run_unit(
            scene.program,
            scene.parameters,
            [batch],
            scene.recipe,
            sketch=tracer,
            threads=threads,
            parts=unit.Parts(rows),
            begin=begin,
            keep_state=True,
        )
        assert done.state is not None
        begin = done.state
        states.append(begin)
    return Walk(np.array(tracer.rows).reshape(-1, sum(DIMS)), tuple(states))


def single_steps(scene: Scene, own: Walk, *, threads: int, rows: int) -> Floats:
    """Return the bucket sums after each step of ``own``, replayed here from the state before it."""
    befores = (None, *own.states[:-1])
    return np.concatenate(
        [
            walk(scene, [batch], begin=before, threads=threads, rows=rows).sums
            for before, batch in zip(befores, scene.batches, strict=True)
        ]
    )


@dataclass(frozen=True)
class Honest:
    """One participant's rerun of a unit, and its replays of the reference's single steps."""

    name: str
    sums: Floats
    replays: Floats
    state_ppb: tuple[int, ...]  # distance of its states from the reference's, per step


def honest_runs(scene: Scene, own: Walk, name: str, cases: tuple[tuple[int, int], ...]) -> Iterator[Honest]:
    """Yield a rerun for each number of threads and part of a batch."""
    for threads, rows in cases if len(scene.batches) <= LONG else FEW[cases]:
        found = walk(scene, scene.batches, threads=threads, rows=rows)
        pairs = zip(own.states, found.states, strict=True)
        apart = tuple(state_distance_ppb(scene.parameters, mine, other) for mine, other in pairs)
        replays = single_steps(scene, own, threads=threads, rows=rows)
        yield Honest(f"{name}, {threads} threads, rows {rows or 'all'}", found.sums, replays, apart)


@dataclass(frozen=True)
class Altered:
    """A unit with one altered step: bucket sums from that step on."""

    kind: str
    step: int
    sums: Floats


def altered_at(scene: Scene, own: Walk, step: int) -> Iterator[Altered]:
    """Yield the three cheats at one step; each goes on honestly."""
    begin, rest = (own.states[step - 1] if step else None), scene.batches[step:]

    def later(recipe: Recipe, at: int, done: int) -> float:
        return learning_rate(recipe, at + 1, done)

    def faster(recipe: Recipe, at: int, done: int) -> float:
        return learning_rate(recipe, at, done) * (RATE if at == step else 1.0)

    with patch.object(unit, "learning_rate", later):
        after = walk(scene, rest[1:], begin=begin).sums
    before = own.sums[step - 1] if step else np.zeros_like(own.sums[0])
    yield Altered("step left out", step, np.concatenate([before[None], after]))
    yield Altered(
        "1% of its labels flipped", step, walk(scene, [_flipped(rest[0], scene), *rest[1:]], begin=begin).sums
    )
    with patch.object(unit, "learning_rate", faster):
        yield Altered("learning rate x 1.1", step, walk(scene, rest, begin=begin).sums)


def _flipped(batch: Batch, scene: Scene) -> Batch:
    inputs, targets = batch
    chosen = np.random.default_rng(0).random(targets.shape) < SHARE_OF_LABELS
    return inputs, np.where(chosen, scene.vocab - 1 - targets, targets)


@dataclass(frozen=True)
class Pair:
    """Sums to compare, [steps, dim] each: after and before the reference's steps, and another one's.

    Where whole changes are compared, what was before is zero.
    """

    name: str
    step: int
    own: Floats
    before: Floats
    other: Floats
    other_before: Floats


def distances(pair: Pair, quantise: Quantise) -> Floats:
    """Return the relative L2 distance at each step, after quantisation."""
    own = quantise(pair.own) - quantise(pair.before)
    other = quantise(pair.other) - quantise(pair.other_before)
    size = np.maximum(np.linalg.norm(own, axis=1), np.finfo(np.float64).tiny)
    found: Floats = np.linalg.norm(other - own, axis=1) / size
    return found


def _shifted(sums: Floats) -> Floats:
    """Return the sums before each step."""
    return np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])


@dataclass(frozen=True)
class Study:
    """All of one scene."""

    own: Walk
    honest: list[Honest]
    altered: list[Altered]

    def whole(self, dim: int, *, honest: bool) -> list[Pair]:
        """Return pairs of whole changes: of all steps, or from the altered one on."""
        own, part = self.own.of(dim), _columns(dim)
        given = [(each.name, 0, each.sums[:, part]) for each in self.honest]
        if not honest:
            given = [(each.kind, each.step, each.sums[:, part]) for each in self.altered]
        return [
            Pair(name, step, own[step:], np.zeros_like(other), other, np.zeros_like(other))
            for name, step, other in given
        ]

    def single(self, dim: int, *, honest: bool) -> list[Pair]:
        """Return pairs of single steps: replays from the reference's states, steps of reruns, or altered steps."""
        own, part = self.own.of(dim), _columns(dim)
        before = _shifted(own)
        if honest:
            replays = [Pair(each.name, 0, own, before, each.replays[:, part], before) for each in self.honest]
            reruns = [(each.name, each.sums[:, part]) for each in self.honest]
            return replays + [Pair(name, 0, own, before, other, _shifted(other)) for name, other in reruns]
        at = [(each, slice(each.step, each.step + 1)) for each in self.altered]
        return [
            Pair(each.kind, each.step, own[here], before[here], each.sums[:1, part], before[here]) for each, here in at
        ]


def _columns(dim: int) -> slice:
    start = sum(DIMS[: DIMS.index(dim)])
    return slice(start, start + dim)


def study(kind: Kind, every: int, trained: npt.NDArray[np.float32] | None = None) -> list[Study]:
    """Run everything: one unit of a fresh model, one of a trained one; of long units the latter alone."""
    found: list[Study] = []
    everything = scenes(kind, trained)
    for place in (0, 2) if kind.steps <= LONG else (2,):
        scene = everything[place]
        own = walk(scene, scene.batches)
        honest = list(honest_runs(scene, own, "this machine", HERE))
        for name, environment in OTHER_INSTRUCTIONS.items():
            honest += elsewhere(kind, scene, place, everything[2].parameters, own, name, environment)
        last = len(scene.batches) - 1
        chosen = sorted({*range(0, last + 1, every), last})
        altered = [each for step in chosen for each in altered_at(scene, own, step)]
        found.append(Study(own, honest, altered))
        print(f"scene {place}: {len(honest)} reruns, {len(altered)} cheats", file=sys.stderr)
    return found


def elsewhere(
    kind: Kind,
    scene: Scene,
    place: int,
    trained: npt.NDArray[np.float32],
    own: Walk,
    name: str,
    environment: dict[str, str],
) -> list[Honest]:
    """Do the honest runs in a process whose libraries use other instructions."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "trained.npy", trained)
        for state in own.states:
            (Path(folder) / f"state-{state.step}").write_bytes(pack_state(state))
        command = [sys.executable, __file__, "--scene", str(place), "--honest", folder, "--steps", str(kind.steps)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [*command, "--inner", kind.inner], env={**os.environ, **environment, "PYTHONPATH": path}, check=True
        )
        with np.load(Path(folder) / "honest.npz") as data:
            return [
                Honest(f"{name}: {case}", sums, replays, tuple(state_ppb.tolist()))
                for case, sums, replays, state_ppb in zip(
                    data["names"].tolist(), data["sums"], data["replays"], data["state_ppb"], strict=True
                )
            ]


def write_honest(kind: Kind, place: int, folder: Path) -> None:
    """Do the honest runs of a scene (the other end of ``elsewhere``)."""
    scene = scenes(kind, np.load(folder / "trained.npy"))[place]
    layout = optimizers.state_layout(scene.program.graph, scene.recipe)
    n = scene.program.size
    states = [
        unpack_state((folder / f"state-{step}").read_bytes(), layout, n, step) for step in range(1, kind.steps + 1)
    ]
    own = Walk(np.zeros((0, 0)), tuple(states))
    found = list(honest_runs(scene, own, "rerun", ELSEWHERE))
    np.savez(
        folder / "honest.npz",
        names=[each.name for each in found],
        sums=[each.sums for each in found],
        replays=[each.replays for each in found],
        state_ppb=[each.state_ppb for each in found],
    )


def row_of(found: list[Study], dim: int, name: str, limits: tuple[float, float]) -> str:
    """Return a Markdown row: bytes, then honest, altered, margin and errors, of whole changes and of single steps."""
    compared, written = QUANTISED[name]
    integers = [written(each.own.of(dim)) for each in found]
    size = np.mean([len(msgspec.json.encode([int(v) for v in row])) for sums in integers for row in sums])
    cells = [str(dim), name, f"{size:.0f}"]
    for pairs, limit in ((Study.whole, limits[0]), (Study.single, limits[1])):
        honest, altered = (
            np.concatenate([distances(pair, compared) for each in found for pair in pairs(each, dim, honest=side)])
            for side in (True, False)
        )
        rejected, accepted = int((honest > limit).sum()), int((altered <= limit).sum())
        factor = f"{altered.min() / honest.max():.0f}" if honest.max() > 0 else "-"
        cells += [f"{honest.max():.1e}", f"{altered.min():.1e}", factor]
        cells.append(f"{rejected} of {honest.size} / {accepted} of {altered.size}")
    return "| " + " | ".join(cells) + " |"


def by_kind(found: list[Study]) -> list[str]:
    """Return a row for each way to alter a step, at the chosen dimension: the smallest distances and where they are."""
    lines = []
    compared = QUANTISED["units of 2^-30 (as built)"][0]
    for kind in dict.fromkeys(each.kind for each in found[0].altered):
        cells = [kind]
        for pairs in (Study.whole, Study.single):
            values = [
                (float(value), pair.step, pair.step + offset)
                for each in found
                for pair in pairs(each, CHOSEN, honest=False)
                if pair.name == kind
                for offset, value in enumerate(distances(pair, compared))
            ]
            least, altered, seen = min(values)
            cells.append(f"{least:.1e} (step {altered}, seen at {seen})")
            if pairs is Study.whole:
                cells.append(f"{min(value for value, step, later in values if step == later):.1e}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(kind: Kind, every: int) -> None:
    """Print the tables of one kind of unit."""
    found = study(kind, every)
    limits = thresholds("cpu-fp32")
    accept = limits.sketch_accept / PPB, limits.step_accept / PPB
    print(f"## {kind.inner}, H = {kind.steps}\n")
    print(f"Accepted: whole changes to {accept[0]:.0e}, single steps to {accept[1]:.0e}.\n")
    names = ["honest", "altered", "factor", "false rejects / accepts"]
    columns = ["buckets", "written as", "bytes", *(f"whole: {n}" for n in names), *(f"step: {n}" for n in names)]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for dim in DIMS:
        print(row_of(found, dim, next(iter(QUANTISED)), accept))
    for name in list(QUANTISED)[1:]:
        print(row_of(found, CHOSEN, name, accept))
    print(f"\nAt {CHOSEN} buckets, the smallest distance of each way to alter a step:\n")
    print("| altered | whole change, any later step | whole change, at that step | step alone |\n|---|---|---|---|")
    print("\n".join(by_kind(found)))
    states = [(ppb, step + 1) for each in found for rerun in each.honest for step, ppb in enumerate(rerun.state_ppb)]
    apart, times = max(ppb for ppb, _ in states) / PPB, max(ppb * steps for ppb, steps in states) / PPB
    print(f"\nStates of honest reruns (change of the parameters, optimizer state) are at most {apart:.1e} apart;")
    print(f"that times the number of steps done, at most {times:.1e}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=1, help="alter each n-th step, and the last one")
    parser.add_argument("--cost", action="store_true", help="what a dispute costs, instead")
    parser.add_argument("--scene", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--honest", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    asked = Kind(arguments.inner, "fp32", arguments.steps, "fp32", optimizers.ADAM_EPSILON)
    if arguments.cost:
        sketch_cost.main()
    elif arguments.honest:
        write_honest(asked, arguments.scene, arguments.honest)
    else:
        main(asked, arguments.every)
