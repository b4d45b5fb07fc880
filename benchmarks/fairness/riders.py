"""What updates earn that cost no work, or that were made once and handed in twice: by the real outcome of rounds.

Eight units a round on the digits, those of honest workers on images of equal quality; the riders hold the last slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.fairness.digits import Federation
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.program import Floats
from verifier.outcome import OutcomeResult, compute_outcome

UNITS = 8
ROUNDS = 5


@dataclass(frozen=True)
class View:
    """What riders may have before the commits: one honest unit of their own, and what is public."""

    own: Floats  # a unit that they really computed
    before: Floats  # the last outer step; zeros in the first round
    random: np.random.Generator

    @property
    def size(self) -> float:
        return float(np.linalg.norm(self.own))

    def noise(self) -> Floats:
        return self.scaled(self.random.standard_normal(len(self.own)))

    def scaled(self, direction: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return a direction with the norm of an honest update."""
        norm = float(np.linalg.norm(direction))
        return (direction * (self.size / norm)).astype(np.float32) if norm else self.noise()

    def near(self, direction: Floats, cosine: float) -> Floats:
        """Return something with about this cosine to a direction."""
        return self.scaled(cosine * self.scaled(direction) + np.sqrt(1 - cosine**2) * self.noise())


Make = Callable[[View, int], list[Floats]]


@dataclass(frozen=True)
class Rider:
    """``units`` of the riders in a round, of which ``worked`` were really computed."""

    name: str
    units: int
    worked: int
    make: Make


def _copies(view: View, count: int) -> list[Floats]:
    return [view.own] * count


def _rough_copies(cosine: float) -> Make:
    return lambda view, count: [view.own, *(view.near(view.own, cosine) for _ in range(count - 1))]


def _conspiracy(cosine: float) -> Make:
    """Return noise that agrees with itself: with a common part, any two have about this cosine."""

    def make(view: View, count: int) -> list[Floats]:
        common = view.noise()
        return [view.near(common, float(np.sqrt(cosine))) for _ in range(count)]

    return make


RIDERS = (
    Rider("honest unit", 1, 1, _copies),
    Rider("zero", 1, 0, lambda view, count: [np.zeros_like(view.own)]),
    Rider("the same constant everywhere", 1, 0, lambda view, count: [view.scaled(np.ones_like(view.own))]),
    Rider("noise as large as an update", 1, 0, lambda view, count: [view.noise()]),
    Rider("sign flip", 1, 1, lambda view, count: [-view.own]),
    Rider("the last outer step again", 1, 0, lambda view, count: [view.scaled(view.before)]),
    Rider("one unit handed in twice", 2, 1, _copies),
    Rider("one unit handed in three times", 3, 1, _copies),
    Rider("twice, with noise (cosine 0.95)", 2, 1, _rough_copies(0.95)),
    Rider("twice, with noise (cosine 0.85)", 2, 1, _rough_copies(0.85)),
    Rider("two noises that agree (cosine 0.85)", 2, 0, _conspiracy(0.85)),
    Rider("three noises that agree (cosine 0.85)", 3, 0, _conspiracy(0.85)),
)


@dataclass
class Earned:
    """Over rounds and seeds: shares are of a round's merit pot, ``relative`` to a mean honest unit of that round."""

    rider: Rider
    relative: list[float] = field(default_factory=list)  # of all its units together
    rejected: list[bool] = field(default_factory=list)
    flagged: list[bool] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)  # the most suspicious unit is one of its
    honest_flagged: list[bool] = field(default_factory=list)

    def add(self, outcome: OutcomeResult) -> None:
        own = set(range(UNITS - self.rider.units, UNITS))
        merit = dict(zip(outcome.included, outcome.merit_ppm, strict=True))
        honest = [share for slot, share in merit.items() if slot not in own]
        mine = sum(share for slot, share in merit.items() if slot in own)
        self.relative.append(mine / (sum(honest) / len(honest)))
        self.rejected.append(not own & set(outcome.included))
        flagged = {flag.slot for flag in outcome.flags}
        self.flagged.append(bool(own & flagged))
        self.honest_flagged.append(bool(flagged - own))
        self.first.append(outcome.suspicion[0] in own)


def measure(rider: Rider, seeds: Sequence[int], federate: Callable[[int], Federation]) -> Earned:
    """Return what a rider earns in ROUNDS rounds of each seed."""
    earned = Earned(rider)
    for seed in seeds:
        _play(earned, federate(seed), np.random.default_rng(seed))
    return earned


def _play(earned: Earned, fed: Federation, random: np.random.Generator) -> None:
    checkpoint, n = pack(fed.start, np.zeros_like(fed.start)), fed.program.size
    codec, rider, before = Codec.of(fed.recipe), earned.rider, np.zeros_like(fed.start)
    for index in range(ROUNDS):
        parameters, _ = unpack(checkpoint, n)
        honest = UNITS - rider.units
        deltas = [fed.delta(worker, parameters, index) for worker in range(honest)]
        deltas += rider.make(View(fed.delta(honest, parameters, index), before, random), rider.units)
        updates = {slot: codec.encode(delta) for slot, delta in enumerate(deltas)}
        outcome = compute_outcome(checkpoint, updates, {slot: slot for slot in updates}, fed.recipe, n)
        if index:  # the first round has no last outer step
            earned.add(outcome)
        checkpoint = outcome.checkpoint
        before = parameters - unpack(checkpoint, n)[0]
