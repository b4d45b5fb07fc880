"""Properties of every number that nodes agree on: exact, bounded, independent of order and of scale."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdf_market.messages import Flag
from gdf_market.train.codec import Codec
from verifier.aggregate import form_check, nnm_trimmed_mean, tolerated
from verifier.gram import VALUE_LIMIT, gram, squared_distance
from verifier.merit import merit_ppm
from verifier.similarity import flags, leave_one_out_ppm, pairwise_ppm, suspicion
from verifier.sketch import sketch
from verifier.verdict import measure

VALUES = st.integers(-VALUE_LIMIT + 1, VALUE_LIMIT - 1)
SMALL = st.integers(-3, 3)  # many ties, zeros and equal updates
ROUNDS = st.integers(1, 9).flatmap(
    lambda count: st.sampled_from([VALUES, SMALL]).flatmap(
        lambda values: arrays(np.int64, st.tuples(st.just(count), st.integers(1, 12)), elements=values)
    )
)
QUICK = settings(max_examples=60, deadline=None)


@QUICK
@given(ROUNDS)
def test_gram_equals_python_integers(rows: np.ndarray) -> None:
    exact = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in rows.tolist()] for a in rows.tolist()]
    assert gram(list(rows)) == exact


@QUICK
@given(ROUNDS)
def test_cosines_are_bounded_symmetric_and_rounded_towards_zero(rows: np.ndarray) -> None:
    matrix = gram(list(rows))
    cosines = pairwise_ppm(matrix)
    for i, row in enumerate(cosines):
        for j, cosine in enumerate(row):
            assert cosine == cosines[j][i]
            norms = matrix[i][i] * matrix[j][j]
            if norms:
                exact_square = Fraction(matrix[i][j] ** 2 * 10**12, norms)
                assert abs(cosine) <= 1_000_000
                assert cosine**2 <= exact_square < (abs(cosine) + 1) ** 2
                assert cosine * matrix[i][j] >= 0
    assert all(abs(cosine) <= 1_000_000 for cosine in leave_one_out_ppm(matrix))


@QUICK
@given(ROUNDS, st.randoms(use_true_random=False))
def test_everything_about_a_unit_moves_with_it(rows: np.ndarray, random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    matrix, shuffled = gram(list(rows)), gram([rows[i] for i in order])
    cosines, merits = leave_one_out_ppm(matrix), merit_ppm(matrix, range(len(order)))
    assert leave_one_out_ppm(shuffled) == [cosines[i] for i in order]
    assert merit_ppm(shuffled, order) == [merits[i] for i in order]
    norms, shuffled_norms = ([m[i][i] for i in range(len(order))] for m in (matrix, shuffled))
    assert form_check(shuffled_norms) == [form_check(norms)[i] for i in order]


@QUICK
@given(ROUNDS)
def test_merit_is_a_share(rows: np.ndarray) -> None:
    merits = merit_ppm(gram(list(rows)), range(len(rows)))
    assert all(merit >= 0 for merit in merits)
    assert sum(merits) == 0 or 1_000_000 - len(rows) < sum(merits) <= 1_000_000


@QUICK
@given(ROUNDS)
def test_the_mean_lies_between_the_extremes_and_within_the_bounds(rows: np.ndarray) -> None:
    total, divisor = nnm_trimmed_mean(list(rows), gram(list(rows)))
    bad = tolerated(len(rows))
    assert divisor == (len(rows) - bad) * (len(rows) - 2 * bad)
    assert (total <= rows.max(axis=0) * divisor).all()
    assert (total >= rows.min(axis=0) * divisor).all()
    assert int(np.abs(total).max()) < 2**42


@QUICK
@given(ROUNDS)
def test_the_mean_does_not_depend_on_order_without_ties(rows: np.ndarray) -> None:
    matrix = gram(list(rows))
    span = range(len(rows))
    distances = [squared_distance(matrix, i, j) for i in span for j in span if i < j]
    if len(set(distances)) < len(distances):
        return  # ties go by slot
    backwards = list(rows[::-1])
    total, divisor = nnm_trimmed_mean(list(rows), matrix)
    again, same = nnm_trimmed_mean(backwards, gram(backwards))
    assert (total == again).all()
    assert divisor == same


@QUICK
@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_form_check_keeps_the_median_and_its_neighbours(norms: list[int]) -> None:
    problems = form_check([norm * norm for norm in norms])
    nonzero = sorted(norm for norm in norms if norm)
    for norm, problem in zip(norms, problems, strict=True):
        if norm == 0:
            assert problem == "the update is zero"
        elif len(nonzero) < 3:
            assert problem == ""
        else:
            median = nonzero[(len(nonzero) - 1) // 2]
            assert (problem == "") == (median <= 2 * norm and norm <= 2 * median)


@QUICK
@given(ROUNDS, st.data())
def test_flags_come_in_pairs_once_per_slot_and_lead_the_suspicion(rows: np.ndarray, data: st.DataObject) -> None:
    slots = sorted(data.draw(st.sets(st.integers(0, 63), min_size=len(rows), max_size=len(rows))))
    shards = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    matrix = gram(list(rows))
    found: list[Flag] = flags(matrix, slots, shards)
    flagged = [flag.slot for flag in found]
    assert flagged == sorted(set(flagged))
    assert {flag.other for flag in found} <= set(flagged)
    order = suspicion(slots, leave_one_out_ppm(matrix), found)
    assert sorted(order) == slots
    assert set(order[: len(found)]) == set(flagged)


@QUICK
@given(arrays(np.float32, st.integers(1, 300), elements=st.floats(-1, 1, width=32)), st.sampled_from([2, 4, 8]))
def test_an_honest_claim_never_has_excess(dense: np.ndarray, bits: int) -> None:
    distances = measure(Codec(bits, 16).encode(dense), dense, Codec(bits, 16))
    assert (distances.excess_ppb, distances.distance_ppb) == (0, 0)


@QUICK
@given(arrays(np.float32, st.integers(1, 300), elements=st.floats(-1, 1, width=32)), st.sampled_from([-4.0, 0.5, 2.0]))
def test_a_sketch_is_linear(delta: np.ndarray, factor: float) -> None:
    scaled, plain = sketch(delta * np.float32(factor)), sketch(delta)
    assert all(abs(value - factor * one) <= 4 for value, one in zip(scaled, plain, strict=True))
    assert sketch(delta) == plain
    assert isqrt(sum(value * value for value in sketch(np.zeros_like(delta)))) == 0
