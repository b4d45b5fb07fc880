"""The order book: jobs that take bids and their bids, what units cost lately, and why bids were left without a slot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import Active, Bid, Job
from contracts.state import bid_key, job_key, round_key
from ledger.explorer.auction import BidLine, Clearing, bid_lines, clearing
from ledger.explorer.plots import Frame, Plot
from ledger.explorer.present import credits_text, number, utc
from ledger.explorer.queries import Reader
from ledger.explorer.rows import EventView, event_views

MAX_OPEN = 40  # jobs shown with their bids
MAX_BIDS = 256  # of one job, as the rules allow
SAMPLED_ROUNDS = 400  # in the price history
SAMPLED_UNMATCHED = 500  # whose reasons are counted
LATEST_UNMATCHED = 25
STYLES = "abcd"
TAKING = ("open", "bidding")


@dataclass(frozen=True)
class OpenJob:
    """A job with slots to be had; amounts in micro-credits."""

    id: str
    title: str
    status: str
    device_class: str
    vacant: int
    slots: int
    min_workers: int
    reserve_price: int
    bond: int  # per unit
    closes_ms: int
    parameters: int
    steps: int
    bids: list[BidLine]
    clearing: Clearing


@dataclass(frozen=True)
class Price:
    """What a unit of one round cost."""

    time_ms: int
    job: str
    round: int
    device_class: str
    price: int
    reserve_price: int


@dataclass(frozen=True)
class Reason:
    """A reason without its figures, and how many bids it left without a slot."""

    reason: str
    bids: int


@dataclass(frozen=True)
class BookPage:
    """``sampled``: unmatched bids that were counted; ``more_open``: jobs beyond those shown."""

    open: list[OpenJob]
    more_open: int
    prices: list[Price]
    chart: Plot | None
    reasons: list[Reason]
    sampled: int
    unmatched: list[EventView]
    pruned_below: int


def load(reader: Reader) -> BookPage:
    """Return the page."""
    active = reader.record("active", Active)
    jobs = list(reader.records([job_key(name) for name in active.jobs], Job).values()) if active else []
    wanted = [job for job in jobs if job.status in TAKING or (job.status == "running" and "" in job.slots)]
    prices = _prices(reader)
    rows = reader.sample("unmatched", SAMPLED_UNMATCHED)
    counts = Counter(_kind_of_reason(row.reason) for row in rows)
    oldest = reader.oldest()
    return BookPage(
        open=[_open_job(reader, job) for job in wanted[:MAX_OPEN]],
        more_open=max(0, len(wanted) - MAX_OPEN),
        prices=prices,
        chart=_chart(prices),
        reasons=[Reason(reason, count) for reason, count in counts.most_common()],
        sampled=len(rows),
        unmatched=event_views(reader, rows[:LATEST_UNMATCHED]),
        pruned_below=oldest if oldest > 1 else 0,
    )


def _open_job(reader: Reader, job: Job) -> OpenJob:
    bids = list(reader.records([bid_key(job.id, worker) for worker in job.bidders[:MAX_BIDS]], Bid).values())
    live = [bid for bid in bids if bid.status != "closed"]
    return OpenJob(
        id=job.id,
        title=job.spec.title,
        status=job.status,
        device_class=job.spec.device_class,
        vacant=job.slots.count("") if job.slots else job.spec.units_per_round,
        slots=job.spec.units_per_round,
        min_workers=job.spec.min_workers,
        reserve_price=job.spec.reserve_price,
        bond=job.spec.unit_bond,
        closes_ms=job.phase_end_ms if job.status in TAKING else 0,
        parameters=job.spec.parameters,
        steps=job.spec.recipe.steps,
        bids=bid_lines(job, live),
        clearing=clearing(job, live),
    )


def _kind_of_reason(text: str) -> str:
    """Return a reason without its figures, so that like reasons are counted together."""
    return re.sub(r"\d[\d,.]*", "…", text)


def _prices(reader: Reader) -> list[Price]:
    """Return prices of the latest rounds, oldest first."""
    rows = reader.sample("round", SAMPLED_ROUNDS)
    places = list(dict.fromkeys((row.job, row.round) for row in rows))
    rounds = reader.fields([round_key(*place) for place in places], "started_ms", "price")
    names = list(dict.fromkeys(job_key(job) for job, _ in places))
    jobs = reader.fields(names, "spec.device_class", "spec.reserve_price")
    found = [
        Price(int(started), job, index, str(terms[0]), int(price), int(terms[1]))
        for job, index in places
        if (terms := jobs.get(job_key(job))) and (started_price := rounds.get(round_key(job, index)))
        for started, price in (started_price,)
    ]
    return sorted(found, key=lambda price: (price.time_ms, price.job, price.round))


def _chart(prices: Sequence[Price]) -> Plot | None:
    if len(prices) < 2:
        return None
    classes = [name for name, _ in Counter(price.device_class for price in prices).most_common(len(STYLES))]
    first, last = prices[0].time_ms, prices[-1].time_ms
    frame = Frame((first, max(last, first + 1)), (0, max(price.price for price in prices) or 1))
    x_ticks, y_ticks = frame.ticks(
        lambda ms: utc(round(ms))[5:16], lambda value: credits_text(round(value) // 1_000 * 1_000)
    )
    lines, dots = [], []
    for name, style in zip(classes, STYLES, strict=False):
        own = [price for price in prices if price.device_class == name]
        lines.append(frame.steps(name, [(price.time_ms, price.price) for price in own], style))
        if len(prices) <= 60:
            dots += [
                frame.dot(each.time_ms, each.price, f"{name}: {credits_text(each.price)}, round {each.round}", style)
                for each in own
            ]
    newest = {name: next(price for price in reversed(prices) if price.device_class == name) for name in classes}
    said = ", ".join(f"{credits_text(price.price)} on {name}" for name, price in newest.items())
    return Plot(
        x_ticks,
        y_ticks,
        f"Price of a unit in the last {number(len(prices))} rounds; now {said}.",
        lines=tuple(lines),
        dots=tuple(dots),
    )
