"""Form checks and the robust aggregate of a round, exact in integers.

Nearest-neighbour mixing (Allouah et al. 2023, "Fixing by Mixing") replaces each
update by the mean of its n - f nearest ones; the coordinate-wise trimmed mean
then drops the f largest and f smallest values of each coordinate.  f is the
largest number of bad units that can be tolerated (40%), not a number somebody
has to know.

Bounds: values below 2**30, at most 64 units.  A mixed sum is below 2**36, a
trimmed sum of those below 2**42, the divisor at most 4096: int64 cannot
overflow, and float64, in which the outer step divides, holds the sum exactly.
Where a chunk's values are small enough for int32, which are twice as fast, those are used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gdf_market.messages import MAX_UNITS_PER_ROUND
from verifier.gram import Gram, Update, squared_distance
from verifier.trimming import sum_of_middle

Total = npt.NDArray[np.int64]

MIN_UNITS_FOR_NORM_CHECK = 3  # with fewer there is no majority that could define a normal size
_CHUNK = 1 << 14  # coordinates at a time


def tolerated(count: int) -> int:
    """Return f = floor(2n / 5), the bad units that n tolerate; n - 2f >= 1 for every n >= 1."""
    return 2 * count // 5


def form_check(squared_norms: Sequence[int]) -> list[str]:
    """Return for each update why it is rejected, or "" if its size is acceptable.

    A norm must lie within [0.5, 2] x the median norm of the nonzero updates.
    The median is the lower middle one, so that half of the units cannot raise
    it.  A comparison of norms is one of exact squares.
    """
    nonzero = sorted(square for square in squared_norms if square > 0)
    median = nonzero[(len(nonzero) - 1) // 2] if len(nonzero) >= MIN_UNITS_FOR_NORM_CHECK else 0
    return [_size_problem(square, median) for square in squared_norms]


def _size_problem(square: int, median: int) -> str:
    if square == 0:
        return "the update is zero"
    if median and 4 * square < median:
        return "norm below half the median"
    if median and square > 4 * median:
        return "norm above twice the median"
    return ""


def _nearest(gram: Gram, keep: int) -> list[list[int]]:
    """Return for each update the ``keep`` updates nearest to it, itself among them.

    Equal distances are decided by position, which is the slot's rank.
    """
    span = range(len(gram))
    return [sorted(span, key=lambda j: (squared_distance(gram, i, j), j != i, j))[:keep] for i in span]


def nnm_trimmed_mean(updates: Sequence[Update], gram: Gram) -> tuple[Total, int]:
    """Return (sum int64[n], divisor): the robust mean of ``updates`` is sum / divisor."""
    count = len(updates)
    assert 1 <= count <= MAX_UNITS_PER_ROUND
    bad = tolerated(count)
    keep = count - bad
    nearest = _nearest(gram, keep)
    total = np.empty(len(updates[0]), dtype=np.int64)
    for start in range(0, len(total), _CHUNK):
        part = slice(start, start + _CHUNK)
        columns = np.stack([update[part] for update in updates])
        largest = max(int(columns.max()), -int(columns.min()))
        narrow = largest * count < 2**31  # all updates added up are the widest numbers before the trimmed sum
        whole = columns.astype(np.int32) if narrow else columns.astype(np.int64)
        mixed = _mixed(whole, nearest)
        total[part] = sum_of_middle(mixed, bad)
    return total, keep * (count - 2 * bad)


def _mixed(columns: Update, nearest: Sequence[Sequence[int]]) -> Update:
    """Return, for each list of rows, their sum: as the sum of all without the others, if those are fewer."""
    everything = range(len(columns))
    total = np.add.reduce(columns, axis=0, dtype=columns.dtype)
    mixed = np.empty((len(nearest), columns.shape[1]), columns.dtype)
    for row, near in zip(mixed, nearest, strict=True):
        far = sorted(set(everything) - set(near))
        if len(far) < len(near):
            row[:] = total
            for i in far:
                np.subtract(row, columns[i], out=row)
        else:
            np.add.reduce(columns[near], axis=0, out=row)
    return mixed
