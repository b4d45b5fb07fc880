"""Sizes of units and rounds: what they promise is what a bidder computes from them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.train_split import average, by_rule, one_each, simulate
from gdf_market.messages import MAX_STEPS, MAX_UNITS_PER_ROUND
from gdf_market.train.sizing import BF16_STEPS, LEAST_STEPS, UNITS_PER_WORKER, suggest, units_that_fit


def test_a_few_equal_machines_get_eight_units_each() -> None:
    sizing = suggest(0.05, 4, 60.0)
    assert sizing.steps == 150
    assert sizing.unit_s == pytest.approx(7.5)
    assert sizing.units_per_round == 40  # 32, and a quarter more
    assert sizing.work_s == pytest.approx(75.0)
    assert units_that_fit(sizing.unit_s, sizing.work_s) == UNITS_PER_WORKER


@pytest.mark.parametrize(
    ("step_s", "workers", "round_s", "precision", "steps", "units"),
    [
        (1.0, 4, 60.0, "fp32", LEAST_STEPS, 15),  # three units of 20 steps
        (10.0, 4, 60.0, "fp32", LEAST_STEPS, 5),  # not even one fits: the round takes longer
        (0.001, 4, 60.0, "fp32", MAX_STEPS, 40),
        (0.05, 4, 60.0, "bf16", BF16_STEPS, 40),
        (0.05, 64, 60.0, "fp32", 923, MAX_UNITS_PER_ROUND),
    ],
)
def test_limits_of_steps_and_units(
    step_s: float, workers: int, round_s: float, precision: str, steps: int, units: int
) -> None:
    sizing = suggest(step_s, workers, round_s, precision=precision)
    assert (sizing.steps, sizing.units_per_round) == (steps, units)
    assert units_that_fit(sizing.unit_s, sizing.work_s) >= 1


@given(st.floats(0, 100), st.integers(1, 200), st.floats(1, 10_000), st.floats(0.1, 10))
def test_a_machine_like_the_owners_can_always_take_a_unit(
    step_s: float, workers: int, round_s: float, speed: float
) -> None:
    sizing = suggest(step_s, workers, round_s, relative_speed=speed)
    assert LEAST_STEPS <= sizing.steps <= MAX_STEPS
    assert 1 <= sizing.units_per_round <= MAX_UNITS_PER_ROUND
    assert units_that_fit(sizing.unit_s, sizing.work_s) >= 1


def test_what_is_promised_elsewhere_is_not_free() -> None:
    assert units_that_fit(10, 100) == 8
    assert units_that_fit(10, 100, 41) == 3
    assert units_that_fit(10, 100, 200) == 0
    assert units_that_fit(0, 100) == 80_000  # no unit takes no time


@pytest.mark.parametrize("workers", [4, 8])
def test_nine_tenths_of_unequal_machines_are_at_work(workers: int) -> None:
    assert average(workers, by_rule, 20)[1].busy >= 0.9
    assert average(workers, one_each, 20)[1].busy < 0.6


def test_a_round_is_as_long_as_its_slowest_worker() -> None:
    found = simulate([1.0, 0.5], {0: 1, 1: 1}, 10.0, random.Random(0))
    assert found.round_s == pytest.approx(20.0, rel=0.05)
    assert found.busy == pytest.approx((10 + 20 * 0.5) / (20 * 1.5), rel=0.05)
    assert simulate([1.0, 0.5], {0: 2}, 10.0, random.Random(0)).idle_workers == 0.5
