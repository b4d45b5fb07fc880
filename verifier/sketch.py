"""Low-dimensional sketches of a parameter change, one per inner step, and the Merkle tree over them.

The sketch is a count-sketch (Charikar, Chen and Farach-Colton 2002): every
coordinate is added, with a fixed random sign, to one of 32 fixed random buckets,
so that the distance of two sketches estimates the distance of the two changes
(unbiased in its square; relative deviation about sqrt(2 / 32)).  Buckets and
signs are public: what stays secret until both sides committed is the path that
a unit took, not the projection.  Where somebody could fit a change to the
projection, it is another one, drawn by a seed that nobody knew before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gdf_market import merkle
from gdf_market.codec import digest
from gdf_market.errors import PeerError, ensure
from gdf_market.messages import MAX_STEPS, SKETCH_DIM, Opening, sketch_leaf
from gdf_market.train.random import pcg64
from gdf_market.units import MAX_INT

SEED = 0x6764662D736B6574  # "gdf-sket"; any fixed value would do
SCALE = 2**30  # one unit of the natural value, in sketch integers
_CHUNK = 1 << 18  # coordinates per accumulation; fixed, because the order of additions is part of the value


class SketchError(PeerError):
    """A parameter change that has no sketch: not finite, or far too large; the job's program diverged."""

    reason = "sketch"


@functools.lru_cache(maxsize=4)
def _bins(n: int, dim: int, seed: bytes) -> npt.NDArray[np.uint8]:
    """Return uint8[n]: bucket in the low bits, plus ``dim`` where the sign is minus.

    NumPy keeps the streams of its bit generators (NEP 19), so this is the same on every machine.
    """
    generator = pcg64(digest("gdf/projection", seed)) if seed else np.random.PCG64(SEED)
    top = (2 * dim).bit_length() - 1
    return (generator.random_raw(n) >> np.uint64(64 - top)).astype(np.uint8)


def project(delta: npt.NDArray[np.float32], dim: int, seed: bytes = b"") -> npt.NDArray[np.float64]:
    """Return the ``dim`` (a power of two, at most 128) bucket sums of ``delta`` f32[n]."""
    assert dim <= 128
    assert dim & (dim - 1) == 0
    bins = _bins(len(delta), dim, seed)
    sums = np.zeros(2 * dim)
    for start in range(0, len(delta), _CHUNK):
        part = slice(start, start + _CHUNK)
        sums += np.bincount(bins[part], weights=delta[part], minlength=2 * dim)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        difference: npt.NDArray[np.float64] = sums[:dim] - sums[dim:]
    return difference


def sketch(delta: npt.NDArray[np.float32], seed: bytes = b"") -> tuple[int, ...]:
    """Return the SKETCH_DIM integers of a change ``delta`` f32[n], in units of 1 / SCALE.

    ``seed``: 32 bytes that choose another projection than the fixed one.  Sums are
    float64, one thread, in a fixed order: equal changes have equal sketches
    everywhere.  Raises SketchError when ``delta`` is not finite or a bucket does not
    fit into the integers that every JSON reader keeps exact.
    """
    buckets = np.rint(project(delta, SKETCH_DIM, seed) * SCALE)
    ensure(
        bool(np.all(np.abs(buckets) <= MAX_INT)),  # false for nan and infinity, too
        SketchError("the parameter change is not finite or too large; the job's learning rate is probably too high"),
    )
    return tuple(int(value) for value in buckets)


def sketch_tree(sketches: Sequence[tuple[int, ...]]) -> merkle.Tree:
    """Return the RFC 9162 tree whose leaf i is the sketch after step i."""
    assert 0 < len(sketches) <= MAX_STEPS
    tree = merkle.Tree()
    for step, values in enumerate(sketches):
        tree.append(sketch_leaf(step, values))
    return tree


def openings(sketches: Sequence[tuple[int, ...]], steps: Sequence[int]) -> tuple[Opening, ...]:
    """Return the sketches at ``steps`` with their inclusion paths, in the order asked for."""
    tree = sketch_tree(sketches)
    return tuple(
        Opening(step=step, sketch=tuple(sketches[step]), path=tuple(node.hex() for node in tree.path(step)))
        for step in steps
    )
