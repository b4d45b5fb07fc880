"""Form checks and the robust mean: a float oracle, edges, extreme values, attackers."""

from __future__ import annotations

import numpy as np
import pytest

from gdf_market.train.codec import Codec
from tests import codec_oracle
from verifier.aggregate import form_check, nnm_trimmed_mean, tolerated
from verifier.gram import VALUE_LIMIT, gram

Array = np.ndarray


def honest(count: int, *, length: int = 3_000, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    common = random.standard_normal(length)
    return [np.rint((common + 1.22 * random.standard_normal(length)) * 1e5).astype(np.int64) for _ in range(count)]


def oracle(updates: list[Array]) -> Array:
    """Allouah et al. 2023, algorithm 1, then the trimmed mean, in floating point and straight from the text."""
    points = [update.astype(float) for update in updates]
    count = len(points)
    bad = int(count * 0.4)
    mixed = []
    for point in points:
        nearest = sorted(points, key=lambda other: float(np.linalg.norm(other - point)))
        mixed.append(np.mean(nearest[: count - bad], axis=0))
    ordered = np.sort(np.array(mixed), axis=0)
    return np.asarray(ordered[bad : count - bad].mean(axis=0))


def mean_of(updates: list[Array]) -> Array:
    total, divisor = nnm_trimmed_mean(updates, gram(updates))
    assert total.dtype == np.int64
    return total / divisor


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 10, 20])
def test_equals_the_oracle(count: int) -> None:
    updates = honest(count, seed=count)
    assert np.abs(mean_of(updates) - oracle(updates)).max() < 1e-6


def test_one_and_two_units_are_their_mean() -> None:
    one, two = honest(2)
    assert (mean_of([one]) == one).all()
    assert (mean_of([one, two]) == (one + two) / 2).all()


def test_order_of_units_does_not_matter() -> None:
    updates = honest(9)
    order = np.random.default_rng(5).permutation(9)
    total, divisor = nnm_trimmed_mean(updates, gram(updates))
    shuffled = [updates[i] for i in order]
    again, same = nnm_trimmed_mean(shuffled, gram(shuffled))
    assert (total == again).all()
    assert divisor == same


def test_tolerated_leaves_somebody() -> None:
    assert [tolerated(count) for count in (1, 2, 3, 4, 5, 10, 64)] == [0, 0, 1, 1, 2, 4, 25]
    assert all(count - 2 * tolerated(count) >= 1 for count in range(1, 65))


def test_the_largest_round_of_the_largest_values_is_exact() -> None:
    length = (1 << 13) + 3  # many chunks of the Gram matrix
    random = np.random.default_rng(0)
    updates = [VALUE_LIMIT - 1 - random.integers(0, 3, length) for _ in range(64)]
    total, divisor = nnm_trimmed_mean(updates, gram(updates))
    assert divisor == 39 * 14
    assert int(total.max()) <= (VALUE_LIMIT - 1) * divisor
    assert np.abs(total / divisor - oracle(updates)).max() < 1e-3
    assert int(total[0]) == _by_hand(updates, 0)


def _by_hand(updates: list[Array], coordinate: int) -> int:
    """The same coordinate in Python integers."""
    mixed = []
    for i, own in enumerate(updates):
        distances = [(int(np.sum((own - other) ** 2)), j != i, j) for j, other in enumerate(updates)]
        mixed.append(sum(int(updates[j][coordinate]) for _, _, j in sorted(distances)[:39]))
    return sum(sorted(mixed)[25:39])


@pytest.mark.parametrize("count", [1, 3, 8, 64])
@pytest.mark.parametrize("limit", [3, 2**21 + 1, 2**24, 2**24 + 1, 2**26, VALUE_LIMIT])
def test_both_widths_equal_the_definition(count: int, limit: int) -> None:
    """Small values take int32 and one product, larger ones int64 and limbs; a chunk of each kind, and a short one."""
    random = np.random.default_rng(count)
    updates = [random.integers(1 - limit, limit, 2 * (1 << 14) + 100).astype(np.int32) for _ in range(count)]
    for update in updates:
        update[1 << 13 : 1 << 15] %= 5
        update[0] = limit - 1
    matrix = gram(updates)
    wide = [update.astype(np.int64) for update in updates]
    assert gram(wide) == matrix
    exact = np.stack(wide[:4]).astype(object)
    assert [row[:4] for row in matrix[:4]] == exact.dot(exact.T).tolist()
    total, divisor = nnm_trimmed_mean(updates, matrix)
    expected, same = codec_oracle.nnm_trimmed_mean(wide, matrix)
    assert total.dtype == np.int64
    assert (total == expected).all()
    assert divisor == same


