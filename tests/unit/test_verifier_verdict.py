"""Excess of claims: a per-value reference, honest drift against cheats for every codec, and crafted claims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from contracts.parameters import thresholds
from gdf_market.errors import MalformedError
from gdf_market.train.codec import GRID_BITS, Codec, Quantised
from gdf_market.train.codec_blocks import quantise
from gdf_market.train.errors import DivergedError
from gdf_market.units import MAX_INT
from tests import codec_oracle
from verifier.verdict import measure, relative_distance_ppb, rounding_excess_ppb

BLOCK = 64
FOUR = Codec(4, BLOCK)
DENSE = [Codec(bits, BLOCK) for bits in (8, 4, 2)]
SPARSE = [Codec(4, BLOCK, 125_000), Codec(2, BLOCK, 31_250), Codec(8, BLOCK, 10_000)]
LIMITS = thresholds("cpu-fp32")
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
    codes = np.clip(np.rint(rows / scales[:, None]), -7, 7).astype(np.int8).ravel()
    return FOUR.write(Quantised(dense.size, BLOCK, None, codes, scales.astype(np.int32)))


def claim_at(codec: Codec, dense: Array, places: Array) -> bytes:
    """Return a claim of the auditor's own values in places of somebody's choice."""
    chosen = np.sort(places)
    assert chosen.size == codec.held(dense.size)
    codes, scales = quantise(dense[chosen], codec.bits, codec.block)
    return codec.write(Quantised(dense.size, codec.block, chosen, codes, scales))


def reference_excess(claim: bytes, dense: Array, codec: Codec) -> float:
    """One value at a time, from the definition: a value within half of the smaller step has none."""
    values = [value * 2.0**GRID_BITS for value in dense.astype(float).tolist()]
    claimed, steps = (each.tolist() for each in (codec.decode(claim, dense.size), codec.steps(claim, dense.size)))
    places = [j for j in range(dense.size) if codec.dense or steps[j]]
    best = codec_oracle.largest(dense, codec.held(dense.size))
    threshold = min(abs(values[j]) for j in best)
    implied = codec_oracle.quantise(dense[places], codec.bits, codec.block)[1].tolist()
    total = 0.0
    for i, j in enumerate(places):
        step = min(steps[j], implied[i // codec.block])
        total += max(0.0, abs(claimed[j] - values[j]) - step / 2) ** 2
        total += max(0.0, threshold - abs(values[j])) ** 2
    for j in set(range(dense.size)) - set(places):
        total += max(0.0, abs(values[j]) - threshold) ** 2
    return float(np.sqrt(total / sum(values[j] ** 2 for j in best)))


@pytest.mark.parametrize("codec", [*DENSE, *SPARSE])
def test_equals_the_reference(codec: Codec) -> None:
    dense = heavy_tailed(1_000)
    claim = codec.encode(drifted(dense, 0.05))
    expected = reference_excess(claim, dense, codec)
    assert expected > 1e-3
    assert abs(rounding_excess_ppb(claim, dense, codec) - expected * 1e9) <= 1


@pytest.mark.parametrize("codec", [*DENSE, *SPARSE])
def test_an_exact_rerun_has_no_excess_and_no_distance(codec: Codec) -> None:
    dense = heavy_tailed()
    distances = measure(codec.encode(dense), dense, codec)
    assert (distances.excess_ppb, distances.distance_ppb) == (0, 0)


@pytest.mark.parametrize("codec", [*DENSE, *SPARSE])
def test_honest_drift_and_the_smallest_cheat_are_orders_apart(codec: Codec) -> None:
    dense = heavy_tailed()
    honest = measure(codec.encode(drifted(dense, 1.1e-5)), dense, codec)
    cheat = measure(codec.encode(drifted(dense, 4.2e-2)), dense, codec)
    assert honest.excess_ppb < 2_000  # 2e-6
    assert cheat.excess_ppb > LIMITS.excess_fail
    assert cheat.excess_ppb > 1_000 * honest.excess_ppb


@pytest.mark.parametrize("codec", DENSE)
def test_distance_of_decoded_updates_would_make_much_of_honest_drift(codec: Codec) -> None:
    dense = heavy_tailed()
    honest = measure(codec.encode(drifted(dense, 1.1e-5)), dense, codec)
    assert honest.distance_ppb > 100 * honest.excess_ppb


def test_coarser_steps_than_needed_are_excess() -> None:
    dense = heavy_tailed(6_400)
    assert craft(dense, 1.0) == FOUR.encode(dense)
    excess = [rounding_excess_ppb(craft(dense, factor), dense, FOUR) for factor in (1.0, 1.1, 2.0, 50.0)]
    assert excess[0] == 0
    assert excess[1] > 1_000_000
    assert excess == sorted(excess)
    assert excess[3] > 500_000_000  # everything rounds to zero: most of the update is missing


def test_finer_steps_clip_and_that_is_excess() -> None:
    dense = heavy_tailed(6_400)
    assert rounding_excess_ppb(craft(dense, 0.5), dense, FOUR) > 10_000_000


def by_size(dense: Array) -> Array:
    """Return all places, those of the largest magnitudes first."""
    return np.argsort(-np.abs(dense), kind="stable")


WRONG_PLACES: dict[str, Callable[[Array, int], Array]] = {
    "the first ones": lambda dense, k: np.arange(k),
    "random ones": lambda dense, k: np.random.default_rng(5).permutation(dense.size)[:k],
    "the smallest": lambda dense, k: by_size(dense)[-k:],
    "all but the largest": lambda dense, k: by_size(dense)[k : 2 * k],
    "without the largest hundredth": lambda dense, k: by_size(dense)[k // 100 : k + k // 100],
    "a hundredth of small ones": lambda dense, k: np.r_[by_size(dense)[: k - k // 100], by_size(dense)[-(k // 100) :]],
    "without the very largest": lambda dense, k: by_size(dense)[1 : k + 1],
}


@pytest.mark.parametrize("codec", SPARSE)
@pytest.mark.parametrize("wrong", list(WRONG_PLACES))
def test_true_values_in_wrong_places_fail(codec: Codec, wrong: str) -> None:
    dense = heavy_tailed()
    claim = claim_at(codec, dense, WRONG_PLACES[wrong](dense, codec.held(dense.size)))
    assert rounding_excess_ppb(claim, dense, codec) > LIMITS.excess_fail
    assert claim_at(codec, dense, by_size(dense)[: codec.held(dense.size)]) == codec.encode(dense)


@pytest.mark.parametrize("codec", SPARSE)
def test_zeros_in_place_of_the_right_values_fail(codec: Codec) -> None:
    dense = heavy_tailed()
    own = codec.quantise(dense)
    claim = codec.write(Quantised(own.n, own.block, own.places, np.zeros_like(own.codes), own.scales))
    assert rounding_excess_ppb(claim, dense, codec) > 100_000_000


def test_exchanging_equal_values_is_no_excess() -> None:
    dense = np.array([1, -1] * 50, np.float32) * np.float32(1e-3)
    codec = Codec(4, 16, 500_000)
    assert rounding_excess_ppb(claim_at(codec, dense, np.arange(50, 100)), dense, codec) == 0


def test_no_update_at_all_and_a_sign_flip() -> None:
    dense = heavy_tailed(6_400)
    zero = FOUR.encode(np.zeros_like(dense))
    assert measure(zero, dense, FOUR).distance_ppb == 1_000_000_000
    assert 500_000_000 < rounding_excess_ppb(zero, dense, FOUR) <= 1_000_000_000
    for codec in (FOUR, *SPARSE):
        flip = measure(codec.encode(-dense), dense, codec)
        assert flip.distance_ppb == 2_000_000_000
        assert flip.excess_ppb > 1_000_000_000


@pytest.mark.parametrize("codec", [FOUR, Codec(4, BLOCK, 125_000)])
def test_an_auditor_whose_run_is_all_zero(codec: Codec) -> None:
    dense = np.zeros(128, np.float32)
    assert measure(codec.encode(dense), dense, codec).excess_ppb == 0
    other = measure(codec.encode(heavy_tailed(128)), dense, codec)
    assert (other.excess_ppb, other.distance_ppb) == (MAX_INT, MAX_INT)


def test_a_claim_far_from_a_tiny_run_stays_an_integer_that_fits() -> None:
    dense = np.full(64, 1e-30, np.float32)
    assert rounding_excess_ppb(FOUR.encode(np.ones(64, np.float32)), dense, FOUR) == MAX_INT
    ones = np.ones(64, np.int64)
    assert relative_distance_ppb(ones * 1_000, ones) == 999 * 10**9
    assert relative_distance_ppb(ones * (2**30 - 1), ones) == MAX_INT


@pytest.mark.parametrize("codec", [FOUR, Codec(4, BLOCK, 125_000)])
def test_errors_say_who_is_to_blame(codec: Codec) -> None:
    dense = heavy_tailed(128)
    with pytest.raises(MalformedError):
        measure(Codec(8, BLOCK).encode(dense), dense, codec)
    with pytest.raises(DivergedError):
        measure(codec.encode(dense), dense * np.float32(np.nan), codec)
