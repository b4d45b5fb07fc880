"""The exact Gram matrix of a round's decoded updates: every pairwise number in verification comes from it.

float64 is exact as long as no sum of products leaves 2**53, in whatever order
or with whatever fused instruction they are added.  Products of values go through
BLAS in pieces so short that this holds, and so small that it starts no threads,
which on a busy machine wait for each other (20 x 1M values: 19 s instead of 1);
the pieces' sums are added as int64.  Chunks with values of 2**24 or more (a
pseudo-gradient of 0.06) are split into two 15-bit limbs first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Gram = list[list[int]]  # symmetric; gram[i][j] is the inner product of updates i and j
Update = npt.NDArray[np.int32] | npt.NDArray[np.int64]

VALUE_LIMIT = 2**30  # absolute values of a decoded update stay below this
_EXACT = 2**53  # float64 holds every integer up to here
_LIMB_BITS = 15
_CHUNK = 1 << 13  # the most columns at a time
_CACHED = 1 << 16  # float64 of all updates at a time: half a MiB
_SHORTEST = 32  # columns of a piece; shorter ones cost more than limbs
_ALONE = 1 << 18  # multiplications that OpenBLAS does in the calling thread
_SPLIT = 26  # sums are kept as two int64: exact for 2**36 chunks

Matrix = npt.NDArray[np.float64]


def gram(updates: Sequence[Update]) -> Gram:
    """Return the inner products of integer ``updates`` [n] (values within VALUE_LIMIT) as exact integers."""
    count, length = len(updates), len(updates[0])
    assert all(len(update) == length for update in updates), "form checks come before the Gram matrix"
    sums = {shift: _Sum(count) for shift in (0, _LIMB_BITS, 2 * _LIMB_BITS)}
    chunk = min(_CHUNK, 1 << ((_CACHED // count).bit_length() - 1))
    columns = np.zeros((count, chunk), np.float64)
    for start in range(0, length, chunk):
        for row, update in zip(columns, updates, strict=True):
            part = update[start : start + chunk]
            row[: part.size] = part
            row[part.size :] = 0.0
        _add_products(sums, columns)
    totals = [(shift, each.total()) for shift, each in sums.items()]
    return [[sum(total[i][j] << shift for shift, total in totals) for j in range(count)] for i in range(count)]


class _Sum:
    """A count x count matrix of integers, added to chunk by chunk."""

    def __init__(self, count: int) -> None:
        self._high, self._low = (np.zeros((count, count), np.int64) for _ in range(2))

    def add(self, products: npt.NDArray[np.int64]) -> None:
        """Add int64 of one chunk."""
        self._high += products >> _SPLIT
        self._low += products & ((1 << _SPLIT) - 1)

    def total(self) -> Gram:
        pairs = zip(self._high.tolist(), self._low.tolist(), strict=True)
        return [[(high << _SPLIT) + low for high, low in zip(*rows, strict=True)] for rows in pairs]


def _add_products(sums: dict[int, _Sum], columns: Matrix) -> None:
    largest = int(max(columns.max(), -columns.min()))
    assert largest < VALUE_LIMIT, "the codec decodes to smaller values"
    if largest * largest * _SHORTEST <= _EXACT:
        sums[0].add(_products(columns, columns, largest))
        return
    # value = upper * 2**15 + lower; floor makes the lower limb never negative; all of it is exact
    upper = np.floor(columns * 2.0**-_LIMB_BITS)
    lower = columns - upper * 2.0**_LIMB_BITS
    limb = 1 << _LIMB_BITS
    cross = _products(upper, lower, limb)
    sums[2 * _LIMB_BITS].add(_products(upper, upper, limb))
    sums[_LIMB_BITS].add(cross + cross.T)
    sums[0].add(_products(lower, lower, limb))


def _products(a: Matrix, b: Matrix, limit: int) -> npt.NDArray[np.int64]:
    """Return [count, count], the inner products of the rows of ``a`` with those of ``b``, all within ``limit``.

    A chunk's sum is below 2**62: limit**2 is at most 2**48, and a chunk has at most 2**13 columns.
    """
    count = len(a)
    widest = min(a.shape[1], _ALONE // (count * count), _EXACT // max(1, limit * limit))
    width = 1 << (widest.bit_length() - 1)  # divides the chunk
    left, right = (each.reshape(count, -1, width) for each in (a, b))
    pieces = np.matmul(left.transpose(1, 0, 2), right.transpose(1, 2, 0))
    return np.asarray(pieces.astype(np.int64).sum(axis=0))


def select(matrix: Gram, indices: Sequence[int]) -> Gram:
    """Return the Gram matrix of the updates at ``indices``, in that order."""
    return [[matrix[i][j] for j in indices] for i in indices]


def squared_distance(matrix: Gram, i: int, j: int) -> int:
    """Return the squared L2 distance of updates ``i`` and ``j``."""
    return matrix[i][i] + matrix[j][j] - 2 * matrix[i][j]
