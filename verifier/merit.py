"""Merit: how a round's merit pot is shared, by the cosine gradient Shapley value.

Xu et al., "Gradient Driven Rewards to Guarantee Fairness in Collaborative
Machine Learning" (NeurIPS 2021), section 3: the Shapley value of an update, with
the cosine to the aggregate as the value of a coalition, is approximated by the
cosine of the update with the aggregate of normalised updates.  That aggregate's
norm is common to all, so the shares follow from pairwise cosines alone.
"""

from __future__ import annotations

from gdf_market.units import PPM
from verifier.gram import Gram
from verifier.similarity import pairwise_ppm


def merit_ppm(gram: Gram) -> list[int]:
    """Return each update's share in ppm of the merit pot, never negative.

    Shares are rounded down: the sum is at most 1_000_000, and what is left over
    (below one ppm per unit) is given to nobody.  All are 0 when no update
    agrees with the others at all.
    """
    alignments = [max(0, sum(row)) for row in pairwise_ppm(gram)]
    total = sum(alignments)
    return [alignment * PPM // total if total else 0 for alignment in alignments]
