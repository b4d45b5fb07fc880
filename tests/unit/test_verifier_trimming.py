"""The pruned sorting network gives the sum of the middle for every number of rows and every trim."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from verifier.aggregate import tolerated
from verifier.trimming import _exchanges, _merge_exchange, sum_of_middle


def sorted_middle(rows: np.ndarray, trim: int) -> np.ndarray:
    return np.asarray(np.sort(rows, axis=0)[trim : len(rows) - trim].sum(axis=0))


@pytest.mark.parametrize("count", range(1, 11))
def test_every_arrangement_of_zeros_and_ones(count: int) -> None:
    """A network that is right for all of these is right for all values (Knuth 5.3.4, theorem Z)."""
    rows = np.array(list(product((0, 1), repeat=count)), np.int32).T
    for trim in range((count - 1) // 2 + 1):
        assert (sum_of_middle(rows.copy(), trim) == sorted_middle(rows, trim)).all()


@pytest.mark.parametrize("count", [11, 16, 17, 20, 31, 32, 33, 63, 64])
def test_random_values_of_many_rows(count: int) -> None:
    random = np.random.default_rng(count)
    for kind, limit in ((np.int32, 5), (np.int64, 2**40)):
        rows = random.integers(-limit, limit, (count, 500)).astype(kind)
        for trim in (0, 1, tolerated(count), (count - 1) // 2):
            total = sum_of_middle(rows.copy(), trim)
            assert total.dtype == np.int64
            assert (total == sorted_middle(rows, trim)).all()


def test_nothing_is_compared_without_need() -> None:
    assert _exchanges(5, 0) == ()
    for count in (5, 8, 20, 64):
        assert len(_exchanges(count, tolerated(count))) < len(list(_merge_exchange(count)))
    assert len(list(_merge_exchange(8))) == 19  # Knuth 5.3.4, Batcher's network for eight
