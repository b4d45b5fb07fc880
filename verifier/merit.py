"""Merit: how a round's merit pot is shared, by agreement with the other updates.

It starts from the cosine gradient Shapley value (Xu et al., "Gradient Driven Rewards to Guarantee Fairness in
Collaborative Machine Learning", NeurIPS 2021, section 3), whose shares follow from the sum of an update's cosines
with all updates, itself included.  Three changes keep it from paying for nothing (``python -m benchmarks.fairness``):

1. An update's cosine with itself does not count: it is 1 for noise, too, and would earn a free-rider a fifth of an
   honest share among eight.
2. The median of the others' cosines counts instead of their sum, so that a minority which agrees with itself, in
   whatever direction, earns nothing by that.
3. Updates that similarity would call duplicates share what one of them earns: k copies bring a round no more than
   one, and by the Shapley value they share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdf_market.units import PPM
from verifier.gram import Gram
from verifier.similarity import is_duplicate, pairwise_ppm


def merit_ppm(gram: Gram, shards: Sequence[int]) -> list[int]:
    """Return each update's share in ppm of the merit pot, never negative; ``shards`` is aligned with ``gram``.

    Shares are rounded down: the sum is at most 1_000_000, and what is left over
    (below one ppm per unit) is given to nobody.  All are 0 when no update
    agrees with the others at all; an update without others has everything.
    """
    if len(gram) == 1:
        return [PPM]
    cosines, span = pairwise_ppm(gram), range(len(gram))
    alignments = []
    for i in span:
        others = sorted(cosines[i][j] for j in span if j != i)
        copies = sum(1 for j in span if j != i and is_duplicate(cosines[i][j], shards[i], shards[j]))
        # the upper middle one: with less than half of all against it, an honest update still finds agreement
        alignments.append(max(0, others[len(others) // 2]) // (1 + copies))
    total = sum(alignments)
    return [alignment * PPM // total if total else 0 for alignment in alignments]
