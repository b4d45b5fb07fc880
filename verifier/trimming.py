"""The comparisons that a trimmed sum needs: a sorting network without what nobody looks at.

Sorting many short columns is fastest as whole-row minima and maxima in a fixed
order.  Batcher's merge exchange (Knuth, The Art of Computer Programming 3,
5.2.2, algorithm M) sorts any number of rows; here only the sum of the middle
ones is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """Put the smaller of rows ``low`` and ``high`` into ``low``, the larger into ``high``, as far as they are used."""

    low: int
    high: int
    smaller: bool
    larger: bool


def sum_of_middle(rows: Rows, trim: int) -> npt.NDArray[np.int64]:
    """Return int64[n]: the sum of each column of ``rows`` [m, n] without its ``trim`` smallest and largest values.

    ``rows`` are overwritten.
    """
    lines: list[Rows] = list(rows)
    spare = np.empty_like(lines[0])
    for each in _exchanges(len(lines), trim):
        low, high = lines[each.low], lines[each.high]
        if each.smaller:
            np.minimum(low, high, out=spare)
            lines[each.low], spare = spare, low
        if each.larger:
            np.maximum(low, high, out=high)
    middle = lines[trim : len(lines) - trim]
    total = middle[0].astype(np.int64)
    for line in middle[1:]:
        np.add(total, line, out=total)
    return total


@lru_cache(maxsize=128)
def _exchanges(count: int, trim: int) -> tuple[Exchange, ...]:
    """Return the exchanges, those left out that change nothing in the sum of the middle."""
    summed, exact = set(range(trim, count - trim)), set[int]()
    kept: list[Exchange] = []
    for low, high in reversed(list(_merge_exchange(count))):
        used = [row in summed or row in exact for row in (low, high)]
        if not any(used) or {low, high} <= summed:  # an exchange of two addends leaves their sum
            continue
        kept.append(Exchange(low, high, *used))
        summed -= {low, high}
        exact |= {low, high}
    return tuple(reversed(kept))


def _merge_exchange(count: int) -> Iterator[tuple[int, int]]:
    """Yield the comparisons (low, high) of algorithm M."""
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top if count > 1 else 0
    while p:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
