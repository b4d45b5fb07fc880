"""Bids, bonds, and the uniform-price auction."""

from collections.abc import Sequence

import pytest

from contracts.auction import Fill, compute_fill
from contracts.draws import compute_draw
from contracts.parameters import MAX_BIDDERS
from contracts.records import Bid as BidRecord
from gdf_market.messages import BidWithdraw, JobCancel
from gdf_market.units import CREDIT
from tests.contracts_world import (
    Actor,
    World,
    bid_entry,
    cast_all,
    key_of,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
    text_hash,
)


def bids_of(offers: Sequence[tuple[str, int, int]]) -> list[BidRecord]:
    return [
        BidRecord(
            job="00" * 32,
            worker=name,
            price=price,
            units=units,
            device_class="cpu-fp32",
            bond=0,
            status="open",
            entry="00" * 32,
        )
        for name, price, units in offers
    ]


@pytest.mark.parametrize(
    ("offers", "vacant", "workers", "least", "slots", "price"),
    [
        ([("a", 3, 1), ("b", 5, 1), ("c", 7, 1)], 2, 0, 1, {"a": 1, "b": 1}, 7),  # the first price without a slot
        ([("a", 3, 1), ("b", 5, 1)], 2, 0, 1, {"a": 1, "b": 1}, 10),  # nobody left over: the reserve
        ([("a", 3, 4)], 2, 0, 1, {"a": 2}, 3),  # its own units are left over
        ([("a", 3, 1), ("b", 5, 4), ("c", 9, 1)], 3, 0, 1, {"a": 1, "b": 2}, 5),  # partly filled
        ([("a", 3, 1)], 3, 0, 1, {"a": 1}, 10),  # fewer offers than slots
        ([("a", 3, 4), ("b", 5, 1)], 4, 0, 2, {"a": 3, "b": 1}, 5),  # a slot is kept for the second worker …
        ([("a", 3, 4), ("b", 5, 4), ("c", 6, 4)], 3, 0, 3, {"a": 1, "b": 1, "c": 1}, 6),  # … nobody below its price
        ([("a", 3, 1), ("b", 5, 1)], 4, 0, 3, {}, 10),  # too few workers
        ([("a", 3, 1), ("b", 5, 1)], 4, 1, 3, {"a": 1, "b": 1}, 10),  # … unless one holds slots already
        ([("a", 3, 2), ("b", 5, 2)], 2, 2, 3, {"a": 2}, 5),
        ([], 2, 0, 1, {}, 10),
        ([], 2, 1, 1, {}, 10),
    ],
)
def test_compute_fill(
    offers: list[tuple[str, int, int]], vacant: int, workers: int, least: int, slots: dict[str, int], price: int
) -> None:
    assert compute_fill(bids_of(offers), vacant, workers, least, 10) == Fill(slots, price)


# bids


def test_bid_locks_the_bond() -> None:
    world = make_world()
    job = post(world)
    world.block(bid_entry(world, "w1", job, units=2))
    assert world.balance("w1") == 960 * CREDIT
    bid = world.bid(job, "w1")
    assert (bid.status, bid.bond, bid.units, bid.entry) == ("open", 40 * CREDIT, 2, world.entries[-1].id)
    assert world.job(job).bidders == (key_of("w1").account,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"price": 11}, "11 credits per unit is above the reserve 10"),
        ({"device_class": "cuda-fp32"}, "the job is for cpu-fp32, the bid offers cuda-fp32"),
        ({"units": 51}, "the bond takes 1020 credits"),
        ({"job": "00" * 32}, "no job 0000"),
    ],
)
def test_bid_refuses(changes: dict[str, object], reason: str) -> None:
    world = make_world()
    fields = {"job": post(world)} | changes
    world.refuse(bid_entry(world, "w1", **fields), reason)  # type: ignore[arg-type]


def test_a_bid_at_the_reserve_price_with_the_whole_balance_is_taken() -> None:
    world = make_world()
    job = post(world)
    world.block(bid_entry(world, "w1", job, price=10, units=50))
    assert world.balance("w1") == 0


def test_a_worker_without_credits_can_bid_where_no_bond_is_asked() -> None:
    world = make_world()
    job = post(world, unit_bond=0)
    world.block(bid_entry(world, "newcomer", job, units=64))
    cast_all(world, "newcomer")
    play_to_end(world)
    assert world.balance("newcomer") > 0


