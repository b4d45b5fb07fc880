"""Bids of a job and the arithmetic of its uniform clearing price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.auction import compute_fill
from contracts.records import Bid, Job


@dataclass(frozen=True)
class BidLine:
    """A bid in price order; ``offered_so_far`` counts units up to and with this bid."""

    worker: str
    price: int
    units: int
    slots: tuple[int, ...]  # held now
    device_class: str
    bond: int
    status: str
    reason: str
    misses: int
    leaving: bool
    offered_so_far: int
    entry: str


@dataclass(frozen=True)
class Clearing:
    """``first_rejected`` is the price of the first unit offer without a slot, 0 if there is none.

    ``expected`` is the price these bids give; it can differ from ``recorded``
    once bids were withdrawn, replaced or added after the auction.
    """

    slots: int
    offered: int
    workers: int
    min_workers: int
    first_rejected: int
    reserve_price: int
    expected: int
    recorded: int


def bid_lines(job: Job, bids: Sequence[Bid]) -> list[BidLine]:
    """Return bids by price, cheapest first."""
    lines: list[BidLine] = []
    offered = 0
    for bid in sorted(bids, key=lambda bid: (bid.price, bid.worker)):
        offered += bid.units
        lines.append(
            BidLine(
                worker=bid.worker,
                price=bid.price,
                units=bid.units,
                slots=tuple(index for index, worker in enumerate(job.slots) if worker == bid.worker),
                device_class=bid.device_class,
                bond=bid.bond,
                status=bid.status,
                reason=bid.reason,
                misses=bid.misses,
                leaving=bid.leaving,
                offered_so_far=offered,
                entry=bid.entry,
            )
        )
    return lines


def clearing(job: Job, bids: Sequence[Bid]) -> Clearing:
    """Return the uniform price of these bids by the auction's own rule."""
    spec = job.spec
    by_price = sorted(bids, key=lambda bid: (bid.price, bid.worker))
    fill = compute_fill(by_price, spec.units_per_round, 0, spec.min_workers, spec.reserve_price)
    without = [bid.price for bid in by_price if fill.slots.get(bid.worker, 0) < bid.units]
    return Clearing(
        slots=spec.units_per_round,
        offered=sum(bid.units for bid in bids),
        workers=len(bids),
        min_workers=spec.min_workers,
        first_rejected=without[0] if without and fill.slots else 0,
        reserve_price=spec.reserve_price,
        expected=fill.price,
        recorded=job.clearing_price,
    )
