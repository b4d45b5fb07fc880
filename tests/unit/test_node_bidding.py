"""The bidder against the real rules: when it bids, with how many units, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from contracts.records import Job
from gdf_market.book.core import OrderBook
from gdf_market.messages import Bid, BidWithdraw, JobCancel
from gdf_market.node import bidding as module
from gdf_market.node.bidding import Bidder
from gdf_market.node.choosing import Promise, compute_rank, count_units, promise_of
from gdf_market.node.ledger_service import NotFinalError
from gdf_market.node.runner_process import RequestFailedError
from gdf_market.train.sizing import WORK_SHARE
from gdf_market.units import CREDIT
from tests.contracts_world import STEPS, World, bid_entry, key_of, make_world, post, start, text_hash
from tests.node_kit import Kit, make_kit, turn


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Kit:
    return make_kit(tmp_path, monkeypatch, world, "w1", min_price=2 * CREDIT, units=3)


@pytest.fixture
def book(world: World) -> OrderBook:
    return OrderBook(world.network)


@pytest.fixture
def bidder(kit: Kit, book: OrderBook) -> Bidder:
    return Bidder(kit.context, book, device_class="cpu-fp32")


async def act(bidder: Bidder) -> None:
    await turn(bidder._start_due)
    assert bidder._bidding == bidder._prefetching == set()


async def until_bid(kit: Kit) -> None:
    with trio.fail_after(20):
        await kit.ledger.accepted.wait()
    assert kit.ledger.kinds == ["Bid"]


def posted(kit: Kit, **changes: object) -> str:
    return post(kit.world, **(kit.blobs_of_job() | {"units_per_round": 4} | changes))


def announce(world: World, book: OrderBook, kit: Kit, name: str = "owner", **changes: object) -> str:
    entry = world.job_entry(name, **(kit.blobs_of_job() | changes))
    book.on_order(entry.raw, key_of(name).account, world.time_ms, balance_of=lambda _: 10**12, escrow_of=lambda _: 1)
    return entry.id


async def test_it_bids_its_true_cost_once_and_probes_once(world: World, kit: Kit, bidder: Bidder) -> None:
    job = posted(kit)
    await act(bidder)
    await act(bidder)
    (entry,) = kit.ledger.entries
    assert isinstance(entry.body, Bid)
    assert (entry.body.price, entry.body.units, entry.body.device_class) == (2 * CREDIT, 3, "cpu-fp32")
    assert world.bid(job, "w1").status == "open"
    assert bidder.reasons == {}
    assert kit.trainer.calls["probe"] == 1
    assert "bid 2" in kit.notes["bid"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"reserve_price": CREDIT}, "pays at most 1"),
        ({"device_class": "cuda-fp32"}, "cuda-fp32"),
        ({"unit_bond": 1_001 * CREDIT}, "bond"),
        ({"work_ms": 1}, "beside other work"),
        ({"program": text_hash("nowhere")}, "no peer has"),
    ],
)
async def test_it_says_why_it_does_not_bid(kit: Kit, bidder: Bidder, changes: dict[str, Any], word: str) -> None:
    job = posted(kit, **changes)
    await act(bidder)
    assert kit.ledger.entries == []
    assert word in bidder.reasons[job]


async def test_it_does_not_take_its_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World, book: OrderBook
) -> None:
    kit = make_kit(tmp_path, monkeypatch, world, "owner")
    job = posted(kit)
    bidder = Bidder(kit.context, book, device_class="cpu-fp32")
    await act(bidder)
    assert bidder.reasons == {job: "posted by this account"}


async def test_it_bids_for_as_many_units_as_it_can_lock_bonds_for(kit: Kit, bidder: Bidder) -> None:
    posted(kit, unit_bond=400 * CREDIT)
    await act(bidder)
    assert [entry.body.units for entry in kit.ledger.entries] == [2]


@pytest.mark.parametrize(("work_s", "units"), [(13, 1), (26, 2), (60, 3)])
async def test_it_bids_for_as_many_units_as_fit_in_the_work_phase(
    kit: Kit, bidder: Bidder, work_s: int, units: int
) -> None:
    kit.trainer.step_s = 10 / STEPS  # 10 s a unit; 80% of the phase may be used
    posted(kit, work_ms=1_000 * work_s)
    await act(bidder)
    assert [entry.body.units for entry in kit.ledger.entries] == [units]


async def test_what_it_promised_elsewhere_is_not_promised_again(kit: Kit, bidder: Bidder) -> None:
    kit.trainer.step_s = 10 / STEPS
    first = posted(kit, work_ms=60_000)
    await act(bidder)
    second = posted(kit, work_ms=60_000, title="second")  # 48 s, of which 30 are taken
    third = posted(kit, work_ms=60_000, title="third")
    await act(bidder)
    await act(bidder)
    bids = {entry.body.job: entry.body.units for entry in kit.ledger.entries}
    assert bids.pop(first) == 3
    assert list(bids.values()) == [1]  # considered at the same time, one of them came first
    (other,) = {second, third} - set(bids)
    assert "beside other work" in bidder.reasons[other]


# several jobs


def bids(kit: Kit) -> list[tuple[str, int]]:
    """Return (job, units) of every bid so far."""
    return [(entry.body.job, entry.body.units) for entry in kit.ledger.entries if isinstance(entry.body, Bid)]


def end(world: World, job: str) -> None:
    world.block(world.entry("owner", JobCancel, job=job))
    while world.job(job).status != "cancelled":
        world.wake()


async def test_the_job_that_pays_this_machine_best_gets_its_time(world: World, kit: Kit, bidder: Bidder) -> None:
    kit.trainer.step_s = 10 / STEPS
    cheap = posted(kit, work_ms=13_000, reserve_price=4 * CREDIT)
    dear = posted(kit, work_ms=13_000, reserve_price=8 * CREDIT)
    await act(bidder)
    assert bids(kit) == [(dear, 1)]
    assert "beside other work" in bidder.reasons[cheap]
    assert bidder.standing(cheap) == bidder.reasons[cheap]
    assert bidder.standing(dear) == "bids 2 for up to 1 units; the window is open"


async def test_of_equal_pay_the_job_that_lacks_workers_comes_first_then_the_oldest(
    world: World, kit: Kit, bidder: Bidder
) -> None:
    kit.trainer.step_s = 10 / STEPS
    terms: dict[str, Any] = {"work_ms": 13_000, "units_per_round": 3}
    served = start(world, "w2", **(kit.blobs_of_job() | terms))
    late = posted(kit, **terms, reserve_price=10 * CREDIT + 1)  # a little more is no more
    later = posted(kit, **terms)
    ranks = sorted((served, late, later), key=lambda job: compute_rank(world.job(job), kit.trainer.step_s))
    assert ranks == [late, later, served]
    await act(bidder)
    assert bids(kit) == [(late, 1)]


async def test_time_promised_before_a_restart_is_not_promised_again(
    world: World, kit: Kit, book: OrderBook, bidder: Bidder, autojump_clock: trio.testing.MockClock
) -> None:
    kit.trainer.step_s = 10 / STEPS
    first = posted(kit, work_ms=60_000)
    await act(bidder)
    again = Bidder(kit.context, book, device_class="cpu-fp32")
    kit.trainer.hangs = True  # what it promised cannot be measured now
    recipe = msgspec.structs.replace(kit.world.job_fields()["recipe"], batch=64)  # type: ignore[type-var]
    second = posted(kit, work_ms=60_000, bid_ms=600_000, recipe=recipe)
    again._ready[module._step_key(world.job(second).spec)] = 1 / STEPS
    await act(again)
    assert bids(kit) == [(first, 3)]
    assert "beside other work" in again.reasons[second]
    kit.trainer.hangs = False
    world.time_ms += module.SLOW_RETRY_MS
    await act(again)
    assert bids(kit)[1:] == [(second, 3)]


async def test_a_long_job_does_not_take_the_time_of_a_short_one(world: World, kit: Kit, bidder: Bidder) -> None:
    """Their rounds may begin together: a unit of the short one would wait for all of the long one's."""
    kit.trainer.step_s = 10 / STEPS
    short = posted(kit, work_ms=26_000)
    await act(bidder)
    long = posted(kit, work_ms=600_000, title="long")
    await act(bidder)
    assert bids(kit) == [(short, 2)]
    assert "beside other work" in bidder.reasons[long]
    end(world, short)
    await act(bidder)
    assert bids(kit)[1:] == [(long, 3)]  # time that is free again is offered again