def test_a_new_bid_replaces_an_open_one() -> None:
    world = make_world()
    job = post(world)
    world.block(bid_entry(world, "w1", job, price=9, units=2))
    world.block(bid_entry(world, "w1", job, price=4, units=1))
    bid = world.bid(job, "w1")
    assert (bid.price, bid.units, bid.bond) == (4 * CREDIT, 1, 20 * CREDIT)
    assert world.balance("w1") == 980 * CREDIT
    world.block(bid_entry(world, "w1", job, price=4, units=3))
    assert world.balance("w1") == 940 * CREDIT
    assert len(world.job(job).bidders) == 1


def test_a_matched_worker_cannot_bid_again() -> None:
    world = make_world()
    job = start(world, "w1", units_per_round=2)
    world.refuse(bid_entry(world, "w1", job), "holds slots of job")


def test_no_bids_without_a_vacant_slot_or_after_the_end() -> None:
    world = make_world()
    job = start(world, "w1", rounds=1)
    world.refuse(bid_entry(world, "w2", job), "is running and has no vacant slot")
    cast_all(world)
    play_to_end(world)
    world.refuse(bid_entry(world, "w2", job), "is done and has no vacant slot")


def test_no_bids_on_a_job_that_is_being_cancelled() -> None:
    world = make_world()
    job = post(world)
    cancel = world.entry("owner", JobCancel, job=job)
    late = bid_entry(world, "w1", job)
    world.block(cancel)
    world.refuse(late, "is cancelled and has no vacant slot")


def test_bidders_are_limited_and_settled_ones_make_room() -> None:
    names = [f"bidder{number}" for number in range(MAX_BIDDERS)]
    world = World({"owner": 100 * CREDIT, "w1": CREDIT, "val": CREDIT})
    world.check = False
    job = post(world, unit_bond=0)
    for at in range(0, MAX_BIDDERS, 64):
        world.block(*(bid_entry(world, name, job) for name in names[at : at + 64]), dt=1)
    assert len(world.job(job).bidders) == MAX_BIDDERS
    world.refuse(bid_entry(world, "w1", job), "has 256 bidders")
    world.block(world.entry("bidder7", BidWithdraw, job=job), bid_entry(world, "w1", job), dt=1)
    bidders = world.job(job).bidders
    assert len(bidders) == MAX_BIDDERS
    assert key_of("bidder7").account not in bidders
    assert world.state.bid(job, key_of("bidder7").account) is None
    assert bidders[-1] == key_of("w1").account


# withdrawing


def test_withdrawing_an_open_bid_returns_its_bond() -> None:
    world = make_world()
    job = post(world)
    world.block(bid_entry(world, "w1", job))
    world.block(world.entry("w1", BidWithdraw, job=job))
    bid = world.bid(job, "w1")
    assert (bid.status, bid.reason, bid.bond) == ("closed", "withdrawn", 0)
    assert world.balance("w1") == 1_000 * CREDIT
    world.refuse(world.entry("w1", BidWithdraw, job=job), "is closed: withdrawn")


def test_withdrawing_needs_a_bid() -> None:
    world = make_world()
    world.refuse(world.entry("w1", BidWithdraw, job=post(world)), "has no bid")


def test_a_matched_worker_leaves_when_its_round_ends() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=3)
    cast_all(world)
    play_to(world, job, "reveal")
    world.block(world.entry("w1", BidWithdraw, job=job))
    assert world.bid(job, "w1").leaving
    world.refuse(world.entry("w1", BidWithdraw, job=job), "leaves job .* already")
    play_to(world, job, "work", 1)
    assert world.unit(job, 0, 0).status == "accepted"
    bid = world.bid(job, "w1")
    assert (bid.status, bid.leaving, bid.unsettled) == ("closed", False, 1)
    assert bid.bond == 20 * CREDIT  # its unit may still be convicted
    assert world.job(job).slots == ("", key_of("w2").account)
    assert world.round(job, 1).units == (1,)
    play_to_end(world)
    assert world.bid(job, "w1").bond == 0
    assert world.balance("w1") > 1_000 * CREDIT


def test_a_matched_worker_between_rounds_leaves_at_once() -> None:
    world = make_world()
    job = start(world, "w1", "w2", "w3", min_workers=3, rounds=3)
    cast_all(world, skips=frozenset({"commit"}))
    world.block(world.entry("w3", BidWithdraw, job=job))
    play_to(world, job, "void")
    assert world.job(job).status == "bidding"  # two are not enough
    world.block(world.entry("w2", BidWithdraw, job=job))
    assert world.bid(job, "w2").status == "closed"
    assert world.balance("w2") == 1_000 * CREDIT


