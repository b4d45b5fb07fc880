"""Bids, their bonds, and the uniform-price auction that gives the slots of a job to workers.

Rules kept here:
1. A bond covers what a bid may still be punished for: its slots, or its units that are not settled.
2. Nobody is paid less than it asked for, nor more than the reserve price.
3. Every bid that gets no slot is closed with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.accounts import Where, balance, bid_bond, check_balance, emit, move
from contracts.draws import compute_draw, get_held_workers, is_convicted
from contracts.parameters import MAX_BIDDERS, MAX_TEXT
from contracts.records import Bid as BidRecord
from contracts.records import Job
from contracts.state import Draft, View, bid_key, job_key, present, require
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import Bid, BidWithdraw
from gdf_market.units import CREDIT, format_credits

_DECIMALS = 6  # of an amount in credits


def process_bid(draft: Draft, body: Bid) -> None:
    """Take an offer for a job and lock its bond."""
    job = require(draft.job(body.job), f"no job {body.job}; check the id")
    spec = job.spec
    # a bid outside the window could not be compared with the others; a vacancy is filled at the next round
    ensure(
        not job.ending and (job.status == "bidding" or (job.status == "running" and "" in job.slots)),
        RuleError(f"job {job.id} is {job.ending or job.status} and has no vacant slot; wait for one"),
    )
    # results of different device classes cannot be compared
    ensure(
        body.device_class == spec.device_class,
        RuleError(f"the job is for {spec.device_class}, the bid offers {body.device_class}"),
    )
    ensure(
        body.price <= spec.reserve_price,
        RuleError(
            f"{format_credits(body.price)} credits per unit is above the reserve {format_credits(spec.reserve_price)}"
        ),
    )
    # one proven fraud is enough
    ensure(not is_convicted(draft, job.id, body.author), RuleError(f"{body.author} was convicted in this job"))
    old = draft.bid(job.id, body.author)
    ensure(
        old is None or old.status != "matched",
        RuleError(f"{body.author} holds slots of job {job.id} already; withdraw that bid first"),
    )
    bond = body.units * spec.unit_bond
    missing = max(0, bond - (old.bond if old else 0))
    check_balance(draft, body.author, missing, "the bond")
    if old is None:
        _make_room(draft, job)
    _put_bid(draft, body, old)
    move(draft, "bid", balance(body.author), bid_bond(job.id, body.author), missing)
    process_bond(draft, job.id, body.author)


def _put_bid(draft: Draft, body: Bid, old: BidRecord | None) -> None:
    job = present(draft.job(body.job))
    if body.author not in job.bidders:
        draft.update(job_key(job.id), bidders=(*job.bidders, body.author))
    draft.put(
        bid_key(job.id, body.author),
        BidRecord(
            job=job.id,
            worker=body.author,
            price=body.price,
            units=body.units,
            device_class=body.device_class,
            bond=old.bond if old else 0,
            unsettled=old.unsettled if old else 0,
            status="open",
            entry=draft.entry,
        ),
    )
    emit(draft, "bid", Where(job.id, account=body.author), reason=f"{body.units} units at {format_credits(body.price)}")


def _make_room(draft: Draft, job: Job) -> None:
    """Forget the oldest bid that is over, when a job has as many bidders as it may."""
    if len(job.bidders) < MAX_BIDDERS:
        return
    for worker in job.bidders:
        bid = present(draft.bid(job.id, worker))
        if bid.status == "closed" and bid.bond == 0 and not bid.unsettled and not is_convicted(draft, job.id, worker):
            draft.drop(bid_key(job.id, worker))
            draft.update(job_key(job.id), bidders=tuple(other for other in job.bidders if other != worker))
            return
    raise RuleError(f"job {job.id} has {len(job.bidders)} bidders; wait until some of them are settled")


def process_bid_withdraw(draft: Draft, body: BidWithdraw) -> None:
    """Close an open bid; a worker with slots leaves when the round under way ends."""
    bid = require(draft.bid(body.job, body.author), f"{body.author} has no bid on job {body.job}")
    ensure(bid.status != "closed", RuleError(f"the bid of {body.author} is closed: {bid.reason}"))
    ensure(not bid.leaving, RuleError(f"{body.author} leaves job {body.job} already when its round ends"))
    job = present(draft.job(body.job))
    # units under way must still settle with their bond
    if bid.status == "matched" and is_round_under_way(draft, job):
        draft.update(bid_key(job.id, body.author), leaving=True)
        emit(draft, "leaving", Where(job.id, account=body.author))
    else:
        process_bid_closed(draft, job.id, body.author, "withdrawn")


def is_round_under_way(view: View, job: Job) -> bool:
    """Say whether the job's current round has started (a round that ended is not the current one)."""
    return view.round(job.id, job.round) is not None


