"""What audits compare: openings of sketch trees, and the distance of two sketches in integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contracts.parameters import DISTANCE_CAP_PPB
from gdf_market.errors import PeerError, RuleError, ensure
from gdf_market.merkle import verify_inclusion
from gdf_market.messages import Openings, sketch_leaf
from gdf_market.units import PPB

Sketch = tuple[int, ...]


def check_openings(openings: Openings, root: str, steps: int) -> dict[int, Sketch]:
    """Return sketches by step; RuleError unless each is in the tree of ``steps`` leaves under ``root`` (hex)."""
    for opening in openings:
        # the leaf states its step, the path proves its place; both must be this step
        ensure(opening.step < steps, RuleError(f"step {opening.step} is opened; the unit has {steps}"))
        path = [bytes.fromhex(node) for node in opening.path]
        leaf = sketch_leaf(opening.step, opening.sketch)
        try:
            verify_inclusion(leaf, opening.step, steps, path, bytes.fromhex(root))
        except PeerError as error:
            raise RuleError(f"the opening of step {opening.step} is not in the sketch root: {error}") from None
    opened = {opening.step: opening.sketch for opening in openings}
    ensure(len(opened) == len(openings), RuleError("a step is opened twice; open each once"))
    return opened


def compute_distance_ppb(reference: Sketch, other: Sketch) -> int:
    """Return the relative L2 distance |other - reference| / |reference| in ppb, rounded down.

    Capped at DISTANCE_CAP_PPB, which is also the distance of anything from a
    zero reference (0 if both are zero).
    """
    square = sum((a - b) ** 2 for a, b in zip(reference, other, strict=True))
    norm = sum(value**2 for value in reference)
    if square == 0:
        return 0
    if norm == 0:
        return DISTANCE_CAP_PPB
    return min(DISTANCE_CAP_PPB, math.isqrt(square * PPB**2 // norm))


def compute_sketch_distance_ppb(references: Sequence[Sketch], others: Sequence[Sketch]) -> int:
    """Return the largest distance over the opened steps."""
    pairs = zip(references, others, strict=True)
    return max((compute_distance_ppb(reference, other) for reference, other in pairs), default=0)
