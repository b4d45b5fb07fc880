"""The benchmark of sketches counts what bisections are, and its quantisations keep what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.sketch_cost import search, searches, sizes
from benchmarks.sketches import QUANTISED, Pair, distances
from gdf_market.messages import MAX_ENTRY_BYTES


def test_a_search_ends_before_the_altered_step() -> None:
    for altered in range(20):
        for first in range(19):
            found = search(altered, [19, first, (first + 7) % 19])
            assert found.low == altered - 1
            assert found.turns <= math.ceil(math.log2(20))
    assert search(19, [19, 18, 3]).turns == 0


def test_every_step_is_searched_for_alike() -> None:
    found = list(searches(20))
    assert sorted({each.low for each in found}) == list(range(-1, 19))
    assert max(sizes(1_000).values()) < MAX_ENTRY_BYTES


def one_pair(size: float, apart: float) -> Pair:
    own = np.random.default_rng(0).standard_normal((3, 32)) * size
    return Pair("", 0, own, np.zeros_like(own), own * (1 + apart), np.zeros_like(own))


@pytest.mark.parametrize(("name", "error"), [("units of 2^-30 (as built)", 1e-6), ("16 bits and an exponent", 1e-4)])
def test_distances_are_those_of_the_sums_within_the_quantisation(name: str, error: float) -> None:
    compared, written = QUANTISED[name]
    found = distances(one_pair(0.05, 0.01), compared)
    assert found == pytest.approx(np.full(3, 0.01), abs=error)
    integers = written(one_pair(0.05, 0.0).own)
    assert np.array_equal(integers, np.rint(integers))
    assert name.startswith("units") or np.abs(integers).max() <= 2**15