def process_bid_closed(draft: Draft, job_id: str, worker: str, reason: str) -> None:
    """Close a bid, free its slots, and give back what of its bond is not needed any more."""
    bid = present(draft.bid(job_id, worker))
    draft.update(bid_key(job_id, worker), status="closed", leaving=False, reason=reason[:MAX_TEXT])
    slots = present(draft.job(job_id)).slots
    if worker in slots:
        draft.update(job_key(job_id), slots=tuple("" if held == worker else held for held in slots))
    emit(draft, "unmatched" if bid.status == "open" else "left", Where(job_id, account=worker), reason=reason)
    process_bond(draft, job_id, worker)


def process_bond(draft: Draft, job_id: str, worker: str) -> None:
    """Return the part of a bond that covers nothing; while a unit is unsettled, all of it covers that unit."""
    job = present(draft.job(job_id))
    bid = present(draft.bid(job_id, worker))
    if bid.unsettled:
        return
    count = {"open": bid.units, "matched": job.slots.count(worker), "closed": 0}[bid.status]
    excess = max(0, bid.bond - count * job.spec.unit_bond)
    move(draft, "returned", bid_bond(job_id, worker), balance(worker), excess)


@dataclass(frozen=True)
class Fill:
    """Slots per worker in the order of the auction, and the uniform price; no slots if too few workers bid."""

    slots: dict[str, int]
    price: int


def compute_fill(bids: Sequence[BidRecord], vacant: int, workers: int, min_workers: int, reserve_price: int) -> Fill:
    """Fill ``vacant`` slots from bids that are in auction order, beside ``workers`` that hold slots already.

    Each bid gets up to its units, but so many slots are kept for later bids
    that ``min_workers`` distinct workers fit.  The price is the lowest one
    among unit offers without a slot, at least the highest one with a slot.
    """
    if workers + len(bids) < min_workers:
        return Fill({}, reserve_price)
    slots: dict[str, int] = {}
    left: list[int] = []
    for bid in bids:
        kept = max(0, min_workers - workers - len(slots) - 1)
        count = min(bid.units, max(0, vacant - kept))
        if count:
            slots[bid.worker] = count
            vacant -= count
        if count < bid.units:
            left.append(bid.price)
    if workers + len(slots) < min_workers:
        return Fill({}, reserve_price)
    paid = [bid.price for bid in bids if bid.worker in slots]
    return Fill(slots, max([min(left, default=reserve_price), *paid]))


def get_open_bids(draft: Draft, job: Job) -> list[BidRecord]:
    """Return the open bids in auction order: by price, ties by the beacon."""
    bids = [present(draft.bid(job.id, worker)) for worker in job.bidders]
    beacon = draft.context.beacon
    return sorted(
        (bid for bid in bids if bid.status == "open"),
        key=lambda bid: (bid.price, compute_draw("gdf/auction", beacon, bid.worker)),
    )