# auction


def test_the_cheapest_get_the_slots_at_the_first_rejected_price() -> None:
    world = make_world()
    job = post(world, units_per_round=2)
    offers = {"w1": 7, "w2": 3, "w3": 5}
    world.block(*(bid_entry(world, name, job, price) for name, price in offers.items()))
    world.wake()
    state = world.job(job)
    assert (state.status, state.clearing_price) == ("running", 7 * CREDIT)
    assert state.slots == (key_of("w2").account, key_of("w3").account)
    lost = world.bid(job, "w1")
    assert (lost.status, lost.bond) == ("closed", 0)
    assert lost.reason == "outbid: asked 7, the slots went at 7"
    assert world.balance("w1") == 1_000 * CREDIT
    assert world.round(job, 0).price == 7 * CREDIT
    assert {"matched", "unmatched", "round"} <= set(world.kinds())


def test_a_bid_filled_in_part_gets_the_rest_of_its_bond_back() -> None:
    world = make_world()
    job = post(world, units_per_round=3)
    world.block(bid_entry(world, "w1", job, 3, units=1), bid_entry(world, "w2", job, 4, units=5))
    assert world.balance("w2") == 900 * CREDIT
    world.wake()
    assert world.job(job).slots.count(key_of("w2").account) == 2
    assert world.bid(job, "w2").bond == 40 * CREDIT
    assert world.balance("w2") == 960 * CREDIT
    assert world.job(job).clearing_price == 4 * CREDIT


def test_ties_are_broken_by_the_beacon() -> None:
    winners = set()
    for salt in range(12):
        world = make_world()
        for _ in range(salt):
            world.block()
        job = post(world, units_per_round=1)
        world.block(*(bid_entry(world, name, job, 5) for name in ("w1", "w2", "w3")))
        world.wake()
        beacon = text_hash("beacon", world.height)
        names = sorted(("w1", "w2", "w3"), key=lambda n: compute_draw("gdf/auction", beacon, key_of(n).account))
        assert world.job(job).slots == (key_of(names[0]).account,)
        winners.add(names[0])
    assert len(winners) > 1


def test_too_few_workers_extend_the_window_and_keep_the_bids() -> None:
    world = make_world()
    job = post(world, min_workers=2, units_per_round=3)
    world.block(bid_entry(world, "w1", job, units=3))
    world.wake()
    state = world.job(job)
    assert (state.status, state.reason) == ("bidding", "waits for 1 more workers")
    assert state.phase_end_ms == world.time_ms + state.spec.bid_ms
    assert world.bid(job, "w1").status == "open"
    world.block(bid_entry(world, "w2", job, price=8))
    world.wake()
    state = world.job(job)
    assert (state.status, state.reason) == ("running", "")
    # one slot is kept for the second worker; nobody is paid less than it asked for
    assert state.slots == (key_of("w1").account, key_of("w1").account, key_of("w2").account)
    assert state.clearing_price == 8 * CREDIT


def test_a_vacancy_is_filled_at_the_price_and_dearer_bids_are_closed() -> None:
    world = make_world()
    job = post(world, units_per_round=2, rounds=3)
    world.block(bid_entry(world, "w1", job, 3), bid_entry(world, "w2", job, 6, units=2))
    world.wake()
    cast_all(world)
    assert world.job(job).clearing_price == 6 * CREDIT
    world.block(world.entry("w2", BidWithdraw, job=job))
    play_to(world, job, "work", 1)
    assert world.job(job).slots == (key_of("w1").account, "")
    world.block(bid_entry(world, "w3", job, 7), bid_entry(world, "other", job, 6))
    play_to(world, job, "work", 2)
    assert world.job(job).slots == (key_of("w1").account, key_of("other").account)
    assert world.bid(job, "w3").reason == "outbid: asked 7, the slots went at 6"
    assert world.round(job, 2).price == 6 * CREDIT


