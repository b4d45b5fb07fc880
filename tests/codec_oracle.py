"""The definition of codec, Gram matrix, robust mean and outer step, one whole vector at a time and in wide types.

What is fast has to give the same bytes as this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdf_market.messages import Recipe
from verifier.aggregate import tolerated

GRID = 2.0**28
Array = np.ndarray[Any, Any]


def quantise(delta: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Return codes int64[n] and scales int64[blocks]."""
    on_grid = np.zeros(-(-delta.size // block) * block, np.float64)
    on_grid[: delta.size] = delta.astype(np.float64) * GRID
    rows = on_grid.reshape(-1, block)
    scales = np.ceil(np.abs(rows).max(axis=1) / (2 ** (bits - 1) - 1))
    codes = np.rint(rows / np.maximum(scales, 1.0)[:, None]).astype(np.int64)
    return codes.ravel()[: delta.size], scales.astype(np.int64)


def values(delta: Array, bits: int, block: int) -> Array:
    """Return int64[n] on the grid."""
    codes, scales = quantise(delta, bits, block)
    return codes * np.repeat(scales, block)[: delta.size]


def coded(delta: Array, bits: int, block: int) -> bytes:
    """Return scales, lowest bytes first, and packed codes."""
    codes, scales = quantise(delta, bits, block)
    unsigned = (codes & ((1 << bits) - 1)).astype(np.uint8)
    planes = np.unpackbits(unsigned[:, None], axis=1, count=bits, bitorder="little")
    head = b"".join(bytes((int(scale) >> shift) & 255 for scale in scales) for shift in (0, 8, 16, 24))
    return head + np.packbits(planes.ravel(), bitorder="little").tobytes()


def largest(delta: Array, k: int) -> list[int]:
    """Return the ascending places of the k largest magnitudes; of equal ones the lower place."""
    sizes = [abs(value) for value in delta.tolist()]
    return sorted(sorted(range(delta.size), key=lambda j: (-sizes[j], j))[:k])


def gaps(places: Sequence[int]) -> bytes:
    """Return how many places lie between those given, in base 255."""
    data, before = b"", -1
    for place in places:
        more, rest = divmod(place - before - 1, 255)
        data += b"\xff" * more + bytes([rest])
        before = place
    return data


def sparse_values(delta: Array, bits: int, block: int, k: int) -> Array:
    """Return int64[n] on the grid, 0 where nothing is held."""
    places = largest(delta, k)
    everywhere = np.zeros(delta.size, np.int64)
    everywhere[places] = values(delta[places], bits, block)
    return everywhere


def gram(updates: Sequence[Array]) -> list[list[int]]:
    """Return the inner products in Python's integers."""
    rows = [update.tolist() for update in updates]
    return [[sum(x * y for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]


def nnm_trimmed_mean(updates: Sequence[Array], matrix: list[list[int]]) -> tuple[Array, int]:
    """Return (sum int64[n], divisor)."""
    count, span = len(updates), range(len(updates))
    bad = tolerated(count)

    def distance(i: int, j: int) -> int:
        return matrix[i][i] + matrix[j][j] - 2 * matrix[i][j]

    nearest = [sorted(span, key=lambda j: (distance(i, j), j != i, j))[: count - bad] for i in span]
    columns = np.stack([update.astype(np.int64) for update in updates])
    mixed = np.stack([columns[rows].sum(axis=0) for rows in nearest])
    return np.sort(mixed, axis=0)[bad : count - bad].sum(axis=0), (count - bad) * (count - 2 * bad)


def outer_step(parameters: Array, momentum: Array, aggregate: Array, divisor: int, recipe: Recipe) -> tuple[Any, Any]:
    """Return (parameters, momentum) f32[n]."""
    rate, mu = np.float32(recipe.outer_lr_ppm / 1e6), np.float32(recipe.outer_momentum_ppm / 1e6)
    mean = np.divide(aggregate.astype(np.float64), np.float64(divisor))
    gradient = np.multiply(mean, np.float64(1 / GRID)).astype(np.float32)
    if recipe.outer_momentum_ppm == 0:
        velocity, direction = np.zeros_like(momentum), gradient
    else:
        velocity = np.add(np.multiply(mu, momentum), gradient)
        direction = np.add(gradient, np.multiply(mu, velocity))
    return np.subtract(parameters, np.multiply(rate, direction)), velocity
