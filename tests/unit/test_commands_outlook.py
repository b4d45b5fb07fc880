"""What an owner is told before posting: figures that follow from the terms, and warnings that fit them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from gdf_market.commands.outlook import cost_rows, outlook, steps_table
from gdf_market.messages import JobPost, Recipe
from gdf_market.train import guide
from gdf_market.train.codec import Codec
from gdf_market.units import CREDIT, PPM
from tests.contracts_world import key_of, make_world
from tests.unit.train_kit import recipe


def post(**changes: Any) -> JobPost:
    head = {"author": key_of("owner").account, "nonce": 0, "expires_ms": 0}
    values = {"recipe": recipe(steps=20, codec_block=64), "parameters": 100_000, "tokens_per_unit": 20_480}
    return JobPost(**(make_world().job_fields() | head | values | changes))


def test_bytes_against_an_all_reduce_in_every_step() -> None:
    value = outlook(post(units_per_round=4), {"step_s": 0.5, "memory_bytes": 7}, [])
    sent = guide.compressed_bytes(Codec(4, 64), 100_000)
    assert value["sent_update_bytes"] == sent < value["update_bytes"] == Codec(4, 64).expected_bytes(100_000)
    assert value["up_bytes_per_round"] == value["down_bytes_per_round"] == 3 * sent
    assert value["bytes_per_unit"] == pytest.approx(6 * sent / 20_480, abs=1e-3)
    every_step = 20 * 2 * (2 * 3 / 4) * 400_000  # 20 steps, both ways, a ring of four
    assert value["all_reduce_bytes_per_unit"] == pytest.approx(every_step / 20_480, abs=1e-3)
    assert value["times_fewer"] == pytest.approx(every_step / (6 * sent), abs=0.1)
    assert value["memory_bytes"] == 7


def test_data_without_tokens_counts_samples() -> None:
    value = outlook(post(tokens_per_unit=0, units_per_round=2), {}, [])
    assert value["unit"] == "sample"
    assert value["bytes_per_unit"] == pytest.approx(2 * value["up_bytes_per_round"] / (20 * 4), abs=1e-3)


def test_one_worker_sends_nothing() -> None:
    value = outlook(post(units_per_round=1), {"step_s": 1.0}, [])
    assert (value["up_bytes_per_round"], value["times_fewer"]) == (0, None)
    assert "0.00 bytes per worker" in dict(cost_rows(value))["per token"]


def test_more_steps_cost_fewer_bytes_and_longer_rounds() -> None:
    value = outlook(post(units_per_round=4, recipe=recipe(steps=30)), {"step_s": 0.5}, [])
    rows = value["steps"]
    assert [row["steps"] for row in rows] == [20, 30, 50, 100, 200]
    assert [row["steps"] for row in rows if row["chosen"]] == [30]
    assert rows[0]["bytes_per_unit"] == pytest.approx(5 * rows[3]["bytes_per_unit"], rel=1e-3)
    assert rows[3]["round_seconds"] - rows[0]["round_seconds"] == pytest.approx(40)
    assert rows[1]["loss_cost_warm_percent"] is None
    assert rows[0]["loss_cost_warm_percent"] == guide.WARM_LOSS_COST["adamw"][20]


def test_credits_and_time_of_the_whole_job() -> None:
    spec = post(rounds=10, warm_rounds=4, units_per_round=2, audit_floor_ppm=100_000, audit_fee=CREDIT)
    units, price = 4 + 6 * 2, spec.reserve_price
    value = outlook(spec, {"step_s": 1.0}, [])
    assert value["units"] == units
    pay = units * price
    audits = 10 + 4  # one in each round, and 2 * (1 + 1/2 + ... + 1/6) by lottery
    assert value["likely_credits"] == pay + pay // 10 + audits * CREDIT
    assert value["total_seconds"] == pytest.approx(5 + 60 + 10 * 20, abs=0.1)
    cheap = outlook(spec, {"step_s": 1.0}, [CREDIT, 2 * CREDIT, 99 * CREDIT])
    assert cheap["likely_price"] == 2 * CREDIT
    assert outlook(spec, {}, [99 * CREDIT])["likely_price"] == price


def said(spec: JobPost, **measured: float) -> str:
    return "\n".join(outlook(spec, measured, [])["warnings"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipe": recipe(steps=19)}, "calibrated"),
        ({"recipe": recipe(steps=101, precision="bf16")}, "bf16"),
        ({"units_per_round": 4}, "--warm-rounds"),
        ({"recipe": recipe(steps=20, codec_density_ppm=30_000)}, "sparse"),
    ],
)
def test_warnings(changes: dict[str, Any], word: str) -> None:
    assert word in said(post(**changes))


def test_warnings_of_what_was_measured_here() -> None:
    assert "GiB" in said(post(), memory_bytes=20 * 2**30)
    assert "--work-seconds gives 60 s" in said(post(), step_s=2.5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": recipe(steps=100, precision="bf16")},
        {"recipe": recipe(steps=200)},
        {"units_per_round": 4, "warm_rounds": 1},
    ],
)
def test_nothing_is_said_of_good_terms(changes: dict[str, Any]) -> None:
    assert said(post(**changes), step_s=0.1, memory_bytes=2**30) == ""


def test_the_recommended_steps_were_measured() -> None:
    for precision, inner in itertools.product(("fp32", "bf16"), ("adamw", "muon")):
        steps = guide.recommended_steps(precision, inner)
        assert steps in guide.STEPS
        assert guide.loss_cost_percent(steps, inner, warm=True) is not None
    assert guide.recommended_steps("bf16", "sgd") <= guide.MAX_BF16_STEPS
    assert guide.loss_cost_percent(20, "sgd", warm=False) is None


@pytest.mark.parametrize("bits", range(2, 9))
def test_updates_of_heavy_tailed_values_are_about_as_large_as_said(bits: int) -> None:
    """Student's t_3 has heavier tails than most pseudo-gradients, so its updates come out smaller."""
    codec, n = Codec(bits, 64), 100_000
    delta = (np.random.default_rng(bits).standard_t(3, n) * 1e-3).astype(np.float32)
    said = guide.compressed_bytes(codec, n)
    assert 0.55 * said < len(codec.encode(delta)) < 1.02 * said < 1.02 * codec.expected_bytes(n)


def test_the_figures_are_shown_and_plain_json() -> None:
    value = outlook(post(units_per_round=4), {"step_s": 0.5, "memory_bytes": 2**20}, [])
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(steps_table(value))
    shown = capture.get()
    for word in ("20 (this job)", "+0.9%", "+9%", "not measured", "recommended: 100"):
        assert word in shown
    rows = dict(cost_rows(value))
    assert "times fewer" in rows["per token"]
    assert "1.0 MiB" in rows["memory"]


def test_sparse_updates_are_estimated_by_what_they_hold() -> None:
    kept: Recipe = recipe(codec_density_ppm=PPM // 10)
    assert guide.compressed_bytes(Codec.of(kept), 100_000) < guide.compressed_bytes(Codec.of(recipe()), 100_000) / 3


def test_sizes_are_suggested_for_fleets() -> None:
    value = outlook(post(work_ms=100_000), {"step_s": 0.1}, [])
    fleets = {each["workers"]: each for each in value["suggested"]}
    assert set(fleets) == {4, 8, 16}
    assert all(each["steps"] >= 20 for each in fleets.values())
    assert fleets[4]["units"] < fleets[8]["units"] <= 64
    assert "4 workers" in dict(cost_rows(value))["sizes for"]