def process_auction(draft: Draft, job_id: str) -> None:
    """End a bidding window: match bids, or wait for more of them."""
    job = present(draft.job(job_id))
    held = get_held_workers(job)
    bids = get_open_bids(draft, job)
    # workers that stayed agreed to the price; whoever joins them does so at that price
    able = [bid for bid in bids if bid.price <= job.clearing_price] if held else bids
    fill = compute_fill(able, job.slots.count(""), len(held), job.spec.min_workers, job.spec.reserve_price)
    if not fill.slots:
        missing = job.spec.min_workers - len(held) - len(able)
        reason = f"waits for {missing} more workers" + (
            f" at {format_credits(job.clearing_price)} credits per unit or less" if held else ""
        )
        draft.update(job_key(job_id), phase_end_ms=draft.now + job.spec.bid_ms, reason=reason)
        emit(draft, "bidding", Where(job_id), reason=reason)
        return
    price = job.clearing_price if held else fill.price
    draft.update(job_key(job_id), status="running", reason="", clearing_price=price)
    process_matches(draft, job_id, fill.slots)
    process_leftover_bids(draft, job_id, bids)


def process_vacancies(draft: Draft, job_id: str) -> None:
    """Fill vacant slots of a running job from open bids at or below its price."""
    job = present(draft.job(job_id))
    held = get_held_workers(job)
    if not held or "" not in job.slots:
        return
    bids = [bid for bid in get_open_bids(draft, job) if bid.price <= job.clearing_price]
    fill = compute_fill(bids, job.slots.count(""), len(held), job.spec.min_workers, job.spec.reserve_price)
    process_matches(draft, job_id, fill.slots)


def describe_match(slots: int, price: int) -> str:
    """Return what the event of a match says; ``price`` is in micro-credits per unit."""
    return f"{slots} slots at {format_credits(price)}"


def read_match(reason: str) -> tuple[int, int] | None:
    """Return slots and price (micro-credits) from ``describe_match``; None for anything else."""
    slots, found, price = reason.partition(" slots at ")
    whole, _, part = price.partition(".")
    digits = slots.isascii() and slots.isdigit() and whole.isascii() and whole.isdigit()
    if not (found and digits and len(part) <= _DECIMALS and (not part or (part.isascii() and part.isdigit()))):
        return None
    return int(slots), int(whole) * CREDIT + int(part.ljust(_DECIMALS, "0"))


def process_matches(draft: Draft, job_id: str, matches: dict[str, int]) -> None:
    """Give vacant slots, lowest first, to workers in the order of ``matches``."""
    job = present(draft.job(job_id))
    slots = list(job.slots)
    for worker, count in matches.items():
        for _ in range(count):
            slots[slots.index("")] = worker
    draft.update(job_key(job_id), slots=tuple(slots))
    for worker, count in matches.items():
        draft.update(bid_key(job_id, worker), status="matched", reason="")
        reason = describe_match(count, job.clearing_price)
        emit(draft, "matched", Where(job_id, account=worker), reason=reason)
        process_bond(draft, job_id, worker)


def process_leftover_bids(draft: Draft, job_id: str, bids: Sequence[BidRecord]) -> None:
    """Close those of ``bids`` that are still open, with the reason."""
    price = format_credits(present(draft.job(job_id)).clearing_price)
    for bid in bids:
        if present(draft.bid(job_id, bid.worker)).status == "open":
            asked = format_credits(bid.price)
            process_bid_closed(draft, job_id, bid.worker, f"outbid: asked {asked}, the slots went at {price}")


def process_uncovered_slots(draft: Draft, job_id: str) -> None:
    """Close bids that leave, and free slots that their worker's bond does not cover any more."""
    for worker in get_held_workers(present(draft.job(job_id))):
        bid = present(draft.bid(job_id, worker))
        if bid.leaving:
            process_bid_closed(draft, job_id, worker, "withdrawn")
            continue
        job = present(draft.job(job_id))
        held = [slot for slot, holder in enumerate(job.slots) if holder == worker]
        covered = bid.bond // job.spec.unit_bond if job.spec.unit_bond else len(held)
        if covered == 0:
            process_bid_closed(draft, job_id, worker, "the bond is used up; bid again to lock a new one")
        elif covered < len(held):
            freed = set(held[covered:])
            slots = tuple("" if slot in freed else holder for slot, holder in enumerate(job.slots))
            draft.update(job_key(job_id), slots=slots)
            emit(draft, "left", Where(job_id, account=worker), reason=f"the bond covers {covered} slots")
