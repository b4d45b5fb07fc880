"""How unequal rewards are: the Lorenz curve and the Gini coefficient.  Floats are for display only."""

from __future__ import annotations

from collections.abc import Sequence

MAX_POINTS = 200  # of a curve


def gini(amounts: Sequence[int]) -> float:
    """Return the Gini coefficient of non-negative amounts: 0 if all are equal, near 1 if one has everything.

    G = 2 sum(i x_i) / (n sum(x)) - (n + 1) / n with x ascending and i from 1 (Sen 1973).
    """
    ordered = sorted(amounts)
    count, total = len(ordered), sum(ordered)
    if not count or not total:
        return 0.0
    weighted = sum(index * amount for index, amount in enumerate(ordered, start=1))
    return 2 * weighted / (count * total) - (count + 1) / count


def lorenz(amounts: Sequence[int]) -> list[tuple[float, float]]:
    """Return (share of accounts, share of rewards) from (0, 0) to (1, 1), poorest first; [] when nobody earned."""
    ordered = sorted(amounts)
    count, total = len(ordered), sum(ordered)
    if not count or not total:
        return []
    points, running = [(0.0, 0.0)], 0
    step = max(1, count // MAX_POINTS)
    for index, amount in enumerate(ordered, start=1):
        running += amount
        if index % step == 0 or index == count:
            points.append((index / count, running / total))
    return points


def detection(chance_ppm: int, most: int) -> list[tuple[int, float]]:
    """Return (cheated units, chance that at least one of them was audited): 1 - (1 - p)^k for k of 0..most."""
    miss = 1 - chance_ppm / 1_000_000
    return [(units, 1 - miss**units) for units in range(most + 1)]


def units_until(chance_ppm: int, wanted: float) -> int:
    """Return after how many cheated units the chance reaches ``wanted``; 0 if it never does."""
    if chance_ppm <= 0:
        return 0
    miss, left, units = 1 - chance_ppm / 1_000_000, 1.0, 0
    while 1 - left < wanted:
        left *= miss
        units += 1
    return units
