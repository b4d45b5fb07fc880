"""The outcome of a round: what is included, rejected, flagged; the same bytes everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gdf_market.codec import decode, encode
from gdf_market.errors import MalformedError
from gdf_market.messages import MAX_ENTRY_BYTES, Outcome, Recipe, Rejected
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import GRID_BITS, Codec
from verifier.outcome import NoUpdatesError, OutcomeResult, compute_outcome

HERE = Path(__file__).resolve()
FOLDERS = [str(HERE.parent), str(HERE.parent.parent.parent)]  # this file, and the checkout
N = 2_000
RECIPE = Recipe(
    inner="adamw",
    steps=20,
    batch=8,
    lr_e9=1_000_000,
    beta1_ppm=900_000,
    beta2_ppm=999_000,
    weight_decay_ppm=0,
    clip_ppm=1_000_000,
    rewarm_steps=10,
    outer_lr_ppm=1_000_000,
    outer_momentum_ppm=500_000,
    codec_bits=4,
    codec_block=64,
)
CODEC = Codec.of(RECIPE)


def deltas(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    common = random.standard_normal(N)
    return [((common + 1.22 * random.standard_normal(N)) * 1e-3).astype(np.float32) for _ in range(count)]


def encoded(values: list[np.ndarray]) -> dict[int, bytes]:
    return {slot: CODEC.encode(value) for slot, value in enumerate(values)}


def start() -> bytes:
    random = np.random.default_rng(99)
    return pack(random.standard_normal(N).astype(np.float32), (random.standard_normal(N) * 1e-3).astype(np.float32))


def outcome_of(updates: dict[int, bytes], shards: dict[int, int] | None = None) -> OutcomeResult:
    return compute_outcome(start(), updates, shards or {slot: slot for slot in updates}, RECIPE, N)


def record(result: OutcomeResult) -> Outcome:
    return Outcome(
        checkpoint=hashlib.sha256(result.checkpoint).hexdigest(),
        included=result.included,
        rejected=result.rejected,
        merit_ppm=result.merit_ppm,
        cosine_ppm=result.cosine_ppm,
        suspicion=result.suspicion,
        flags=result.flags,
    )


def test_a_round_moves_the_checkpoint_by_the_robust_mean() -> None:
    values = deltas(2)
    result = outcome_of(encoded(values))
    grid = [CODEC.decode(data, N) for data in encoded(values).values()]
    parameters, momentum = unpack(start(), N)
    gradient = ((grid[0] + grid[1]) / 2 * 2.0**-GRID_BITS).astype(np.float32)
    velocity = np.float32(0.5) * momentum + gradient
    expected = parameters - (gradient + np.float32(0.5) * velocity)
    moved, kept = unpack(result.checkpoint, N)
    assert (moved == expected).all()
    assert (kept == velocity).all()


def test_everything_is_aligned_and_fits_the_record() -> None:
    result = outcome_of(encoded(deltas(5)))
    assert result.included == (0, 1, 2, 3, 4)
    assert result.rejected == ()
    assert sorted(result.suspicion) == [0, 1, 2, 3, 4]
    assert 999_995 <= sum(result.merit_ppm) <= 1_000_000
    assert all(300_000 < cosine < 900_000 for cosine in result.cosine_ppm)
    assert decode(encode(record(result)), Outcome) == record(result)


def test_bad_forms_are_rejected_with_their_reason_and_do_not_count() -> None:
    values = deltas(9)
    values[1] = values[1] * np.float32(5)
    values[3] = values[3] * np.float32(0.1)
    values[4] = values[4] * np.float32(0)
    updates = encoded(values)
    updates[2] = updates[2][:-1]
    updates[7] = Codec(8, 64).encode(values[7])
    updates[8] = b""
    result = outcome_of(updates)
    assert result.included == (0, 5, 6)
    assert result.rejected == (
        Rejected(slot=1, reason="norm above twice the median"),
        Rejected(slot=2, reason="the update does not decode"),
        Rejected(slot=3, reason="norm below half the median"),
        Rejected(slot=4, reason="the update is zero"),
        Rejected(slot=7, reason="the update does not decode"),
        Rejected(slot=8, reason="the update does not decode"),
    )
    alone = outcome_of({slot: updates[slot] for slot in (0, 5, 6)})
    assert result.checkpoint == alone.checkpoint
    assert result.cosine_ppm == alone.cosine_ppm


def test_no_usable_update_is_an_error_that_names_the_slots() -> None:
    with pytest.raises(NoUpdatesError, match=r"\(3, 'the update is zero'\), \(5, 'the update does not decode'\)"):
        outcome_of({5: b"junk", 3: CODEC.encode(np.zeros(N, np.float32))})
    with pytest.raises(NoUpdatesError, match="all 0 updates"):
        outcome_of({})


def test_a_checkpoint_of_another_size_is_refused() -> None:
    with pytest.raises(MalformedError):
        compute_outcome(start(), encoded(deltas(1)), {0: 0}, RECIPE, N + 1)


def test_flags_use_the_shards_of_their_slots() -> None:
    values = deltas(5)
    values[4] = values[0]
    shards = {0: 7, 1: 8, 2: 9, 3: 9, 4: 11}  # 0 and 4: a copy on another shard; 2 and 3: twins that differ
    result = outcome_of(encoded(values), shards)
    assert [(flag.slot, flag.other, flag.reason) for flag in result.flags] == [
        (0, 4, "duplicate"),
        (2, 3, "twin-differs"),
        (3, 2, "twin-differs"),
        (4, 0, "duplicate"),
    ]
    assert set(result.suspicion[:4]) == {0, 2, 3, 4}


def test_sign_flips_are_suspected_earn_less_and_do_not_move_the_model() -> None:
    values = deltas(5)
    honest = np.mean(values[:3], axis=0)
    result = outcome_of(encoded([*values[:3], -values[3], -values[4]]))
    assert set(result.suspicion[:2]) == {3, 4}
    assert max(result.merit_ppm[3:]) < min(result.merit_ppm[:3]) / 3
    parameters, momentum = unpack(start(), N)
    step = parameters - np.float32(0.25) * momentum - unpack(result.checkpoint, N)[0]
    assert np.linalg.norm(step / 1.5 - honest) < 0.15 * np.linalg.norm(honest)  # what four bits lose


def test_scaled_updates_are_rejected_and_do_not_move_the_model() -> None:
    values = deltas(5)
    scaled = outcome_of(encoded([*values[:3], values[3] * np.float32(-10), values[4] * np.float32(-10)]))
    assert [rejected.slot for rejected in scaled.rejected] == [3, 4]
    assert scaled.checkpoint == outcome_of(encoded(values[:3])).checkpoint


def test_order_of_arrival_does_not_matter() -> None:
    updates = encoded(deltas(6))
    backwards = dict(reversed(list(updates.items())))
    assert outcome_of(updates) == outcome_of(backwards)


def test_the_fullest_round_fits_an_entry() -> None:
    (value,) = deltas(1)
    result = outcome_of(encoded([value] * 64), {slot: 65_535 - slot for slot in range(64)})
    assert len(result.flags) == 64
    data = encode(record(result))
    assert len(data) < MAX_ENTRY_BYTES - 1_000
    assert decode(data, Outcome) == record(result)


def test_threads_do_not_change_the_bytes() -> None:
    program = (
        "import hashlib, numpy as np; from test_verifier_outcome import *\n"
        "result = outcome_of(encoded(deltas(20)))\n"
        "print(hashlib.sha256(result.checkpoint + encode(record(result))).hexdigest())\n"
    )
    digests = set()
    for threads in ("1", "2"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": os.pathsep.join(FOLDERS)}
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1
