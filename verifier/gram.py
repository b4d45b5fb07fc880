"""The exact Gram matrix of a round's decoded updates: every pairwise number in verification comes from it.

Two 15-bit limbs per value make float64 exact: a product of limbs is at most
2**30, so 2**23 of them add up within the 53 bits that float64 keeps exact, in
whatever order or with whatever fused instruction they are added.  The products
go through einsum's own loop: BLAS would start threads, and on a busy machine
those wait for each other (20 x 1M values: 19 s instead of 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Gram = list[list[int]]  # symmetric; gram[i][j] is the inner product of updates i and j
Update = npt.NDArray[np.int64]

VALUE_LIMIT = 2**30  # absolute values of a decoded update stay below this
_LIMB_BITS = 15
_CHUNK = 1 << 13  # columns at a time: fits the cache, and is far below the 2**23 that stay exact


def gram(updates: Sequence[Update]) -> Gram:
    """Return the inner products of int64[n] ``updates`` (values within VALUE_LIMIT) as exact integers."""
    count, length = len(updates), len(updates[0])
    assert all(len(update) == length for update in updates), "form checks come before the Gram matrix"
    # int64 sums of limb products: exact up to 2**33 values
    high, cross, low = (np.zeros((count, count), dtype=np.int64) for _ in range(3))
    for start in range(0, length, _CHUNK):
        columns = np.stack([update[start : start + _CHUNK] for update in updates])
        assert int(np.abs(columns).max()) < VALUE_LIMIT, "the codec decodes to smaller values"
        # value = upper * 2**15 + lower; the shift rounds down, so the lower limb is never negative
        upper = (columns >> _LIMB_BITS).astype(np.float64)
        lower = (columns & ((1 << _LIMB_BITS) - 1)).astype(np.float64)
        high += _products(upper, upper)
        cross += _products(upper, lower)
        low += _products(lower, lower)
    cross += cross.T.copy()
    return [[_combine(int(high[i, j]), int(cross[i, j]), int(low[i, j])) for j in range(count)] for i in range(count)]


def _products(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return int64[n, n], the inner products of the rows of ``a`` with those of ``b``."""
    return np.asarray(np.einsum("ik,jk->ij", a, b), dtype=np.int64)


def _combine(high: int, cross: int, low: int) -> int:
    return (high << (2 * _LIMB_BITS)) + (cross << _LIMB_BITS) + low


def select(matrix: Gram, indices: Sequence[int]) -> Gram:
    """Return the Gram matrix of the updates at ``indices``, in that order."""
    return [[matrix[i][j] for j in indices] for i in indices]


def squared_distance(matrix: Gram, i: int, j: int) -> int:
    """Return the squared L2 distance of updates ``i`` and ``j``."""
    return matrix[i][i] + matrix[j][j] - 2 * matrix[i][j]
