"""How far a claimed update is from an auditor's own run of the same unit, in parts per billion.

A claim is quantised, so comparing two decoded updates turns an honest drift of
1e-5 into 2e-3: values near a rounding boundary fall to different sides.  The
rounding excess asks instead whether the auditor's dense value could have been
rounded to what is claimed: only the part of a difference beyond half a
quantisation step counts.  See docs/adr/0004.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from gdf_market.train.codec import GRID_BITS, decode_steps, decode_update, encode_update
from gdf_market.units import MAX_INT, PPB
from verifier.gram import Update, gram, squared_distance

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Distances:
    """What an auditor commits to: the verdict is about ``excess_ppb``; ``distance_ppb`` is for people."""

    excess_ppb: int
    distance_ppb: int


def measure(claim: bytes, dense: Floats, bits: int, block: int) -> Distances:
    """Return the distances of an encoded ``claim`` from the auditor's ``dense`` f32[n] pseudo-gradient.

    Raises MalformedError when the claim does not decode, DivergedError when the auditor's run left the grid.
    """
    own = decode_update(encode_update(dense, bits, block), dense.size, bits, block)
    return Distances(
        excess_ppb=rounding_excess_ppb(claim, dense, bits, block),
        distance_ppb=relative_distance_ppb(decode_update(claim, dense.size, bits, block), own),
    )


def relative_distance_ppb(claim: Update, own: Update) -> int:
    """Return the L2 distance of two decoded updates int64[n] relative to the norm of ``own``, at most MAX_INT."""
    matrix = gram([claim, own])
    square, norm = squared_distance(matrix, 0, 1), matrix[1][1]
    if norm == 0:
        return MAX_INT if square else 0
    return min(MAX_INT, isqrt(square * PPB * PPB // norm))


def rounding_excess_ppb(claim: bytes, dense: Floats, bits: int, block: int) -> int:
    """Return the norm of the rounding excess relative to the norm of ``dense`` f32[n], at most MAX_INT.

    excess_j = max(0, |claimed_j - dense_j| - step_j / 2).  The step is the
    claim's or, if that is smaller, the one that the dense values imply: a claim
    with coarser steps than it needed is no licence for larger errors.  A claim
    with finer steps has clipped its large values, which is excess by itself.
    The codec rounds scales up, so honest values are never clipped.

    float64: one auditor's measurement, not a number that nodes agree on.
    Raises MalformedError or DivergedError as ``measure`` does.
    """
    claimed = decode_update(claim, dense.size, bits, block)
    implied_steps = decode_steps(encode_update(dense, bits, block), dense.size, bits, block)
    steps = np.minimum(decode_steps(claim, dense.size, bits, block), implied_steps)
    on_grid = dense.astype(np.float64) * 2.0**GRID_BITS
    excess = np.maximum(np.abs(claimed - on_grid) - steps / 2, 0.0)
    return _ratio_ppb(_norm(excess), _norm(on_grid))


def _norm(values: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).sum()))  # no BLAS: the result does not depend on its threads


def _ratio_ppb(part: float, whole: float) -> int:
    if whole == 0.0:
        return MAX_INT if part else 0
    return min(MAX_INT, round(part / whole * PPB))
