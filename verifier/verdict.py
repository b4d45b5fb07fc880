"""How far a claimed update is from an auditor's own run of the same unit, in parts per billion.

A claim is quantised, so comparing two decoded updates turns an honest drift of
1e-5 into 2e-3: values near a rounding boundary fall to different sides.  The
rounding excess asks instead whether the auditor's dense values could have been
rounded to what is claimed (docs/adr/0004), and, where a claim holds only the
largest values, whether these could have been the largest (docs/adr/0011).

With d the auditor's values, S the claimed places, k their number, and t the k-th
largest |d_j|:

    value excess    |claimed_j - d_j| - step_j / 2    for j in S, if positive
    place excess    t - |d_j|   for j in S            if positive: small, and yet held
                    |d_j| - t   for j not in S        if positive: large, and yet left out
    excess          sqrt(sum of all squares) / norm of the k largest d_j

A dense claim holds everything: it has no place excess, and the norm is that of d.

An honest claim, made from d + e, has at most sqrt(2) * norm(e) of place excess:
as many places were left out as were wrongly held; pair them as i and j.  Then
|d_j| <= t <= |d_i| but |d_j + e_j| >= |d_i + e_i|, so both of a pair's excesses
together are at most |e_i| + |e_j|.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, sqrt

import numpy as np
import numpy.typing as npt

from gdf_market.train.codec import GRID_BITS, Codec, Quantised
from gdf_market.train.codec_blocks import quantise, steps_of
from gdf_market.units import MAX_INT, PPB
from verifier.gram import Update, gram, squared_distance

_CHUNK = 1 << 15  # values at a time

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Distances:
    """What an auditor commits to: the verdict is about ``excess_ppb``; ``distance_ppb`` is for people."""

    excess_ppb: int
    distance_ppb: int


def measure(claim: bytes, dense: Floats, codec: Codec) -> Distances:
    """Return the distances of an encoded ``claim`` from the auditor's ``dense`` f32[n] pseudo-gradient.

    Raises MalformedError when the claim does not decode, DivergedError when the auditor's run left the grid.
    """
    claimed, own = codec.read(claim, dense.size), codec.quantise(dense)
    return Distances(
        excess_ppb=_excess_ppb(claimed, own, dense, codec),
        distance_ppb=relative_distance_ppb(claimed.spread(claimed.values()), own.spread(own.values())),
    )


def relative_distance_ppb(claim: Update, own: Update) -> int:
    """Return the L2 distance of two decoded updates [n] relative to the norm of ``own``, at most MAX_INT."""
    matrix = gram([claim, own])
    square, norm = squared_distance(matrix, 0, 1), matrix[1][1]
    if norm == 0:
        return MAX_INT if square else 0
    return min(MAX_INT, isqrt(square * PPB * PPB // norm))


def rounding_excess_ppb(claim: bytes, dense: Floats, codec: Codec) -> int:
    """Return the excess of ``claim`` (see above) over the auditor's ``dense`` f32[n], at most MAX_INT.

    A step is the claim's or, if that is smaller, the one that the dense values in the same places imply: a claim
    with coarser steps than it needed is no licence for larger errors.  A claim with finer steps has clipped its
    large values, which is excess by itself.  The codec rounds scales up, so honest values are never clipped.

    float64: one auditor's measurement, not a number that nodes agree on.
    Raises MalformedError or DivergedError as ``measure`` does.
    """
    return _excess_ppb(codec.read(claim, dense.size), codec.quantise(dense), dense, codec)


def _excess_ppb(claimed: Quantised, own: Quantised, dense: Floats, codec: Codec) -> int:
    if claimed.places is None or own.places is None:
        return _ratio_ppb(_value_excess(claimed, dense, own.scales), _square(dense))
    held, best = dense[claimed.places], dense[own.places]
    _, scales = quantise(held, codec.bits, codec.block)
    squares = _value_excess(claimed, held, scales) + _place_excess(claimed, dense, own)
    return _ratio_ppb(squares, _square(best))


def _value_excess(claimed: Quantised, held: Floats, implied: npt.NDArray[np.int32]) -> float:
    """Return the sum of squares, on the grid; ``held`` f32[k] are the auditor's values in the claimed places."""
    values, total = claimed.values(), 0.0
    steps = steps_of(np.minimum(claimed.scales, implied), held.size, claimed.block)
    for start in range(0, held.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        error = np.abs(values[part] - _on_grid(held[part]))
        total += float(np.square(np.maximum(error - steps[part] / 2, 0.0)).sum())
    return total


def _place_excess(claimed: Quantised, dense: Floats, own: Quantised) -> float:
    """Return the sum of squares, on the grid; only places that one of the two holds can have any."""
    assert claimed.places is not None
    assert own.places is not None
    threshold = np.abs(_on_grid(dense[own.places])).min()
    differing = np.setxor1d(claimed.places, own.places, assume_unique=True)
    return float(np.square(np.abs(_on_grid(dense[differing])) - threshold).sum())


def _square(values: Floats) -> float:
    """Return the sum of squares on the grid; no BLAS, so the result does not depend on its threads."""
    return sum(
        float(np.square(_on_grid(values[start : start + _CHUNK])).sum()) for start in range(0, values.size, _CHUNK)
    )


def _on_grid(values: Floats) -> npt.NDArray[np.float64]:
    return values.astype(np.float64) * 2.0**GRID_BITS


def _ratio_ppb(part: float, whole: float) -> int:
    if whole == 0.0:
        return MAX_INT if part else 0
    return min(MAX_INT, round(sqrt(part / whole) * PPB))
