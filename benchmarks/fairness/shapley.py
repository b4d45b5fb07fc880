"""Exact Shapley values, rank correlations and bootstrap intervals: the textbook definitions, in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt

Coalition = frozenset[int]


def coalitions(count: int) -> list[Coalition]:
    """Return all 2**count coalitions, small ones first."""
    return [frozenset(each) for size in range(count + 1) for each in combinations(range(count), size)]


def shapley(values: Mapping[Coalition, float], count: int) -> list[float]:
    """Return each player's Shapley value (Shapley 1953): its mean marginal value over all orders of joining."""
    return [_share(values, count, player) for player in range(count)]


def _share(values: Mapping[Coalition, float], count: int, player: int) -> float:
    total = 0.0
    for without in (each for each in values if player not in each):
        orders = factorial(len(without)) * factorial(count - 1 - len(without))
        total += orders * (values[without | {player}] - values[without])
    return total / factorial(count)


def ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return ranks from 1; equal values share the mean of theirs."""
    given = np.asarray(values, np.float64)
    below = (given[:, None] > given[None, :]).sum(axis=1)
    equal = (given[:, None] == given[None, :]).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2, np.float64)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the correlation of ranks; 0 where one side has no order at all."""
    left, right = ranks(a), ranks(b)
    if left.std() == 0 or right.std() == 0:
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Return tau-b: agreeing pairs less disagreeing ones, corrected for ties; 0 where one side has no order."""
    pairs = list(combinations(range(len(a)), 2))
    left = np.array([np.sign(a[i] - a[j]) for i, j in pairs])
    right = np.array([np.sign(b[i] - b[j]) for i, j in pairs])
    scale = np.sqrt(np.count_nonzero(left) * np.count_nonzero(right))
    return float((left * right).sum() / scale) if scale else 0.0


def bootstrap(
    values: Sequence[float], statistic: Callable[[npt.NDArray[np.float64]], float] = np.mean, draws: int = 10_000
) -> tuple[float, float]:
    """Return the 95% percentile interval of a statistic over resampled values (Efron 1979)."""
    given = np.asarray(values, np.float64)
    random = np.random.default_rng(0)
    found = [statistic(given[random.integers(0, len(given), len(given))]) for _ in range(draws)]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
