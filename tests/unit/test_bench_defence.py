"""The defence benchmark: attacks do what their formulas say, units and reruns agree, and its market convicts."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import numpy as np
import pytest

from benchmarks.defence import (
    adversary,
    attacks,
    baselines,
    images,
    liars,
    market,
    outside,
    peers_worker,
    report,
    tasks,
    world,
)
from benchmarks.defence.images import Floats, Images
from contracts.evidence import compute_sketch_distance_ppb
from contracts.parameters import thresholds
from gdf_market.errors import UsageError
from gdf_market.train.codec import Codec
from verifier import verdict
from verifier.outcome import OutcomeResult

HONEST, VALUES, BAD = 12, 500, 8


@pytest.fixture(scope="module")
def honest() -> Floats:
    """Return updates with pairwise cosines of about one half."""
    generator = np.random.default_rng(0)
    common = generator.standard_normal(VALUES)
    return (common + generator.standard_normal((HONEST, VALUES))).astype(np.float32)


def squares(rows: Floats, point: Floats) -> np.ndarray:
    found: np.ndarray = np.square(rows.astype(np.float64) - point).sum(1)
    return found


def test_inner_product_points_against_the_mean(honest: Floats) -> None:
    mean = honest.mean(0)
    assert np.allclose(attacks.inner_product(honest, 0.5), -0.5 * mean, atol=1e-6)
    together = (honest.sum(0) + BAD * attacks.inner_product(honest, 5.0)) / (HONEST + BAD)
    assert float(together @ mean) < 0  # eight of twenty at five times the size turn the mean round
    weak = (honest.sum(0) + BAD * attacks.inner_product(honest, 0.5)) / (HONEST + BAD)
    assert float(weak @ mean) > 0


@pytest.mark.parametrize(
    ("count", "bad", "expected"),
    [(50, 24, 1.19), (20, 8, 0.674), (20, 4, 0.157), (20, 0, 0.0), (20, 11, 0.0)],
)
def test_little_is_enough_moves_by_the_quantile_of_its_paper(count: int, bad: int, expected: float) -> None:
    # 50 and 24: s = 2, so the quantile of 24 / 26
    exact = {(50, 24): 1.426}.get((count, bad), expected)
    assert attacks.little_z(count, bad) == pytest.approx(exact, abs=2e-3)


def test_little_is_enough_stays_within_the_spread(honest: Floats) -> None:
    made = attacks.little_is_enough(honest, BAD)
    moved = (honest.mean(0) - made) / honest.std(0)
    assert np.allclose(moved, attacks.little_z(HONEST + BAD, BAD), atol=1e-3)


def test_min_max_is_as_far_as_the_farthest_two(honest: Floats) -> None:
    made = attacks.min_max(honest)
    largest = max(squares(honest, each).max() for each in honest)
    assert squares(honest, made).max() == pytest.approx(largest, rel=1e-3)
    assert squares(honest, made).max() <= largest * (1 + 1e-6)


def test_min_sum_is_as_far_from_all_as_the_farthest_one(honest: Floats) -> None:
    made = attacks.min_sum(honest)
    largest = max(squares(honest, each).sum() for each in honest)
    assert squares(honest, made).sum() == pytest.approx(largest, rel=1e-3)
    # the mean's own sum is the smallest possible, so the attack moved
    assert squares(honest, made).sum() > squares(honest, honest.mean(0)).sum()


def test_copies_and_mimics_are_near_their_original_and_not_equal(honest: Floats) -> None:
    for make, share in ((attacks.copy_with_noise, attacks.COPY_NOISE),):
        first, second = (make(honest[3], np.random.default_rng(seed)) for seed in (1, 2))
        assert np.linalg.norm(first - honest[3]) == pytest.approx(share * np.linalg.norm(honest[3]), rel=1e-3)
        assert not np.array_equal(first, second)
    near = attacks.mimic(honest, np.random.default_rng(1))
    assert np.linalg.norm(near - honest[0]) == pytest.approx(attacks.JITTER * np.linalg.norm(honest[0]), rel=1e-2)


def test_the_adaptive_attack_is_less_suspicious_than_an_honest_unit(honest: Floats) -> None:
    own, honest = honest[:4], honest[4:]
    made = attacks.within_band(own, honest)
    rows = np.concatenate([honest, made])
    cosines = attacks.leave_one_out(rows)
    assert cosines[len(honest) :].min() >= cosines[: len(honest)].min()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.tril(unit @ unit.T, -1).max() < 0.9
    norms, median = np.linalg.norm(made, axis=1), np.median(np.linalg.norm(honest, axis=1))
    assert np.all(norms < 2 * median)
    assert float(made.mean(0) @ honest.mean(0)) < float(own.mean(0) @ honest.mean(0))


def test_leave_one_out_is_the_cosine_with_the_others(honest: Floats) -> None:
    rows = honest.astype(np.float64)
    for i, found in enumerate(attacks.leave_one_out(honest)):
        rest = rows.sum(0) - rows[i]
        assert found == pytest.approx(rest @ rows[i] / np.linalg.norm(rest) / np.linalg.norm(rows[i]), abs=1e-4)


def test_flipped_labels_are_turned_round_in_the_share_asked_for() -> None:
    labels = np.random.default_rng(0).integers(10, size=(100, 100))
    found = attacks.flip_labels(labels, 0.1, np.random.default_rng(1))
    changed = found != labels
    assert changed.mean() == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(found[changed], 9 - labels[changed])
    assert np.array_equal(attacks.flip_labels(labels, 1.0, np.random.default_rng(1)), 9 - labels)


def test_fltrust_ignores_opposite_updates_and_scales_to_the_server(honest: Floats) -> None:
    server = honest.mean(0)
    clean = baselines.fltrust(honest, server)
    attacked = baselines.fltrust(np.concatenate([honest, -100 * honest[:6]]), server)
    assert np.allclose(clean, attacked, atol=1e-5)
    assert np.array_equal(baselines.fltrust(-honest, server), np.zeros(VALUES, np.float32))


def test_similarity_reject_drops_outliers_copies_and_what_is_not_finite(honest: Floats) -> None:
    bad = np.stack([-honest[0], honest[1] * np.float32(1.01), np.full(VALUES, np.nan, np.float32)])
    found = baselines.similarity_reject(np.concatenate([honest, bad]))
    assert np.allclose(found, honest.mean(0), atol=1e-5)


# units


@pytest.fixture(scope="module")
def small() -> world.World:
    """Return a world of ten blurred prototypes, 8 x 8."""
    generator = np.random.default_rng(1)
    prototypes = generator.random((10, 64))
    labels = generator.integers(10, size=1_000)
    x = np.clip(prototypes[labels] + 0.5 * generator.standard_normal((1_000, 64)), 0, 1).astype(np.float32)
    made = Images("prototypes", x[:800], labels[:800], x[800:], labels[800:], 8)
    return world.make_world(made, shards=20, uneven=False, seed=3)


def test_many_units_at_once_are_what_the_market_runs_one_by_one(small: world.World) -> None:
    works = [small.unit(small.first, 2, shard) for shard in range(4)]
    deltas, paths = world.train(small, works, paths=True)
    shown = small.train(works, sketched=True).sketches
    codec, limits = Codec.of(small.recipe), thresholds(market.DEVICE_CLASS)
    for work, delta, path, sketches in zip(works, deltas, paths, shown, strict=True):
        run = small.rerun(work)
        assert compute_sketch_distance_ppb(run.sketches, sketches()) < limits.sketch_accept
        assert np.linalg.norm(run.delta - delta) < 1e-4 * np.linalg.norm(run.delta)
        assert np.array_equal(path[-1], delta)
        assert verdict.measure(codec.encode(delta), run.delta, codec).excess_ppb < limits.excess_accept
        skipped = verdict.measure(codec.encode(path[-2]), run.delta, codec)
        assert skipped.excess_ppb > limits.excess_fail


def test_who_stops_early_hands_in_and_shows_the_step_it_stopped_at(small: world.World) -> None:
    work = small.unit(small.first, 0, 1)
    _, whole = world.train(small, [work], paths=True)
    lazy, path = world.train(small, [dataclasses.replace(work, steps=10)], paths=True)
    assert np.allclose(lazy[0], whole[0, 9], atol=1e-7)
    assert np.array_equal(path[0, 19], path[0, 9])


def test_uneven_shards_hold_few_classes(small: world.World) -> None:
    labels = np.arange(10_000) % 10
    even, uneven = (images.divide(labels, 50, uneven=each, seed=0) for each in (False, True))

    def largest(parts: list[np.ndarray]) -> float:
        return float(np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts]))

    assert largest(even) < 0.2
    assert largest(uneven) > 0.4
    assert sorted(np.concatenate(even)) == list(range(10_000))


def test_a_trigger_is_a_white_square_in_the_corner() -> None:
    marked = world.triggered(np.zeros((2, 64), np.float32), 8).reshape(2, 8, 8)
    assert marked.sum() == 2 * world.TRIGGER_SIDE**2
    assert np.all(marked[:, -3:, -3:] == 1)


def test_images_that_are_not_there_are_named(tmp_path: object) -> None:
    with pytest.raises(UsageError, match="dataset-fashion-mnist"):
        images.fashion(tmp_path, pooled=True)  # type: ignore[arg-type]


# the market


@pytest.mark.parametrize("name", ["sign flip", "lazy 1 of 20", "copy with noise", "two colluders", "label flip 1%"])
def test_cheats_are_convicted_and_honest_workers_are_not(small: world.World, name: str) -> None:
    story = market.play(small, adversary.BY_NAME[name], 2, tasks.NEW, 4, workers=6)
    assert story.cheats == (1 if name == "two colluders" else 2)
    assert len(story.convicted) == story.cheats
    assert story.honest_convicted == story.honest_alarms == 0
    assert story.honest_audits > 0
    assert story.cheat_found == story.cheat_audits > 0


def test_without_audits_nobody_is_convicted(small: world.World) -> None:
    nobody = market.Terms(floor_ppm=0, veterans=True, targeted=False)
    story = market.play(small, adversary.BY_NAME["lazy 10 of 20"], 2, nobody, 2, workers=6)
    assert (story.convicted, story.cheats) == ({}, 2)
    assert story.audits <= 2  # one in a thousand of an account with a thousand valid units
    assert market.extra_compute([story]) <= 2 / 12


def test_outliers_are_targets_only_where_the_terms_say_so(small: world.World) -> None:
    cosines = (500_000, 480_000, -900_000, 200_000, 510_000, 100_000, 50_000, 490_000)
    order = tuple(int(slot) for slot in np.argsort(cosines))
    found = OutcomeResult(b"", tuple(range(8)), (), (0,) * 8, cosines, order, ())
    expected = {False: [2], True: [2, 6, 5, 3]}  # below half of 480,000: those three
    for outliers, named in expected.items():
        job = market._Job(small, adversary.BY_NAME["none"], 0, market.Terms(outliers=outliers), 1, 8)
        assert job._targets(found) == named


def test_what_has_no_encoding_is_left_out_and_unpaid(small: world.World) -> None:
    story = market.play(small, adversary.BY_NAME["NaN and Inf"], 2, tasks.NEW, 2, workers=6)
    assert story.kept_out == story.cheats == 2
    assert story.units == 2 * 4


def test_a_false_accusation_before_an_honest_committee_costs_the_accuser_its_bond(small: world.World) -> None:
    story = market.play(small, adversary.BY_NAME["lying auditor"], 1, tasks.NEW, 4, workers=6)
    assert story.lies > 0
    assert story.lies_punished > 0
    assert story.honest_convicted == 0  # one liar is no majority of three
    assert story.cheats == 0


def test_a_liar_accuses_once_and_then_judges_nobody(small: world.World) -> None:
    """A worker of six and a validator of four lie in every round where nobody is barred, and once where they are."""
    lying = adversary.BY_NAME["lying auditor"]
    free, barred = (
        market.play(small, lying, 1, dataclasses.replace(tasks.NEW, bars=bars), 6, workers=6) for bars in (False, True)
    )
    assert (free.barred, barred.barred, barred.honest_barred) == (0, 2, 0)
    assert free.lies > barred.lies > 0
    assert free.honest_convicted == barred.honest_convicted == 0


@pytest.mark.parametrize("lie", ["fail", "grey"])
def test_draws_alone_tell_how_many_are_convicted(lie: str) -> None:
    free, few, many = (
        [
            liars.Liars(seed, lie, dataclasses.replace(tasks.NEW, bars=bars, committee=panel)).play()
            for seed in range(20)
        ]
        for bars, panel in ((False, 3), (True, 3), (True, 17))
    )
    convicted = [sum(story.honest_convicted for story in stories) for stories in (free, few, many)]
    assert convicted[0] > convicted[1] > convicted[2] == 0
    # nine liars; one that only doubts may do so twice, and whoever is barred goes on in the disputes of that round
    assert max(story.barred for story in many) <= 9
    assert all(story.honest_barred == 0 for story in many)


def test_intermittent_cheats_are_honest_in_between() -> None:
    attack = adversary.BY_NAME["intermittent 25%"]
    share = np.mean([attack.cheats(worker, 12, index, 0) for worker in range(12, 20) for index in range(200)])
    assert share == pytest.approx(adversary.INTERMITTENT, abs=0.05)


def test_task_lists_name_each_run_once_and_only_known_attacks() -> None:
    for fast in (False, True):
        listed = tasks.tasks("digits", 2, fast=fast)
        of_images = [task for task in listed if task.kind != "outside"]
        assert {task.attack for task in of_images} == set(adversary.BY_NAME)
        for task in of_images:
            if task.kind == "market":
                tasks.terms_of(task.terms)
    assert tasks.terms_of("rate 5, no targets") == market.Terms(floor_ppm=50_000, targeted=False)


def test_crops_and_flips_keep_the_picture() -> None:
    pictures = np.zeros((64, 28, 28), np.float32)
    pictures[:, 10, 4] = 1.0
    made = outside.augment(pictures, np.random.default_rng(0))
    assert np.all(made.sum((1, 2)) == 1.0)
    rows, columns = np.nonzero(made)[1:]
    assert set(rows) == {8, 9, 10, 11, 12}
    assert {4, 23} <= set(columns)  # as it was, and turned round


# peers and tables


def test_a_peer_that_fails_is_a_result_and_not_the_end(honest: Floats) -> None:
    def broken(rows: Floats, f: int) -> Floats:
        raise ValueError(f"{f} of {len(rows)}")

    aggregate, seconds, error = peers_worker._answer(broken, honest, 3, 2)
    assert np.isnan(aggregate).all()
    assert (aggregate.shape, seconds, error) == ((VALUES,), [], f"ValueError: 3 of {HONEST}")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such timers on this system")
def test_a_peer_that_does_not_end_is_stopped(honest: Floats) -> None:
    def endless(rows: Floats, f: int) -> Floats:
        while True:
            rows.sum()

    aggregate, _, error = peers_worker._limited(0.05, endless, honest, 3, 1)
    assert np.isnan(aggregate).all()
    assert error == "TimeoutError: no result after 0.05 s of CPU time"
    assert peers_worker._limited(5.0, lambda rows, f: baselines.mean(rows), honest, 3, 1)[2] == ""


def test_tuned_peers_never_see_values_that_are_not_finite(honest: Floats) -> None:
    seen: list[tuple[int, int]] = []

    def mean(rows: Floats, f: int) -> Floats:
        seen.append((len(rows), f))
        return baselines.mean(rows)

    rule = peers_worker._guarded(mean)
    rows = np.concatenate([honest, np.full((2, VALUES), np.inf, np.float32)])
    assert np.allclose(rule(rows, 5), honest.mean(0))
    assert seen == [(HONEST, 3)]


def test_tables_name_what_is_missing_and_take_losses_from_clean() -> None:
    clean = tasks.Task("league", "digits", 0)
    flipped = tasks.Task("league", "digits", 0, "sign flip", 40)
    ours = tasks.Task("market", "digits", 0, "sign flip", 40, False, "records")
    story = market.Story(accuracy=0.938, units=100, audits=10, members=3, cheats=2, convicted={6: 1, 7: 4})
    found: dict[tasks.Task, dict[str, Any]] = {
        clean: {"found": [_score("mean", 0.95)]},
        flipped: {"found": [_score("mean", 0.80), _score("FLTrust", 0.90)]},
        ours: {"found": dataclasses.asdict(story)},
    }
    text = report.tables(found, "digits", {"byzpy": "no such package"}, "words")
    assert "| sign flip | 1.20 / 2 of 2, 2.5 / 0 of 0 |" in text
    assert "| mean | 15.00 (sign flip) |" in text
    assert "| ByzPy CGE | not installed |" in text
    assert "byzpy could not be installed: no such package" in text
    assert "records, under attack at 40%: 13.0% (with arbiters that run one step: 10.2%)" in text


def test_the_chance_of_a_bad_majority_is_that_of_drawing_without_replacement() -> None:
    assert report.bad_majority(4, 2, 3) == pytest.approx(0.5)
    assert report.bad_majority(22, 8, 3) == pytest.approx((28 * 14 + 56) / 1540)
    assert report.bad_majority(22, 8, 22) == 0.0
    assert report.bad_majority(22, 12, 99) == 1.0


def _score(rule: str, accuracy: float) -> dict[str, object]:
    return {"rule": rule, "accuracy": accuracy, "backdoor": 0.0, "errors": 0, "error": ""}
