"""Merit shares against the paper's formula in floating point, and what attackers get."""

from __future__ import annotations

import numpy as np

from verifier.gram import gram
from verifier.merit import merit_ppm


def updates_of(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    common = random.standard_normal(2_000)
    noises = np.linspace(0.5, 3.0, count)
    return [np.rint((common + noise * random.standard_normal(2_000)) * 1e5).astype(np.int64) for noise in noises]


def test_shares_follow_the_cosine_with_the_normalised_aggregate() -> None:
    updates = updates_of(6)
    unit = np.array([update / np.linalg.norm(update) for update in updates])
    aggregate = unit.sum(axis=0)
    cosines = unit @ aggregate / np.linalg.norm(aggregate)
    expected = cosines / cosines.sum() * 1e6
    merits = merit_ppm(gram(updates))
    assert np.abs(np.array(merits) - expected).max() < 3
    assert sorted(merits, reverse=True) == merits  # more noise, less merit


def test_the_remainder_of_rounding_is_given_to_nobody() -> None:
    assert merit_ppm([[9, 0, 0], [0, 4, 0], [0, 0, 1]]) == [333_333] * 3
    assert merit_ppm([[7]]) == [1_000_000]


def test_a_larger_update_earns_no_more() -> None:
    updates = updates_of(4)
    before = merit_ppm(gram(updates))
    updates[2] = updates[2] * 3
    assert np.abs(np.subtract(merit_ppm(gram(updates)), before)).max() <= 2


def test_a_sign_flip_earns_nothing() -> None:
    updates = updates_of(5)
    updates[0] = -updates[0]
    merits = merit_ppm(gram(updates))
    assert merits[0] == 0
    assert min(merits[1:]) > 0
    assert 999_990 <= sum(merits) <= 1_000_000


def test_when_nobody_agrees_nobody_earns() -> None:
    assert merit_ppm([[1, -1], [-1, 1]]) == [0, 0]
