"""Gram matrix, cosines, flags and the suspicion order against plain floating point and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gdf_market.messages import Flag
from verifier.gram import VALUE_LIMIT, gram, select, squared_distance
from verifier.similarity import cosine_ppm, flags, leave_one_out_ppm, pairwise_ppm, relative_distance_ppm, suspicion

Array = np.ndarray


def honest(count: int, *, length: int = 4_000, seed: int = 0) -> list[Array]:
    """Return updates whose pairwise cosine is about 0.4, as measured on honest units."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(length)
    return [np.rint((common + 1.22 * random.standard_normal(length)) * 1e5).astype(np.int64) for _ in range(count)]


def test_gram_is_exact_at_the_largest_values() -> None:
    largest = VALUE_LIMIT - 1
    random = np.random.default_rng(3)
    length = (1 << 13) * 2 + 5  # three chunks, the last one short
    updates = [
        np.full(length, largest, np.int64),
        np.full(length, -largest, np.int64),
        random.integers(-largest, VALUE_LIMIT, length),
        np.tile([largest, -1, 1 << 15, (1 << 15) - 1, -(1 << 15)], length // 5 + 1)[:length],
    ]
    exact = [[int(np.dot(a.astype(object), b.astype(object))) for b in updates] for a in updates]
    assert gram(updates) == exact


def test_select_and_distance() -> None:
    matrix = gram([np.array([1, 0]), np.array([0, 2]), np.array([4, 4])])
    assert select(matrix, [2, 0]) == [[32, 4], [4, 1]]
    assert squared_distance(matrix, 0, 2) == 9 + 16


def test_cosines_equal_floating_point() -> None:
    updates = honest(6)
    dense = np.array(updates, float)
    matrix = gram(updates)
    unit = dense / np.linalg.norm(dense, axis=1, keepdims=True)
    assert np.abs(np.array(pairwise_ppm(matrix)) - unit @ unit.T * 1e6).max() < 1.001
    others = [dense.sum(axis=0) - row for row in dense]
    expected = [unit[i] @ other / np.linalg.norm(other) * 1e6 for i, other in enumerate(others)]
    assert np.abs(np.array(leave_one_out_ppm(matrix)) - expected).max() < 1.001


def test_cosine_at_its_edges() -> None:
    assert cosine_ppm(6, 4, 9) == 1_000_000
    assert cosine_ppm(-6, 4, 9) == -1_000_000
    assert cosine_ppm(0, 0, 9) == 0
    assert cosine_ppm(-1, 3, 3) == -333_333  # towards zero on both sides
    assert leave_one_out_ppm([[5]]) == [0]
    assert leave_one_out_ppm([[5, -5], [-5, 5]]) == [-1_000_000, -1_000_000]


def test_twins_that_agree_are_not_flagged_and_twins_that_differ_are() -> None:
    one, other = honest(2)
    twin = one + np.rint(0.003 * one.std() * np.random.default_rng(1).standard_normal(len(one))).astype(np.int64)
    assert flags(gram([one, twin, other]), [0, 1, 2], [7, 7, 8]) == []
    found = flags(gram([one, other]), [3, 5], [7, 7])
    distance = round(float(np.linalg.norm(one - other) / max(np.linalg.norm(one), np.linalg.norm(other))) * 1e6)
    assert [(flag.slot, flag.other, flag.reason) for flag in found] == [(3, 5, "twin-differs"), (5, 3, "twin-differs")]
    assert all(abs(flag.value_ppm - distance) <= 1 for flag in found)


@pytest.mark.parametrize(("scale", "flagged"), [(1.049, False), (1.054, True), (-1.0, True)])
def test_twin_threshold_is_five_percent_of_the_larger(scale: float, flagged: bool) -> None:
    (one,) = honest(1)
    twin = np.rint(one * scale).astype(np.int64)
    assert bool(flags(gram([one, twin]), [0, 1], [4, 4])) is flagged
    assert relative_distance_ppm(gram([one, twin]), 0, 1) == relative_distance_ppm(gram([twin, one]), 0, 1)


def test_a_copy_on_another_shard_is_a_duplicate() -> None:
    one, other = honest(2)
    copy = one + np.rint(0.3 * one.std() * np.random.default_rng(1).standard_normal(len(one))).astype(np.int64)
    found = flags(gram([one, other, copy]), [0, 1, 2], [1, 2, 3])
    assert [(flag.slot, flag.other, flag.reason) for flag in found] == [(0, 2, "duplicate"), (2, 0, "duplicate")]
    assert found[0].value_ppm > 900_000


def test_one_flag_per_slot_the_gravest_first() -> None:
    a, b = honest(2)
    # slot 0 is copied on another shard (1), and has a twin (2) that differs: the twin counts; ties go to the lower slot
    found = flags(gram([a, a, b, b]), [0, 1, 2, 3], [5, 6, 5, 5])
    assert [(flag.slot, flag.other, flag.reason) for flag in found] == [
        (0, 2, "twin-differs"),
        (1, 0, "duplicate"),
        (2, 0, "twin-differs"),
        (3, 0, "twin-differs"),
    ]


def test_zero_updates_are_compared_without_error() -> None:
    zero = np.zeros(10, np.int64)
    assert flags(gram([zero, zero]), [0, 1], [1, 1]) == []
    assert relative_distance_ppm(gram([zero, zero + 1]), 0, 1) == 1_000_000


def test_suspicion_puts_flagged_units_first_then_the_least_similar_then_the_lower_slot() -> None:
    flagged = [Flag(slot=9, other=4, reason="duplicate", value_ppm=950_000)]
    assert suspicion([2, 4, 6, 9], [500_000, 100, 100, 700_000], flagged) == [9, 4, 6, 2]


def test_sign_flips_among_honest_units_are_the_most_suspicious() -> None:
    updates = honest(5)
    updates[1], updates[3] = -updates[1], -updates[3]
    cosines = leave_one_out_ppm(gram(updates))
    assert set(suspicion(range(5), cosines, [])[:2]) == {1, 3}
    assert min(cosines[0], cosines[2], cosines[4]) > max(cosines[1], cosines[3]) + 100_000
