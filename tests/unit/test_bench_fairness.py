"""The benchmark of fairness: its statistics against known values, and that its cheats meet the real rules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fairness import report
from benchmarks.fairness.cheating import STRATEGIES, Tally, break_even_ppm, measure, play
from benchmarks.fairness.digits import load_digits
from benchmarks.fairness.identities import NAMES, UNITS
from benchmarks.fairness.identities import play as divide
from benchmarks.fairness.market import BOND, PRICE, Terms, hashed_lottery
from benchmarks.fairness.merits import Comparison
from benchmarks.fairness.riders import RIDERS, Earned
from benchmarks.fairness.shapley import bootstrap, coalitions, kendall, shapley, spearman
from gdf_market import vrf
from verifier.outcome import OutcomeResult

ALWAYS, MUTE = STRATEGIES[0], next(each for each in STRATEGIES if each.mute)
LOST = BOND / PRICE + 1.2  # bond, price, and its share of a pot of 20%
OFTEN = Terms(floor_ppm=1_000_000)  # each of seven auditors with a chance of a seventh: two of three units are audited


def test_shapley_values_of_the_glove_game() -> None:
    """Two left gloves and one right one: only a pair is worth something (Shapley 1953's usual example)."""
    values = {each: float({2} < each) for each in coalitions(3)}
    assert shapley(values, 3) == pytest.approx([1 / 6, 1 / 6, 4 / 6])


def test_an_additive_game_gives_everybody_its_own() -> None:
    worth = [3.0, -1.0, 0.5, 2.0]
    values = {each: sum(worth[player] for player in each) for each in coalitions(4)}
    assert shapley(values, 4) == pytest.approx(worth)


def test_rank_correlations() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert kendall([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)
    assert kendall([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.6)
    assert kendall([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))
    assert spearman([1, 1, 1], [1, 2, 3]) == kendall([1, 1, 1], [1, 2, 3]) == 0


def test_a_bootstrap_interval_covers_the_mean() -> None:
    low, high = bootstrap([0.8, 0.9, 1.0, 0.9])
    assert 0.8 <= low < 0.9 < high <= 1.0
    assert bootstrap([0.5, 0.5]) == (0.5, 0.5)


def test_the_hash_stands_in_for_the_vrf_and_goes_again() -> None:
    real = vrf.prove
    with hashed_lottery():
        assert vrf.verify(b"key", b"in", vrf.prove(b"seed", b"in")) == vrf.output(vrf.prove(b"seed", b"in"))
        assert len(vrf.prove(b"seed", b"in")) == 80
    assert vrf.prove is real


def test_a_cheat_that_is_audited_loses_bond_and_pay() -> None:
    with hashed_lottery():
        found = measure(dataclasses.replace(ALWAYS, rounds=1), OFTEN, 1)
    share = sum(found.punished) / len(found.punished)
    assert share > 0.4  # of thirty
    assert found.mean_loss == pytest.approx(LOST)
    assert found.per_unit(1.0) == pytest.approx(1 - share * LOST)


def test_silence_costs_one_bond_and_the_pay() -> None:
    with hashed_lottery():
        found = measure(dataclasses.replace(MUTE, rounds=1), OFTEN, 1)
    assert any(found.punished)
    assert found.mean_loss == pytest.approx(LOST)


def test_who_is_never_audited_gains_what_it_saves() -> None:
    with hashed_lottery():
        found = measure(dataclasses.replace(ALWAYS, rounds=1), Terms(floor_ppm=0), 1)
    assert not any(found.punished)
    assert found.per_unit(0.05) == pytest.approx(0.05)


def test_the_real_vrf_and_signatures_convict_too() -> None:
    found = play(ALWAYS, dataclasses.replace(OFTEN, rounds=1), 0, signed=True)
    assert any(found.punished)
    assert found.mean_loss == pytest.approx(LOST)


def test_the_break_even_rate_follows_from_what_is_lost() -> None:
    tally = Tally(losses=[10.0])
    assert break_even_ppm(ALWAYS, tally) == pytest.approx(7 * (1 - 0.9 ** (1 / 7)) * 1e6, abs=1)
    skips_one = next(each for each in STRATEGIES if each.saved == 0.05)
    assert break_even_ppm(skips_one, tally) < 5_100
    assert break_even_ppm(ALWAYS, Tally()) > 1_000_000


def test_one_machine_earns_the_same_under_any_number_of_names() -> None:
    terms = Terms(rounds=2)
    with hashed_lottery():
        rewards = [divide(count, terms, 0) for count in NAMES]
    assert [reward.units for reward in rewards] == [2 * UNITS] * len(NAMES)
    assert len({reward.total for reward in rewards}) == 1
    assert rewards[0].merit > 0


def _outcome(merit: tuple[int, ...], included: tuple[int, ...] = tuple(range(8))) -> OutcomeResult:
    return OutcomeResult(b"", included, (), merit, (0,) * len(included), included[::-1], ())


def test_what_a_rider_earns_is_counted_in_honest_units() -> None:
    earned = Earned(next(each for each in RIDERS if each.units == 2))
    earned.add(_outcome((100_000,) * 6 + (200_000, 200_000)))
    earned.add(_outcome((166_666,) * 6, tuple(range(6))))
    assert earned.relative == [4.0, 0.0]
    assert earned.rejected == [False, True]
    assert earned.first == [True, False]


def test_the_report_tells_a_gain_and_a_missed_target() -> None:
    same = Comparison(tuple(range(6)), tuple(range(6)), (tuple(range(6)), tuple(range(6))))
    turned = Comparison(tuple(range(6)), tuple(range(6)), (tuple(range(6))[::-1], tuple(range(6))))
    text = "\n".join(report.merit_lines([same, turned]))
    assert "| negative loss | Spearman | **0.000** |" in text
    assert "| **no** |" in text
    assert "| accuracy | Spearman | **1.000** | 1.000 to 1.000 | 1.00 | yes |" in text
    good, bad = Tally([-3.0, -1.0], [2, 2], [True, False], [10.0]), Tally([0.0, 0.0], [2, 2], [False, False])
    floors = (10_000, 100_000)
    grid = {
        (each.pattern(suspected), floor): good if floor == 100_000 else bad
        for each in STRATEGIES
        for suspected in (False, True)
        for floor in floors
    }
    text = "\n".join(report.cheating_lines(grid, STRATEGIES, floors, 1))
    assert "| skips all work of every unit | **+1.00** ± 0.00 | +0.00 ± 0.50 |" in text


def test_digits_are_read_from_a_file(tmp_path: Path) -> None:
    import gzip

    row = ",".join(["16"] * 64 + ["7"])
    with gzip.open(tmp_path / "digits.csv.gz", "wt", encoding="utf-8") as file:
        file.write(f"{row}\n" * 600)
    train, test = load_digits(tmp_path / "digits.csv.gz")
    assert (len(train.labels), len(test.labels)) == (3, 597)
    assert test.images.max() == 1.0
    assert set(test.labels) == {7}