async def test_an_open_bid_is_raised_once_a_window_when_time_is_free_again(
    world: World, kit: Kit, bidder: Bidder
) -> None:
    kit.trainer.step_s = 10 / STEPS
    first, second = posted(kit, work_ms=60_000), ""
    await act(bidder)
    second = posted(kit, work_ms=60_000, bid_ms=3_000_000)
    await act(bidder)
    assert bids(kit) == [(first, 3), (second, 1)]
    end(world, first)
    await act(bidder)
    assert bids(kit)[2:] == [(second, 3)]
    assert world.bid(second, "w1").units == 3
    kit.trainer.step_s = 0.0  # more would fit still
    for _ in range(3):
        await act(bidder)
    assert len(bids(kit)) == 3


@pytest.mark.parametrize(("bid_ms", "wait_ms"), [(100_000, module.COMPARE_MS), (10_000, 5_000)])
async def test_a_job_waits_a_while_for_better_ones_that_are_being_measured(
    world: World, kit: Kit, bidder: Bidder, autojump_clock: trio.testing.MockClock, bid_ms: int, wait_ms: int
) -> None:
    job = posted(kit, bid_ms=100_000)
    await act(bidder)
    end(world, job)
    kit.ledger.entries.clear()
    kit.ledger.accepted = trio.Event()
    slow = kit.blobs.put_bytes(b"slow")
    kit.bulk.hangs.add(slow)
    unknown, known = posted(kit, bid_ms=100_000, program=slow), posted(kit, bid_ms=bid_ms)
    async with trio.open_nursery() as nursery:
        bidder._start_due(nursery)
        await trio.sleep(1)
        assert bidder._measuring == {unknown}
        bidder._start_due(nursery)
        assert bids(kit) == []
        assert "being measured" in bidder.reasons[known]
        world.time_ms += wait_ms
        bidder._start_due(nursery)
        await until_bid(kit)
        nursery.cancel_scope.cancel()
    assert bids(kit) == [(known, 3)]
    assert bidder._measuring == set()


