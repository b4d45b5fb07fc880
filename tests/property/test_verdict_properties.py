"""Honest drift passes and a skipped step fails, whatever the codec; values in wrong places are found."""

from __future__ import annotations

from math import sqrt

import hypothesis
import numpy as np
from hypothesis import strategies as st

from contracts.parameters import thresholds
from gdf_market.train.codec import Codec, Quantised
from gdf_market.train.codec_blocks import quantise
from gdf_market.units import PPM
from verifier.verdict import rounding_excess_ppb

quick = hypothesis.settings(max_examples=60, deadline=None)
LIMITS = thresholds("cpu-fp32")
N = 20_000
dense_codecs = st.builds(Codec, st.integers(2, 8), st.sampled_from([16, 32, 64]))
sparse_codecs = st.builds(Codec, st.integers(2, 8), st.sampled_from([16, 32, 64]), st.integers(50_000, PPM - 1))
codecs = st.one_of(dense_codecs, sparse_codecs)
seeds = st.integers(0, 2**32 - 1)
tails = st.sampled_from([0, 3, 4, 10])  # degrees of freedom of Student's t; 0: normal
sizes = st.sampled_from([1e-6, 1e-3, 1e-2])
Array = np.ndarray


def update(seed: int, tail: int, size: float) -> Array:
    random = np.random.default_rng(seed)
    values = random.standard_t(tail, N) if tail else random.standard_normal(N)
    return (values.clip(-100, 100) * size).astype(np.float32)


def deviating(dense: Array, relative: float, seed: int) -> Array:
    noise = np.random.default_rng(seed).standard_normal(N)
    return (dense + noise * relative * np.linalg.norm(dense) / np.linalg.norm(noise)).astype(np.float32)


@quick
@hypothesis.given(codecs, seeds, tails, sizes)
def test_honest_drift_passes(codec: Codec, seed: int, tail: int, size: float) -> None:
    dense = update(seed, tail, size)
    assert rounding_excess_ppb(codec.encode(deviating(dense, 1e-5, seed + 1)), dense, codec) < LIMITS.excess_accept


@quick
@hypothesis.given(codecs, seeds, tails, sizes)
def test_what_a_skipped_step_changes_fails(codec: Codec, seed: int, tail: int, size: float) -> None:
    dense = update(seed, tail, size)
    assert rounding_excess_ppb(codec.encode(deviating(dense, 4e-2, seed + 1)), dense, codec) > LIMITS.excess_fail


@quick
@hypothesis.given(sparse_codecs, seeds, tails, st.floats(0.01, 1.0), st.booleans())
def test_right_values_in_wrong_places_fail(codec: Codec, seed: int, tail: int, share: float, largest: bool) -> None:
    """A share of the places, the largest or any, is given up for places outside."""
    hypothesis.assume(codec.density_ppm < 900_000)
    random, dense, k = np.random.default_rng(seed + 1), update(seed, tail, 1e-3), codec.held(N)
    order = np.argsort(-np.abs(dense), kind="stable")
    inside, outside = order[:k], order[k:]
    moved = min(outside.size, max(1, round(share * k)))
    given_up = inside[:moved] if largest else random.permutation(inside)[:moved]
    places = np.sort(np.r_[np.setdiff1d(inside, given_up), random.permutation(outside)[:moved]])
    codes, scales = quantise(dense[places], codec.bits, codec.block)
    claim = codec.write(Quantised(N, codec.block, places, codes, scales))
    assert rounding_excess_ppb(claim, dense, codec) > LIMITS.excess_fail


@quick
@hypothesis.given(seeds, tails, st.integers(1, N - 1), st.integers(1, N))
def test_drift_costs_at_most_its_own_size_in_places(seed: int, tail: int, k: int, touched: int) -> None:
    """The bound in the module's docstring, for drift on any number of values; eight bits leave little else."""
    random, dense = np.random.default_rng(seed + 1), update(seed, tail, 1e-3)
    drift = np.zeros(N)
    drift[random.permutation(N)[:touched]] = random.standard_normal(touched) * 1e-3
    claimed = (dense + drift).astype(np.float32)
    codec = Codec(8, 16, max(1, k * PPM // N))
    held = codec.held(N)
    excess = rounding_excess_ppb(codec.encode(claimed), dense, codec) / 1e9
    norm = float(np.linalg.norm(np.sort(np.abs(dense.astype(float)))[-held:]))
    moved = float(np.linalg.norm(claimed.astype(float) - dense.astype(float)))
    values = moved * (1 + sqrt(16) / 127)  # the value excess: the drift, and the coarser steps that it causes
    assert excess * norm <= sqrt(2 * moved**2 + values**2) * (1 + 1e-6) + 1e-6
