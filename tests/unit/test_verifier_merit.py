"""Merit shares against the formula in floating point, and what free-riders, copies and conspiracies get."""

from __future__ import annotations

import numpy as np
import pytest

from verifier.gram import gram
from verifier.merit import merit_ppm
from verifier.similarity import cosine_ppm

SIZE = 20_000


def updates_of(count: int, seed: int = 0, noises: tuple[float, float] = (0.7, 2.0)) -> list[np.ndarray]:
    """Return updates with a common direction and more and more noise."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(SIZE)
    scales = np.linspace(*noises, count)
    return [np.rint((common + noise * random.standard_normal(SIZE)) * 1e5).astype(np.int64) for noise in scales]


def noise(seed: int) -> np.ndarray:
    return np.rint(np.random.default_rng(1_000 + seed).standard_normal(SIZE) * 2e5).astype(np.int64)


def merits_of(updates: list[np.ndarray], shards: list[int] | None = None) -> list[int]:
    return merit_ppm(gram(updates), list(range(len(updates))) if shards is None else shards)


@pytest.mark.parametrize("count", [2, 3, 6, 7])
def test_shares_follow_the_median_cosine_with_the_others(count: int) -> None:
    updates = updates_of(count)
    unit = np.array([update / np.linalg.norm(update) for update in updates])
    cosines = unit @ unit.T
    others = np.array([np.delete(cosines[i], i) for i in range(count)])
    medians = np.quantile(others, 0.5, axis=1, method="higher")
    merits = merits_of(updates)
    assert np.abs(np.array(merits) - medians / medians.sum() * 1e6).max() < 6
    assert sorted(merits, reverse=True) == merits  # more noise, less merit
    assert 1_000_000 - count < sum(merits) <= 1_000_000


def test_an_update_without_others_has_the_whole_pot() -> None:
    assert merit_ppm([[7]], [0]) == [1_000_000]


def test_the_remainder_of_rounding_is_given_to_nobody() -> None:
    assert merit_ppm([[9, 3, 3], [3, 9, 3], [3, 3, 9]], [0, 1, 2]) == [333_333] * 3


def test_a_larger_update_earns_no_more() -> None:
    updates = updates_of(5)
    before = merits_of(updates)
    updates[2] = updates[2] * 3
    assert np.abs(np.subtract(merits_of(updates), before)).max() <= 4


def test_a_sign_flip_earns_nothing() -> None:
    updates = updates_of(5)
    updates[0] = -updates[0]
    merits = merits_of(updates)
    assert merits[0] == 0
    assert min(merits[1:]) > 0


def test_when_nobody_agrees_nobody_earns() -> None:
    assert merit_ppm([[1, -1], [-1, 1]], [0, 1]) == [0, 0]
    assert merit_ppm([[9, 0, 0], [0, 4, 0], [0, 0, 1]], [0, 1, 2]) == [0, 0, 0]


@pytest.mark.parametrize("rider", [noise(0), np.full(SIZE, 200_000)], ids=["noise", "a constant"])
def test_what_agrees_with_nobody_but_itself_earns_nothing(rider: np.ndarray) -> None:
    merits = merits_of([*updates_of(7), rider])
    assert merits[7] < min(merits[:7]) // 20  # chance; its cosine with itself would give it a fourth


@pytest.mark.parametrize("count", [2, 3])
def test_a_minority_that_agrees_with_itself_earns_nothing_by_that(count: int) -> None:
    common = noise(0)
    plot = [np.rint(common + 0.4 * noise(1 + i)).astype(np.int64) for i in range(count)]
    matrix = gram(plot)
    assert 800_000 < cosine_ppm(matrix[0][1], matrix[0][0], matrix[1][1]) < 900_000  # no duplicates
    merits = merits_of([*updates_of(8 - count), *plot])
    assert sum(merits[8 - count :]) < min(merits[: 8 - count]) // 5


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_on_different_shards_share_what_one_would_earn(copies: int) -> None:
    honest = updates_of(6, noises=(1.2, 1.2))
    alone = merits_of(honest)
    merits = merits_of([*honest[:5], *([honest[5]] * copies)])
    joint, one = sum(merits[5:]), sum(merits[:5]) / 5
    assert 0.8 < joint / one < 1.2
    assert abs(alone[5] / (sum(alone[:5]) / 5) - 1) < 0.2
    assert len(set(merits[5:])) == 1


def test_copies_with_a_little_noise_share_too() -> None:
    honest = updates_of(6, noises=(1.2, 1.2))
    merits = merits_of([*honest, np.rint(honest[5] + 0.3 * noise(0)).astype(np.int64)])
    assert 0.7 < sum(merits[5:]) / (sum(merits[:5]) / 5) < 1.3


def test_honest_twins_of_one_shard_do_not_share() -> None:
    honest = updates_of(6, noises=(1.2, 1.2))
    merits = merits_of([*honest, honest[5]], [0, 1, 2, 3, 4, 5, 5])
    assert min(merits[5:]) > 0.9 * sum(merits[:5]) / 5


def test_updates_that_are_all_alike_share_equally() -> None:
    assert merits_of(updates_of(5, noises=(0.1, 0.1))) == pytest.approx([200_000] * 5, abs=500)


def test_two_sign_flips_among_five_take_nothing_from_the_honest() -> None:
    updates = updates_of(5)
    merits = merits_of([*updates[:3], -updates[3], -updates[4]])
    assert merits[3:] == [0, 0]
    assert min(merits[:3]) > 200_000