async def test_no_bid_above_the_price_of_workers_that_stayed(world: World, kit: Kit, bidder: Bidder) -> None:
    job = start(world, "w2", "w3", units_per_round=3, reserve_price=2 * CREDIT, **kit.blobs_of_job())
    assert world.job(job).clearing_price == 2 * CREDIT
    await act(bidder)
    assert bids(kit) == [(job, 1)]
    cheap = posted(kit, units_per_round=2, audit_budget=0, title="cheap", bid_ms=1_000)
    world.block(*(bid_entry(world, name, cheap, 1) for name in ("w2", "w3", "other")))
    while world.job(cheap).status == "bidding":
        world.wake()
    left = next(name for name in ("w2", "w3", "other") if key_of(name).account in world.job(cheap).slots)
    world.block(world.entry(left, BidWithdraw, job=cheap))
    while "" not in world.job(cheap).slots:
        world.wake()
    await act(bidder)
    assert bidder.reasons[cheap] == "its slots go at 1 credits; this worker asks 2"


async def test_what_the_ledger_says_of_the_last_bid_is_a_reason(world: World, kit: Kit, bidder: Bidder) -> None:
    job = posted(kit, units_per_round=1)
    await act(bidder)
    world.block(bid_entry(world, "w2", job, 1))
    world.wake()
    await act(bidder)
    assert bidder.standing(job) == "every slot is taken (outbid: asked 2, the slots went at 2)"
    mine = posted(kit, units_per_round=1, title="mine")
    await act(bidder)
    world.wake()
    assert bidder.standing(mine) == "holds 1 slots at 10"


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.001, 60), st.integers(1, 64)), max_size=8))
def test_all_that_was_promised_fits_into_the_shortest_work_phase(wanted: list[tuple[int, float, int]]) -> None:
    world = make_world()
    promises: list[Promise] = []
    for work_s, step_s, most in wanted:
        entry = world.job_entry(work_ms=1_000 * work_s)
        job = Job(
            id=entry.id, spec=entry.body, status="bidding", posted_ms=0, phase_end_ms=0, escrow=0, audit_escrow=0,
            checkpoint=entry.id,
        )  # fmt: skip
        units = min(most, count_units(job, step_s, promises))
        if units:
            promises.append(promise_of(job, units, step_s))
        shortest = min((promise.work_s for promise in promises), default=1)
        assert sum(promise.seconds for promise in promises) <= WORK_SHARE * shortest * 1.0001


async def test_another_recipe_is_probed_again(kit: Kit, bidder: Bidder) -> None:
    posted(kit)
    recipe = kit.world.job_fields()["recipe"]
    posted(kit, recipe=msgspec.structs.replace(recipe, batch=64))  # type: ignore[type-var]
    await act(bidder)
    assert kit.trainer.calls["probe"] == 2


async def test_a_failed_bid_is_repeated_after_a_pause(world: World, kit: Kit, bidder: Bidder) -> None:
    job = posted(kit)
    kit.ledger.refuse_next = NotFinalError("late")
    await act(bidder)
    assert bidder.reasons == {job: "late"}
    await act(bidder)
    assert kit.ledger.entries == []
    world.time_ms += module.RETRY_MS
    await act(bidder)
    assert kit.ledger.kinds == ["Bid"]
    assert bidder.reasons == {}


async def test_a_program_that_hangs_holds_the_runner_up_less_and_less_often(
    world: World, kit: Kit, bidder: Bidder, autojump_clock: trio.testing.MockClock
) -> None:
    job = posted(kit, bid_ms=1_000_000_000)
    kit.trainer.hangs = True
    began = trio.current_time()
    await act(bidder)
    assert trio.current_time() - began == pytest.approx(module.PROBE_S)
    assert "not done within 120 s" in bidder.reasons[job]
    pauses = []
    for _ in range(8):
        pauses.append(bidder._retry[job] - world.time_ms)
        world.time_ms = bidder._retry[job]
        await act(bidder)
    assert pauses[:3] == [60_000, 120_000, 240_000]
    assert pauses[-1] == module.MAX_RETRY_MS


