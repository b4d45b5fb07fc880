"""Lotteries: draws that others can check, of the right frequency."""

from __future__ import annotations

from collections import Counter

import pytest

from gdf_market import vrf
from gdf_market.errors import SignatureError
from gdf_market.identity import Identity, public_key
from gdf_market.messages import audit_alpha, draw, lottery_wins, shard_alpha
from verifier.sortition import audit_ticket, draw_shard

KEY = Identity(bytes(range(32)))
JOB, SEED = "ab" * 32, "cd" * 32


def test_a_drawn_shard_is_what_its_proof_shows() -> None:
    shard, proof = draw_shard(KEY.seed, JOB, 3, 2, SEED, 17)
    beta = vrf.verify(public_key(KEY.account), shard_alpha(JOB, 3, 2, SEED), bytes.fromhex(proof))
    assert shard == draw(beta, 17)
    with pytest.raises(SignatureError):
        vrf.verify(public_key(KEY.account), shard_alpha(JOB, 3, 1, SEED), bytes.fromhex(proof))


def test_draws_depend_on_everything() -> None:
    draws = {
        draw_shard(seed, job, index, slot, round_seed, 2**16)
        for seed in (KEY.seed, bytes(32))
        for job in (JOB, SEED)
        for index in (0, 1)
        for slot in (0, 1)
        for round_seed in (SEED, JOB)
    }
    assert len(draws) == 32


def test_a_ticket_is_a_winning_proof() -> None:
    assert audit_ticket(KEY.seed, JOB, 3, 2, SEED, 0) is None
    ticket = audit_ticket(KEY.seed, JOB, 3, 2, SEED, 1_000_000)
    assert ticket is not None
    vrf.verify(public_key(KEY.account), audit_alpha(JOB, 3, 2, SEED), bytes.fromhex(ticket))


def test_tickets_come_at_about_their_chance_and_all_win() -> None:
    tickets = [audit_ticket(KEY.seed, JOB, index, 0, SEED, 250_000) for index in range(300)]
    won = [bytes.fromhex(ticket) for ticket in tickets if ticket]
    assert 45 <= len(won) <= 105  # 75 expected, deviation 7.5
    assert all(lottery_wins(vrf.output(proof), 250_000) for proof in won)


def test_shards_are_drawn_evenly() -> None:
    counts = Counter(draw_shard(KEY.seed, JOB, index, 1, SEED, 4)[0] for index in range(300))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 45  # 75 expected, deviation 7.5
