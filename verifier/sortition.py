"""Private lotteries: a worker's draw of its data shard, an auditor's ticket for a unit.

Both prove their output with the holder's own key (RFC 9381), so nobody can
predict them before the seed is known, and nobody, the holder included, can
choose them afterwards.
"""

from __future__ import annotations

from gdf_market import vrf
from gdf_market.messages import audit_alpha, draw, lottery_wins, shard_alpha


def draw_shard(identity_seed: bytes, job: str, round_index: int, slot: int, seed: str, shards: int) -> tuple[int, str]:
    """Return (shard, proof hex) for a worker's slot; ``seed`` is the round's (hex)."""
    proof = vrf.prove(identity_seed, shard_alpha(job, round_index, slot, seed))
    return draw(vrf.output(proof), shards), proof.hex()


def audit_ticket(identity_seed: bytes, job: str, round_index: int, slot: int, seed: str, chance_ppm: int) -> str | None:
    """Return the proof (hex) that this key audits the unit, or None; ``seed`` is the round's audit seed (hex)."""
    proof = vrf.prove(identity_seed, audit_alpha(job, round_index, slot, seed))
    return proof.hex() if lottery_wins(vrf.output(proof), chance_ppm) else None