async def test_a_program_that_does_not_fit_here_is_refused_with_the_reason(
    world: World, kit: Kit, bidder: Bidder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(**_: object) -> float:
        kit.trainer.calls["probe"] += 1
        await trio.lowlevel.checkpoint()
        raise RequestFailedError("not even one row of a batch fits", "OversizedError")

    monkeypatch.setattr(kit.trainer, "probe", probe)
    job = posted(kit)
    await act(bidder)
    assert bidder.reasons == {job: "cannot be run here: not even one row of a batch fits"}
    assert kit.ledger.entries == []
    world.time_ms += module.RETRY_MS
    await act(bidder)
    assert kit.trainer.calls["probe"] == 1  # it will not fit in five seconds, either
    assert bidder._retry[job] - world.time_ms == module.SLOW_RETRY_MS - module.RETRY_MS


async def test_no_bid_where_no_audit_can_be_answered_in_time(
    world: World, kit: Kit, book: OrderBook, bidder: Bidder
) -> None:
    order = announce(world, book, kit, audit_ms=1)
    await act(bidder)
    assert bidder.reasons[order] == "gives 0.001 s to answer an audit, on pain of pay and bond; this worker needs 10 s"
    assert kit.ledger.entries == []


async def test_no_bid_on_what_an_honest_audit_would_not_pass(kit: Kit, bidder: Bidder) -> None:
    kit.trainer.repeat_excess_ppb = 470_000
    job = posted(kit)
    await act(bidder)
    assert "cannot be repeated" in bidder.reasons[job]
    assert "4.7e-04" in bidder.reasons[job]
    assert kit.ledger.entries == []


async def test_orders_are_prefetched_a_few_at_a_time_and_do_not_hold_jobs_up(
    world: World, kit: Kit, book: OrderBook, bidder: Bidder
) -> None:
    slow = kit.blobs.put_bytes(b"slow")
    kit.bulk.hangs.add(slow)
    for number in range(module.MAX_PREFETCHING + 2):
        announce(world, book, kit, program=slow, title=f"order {number}")
    job = posted(kit)
    async with trio.open_nursery() as nursery:
        bidder._start_due(nursery)
        await until_bid(kit)
        assert len(bidder._prefetching) == module.MAX_PREFETCHING
        assert kit.bulk.fetched[slow] == 1  # one download for all of them
        nursery.cancel_scope.cancel()
    assert world.bid(job, "w1").status == "open"
    assert bidder._prefetching == set()
    assert kit.context._fetching == {}


async def test_an_order_that_fits_is_fetched_and_probed_before_it_is_a_job(
    world: World, kit: Kit, book: OrderBook, bidder: Bidder
) -> None:
    order = announce(world, book, kit)
    dear = announce(world, book, kit, "other", reserve_price=CREDIT)
    await act(bidder)
    assert kit.trainer.calls["probe"] == 1
    assert kit.ledger.entries == []
    assert list(bidder.reasons) == [dear]
    assert order not in bidder.reasons


async def test_what_is_gone_is_forgotten(world: World, kit: Kit, book: OrderBook, bidder: Bidder) -> None:
    announce(world, book, kit, program=text_hash("nowhere"))
    await act(bidder)
    assert bidder.reasons
    assert bidder._retry
    book.expire(world.time_ms + 10**9)
    await act(bidder)
    assert bidder.reasons == bidder._retry == bidder._slow == {}


async def test_it_does_not_bid_on_full_or_ended_jobs(world: World, kit: Kit, bidder: Bidder) -> None:
    job = start(world, "w2", **kit.blobs_of_job())
    await act(bidder)
    assert bidder.reasons == {job: "every slot is taken"}


async def test_the_price_of_a_live_bid_is_its_own_reason_for_nothing(world: World, kit: Kit, bidder: Bidder) -> None:
    """An account whose whole balance is locked as bond in a job still fits that job."""
    job = posted(kit, unit_bond=333 * CREDIT)
    await act(bidder)
    assert world.balance("w1") == CREDIT
    assert bidder.unfit(job, world.job(job).spec) == ""
    await act(bidder)
    assert bidder.reasons == {}


async def test_a_loop_that_is_cancelled_ends(kit: Kit, bidder: Bidder) -> None:
    posted(kit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bidder.run)
        await until_bid(kit)
        await kit.ledger.blocked.wait()
        nursery.cancel_scope.cancel()
    assert bidder._bidding == set()
    assert kit.ledger.kinds == ["Bid"]
