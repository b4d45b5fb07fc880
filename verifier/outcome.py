"""The deterministic result of a round: every honest attester computes the same bytes from the same updates.

Order: decode, size, Gram matrix, flags, suspicion, merit, robust mean, outer
step.  Slots ascend everywhere, and nothing but integers and the bit-exact outer
step decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdf_market.errors import MalformedError, PeerError
from gdf_market.messages import Flag, Recipe, Rejected
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.outer import outer_step
from verifier.aggregate import form_check, nnm_trimmed_mean
from verifier.gram import Update, gram, select
from verifier.merit import merit_ppm
from verifier.similarity import flags, leave_one_out_ppm, suspicion

UNDECODABLE = "the update does not decode"  # part of the agreed outcome, so no error text that may be reworded


class NoUpdatesError(PeerError):
    """Every update of a round was rejected, so there is no next checkpoint."""

    reason = "no-updates"


@dataclass(frozen=True)
class OutcomeResult:
    """The fields of messages.Outcome except the checkpoint's id, and the checkpoint's bytes."""

    checkpoint: bytes
    included: tuple[int, ...]
    rejected: tuple[Rejected, ...]
    merit_ppm: tuple[int, ...]
    cosine_ppm: tuple[int, ...]
    suspicion: tuple[int, ...]
    flags: tuple[Flag, ...]


def compute_outcome(
    checkpoint: bytes, updates: Mapping[int, bytes], shards: Mapping[int, int], recipe: Recipe, n: int
) -> OutcomeResult:
    """Return the outcome of the round that starts from ``checkpoint`` (n parameters).

    ``updates`` are the encoded updates of the slots that are in; ``shards`` has
    the shard of each.  Raises NoUpdatesError when all are rejected,
    MalformedError when the checkpoint is none of n parameters, DivergedError
    when the outer step leaves float32.
    """
    parameters, momentum = unpack(checkpoint, n)
    decoded, reasons = _decode_all(updates, recipe, n)
    slots = list(decoded)
    matrix = gram(list(decoded.values())) if decoded else []
    problems = form_check([matrix[i][i] for i in range(len(slots))])
    reasons |= {slot: problem for slot, problem in zip(slots, problems, strict=True) if problem}
    kept = [i for i, problem in enumerate(problems) if not problem]
    if not kept:
        raise NoUpdatesError(f"all {len(updates)} updates of the round were rejected: {sorted(reasons.items())}")
    included, matrix = [slots[i] for i in kept], select(matrix, kept)
    cosines = leave_one_out_ppm(matrix)
    drawn = [shards[slot] for slot in included]
    found = flags(matrix, included, drawn)
    total, divisor = nnm_trimmed_mean([decoded[slot] for slot in included], matrix)
    return OutcomeResult(
        checkpoint=pack(*outer_step(parameters, momentum, total, divisor, recipe)),
        included=tuple(included),
        rejected=tuple(Rejected(slot=slot, reason=reasons[slot]) for slot in sorted(reasons)),
        merit_ppm=tuple(merit_ppm(matrix, drawn)),
        cosine_ppm=tuple(cosines),
        suspicion=tuple(suspicion(included, cosines, found)),
        flags=tuple(found),
    )


def _decode_all(updates: Mapping[int, bytes], recipe: Recipe, n: int) -> tuple[dict[int, Update], dict[int, str]]:
    """Return (decoded updates by ascending slot, reason by slot that does not decode)."""
    codec = Codec.of(recipe)
    decoded: dict[int, Update] = {}
    undecodable: dict[int, str] = {}
    for slot in sorted(updates):
        try:
            decoded[slot] = codec.decode(updates[slot], n)
        except MalformedError:
            undecodable[slot] = UNDECODABLE
    return decoded, undecodable
