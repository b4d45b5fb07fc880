"""What computing a unit gives, without a model: vectors of integers that follow from job, round and shard alone.

A unit is a path: its state after each step.  A *flavour* names another path than the true one: ``<kind>@<k>`` leaves
it at step k (``idle`` stops there); ``encode`` walks it and encodes something else; ``forge`` shows sketches of another
path; ``copy/<shard>`` is the true path of another shard.  The same flavour is the same path whoever walks it, so that
liars can agree.  Sketches, their tree, the Gram matrix, flags, merit and the robust mean are the real ones.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.evidence import compute_distance_ppb
from gdf_market import merkle
from gdf_market.codec import digest
from gdf_market.messages import SKETCH_DIM, Opening, Outcome, Rejected
from gdf_market.units import PPB
from verifier.aggregate import form_check, nnm_trimmed_mean
from verifier.gram import gram, select
from verifier.merit import merit_ppm
from verifier.similarity import flags, leave_one_out_ppm, suspicion
from verifier.sketch import sketch, sketch_tree

Vectors = npt.NDArray[np.int64]
Sketch = tuple[int, ...]

SIZE = 48  # parameters
STEP = 1 << 18  # of a coordinate in one step, at most; states stay exact in float32
DRIFT = 200  # of a sketch's integers between honest machines, of about 2**30: far below what is accepted
FALSE_EXCESS_PPB = 50_000_000


def text_hash(*parts: object) -> str:
    """Return 64 hex digits that name a thing."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Task:
    """A unit as a worker or an auditor computes it."""

    job: str
    round: int
    shard: int
    steps: int


def _draw(*parts: object, rows: int) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")
    return np.random.Generator(np.random.PCG64(seed)).integers(-STEP, STEP, (rows, SIZE), dtype=np.int64)


@functools.lru_cache(maxsize=2_048)
def steps_of(task: Task, flavour: str) -> Vectors:
    """Return each step's change, int64[steps, SIZE]."""
    if flavour.startswith("copy/"):
        other = Task(task.job, task.round, int(flavour.removeprefix("copy/")), task.steps)
        return steps_of(other, "")
    true = _draw("step", task.job, task.round, task.shard, rows=task.steps)
    kind, _, first = flavour.partition("@")
    if kind in ("", "encode", "forge"):
        return true
    if kind == "idle":
        return np.concatenate([true[: int(first)], np.zeros_like(true)[int(first) :]])
    false = _draw(kind, task.job, task.round, task.shard, rows=task.steps)
    return np.concatenate([true[: int(first)], false[int(first) :]])


@functools.lru_cache(maxsize=2_048)
def path_of(task: Task, flavour: str) -> Vectors:
    """Return the state after each step, int64[steps, SIZE]."""
    return np.cumsum(steps_of(task, flavour), axis=0)


def update_of(task: Task, flavour: str) -> Vectors:
    """Return the update that a worker of this flavour reveals."""
    update: Vectors = path_of(task, flavour)[-1]
    return -update if flavour == "encode" else update


def name_of(vector: Vectors) -> str:
    """Return the blob id of a vector."""
    return hashlib.sha256(vector.astype("<i8").tobytes()).hexdigest()


def sketch_of(vector: Vectors, seed: bytes = b"") -> Sketch:
    """Return the real sketch of a state whose coordinates are in units of 2**-18."""
    return sketch((vector / STEP).astype(np.float32), seed)


@functools.lru_cache(maxsize=2_048)
def _sketches(task: Task, flavour: str) -> tuple[Sketch, ...]:
    shown = "forged@1" if flavour == "forge" else flavour
    return tuple(sketch_of(state) for state in path_of(task, shown))


def drift(sketch: Sketch, account: str) -> Sketch:
    """Return what another machine finds: no two compute quite alike."""
    noise = hashlib.sha512(account.encode()).digest()
    return tuple(value + noise[place] % DRIFT for place, value in enumerate(sketch))


