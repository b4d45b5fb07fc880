"""Rounding excess: a per-value reference, honest drift against cheats at every width, and crafted claims."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gdf_market.errors import MalformedError
from gdf_market.train.codec import GRID_BITS, decode_update, encode_update
from gdf_market.train.errors import DivergedError
from gdf_market.units import MAX_INT
from verifier.verdict import measure, relative_distance_ppb, rounding_excess_ppb

BLOCK = 64
Array = np.ndarray


def heavy_tailed(length: int = 50_000, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_t(4, length) * 1e-3).astype(np.float32)


def drifted(dense: Array, relative: float, seed: int = 1) -> Array:
    noise = np.random.default_rng(seed).standard_normal(dense.size)
    return (dense + noise * relative * np.linalg.norm(dense) / np.linalg.norm(noise)).astype(np.float32)


def craft(dense: Array, factor: float) -> bytes:
    """Return a 4-bit claim of ``dense`` whose scales are ``factor`` times those of the codec, clipped codes."""
    rows = dense.astype(float).reshape(-1, BLOCK) * 2.0**GRID_BITS
    scales = np.ceil(np.ceil(np.abs(rows).max(axis=1) / 7) * factor)
    codes = np.clip(np.rint(rows / scales[:, None]), -7, 7).astype(int).ravel() & 15
    header = struct.pack("<4sBBHQ", b"GDFU", 1, 4, BLOCK, dense.size)
    return header + scales.astype("<u4").tobytes() + (codes[::2] | codes[1::2] << 4).astype(np.uint8).tobytes()


def reference_excess(claim: bytes, dense: Array, bits: int) -> float:
    """One value at a time, from the definition: a value within half of the smaller step has none."""
    top = 2 ** (bits - 1) - 1
    scales = struct.unpack_from(f"<{-(-dense.size // BLOCK)}I", claim, 16)
    claimed, total = decode_update(claim, dense.size, bits, BLOCK), 0.0
    for j, value in enumerate(dense.tolist()):
        block = dense[j - j % BLOCK : j - j % BLOCK + BLOCK].astype(float) * 2.0**GRID_BITS
        step = min(scales[j // BLOCK], np.ceil(np.abs(block).max() / top))
        total += max(0.0, abs(int(claimed[j]) - value * 2.0**GRID_BITS) - step / 2) ** 2
    return float(np.sqrt(total) / np.linalg.norm(dense.astype(float) * 2.0**GRID_BITS))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_equals_the_reference(bits: int) -> None:
    dense = heavy_tailed(1_000)
    claim = encode_update(drifted(dense, 0.05), bits, BLOCK)
    expected = reference_excess(claim, dense, bits)
    assert expected > 1e-3
    assert abs(rounding_excess_ppb(claim, dense, bits, BLOCK) - expected * 1e9) <= 1


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_an_exact_rerun_has_no_excess_and_no_distance(bits: int) -> None:
    dense = heavy_tailed()
    distances = measure(encode_update(dense, bits, BLOCK), dense, bits, BLOCK)
    assert (distances.excess_ppb, distances.distance_ppb) == (0, 0)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_honest_drift_and_the_smallest_cheat_are_orders_apart(bits: int) -> None:
    dense = heavy_tailed()
    honest = measure(encode_update(drifted(dense, 1.1e-5), bits, BLOCK), dense, bits, BLOCK)
    cheat = measure(encode_update(drifted(dense, 4.2e-2), bits, BLOCK), dense, bits, BLOCK)
    assert honest.excess_ppb < 2_000  # 2e-6
    assert cheat.excess_ppb > 1_000_000  # 1e-3
    assert cheat.excess_ppb > 1_000 * honest.excess_ppb
    assert honest.distance_ppb > 100 * honest.excess_ppb  # what comparing decoded updates would have made of it


def test_coarser_steps_than_needed_are_excess() -> None:
    dense = heavy_tailed(6_400)
    assert craft(dense, 1.0) == encode_update(dense, 4, BLOCK)
    excess = [rounding_excess_ppb(craft(dense, factor), dense, 4, BLOCK) for factor in (1.0, 1.1, 2.0, 50.0)]
    assert excess[0] == 0
    assert excess[1] > 1_000_000
    assert excess == sorted(excess)
    assert excess[3] > 500_000_000  # everything rounds to zero: most of the update is missing


def test_finer_steps_clip_and_that_is_excess() -> None:
    dense = heavy_tailed(6_400)
    assert rounding_excess_ppb(craft(dense, 0.5), dense, 4, BLOCK) > 10_000_000


def test_no_update_at_all_and_a_sign_flip() -> None:
    dense = heavy_tailed(6_400)
    zero = encode_update(np.zeros_like(dense), 4, BLOCK)
    assert measure(zero, dense, 4, BLOCK).distance_ppb == 1_000_000_000
    assert 500_000_000 < rounding_excess_ppb(zero, dense, 4, BLOCK) <= 1_000_000_000
    flip = measure(encode_update(-dense, 4, BLOCK), dense, 4, BLOCK)
    assert flip.distance_ppb == 2_000_000_000
    assert flip.excess_ppb > 1_000_000_000


def test_an_auditor_whose_run_is_all_zero() -> None:
    dense = np.zeros(128, np.float32)
    assert measure(encode_update(dense, 4, BLOCK), dense, 4, BLOCK).excess_ppb == 0
    other = measure(encode_update(heavy_tailed(128), 4, BLOCK), dense, 4, BLOCK)
    assert (other.excess_ppb, other.distance_ppb) == (MAX_INT, MAX_INT)


def test_a_claim_far_from_a_tiny_run_stays_an_integer_that_fits() -> None:
    dense = np.full(64, 1e-30, np.float32)
    assert rounding_excess_ppb(encode_update(np.ones(64, np.float32), 4, BLOCK), dense, 4, BLOCK) == MAX_INT
    ones = np.ones(64, np.int64)
    assert relative_distance_ppb(ones * 1_000, ones) == 999 * 10**9
    assert relative_distance_ppb(ones * (2**30 - 1), ones) == MAX_INT


def test_errors_say_who_is_to_blame() -> None:
    dense = heavy_tailed(128)
    with pytest.raises(MalformedError):
        measure(encode_update(dense, 8, BLOCK), dense, 4, BLOCK)
    with pytest.raises(DivergedError):
        measure(encode_update(dense, 4, BLOCK), dense * np.float32(np.nan), 4, BLOCK)
