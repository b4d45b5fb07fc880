"""Who looks unlike the others: cosines, flags and the suspicion order, in integers from the Gram matrix.

Nothing here convicts; it aims audits (similarity accuses, re-execution convicts).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from gdf_market.messages import Flag
from gdf_market.units import PPM
from verifier.gram import Gram, squared_distance

# Two honest fp32 units of one shard decode within 0.3% of each other at every codec width, and a skipped step of 20
# puts them 4.4% (8 bits), 12% (4 bits) or 22% (2 bits) apart.  Honest bf16 twins differ by 2% at 8 bits but by 8% and
# 14% at 4 and 2 bits: there a flag costs one audit each time, which is why it is a flag and no verdict.
TWIN_DISTANCE_PPM = 50_000
# Honest updates of different shards have cosines up to 0.58; a copy with noise stays above this.
DUPLICATE_COSINE_PPM = 900_000


def cosine_ppm(dot: int, square_a: int, square_b: int) -> int:
    """Return dot / sqrt(square_a * square_b) in ppm, rounded towards zero; 0 if either vector is zero."""
    if square_a == 0 or square_b == 0:
        return 0
    size = isqrt(dot * dot * PPM * PPM // (square_a * square_b))
    return size if dot >= 0 else -size


def pairwise_ppm(gram: Gram) -> list[list[int]]:
    """Return the cosine of every pair of updates in ppm."""
    span = range(len(gram))
    return [[cosine_ppm(gram[i][j], gram[i][i], gram[j][j]) for j in span] for i in span]


def leave_one_out_ppm(gram: Gram) -> list[int]:
    """Return, for each update, its cosine with the sum of all others in ppm (0 if there are none)."""
    rows = [sum(row) for row in gram]  # inner product of each update with the sum of all
    total = sum(rows)  # squared norm of the sum of all
    return [
        cosine_ppm(row - gram[i][i], gram[i][i], total - 2 * row + gram[i][i]) if len(gram) > 1 else 0
        for i, row in enumerate(rows)
    ]


def relative_distance_ppm(gram: Gram, i: int, j: int) -> int:
    """Return the L2 distance of two updates relative to the larger of them, in ppm (at most 2_000_000)."""
    largest = max(gram[i][i], gram[j][j])
    return isqrt(squared_distance(gram, i, j) * PPM * PPM // largest) if largest else 0


def is_duplicate(cosine: int, shard: int, other: int) -> bool:
    """Say whether two updates with this cosine (ppm) are too much alike for the different shards they claim."""
    return shard != other and cosine > DUPLICATE_COSINE_PPM


def _finding(gram: Gram, cosines: list[list[int]], shards: Sequence[int], i: int, j: int) -> tuple[str, int] | None:
    if shards[i] == shards[j]:
        distance = relative_distance_ppm(gram, i, j)
        return ("twin-differs", distance) if distance > TWIN_DISTANCE_PPM else None
    return ("duplicate", cosines[i][j]) if is_duplicate(cosines[i][j], shards[i], shards[j]) else None


def flags(gram: Gram, slots: Sequence[int], shards: Sequence[int]) -> list[Flag]:
    """Return at most one flag per slot, in the order of ``slots``: its gravest finding.

    ``shards`` is aligned with ``slots`` and ``gram``.  A differing twin is graver
    than a duplicate, then the larger value counts, then the lower other slot.
    Both units of a pair are flagged, because numbers alone do not say who is honest.
    """
    cosines = pairwise_ppm(gram)
    found = []
    for i, slot in enumerate(slots):
        own = [
            Flag(slot=slot, other=slots[j], reason=finding[0], value_ppm=finding[1])
            for j in range(len(slots))
            if j != i and (finding := _finding(gram, cosines, shards, i, j)) is not None
        ]
        if own:
            found.append(min(own, key=lambda flag: (flag.reason != "twin-differs", -flag.value_ppm, flag.other)))
    return found


def suspicion(slots: Sequence[int], cosines_ppm: Sequence[int], flagged: Sequence[Flag]) -> list[int]:
    """Return ``slots``, most suspicious first: flagged ones, then by leave-one-out cosine ascending, then by slot."""
    marked = {flag.slot for flag in flagged}
    order = sorted((slot not in marked, cosine, slot) for slot, cosine in zip(slots, cosines_ppm, strict=True))
    return [slot for _, _, slot in order]