def test_the_gram_matrix_of_the_largest_values_is_exact() -> None:
    length = 3 * (1 << 13) + 1
    top = np.full(length, VALUE_LIMIT - 1, np.int32)
    square = length * (VALUE_LIMIT - 1) ** 2
    assert gram([top, -top] * 32) == [[square if (i + j) % 2 == 0 else -square for j in range(64)] for i in range(64)]


def test_values_beyond_the_codecs_are_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        gram([np.full(10, VALUE_LIMIT, np.int64)])


def test_sparse_and_dense_updates_add_up_as_the_definition_says() -> None:
    random, n = np.random.default_rng(4), 20_000
    deltas = [(random.standard_t(4, n) * 1e-3).astype(np.float32) for _ in range(5)]
    codecs = [Codec(4, 64), Codec(2, 64), Codec(8, 64, 10_000), Codec(4, 64, 125_000), Codec(3, 17, 500_000)]
    updates = [codec.decode(codec.encode(delta), n) for codec, delta in zip(codecs, deltas, strict=True)]
    total, _ = nnm_trimmed_mean(updates, gram(updates))
    slow = [
        codec_oracle.sparse_values(delta, codec.bits, codec.block, codec.held(n))
        for codec, delta in zip(codecs, deltas, strict=True)
    ]
    assert (total == codec_oracle.nnm_trimmed_mean(slow, codec_oracle.gram(slow))[0]).all()


def test_norms_within_half_and_twice_the_median_pass() -> None:
    assert form_check([100, 25, 400, 100, 100]) == [""] * 5  # squares: norms 10, 5, 20
    assert form_check([100, 24, 401, 100, 0]) == [
        "",
        "norm below half the median",
        "norm above twice the median",
        "",
        "the update is zero",
    ]


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    assert form_check([100, 100, 10_000, 10_000])[2:] == ["norm above twice the median"] * 2


def test_with_fewer_than_three_units_no_size_is_normal() -> None:
    assert form_check([1, 10**12]) == ["", ""]
    assert form_check([1, 10**12, 0]) == ["", "", "the update is zero"]
    assert form_check([]) == []


def test_form_check_is_exact_beyond_floating_point() -> None:
    median = 10**40
    assert form_check([median, median, 4 * median]) == [""] * 3
    assert form_check([median, median, 4 * median + 1])[2] != ""


@pytest.mark.parametrize("attack", ["sign flip", "scaled", "scaled sign flip", "zero-ish", "little is enough"])
def test_two_bad_of_five_move_the_mean_little(attack: str) -> None:
    good = honest(5, seed=11)
    spread = max(float(np.linalg.norm(a - b)) for a in good for b in good)
    centre = np.mean(good[:3], axis=0)
    moves = {
        "sign flip": lambda update: -update,
        "scaled": lambda update: 2 * update,
        "scaled sign flip": lambda update: -2 * update,
        "zero-ish": lambda update: update // 2,
        "little is enough": lambda _: np.rint(centre - 1.0 * np.std(good, axis=0)).astype(np.int64),
    }
    moved = float(np.linalg.norm(mean_of([*good[:3], *(moves[attack](update) for update in good[3:])]) - centre))
    assert moved < 0.75 * spread
    assert float(np.dot(mean_of([*good[:3], *(moves[attack](update) for update in good[3:])]), centre)) > 0


def test_two_sign_flips_of_five_change_nothing_at_all() -> None:
    good = honest(5, seed=12)
    attacked = mean_of([*good[:3], -good[3], -good[4]])
    assert np.abs(attacked - np.mean(good[:3], axis=0)).max() < 1e-9