def test_below_the_least_number_of_workers_the_job_bids_again_at_its_price() -> None:
    world = make_world()
    job = post(world, units_per_round=2, min_workers=2, rounds=4)
    world.block(bid_entry(world, "w1", job, 3), bid_entry(world, "w2", job, 5, units=2))
    world.wake()
    assert world.job(job).clearing_price == 5 * CREDIT
    cast_all(world)
    world.block(world.entry("w2", BidWithdraw, job=job))
    play_to(world, job, "settled")
    assert world.job(job).status == "bidding"
    assert world.job(job).reason == "has 1 of the 2 workers it needs"
    world.block(bid_entry(world, "w3", job, 6))
    world.wake()
    assert world.job(job).reason == "waits for 1 more workers at 5 credits per unit or less"
    assert world.bid(job, "w3").status == "open"
    world.block(bid_entry(world, "other", job, 4))
    world.play(lambda: world.job(job).status == "running")
    assert world.job(job).clearing_price == 5 * CREDIT
    assert key_of("other").account in world.job(job).slots
    assert world.bid(job, "w3").status == "closed"


def test_without_any_worker_left_the_price_is_found_anew() -> None:
    world = make_world()
    job = start(world, "w1", rounds=4)
    cast_all(world)
    world.block(world.entry("w1", BidWithdraw, job=job))
    play_to(world, job, "settled")
    assert world.job(job).status == "bidding"
    world.block(bid_entry(world, "w2", job, 2), bid_entry(world, "w3", job, 3))
    world.play(lambda: world.job(job).status == "running")
    assert world.job(job).clearing_price == 3 * CREDIT


def test_a_returning_worker_locks_only_what_its_old_bond_does_not_cover() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=4, hold_ms=600_000)
    cast_all(world)
    world.block(world.entry("w1", BidWithdraw, job=job))
    play_to(world, job, "work", 1)
    before = world.balance("w1")
    assert world.bid(job, "w1").bond == 20 * CREDIT
    world.block(bid_entry(world, "w1", job, 5, units=3))
    assert world.balance("w1") == before - 40 * CREDIT
    bid = world.bid(job, "w1")
    assert (bid.bond, bid.unsettled, bid.status) == (60 * CREDIT, 1, "open")
    play_to(world, job, "work", 2)
    assert world.bid(job, "w1").bond == 60 * CREDIT  # one slot, but an unsettled unit: all of it stays
    play_to_end(world)
    assert world.bid(job, "w1").bond == 0


def test_slots_that_the_bond_does_not_cover_are_freed() -> None:
    world = make_world()
    job = post(world, units_per_round=3, rounds=12, audit_budget=50 * CREDIT)
    world.block(bid_entry(world, "w1", job, 4, units=2), bid_entry(world, "w2", job, 5, units=1))
    world.wake()
    cast_all(world)
    # it does not open its sketches: one unit bond goes, and with it one of two slots
    world.cast(Actor("w1", skips=frozenset({"sketch_open"})))
    world.play(lambda: "forfeited" in world.kinds())
    held = world.job(job).slots.count(key_of("w1").account)
    assert held == 2
    assert world.bid(job, "w1").bond == 20 * CREDIT
    world.play(lambda: world.job(job).slots.count(key_of("w1").account) == 1)
    assert world.bid(job, "w1").status == "matched"
    play_to_end(world)


def test_a_job_short_of_workers_says_what_it_waits_for_and_ends_with_everything_returned() -> None:
    world = make_world()
    job = post(world, min_workers=2, deadline_ms=world.time_ms + 60_000)
    world.block(bid_entry(world, "w1", job, 3))
    while world.job(job).status == "bidding" and not world.job(job).ending:
        world.wake()
        assert world.job(job).ending or world.job(job).reason == "waits for 1 more workers"
    while world.job(job).status != "expired":
        world.wake()
    assert world.time_ms >= world.job(job).spec.deadline_ms
    bid = world.bid(job, "w1")
    assert (bid.status, bid.bond, bid.reason) == ("closed", 0, "the job ended: its deadline passed")
    assert (world.balance("owner"), world.balance("w1")) == (1_000 * CREDIT, 1_000 * CREDIT)


def test_two_misses_free_a_slot_for_who_comes_late() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=9, min_workers=1)
    cast_all(world, "w1", "w3")  # w2 is gone
    world.play(lambda: world.bid(job, "w2").status == "closed")
    assert key_of("w2").account not in world.job(job).slots
    assert world.bid(job, "w2").reason == "missed deadlines in 2 rounds in a row"
    world.block(bid_entry(world, "w3", job, 2))
    world.play(lambda: world.bid(job, "w3").status == "matched")
    assert key_of("w3").account in world.job(job).slots
    late = world.job(job).round
    world.play(lambda: world.job(job).round > late + 1)
    assert world.unit(job, late + 1, world.job(job).slots.index(key_of("w3").account)).status in ("accepted", "paid")
