"""The exact Gram matrix of a round's decoded updates: every pairwise number in verification comes from it.

Two 15-bit limbs per value make float64 BLAS exact: a product of limbs is at
most 2**30, so 2**23 of them add up within the 53 bits that float64 keeps exact,
in whatever order or with whatever fused instruction the library adds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Gram = list[list[int]]  # symmetric; gram[i][j] is the inner product of updates i and j
Update = npt.NDArray[np.int64]

VALUE_LIMIT = 2**30  # absolute values of a decoded update stay below this
_LIMB_BITS = 15
_CHUNK = 1 << 15  # columns at a time: fits the cache, and is far below the 2**23 that stay exact


def _limbs(columns: Update) -> npt.NDArray[np.float64]:
    """Return f64[2n, k], high limbs above low limbs, with value = high * 2**15 + low and 0 <= low < 2**15."""
    high = columns >> _LIMB_BITS  # rounds down, so the low limb is never negative
    low = columns & ((1 << _LIMB_BITS) - 1)
    return np.concatenate([high, low]).astype(np.float64)


def gram(updates: Sequence[Update]) -> Gram:
    """Return the inner products of int64[n] ``updates`` (values within VALUE_LIMIT) as exact integers."""
    count, length = len(updates), len(updates[0])
    assert all(len(update) == length for update in updates), "form checks come before the Gram matrix"
    sums = np.zeros((2 * count, 2 * count), dtype=np.int64)  # each below length * 2**30: exact up to 2**33 values
    for start in range(0, length, _CHUNK):
        columns = np.stack([update[start : start + _CHUNK] for update in updates])
        assert int(np.abs(columns).max()) < VALUE_LIMIT, "the codec decodes to smaller values"
        limbs = _limbs(columns)
        sums += (limbs @ limbs.T).astype(np.int64)
    return [[_combine(sums, count, i, j) for j in range(count)] for i in range(count)]


def _combine(sums: npt.NDArray[np.int64], count: int, i: int, j: int) -> int:
    high, low = int(sums[i, j]), int(sums[count + i, count + j])
    cross = int(sums[i, count + j]) + int(sums[count + i, j])
    return (high << (2 * _LIMB_BITS)) + (cross << _LIMB_BITS) + low


def select(matrix: Gram, indices: Sequence[int]) -> Gram:
    """Return the Gram matrix of the updates at ``indices``, in that order."""
    return [[matrix[i][j] for j in indices] for i in indices]


def squared_distance(matrix: Gram, i: int, j: int) -> int:
    """Return the squared L2 distance of updates ``i`` and ``j``."""
    return matrix[i][i] + matrix[j][j] - 2 * matrix[i][j]