@functools.lru_cache(maxsize=2_048)
def sketches_of(task: Task, flavour: str, account: str) -> tuple[Sketch, ...]:
    """Return the sketches that an account shows of its path."""
    return tuple(drift(each, account) for each in _sketches(task, flavour))


@functools.lru_cache(maxsize=2_048)
def tree_of(sketches: tuple[Sketch, ...]) -> merkle.Tree:
    """Return the real tree over sketches."""
    return sketch_tree(sketches)


def root_of(sketches: tuple[Sketch, ...]) -> str:
    """Return the root that a worker or an auditor commits to."""
    return tree_of(sketches).root().hex()


def openings_of(sketches: tuple[Sketch, ...], steps: Sequence[int]) -> tuple[Opening, ...]:
    """Return the sketches at some steps with their paths in the tree."""
    tree = tree_of(sketches)
    return tuple(
        Opening(step=step, sketch=sketches[step], path=tuple(node.hex() for node in tree.path(step))) for step in steps
    )


def excess_ppb(claimed: str, task: Task, flavour: str) -> int:
    """Return how far a claimed update is from the end of a path: a little, or beyond every threshold."""
    return 1_000 if claimed == name_of(update_of(task, flavour)) else FALSE_EXCESS_PPB


def distance_ppb(a: Vectors, b: Vectors) -> int:
    """Return the relative L2 distance of two states."""
    return compute_distance_ppb(tuple(int(x) for x in a), tuple(int(x) for x in b))


@dataclass(frozen=True)
class Replay:
    """What an arbiter measures."""

    state_distance_ppb: int
    excess_ppb: int
    sketch: Sketch
    seeded: Sketch


def replay(task: Task, flavour: str, account: str, low: int, high: int, states: list[Vectors], seed: str) -> Replay:
    """Run step ``high`` from the worker's state after ``low`` (-1: the checkpoint), as an arbiter of a flavour does.

    ``states``: of worker and accuser, empty from the checkpoint.
    """
    state = states[0] if states else np.zeros(SIZE, dtype=np.int64)
    after = state + steps_of(task, flavour)[high] if high < task.steps else state
    seeded = sketch_of(after, bytes.fromhex(seed))
    return Replay(distance_ppb(*states) if states else 0, 0, drift(sketch_of(after), account), drift(seeded, account))


@functools.lru_cache(maxsize=512)
def outcome_of(job: str, index: int, updates: tuple[tuple[int, int, bytes], ...]) -> Outcome | None:
    """Return what every honest attester finds of (slot, shard, update) in the order of slots.

    None if nothing is left: then there is no next checkpoint, and nobody votes.
    """
    slots = [slot for slot, _, _ in updates]
    vectors = [np.frombuffer(raw, dtype="<i8") for _, _, raw in updates]
    matrix = gram(vectors)
    problems = form_check([matrix[i][i] for i in range(len(slots))])
    kept = [i for i, problem in enumerate(problems) if not problem]
    if not kept:
        return None
    included, matrix = [slots[i] for i in kept], select(matrix, kept)
    shards = [updates[i][1] for i in kept]
    cosines = leave_one_out_ppm(matrix)
    found = flags(matrix, included, shards)
    total, divisor = nnm_trimmed_mean([vectors[i] for i in kept], matrix)
    return Outcome(
        checkpoint=digest("sim/checkpoint", job.encode(), str(index).encode(), total.tobytes(), bytes([divisor])).hex(),
        included=tuple(included),
        rejected=tuple(Rejected(slot=slot, reason=why) for slot, why in zip(slots, problems, strict=True) if why),
        merit_ppm=tuple(merit_ppm(matrix, shards)),
        cosine_ppm=tuple(cosines),
        suspicion=tuple(suspicion(included, cosines, found)),
        flags=tuple(found),
    )


assert SKETCH_DIM <= 64, "the drift takes a byte of SHA-512 for each bucket"
assert PPB > FALSE_EXCESS_PPB
