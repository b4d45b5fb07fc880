"""Prices and estimates as people and programs read them, and taking orders back, from ledgers of the real rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gdf_market.codec import encode
from gdf_market.commands import estimating
from gdf_market.commands import market as module
from gdf_market.commands.estimating import Ask, Facts, Pace, estimate, price_sentence, read_facts, time_sentence
from gdf_market.messages import JobPost
from gdf_market.node.datadir import DataDir
from gdf_market.units import CREDIT
from ledger.prices import Point
from ledger.store import LedgerStore
from tests.command_kit import call
from tests.contracts_world import bid_entry, cast_all, key_of
from tests.market_ledger import MarketWorld, make_market_world

Run = Callable[..., tuple[int, str, str]]
MACS = 3 * 1_000 * 10**6  # of a unit, with a million tokens


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "400")

    def command(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, *arguments)

    return command


@pytest.fixture
def world() -> MarketWorld:
    return make_market_world()


def write(world: MarketWorld, folder: Path) -> None:
    data = DataDir(folder)
    data.genesis_file.write_bytes(encode(world.genesis))
    world.write(data.ledger)


def play_job(
    world: MarketWorld, name: str = "owner", workers: tuple[str, ...] = ("w1", "w2"), **changes: object
) -> str:
    """Play a job of one slot to its end: the workers ask 1, 2, … credits; two of them clear it at 2."""
    entry = world.job_entry(name, **({"units_per_round": 1, "rounds": 1, "tokens_per_unit": 10**6} | changes))
    world.block(entry)
    world.block(*(bid_entry(world, worker, entry.id, price) for price, worker in enumerate(workers, 1)))
    cast_all(world)
    world.play(lambda: world.job(entry.id).status == "done")
    return entry.id


def spec_of(world: MarketWorld, **changes: object) -> JobPost:
    body = world.job_entry(**({"units_per_round": 2, "rounds": 10, "tokens_per_unit": 10**6} | changes)).body
    assert isinstance(body, JobPost)
    return body


# prices


def test_prices_of_a_ledger_without_auctions(run: Run, world: MarketWorld, tmp_path: Path) -> None:
    world.block()
    write(world, tmp_path)
    code, out, _ = run("market", "prices", "--class", "cpu-bf16")
    assert (code, out) == (0, "no job of class cpu-bf16 was cleared in blocks 1 to 1\n")
    assert run("market", "prices", "--class", "tpu")[0] == 2


def test_prices_are_shown_with_a_chart_and_as_json(run: Run, world: MarketWorld, tmp_path: Path) -> None:
    play_job(world)
    play_job(world, "other", workers=("w1",), reserve_price=CREDIT)
    write(world, tmp_path)
    code, out, _ = run("market", "prices")
    assert code == 0
    assert "cpu-fp32" in out
    assert "10^12 multiply-adds" in out
    assert "credits per unit" in out
    assert "*" in out
    code, out, _ = run("market", "prices", "--json")
    (found,) = json.loads(out)["classes"]
    assert [point["price_micro"] for point in found["history"]] == [2 * CREDIT, CREDIT]
    assert (found["jobs"], found["owners"]) == (2, 2)


# estimates


def test_without_history_an_estimate_says_so(run: Run, world: MarketWorld, tmp_path: Path) -> None:
    entry = world.job_entry()
    world.block(entry)
    write(world, tmp_path)
    code, out, _ = run("market", "estimate", "--like", entry.id[:8], "--json")
    assert code == 0
    value = json.loads(out)
    assert value["price"]["likely_micro"] is value["time"]["likely_s"] is value["pay_micro"]["likely"] is None
    assert (value["price"]["sure"], value["time"]["sure"]) == ("not at all", "not at all")
    code, out, _ = run("market", "estimate", "--like", entry.id[:8])
    assert code == 0
    assert out.count("there is no history") == 2
    assert "no idle worker is known" in out
    assert "open orders are unknown" in out


def test_estimates_rest_on_auctions_rounds_and_asks(run: Run, world: MarketWorld, tmp_path: Path) -> None:
    job = play_job(world)
    write(world, tmp_path)
    code, out, _ = run("market", "estimate", "--like", job, "--rounds", "20", "--units", "2", "--json")
    assert code == 0
    value = json.loads(out)
    assert value["unit_macs"] == MACS
    assert value["price"]["likely_micro"] == 10 * CREDIT  # both idle workers are needed: nobody is left out
    assert value["price"]["low_micro"] == 2 * CREDIT  # what one auction cleared at
    assert (value["price"]["samples"], value["price"]["sure"]) == (1, "hardly")
    assert value["supply"] == {"idle_workers": 2, "units": 2}
    assert value["pay_micro"]["low"] == 2 * CREDIT * 40
    settled = world.round(job, 0)
    round_s = (settled.ended_ms - settled.started_ms) / 1_000
    assert value["time"]["round_s"] == round(round_s, 1)
    assert value["time"]["likely_s"] == pytest.approx(5 + 60 + 20 * round_s, abs=0.2)
    code, out, _ = run("market", "estimate", "--like", job, "--max-price", "1.5", "--json")
    assert json.loads(out)["price"]["high_micro"] == 1_500_000


@pytest.mark.parametrize("arguments", [(), ("x.py", "--like", "ab"), ("--like", "ab"), ("--like", "", "--rounds", "0")])
def test_an_estimate_needs_one_job_to_go_by(
    run: Run, world: MarketWorld, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    write(world, tmp_path)
    code, _, err = run("market", "estimate", *arguments)
    assert code == 2
    assert err


def test_a_file_is_estimated_without_a_network(run: Run, monkeypatch: pytest.MonkeyPatch, world: MarketWorld) -> None:
    """Capturing is tested elsewhere: here, what is made of its result."""
    from gdf_market.commands import post as posting
    from gdf_market.train import job_file

    fields = dict(msgspec.to_builtins(world.job_fields() | {"warm_rounds": 0}))

    def prepare(_app: object, _job: object, terms: Any, _title: str) -> tuple[dict[str, Any], dict[str, float]]:
        return fields | {"rounds": terms.rounds, "units_per_round": terms.units}, {"unit_s": 7.0}

    class Declared:
        rounds = units = max_price = None
        precision, title = "fp32", ""

    monkeypatch.setattr(job_file, "load_job", lambda _: Declared())
    monkeypatch.setattr(posting, "prepare_order", prepare)
    code, out, err = run("market", "estimate", "job.py", "--rounds", "3", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert value["rounds"] == 3
    assert value["time"]["round_s"] == 7.0
    assert "on this machine" in value["time"]["how"]


def test_workers_that_hold_slots_are_not_idle(world: MarketWorld, tmp_path: Path) -> None:
    entry = world.job_entry(units_per_round=1)
    world.block(entry)
    world.block(bid_entry(world, "w1", entry.id, 1), bid_entry(world, "w2", entry.id, 3, units=2))
    waiting = world.job_entry("other", units_per_round=4)
    while world.job(entry.id).status == "bidding":
        world.wake()
    world.block(waiting)
    with closing(LedgerStore(world.write(tmp_path / "ledger.sqlite"), read_only=True)) as store:
        row = {"state": "announced", "device_class": "cpu-fp32", "units_per_round": 5}
        facts = read_facts(store, "cpu-fp32", [row, row | {"device_class": "cpu-bf16"}, row | {"state": "running"}])
        other = read_facts(store, "cpu-bf16", None)
    assert facts.asks == [Ask(key_of("w2").account, 3 * CREDIT, 2)]
    assert (facts.bidding_units, facts.orders, facts.order_units) == (4, 1, 5)
    assert other == Facts(asks=[], points=[], paces=[])


def test_what_is_read_of_bids_and_rounds_is_bounded(
    world: MarketWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_job(world, rounds=4)
    play_job(world)
    path = world.write(tmp_path / "ledger.sqlite")
    for name, most in (("MAX_BIDS", 1), ("MAX_ROUNDS", 2), ("MAX_JOBS", 2)):
        monkeypatch.setattr(estimating, name, most)
    with closing(LedgerStore(path, read_only=True)) as store:
        facts = read_facts(store, "cpu-fp32", None)
    assert len(facts.asks) == 1
    assert len(facts.paces) == 3  # the one of the newest job, and the last two of the other


def point(price: int, owner: str = "a", macs: int = MACS) -> Point:
    return Point(1, 1, "job", owner, "cpu-fp32", price, 1, macs)


def test_prices_and_times_are_scaled_by_the_size_of_a_unit(world: MarketWorld) -> None:
    facts = Facts(
        points=[point(price, owner) for price in range(1_000, 11_000, 1_000) for owner in "ab"],
        paces=[Pace(seconds, MACS) for seconds in (10.0, 20.0, 60.0)],
        orders=0,
    )
    double = spec_of(world, tokens_per_unit=2 * 10**6)
    value = estimate(double, facts)
    price = value["price"]
    assert (price["low_micro"], price["likely_micro"], price["high_micro"]) == (4_000, 10_000, 18_000)  # without tenths
    assert (price["sure"], value["time"]["sure"]) == ("well", "somewhat")
    assert value["time"]["round_s"] == 40.0
    assert "scaled" in value["time"]["how"]
    unsized = estimate(spec_of(world, tokens_per_unit=0), facts)
    assert unsized["price"]["likely_micro"] == 5_000
    assert "by price per unit" in unsized["price"]["how"]
    assert "not scaled" in unsized["time"]["how"]


def test_one_owner_alone_makes_nothing_sure(world: MarketWorld) -> None:
    facts = Facts(points=[point(5, "a")] * 50, orders=0)
    assert estimate(spec_of(world), facts)["price"]["sure"] == "hardly"


def test_who_wants_workers_now_makes_them_dearer(world: MarketWorld) -> None:
    asks = [Ask(name, price * CREDIT, 1) for price, name in enumerate("abcd", 1)]
    alone = estimate(spec_of(world), Facts(asks=asks, orders=0))["price"]
    assert (alone["low_micro"], alone["likely_micro"], alone["high_micro"]) == (3 * CREDIT,) * 3
    rivals = estimate(spec_of(world), Facts(asks=asks, orders=1, order_units=1))["price"]
    assert (rivals["low_micro"], rivals["likely_micro"]) == (3 * CREDIT, 4 * CREDIT)
    many = estimate(spec_of(world), Facts(asks=asks, orders=1, order_units=64))["price"]
    assert many["high_micro"] == 10 * CREDIT
    cheap = estimate(spec_of(world, reserve_price=CREDIT), Facts(asks=asks, orders=0))["price"]
    assert cheap["high_micro"] == CREDIT


def test_sentences_name_the_range_and_how_sure_it_is(world: MarketWorld) -> None:
    facts = Facts(points=[point(CREDIT, owner) for owner in "abc"], paces=[Pace(60.0, MACS)] * 3, orders=0)
    value = estimate(spec_of(world), facts)
    assert price_sentence(value["price"]).startswith("at most 10; likely 1, from 1 to 1 (known somewhat: 3 auctions")
    assert time_sentence(value["time"]).startswith("about 11 min 05 s, from 11 min 05 s to 11 min 05 s (known somewhat")


# taking back


def test_an_order_is_taken_back_through_the_node(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Client:
        def call(self, method: str, path: str) -> dict[str, Any]:
            asked.append((method, path))
            return {"order": "3fa9" + "0" * 60, "entry": "ee", "height": 12}

    monkeypatch.setattr(module, "with_client", lambda _app, use: use(Client()))
    code, out, _ = run("market", "cancel", "3fa9")
    assert (code, asked) == (0, [("POST", "/orders/3fa9/void")])
    assert "taken back (block 12)" in out
    code, _, err = run("market", "cancel", "../stop")
    assert (code, len(asked)) == (2, 1)
    assert "market ls" in err
