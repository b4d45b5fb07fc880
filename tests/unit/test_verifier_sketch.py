"""Sketches: an independent implementation, a fixed vector, distances, limits, openings."""

from __future__ import annotations

import numpy as np
import pytest

from gdf_market import merkle
from gdf_market.messages import SKETCH_DIM, sketch_leaf
from gdf_market.units import MAX_INT
from verifier.sketch import SCALE, SEED, SketchError, openings, sketch, sketch_tree


def reference(delta: np.ndarray) -> list[int]:
    """One coordinate at a time, in Python integers (exact for whole numbers)."""
    sums = [0] * SKETCH_DIM
    for word, value in zip(np.random.PCG64(SEED).random_raw(len(delta)).tolist(), delta.tolist(), strict=True):
        top = word >> 58
        sums[top % 32] += int(value) * (-1 if top >= 32 else 1)
    return [value * SCALE for value in sums]


def test_equals_the_reference_across_chunks() -> None:
    delta = np.random.default_rng(1).integers(-9, 10, (1 << 18) + 77).astype(np.float32)
    assert list(sketch(delta)) == reference(delta)


def test_a_fixed_vector_pins_buckets_and_signs() -> None:
    delta = np.ones(1_000, np.float32)
    assert [value // SCALE for value in sketch(delta)[:8]] == [3, 2, -2, 8, -6, -5, 8, -5]


def test_sketch_distance_estimates_the_distance() -> None:
    random = np.random.default_rng(2)
    ratios = []
    for _ in range(50):
        one, other = random.standard_normal((2, 5_000)).astype(np.float32)
        difference = np.subtract(sketch(one), sketch(other)) / SCALE
        ratios.append(np.sum(difference**2) / np.sum((one - other) ** 2))
    assert abs(np.mean(ratios) - 1) < 0.15  # deviation of the mean: sqrt(2 / 32 / 50) = 0.035
    assert min(ratios) > 0.3
    assert max(ratios) < 2.2


def test_each_seed_is_another_projection_of_the_same_size() -> None:
    delta = np.random.default_rng(3).standard_normal(5_000).astype(np.float32)
    seeds = [b"", b"\1" * 32, b"\2" * 32]
    found = [np.array(sketch(delta, seed=seed)) / SCALE for seed in seeds]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(found[one] @ found[other]) < 0.6 * np.linalg.norm(found[one]) * np.linalg.norm(found[other])
    norms = [float(np.linalg.norm(each) / np.linalg.norm(delta)) for each in found]
    assert all(0.6 < norm < 1.5 for norm in norms)  # deviation of the square: sqrt(2 / 32) = 0.25
    assert sketch(delta, seed=seeds[1]) == sketch(delta, seed=b"\1" * 32)


def test_a_change_made_for_one_projection_shows_in_another() -> None:
    """Buckets are public: a cheat can move mass within one, unless it does not know the buckets."""
    delta = np.random.default_rng(4).standard_normal(2_000).astype(np.float32)
    bins = np.random.PCG64(SEED).random_raw(2_000) >> np.uint64(58)
    same = np.flatnonzero(bins == bins[0])
    forged = delta.copy()
    forged[same[1:]] += np.float32(1.0)
    forged[same[0]] -= np.float32(len(same) - 1)
    apart = np.linalg.norm(np.subtract(sketch(forged), sketch(delta))) / SCALE
    assert apart < 1e-4
    assert np.linalg.norm(np.subtract(sketch(forged, seed=b"\7" * 32), sketch(delta, seed=b"\7" * 32))) / SCALE > 1


def test_the_seeded_projection_is_pinned() -> None:
    """The same buckets come from a seed everywhere."""
    assert [value // SCALE for value in sketch(np.ones(1_000, np.float32), seed=b"\5" * 32)[:8]] == [
        -7,
        3,
        -8,
        16,
        -5,
        -3,
        -5,
        8,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_diverged_change_has_no_sketch(bad: float) -> None:
    delta = np.ones(100, np.float32)
    delta[[3, 7]] = bad
    with pytest.raises(SketchError, match="not finite or too large"):
        sketch(delta)


def test_opposite_infinities_have_no_sketch() -> None:
    with pytest.raises(SketchError):
        sketch(np.array([np.inf, -np.inf] * 200, np.float32))


def test_the_largest_sketch_is_an_integer_that_json_keeps() -> None:
    delta = np.zeros(1, np.float32)
    delta[0] = 2.0**23 - 1
    assert max(abs(value) for value in sketch(delta)) <= MAX_INT
    delta[0] = 2.0**23
    with pytest.raises(SketchError):
        sketch(delta)


def test_openings_prove_their_sketches() -> None:
    sketches = [tuple(range(step, step + SKETCH_DIM)) for step in range(21)]
    root = sketch_tree(sketches).root()
    opened = openings(sketches, (20, 0, 7))
    assert [opening.step for opening in opened] == [20, 0, 7]
    for opening in opened:
        path = [bytes.fromhex(node) for node in opening.path]
        merkle.verify_inclusion(sketch_leaf(opening.step, opening.sketch), opening.step, 21, path, root)
        assert opening.sketch == sketches[opening.step]


def test_the_tree_commits_to_every_step_and_its_place() -> None:
    sketches = [(step,) * SKETCH_DIM for step in range(4)]
    swapped = [sketches[1], sketches[0], *sketches[2:]]
    assert sketch_tree(sketches).root() != sketch_tree(swapped).root()
    assert sketch_tree(sketches).root() == merkle.root([sketch_leaf(i, s) for i, s in enumerate(sketches)])
