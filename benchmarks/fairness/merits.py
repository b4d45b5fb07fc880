"""Merit against exact Shapley values: all 2**6 coalitions of six workers are trained, each from the start.

The value of a coalition is the negative loss, or the accuracy, on the test images after training with its updates
alone, through the market's own units, codec and outcome.  Merit is what the full coalition's rounds gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fairness.digits import WORKERS, Federation, Trained
from benchmarks.fairness.shapley import coalitions, kendall, shapley, spearman
from gdf_market.train.codec import Codec
from gdf_market.units import PPM
from verifier.gram import gram
from verifier.similarity import pairwise_ppm

ROUNDS = 4
KINDS = ("negative loss", "accuracy")


@dataclass(frozen=True)
class Comparison:
    """One seed: per worker, the mean merit share and the Shapley value of each kind of value."""

    merit: tuple[float, ...]
    paper: tuple[float, ...]  # by the formula of the paper: the sum of all cosines, an update's own included
    values: tuple[tuple[float, ...], ...]  # aligned with KINDS

    def spearman(self, kind: int) -> float:
        return spearman(self.merit, self.values[kind])

    def kendall(self, kind: int) -> float:
        return kendall(self.merit, self.values[kind])


def compare(fed: Federation) -> Comparison:
    """Train every coalition and compare."""
    count = len(WORKERS)
    _, rounds = fed.train(range(count), ROUNDS)
    merit = [0] * count
    for each in rounds:
        for slot, share in zip(each.outcome.included, each.outcome.merit_ppm, strict=True):
            merit[slot] += share
    scores = {each: fed.score(fed.train(each, ROUNDS)[0]) for each in coalitions(count)}
    return Comparison(
        tuple(share / ROUNDS / PPM for share in merit),
        _paper(fed, rounds),
        tuple(
            tuple(shapley({each: score[kind] for each, score in scores.items()}, count)) for kind in range(len(KINDS))
        ),
    )


def _paper(fed: Federation, rounds: Sequence[Trained]) -> tuple[float, ...]:
    codec, n = Codec.of(fed.recipe), fed.program.size
    shares = [0.0] * len(WORKERS)
    for each in rounds:
        included = each.outcome.included
        matrix = pairwise_ppm(gram([codec.decode(each.updates[slot], n) for slot in included]))
        alignments = [max(0, sum(cosines)) for cosines in matrix]
        for slot, alignment in zip(included, alignments, strict=True):
            shares[slot] += alignment / sum(alignments) / len(rounds)
    return tuple(shares)


def measure(
    seeds: Sequence[int], federate: Callable[[int], Federation], say: Callable[[str], None]
) -> list[Comparison]:
    """Return a comparison for each seed."""
    found = []
    for seed in seeds:
        found.append(compare(federate(seed)))
        say(f"merit, seed {seed}: rank correlation {found[-1].spearman(0):.2f} (loss)")
    return found
