"""Prices are those of the ledger's auctions, one for each, of a window of blocks, with what they rest on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.auction import describe_match, read_match
from gdf_market.messages import JobCancel
from gdf_market.units import CREDIT, MAX_INT
from ledger import prices
from ledger.prices import Point, price_report, range_of, read_points, summarize
from ledger.store import LedgerStore
from tests.contracts_world import bid_entry, key_of
from tests.market_ledger import MarketWorld, make_market_world


@given(st.integers(0, 64), st.integers(0, MAX_INT))
def test_an_event_tells_slots_and_price_exactly(slots: int, price: int) -> None:
    assert read_match(describe_match(slots, price)) == (slots, price)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 slots",
        "3 slots at ",
        "x slots at 3",
        "3 slots at 3.1234567",
        "3 slots at -1",
        "² slots at 3",
        "3 slots at 1e9",
    ],
)
def test_what_is_no_match_has_no_price(text: str) -> None:
    assert read_match(text) is None


def clear(world: MarketWorld, name: str = "owner", workers: tuple[str, ...] = ("w1", "w2"), **changes: object) -> str:
    """Post a job for which the workers ask 1, 2, … credits: with one slot, two of them clear it at 2."""
    entry = world.job_entry(name, **({"units_per_round": 1, "rounds": 1} | changes))
    world.block(entry)
    world.block(*(bid_entry(world, worker, entry.id, price) for price, worker in enumerate(workers, 1)))
    wake_until(world, lambda: world.job(entry.id).status == "running")
    return entry.id


def wake_until(world: MarketWorld, holds: Callable[[], bool]) -> None:
    for _ in range(50):
        if holds():
            return
        world.wake()
    raise AssertionError("not within 50 blocks")


def read(world: MarketWorld, folder: Path, **options: object) -> list[Point]:
    with closing(LedgerStore(world.write(folder / "ledger.sqlite"), read_only=True)) as store:
        return read_points(store, **options)  # type: ignore[arg-type]


def test_a_point_is_what_an_auction_cleared_at(tmp_path: Path) -> None:
    world = make_market_world()
    job = clear(world, tokens_per_unit=1_000_000, parameters=1_000)
    (point,) = read(world, tmp_path)
    assert point == Point(
        height=world.height,
        time_ms=world.time_ms,
        job=job,
        owner=key_of("owner").account,
        device_class="cpu-fp32",
        price=world.job(job).clearing_price,
        slots=1,
        macs=3 * 1_000 * 1_000_000,
    )
    assert point.price == 2 * CREDIT
    assert point.per_tera == 2 * CREDIT * 10**12 // (3 * 10**9)


def test_ended_jobs_count_and_who_joins_later_does_not(tmp_path: Path) -> None:
    world = make_market_world()
    job = clear(world, workers=("w1",), units_per_round=2, rounds=3)  # nobody was left out: the reserve price
    world.block(bid_entry(world, "w3", job, 1))
    wake_until(world, lambda: world.bid(job, "w3").status == "matched")
    assert [point.slots for point in read(world, tmp_path)] == [1]
    world.block(world.entry("owner", JobCancel, job=job))
    wake_until(world, lambda: world.job(job).status == "cancelled")
    clear(world, "other")
    points = read(world, tmp_path)
    assert [point.price for point in points] == [10 * CREDIT, 2 * CREDIT]
    assert [point.owner for point in points] == [key_of("owner").account, key_of("other").account]


def test_only_blocks_of_the_window_count(tmp_path: Path) -> None:
    world = make_market_world()
    clear(world)
    then = world.height
    clear(world)
    assert len(read(world, tmp_path)) == 2
    assert len(read(world, tmp_path, blocks=world.height - then + 1)) == 2
    assert len(read(world, tmp_path, blocks=world.height - then)) == 1


def test_classes_are_told_apart(tmp_path: Path) -> None:
    world = make_market_world()
    clear(world)
    assert read(world, tmp_path, device_class="cuda-fp32") == []
    assert len(read(world, tmp_path, device_class="cpu-fp32")) == 1


def test_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_market_world()
    jobs = [clear(world) for _ in range(3)]
    monkeypatch.setattr(prices, "MAX_POINTS", 2)
    assert [point.job for point in read(world, tmp_path)] == jobs[1:]
    monkeypatch.setattr(prices, "MAX_MATCHES", 1)
    assert [point.job for point in read(world, tmp_path)] == jobs[2:]


def test_an_empty_ledger_has_no_prices(tmp_path: Path) -> None:
    world = make_market_world()
    assert read(world, tmp_path) == []
    with closing(LedgerStore(tmp_path / "ledger.sqlite", read_only=True)) as store:
        assert price_report(store) == {"from_height": 0, "to_height": 0, "classes": []}


def test_the_summary_says_what_it_rests_on(tmp_path: Path) -> None:
    world = make_market_world()
    for name, changes in (("owner", {}), ("owner", {"units_per_round": 2}), ("other", {"tokens_per_unit": 10**9})):
        clear(world, name, **changes)
    (index,) = summarize(read(world, tmp_path))
    assert (index.points, index.jobs, index.owners) == (3, 3, 2)
    assert index.per_unit == range_of([2 * CREDIT, 10 * CREDIT, 2 * CREDIT])
    assert (index.per_unit.last, index.per_unit.median, index.per_unit.most) == (2 * CREDIT, 2 * CREDIT, 10 * CREDIT)
    assert index.per_tera is not None
    assert index.per_tera.last == 2 * CREDIT * 10**12 // (3 * 1_000 * 10**9)


def test_the_report_is_plain_json_with_its_unit_in_the_name(tmp_path: Path) -> None:
    world = make_market_world()
    job = clear(world, tokens_per_unit=0)
    with closing(LedgerStore(world.write(tmp_path / "ledger.sqlite"), read_only=True)) as store:
        value = price_report(store, blocks=50)
    assert (value["from_height"], value["to_height"]) == (1, world.height)
    (found,) = value["classes"]
    assert found["per_unit_micro"] == {
        "last": 2 * CREDIT,
        "median": 2 * CREDIT,
        "least": 2 * CREDIT,
        "most": 2 * CREDIT,
    }
    assert found["per_tera_macs_micro"] is None  # samples of unknown size
    (point,) = found["history"]
    assert (point["job"], point["price_micro"], point["height"]) == (job, 2 * CREDIT, world.height)
