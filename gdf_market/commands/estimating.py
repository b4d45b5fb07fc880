"""What a job would probably cost and how long it would take, from the ledger's history and the open orders.

Each figure comes with how it was found and how many samples it rests on; where there is none, that is said.  Nothing
here is a promise: prices are made by the auction, and times by whoever wins it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.auction import compute_fill
from contracts.records import Active, Bid, Job, Round
from contracts.state import job_key, round_key
from gdf_market.commands.common import App
from gdf_market.commands.reading import open_ledger
from gdf_market.errors import GdfError
from gdf_market.messages import Bid as BidBody
from gdf_market.messages import JobPost, open_entry
from gdf_market.node.client import NodeClient
from gdf_market.units import SECOND_MS, format_credits
from ledger.prices import Point, compute_unit_macs, read_points
from ledger.reading import record_of
from ledger.store import LedgerStore

MAX_BIDS = 500  # newest bids that workers' asks are read from
MAX_JOBS = 20  # newest jobs of a class whose rounds are read
MAX_ROUNDS = 20  # of each of them
LITTLE, GOOD = 3, 10  # samples below which a figure is hardly known, and from which on it is well known
NOBODY = "00" * 32


@dataclass(frozen=True)
class Ask:
    """What a worker that holds no slot asked for last: micro-credits per unit, and units per round."""

    worker: str
    price: int
    units: int


@dataclass(frozen=True)
class Pace:
    """A settled round: how long it took, and the multiply-adds of its units (0: unknown)."""

    seconds: float
    macs: int


@dataclass(frozen=True)
class Facts:
    """What is known of a device class: auctions, idle workers, rounds, and who else wants units now.

    ``orders`` is None where no node runs whose order book could be read.
    """

    points: Sequence[Point] = ()
    asks: Sequence[Ask] = ()
    paces: Sequence[Pace] = ()
    bidding_units: int = 0
    orders: int | None = None
    order_units: int = 0


def read_facts(store: LedgerStore, device_class: str, orders: Sequence[Mapping[str, Any]] | None) -> Facts:
    """Return the facts of a class from a ledger and the open orders of a node's book.  Raises StorageError."""
    points = read_points(store, device_class=device_class)
    active = record_of(store, Active, "active")
    jobs = [job for name in (active.jobs if active else ()) if (job := record_of(store, Job, job_key(name)))]
    busy = {worker for job in jobs for worker in job.slots}
    wanted = [job for job in jobs if job.spec.device_class == device_class and job.status == "bidding"]
    announced = [row for row in orders or () if row["state"] == "announced" and row["device_class"] == device_class]
    return Facts(
        points=points,
        asks=_read_asks(store, device_class, busy),
        paces=_read_paces(store, list(dict.fromkeys(point.job for point in reversed(points)))),
        bidding_units=sum(job.slots.count("") for job in wanted),
        orders=None if orders is None else len(announced),
        order_units=sum(row["units_per_round"] for row in announced),
    )


def _read_asks(store: LedgerStore, device_class: str, busy: set[str]) -> list[Ask]:
    """Return the last ask of each worker that holds no slot now, cheapest first."""
    asks: dict[str, Ask] = {}
    for row in store.entries(kind="bid", limit=MAX_BIDS):  # newest first
        body = open_entry(row.raw, NOBODY, check_signature=False).body
        assert isinstance(body, BidBody), "rows of a kind hold entries of that kind"
        if body.device_class == device_class and row.author not in busy:
            asks.setdefault(row.author, Ask(row.author, body.price, body.units))
    return sorted(asks.values(), key=lambda ask: (ask.price, ask.worker))


def _read_paces(store: LedgerStore, jobs: Sequence[str]) -> list[Pace]:
    """Return settled rounds of the newest jobs."""
    found = []
    for name in jobs[:MAX_JOBS]:
        job = record_of(store, Job, job_key(name))
        if job is None:
            continue
        for index in range(max(0, job.round - MAX_ROUNDS), job.round + 1):
            round_ = record_of(store, Round, round_key(name, index))
            if round_ is not None and round_.phase == "settled":
                seconds = (round_.ended_ms - round_.started_ms) / SECOND_MS
                found.append(Pace(seconds, compute_unit_macs(job.spec)))
    return found


def facts_of(app: App, device_class: str) -> Facts:
    """Return what this folder's ledger, and the book of the node that runs on it, tell of a class; nothing without one.

    Raises StorageError.
    """
    if not app.data.ledger.exists():
        return Facts()
    with open_ledger(app) as store:
        return read_facts(store, device_class, open_orders(app))


def open_orders(app: App) -> list[dict[str, Any]] | None:
    """Return the rows of the order book of the node that runs on this folder; None when none answers."""
    found = app.data.running()
    if found is None:
        return None
    try:
        with NodeClient(*found) as client:
            rows: list[dict[str, Any]] = client.call("GET", "/orders")["orders"]
            return rows
    except GdfError:
        return None


def estimate(spec: JobPost, facts: Facts, unit_s: float | None = None) -> dict[str, Any]:
    """Return price and time as JSON values; ``unit_s``: seconds of a unit on this machine, where it was measured.

    ``_micro`` are micro-credits.  Prices are capped by the terms' reserve price.
    """
    price = _price(spec, facts)
    pays = {name: price[f"{name}_micro"] for name in ("low", "likely", "high")}
    units = spec.most_units()
    return {
        "device_class": spec.device_class,
        "rounds": spec.rounds,
        "units_per_round": spec.units_per_round,
        "unit_macs": compute_unit_macs(spec) or None,
        "price": price,
        "pay_micro": {name: None if pay is None else pay * units for name, pay in pays.items()},
        "supply": {"idle_workers": len(facts.asks), "units": sum(ask.units for ask in facts.asks)},
        "demand": {
            "bidding_units": facts.bidding_units,
            "orders": facts.orders,
            "order_units": facts.order_units,
        },
        "time": _time(spec, facts, unit_s),
    }


# prices


def _price(spec: JobPost, facts: Facts) -> dict[str, Any]:
    past, how_past = _past_prices(spec, facts.points)
    asked, how_asked = _asked_prices(spec, facts)
    spread = _spread(past) if past else None
    found = [each for each in (spread, asked) if each is not None]
    likely = asked[-1] if asked else None  # the others that want workers now come first
    if spread is not None and (len(past) >= LITTLE or likely is None):
        likely = spread[1]
    owners = len({point.owner for point in facts.points})
    return {
        "low_micro": _capped(min((each[0] for each in found), default=None), spec),
        "likely_micro": _capped(likely, spec),
        "high_micro": _capped(max((each[-1] for each in found), default=None), spec),
        "most_micro": spec.reserve_price,
        "samples": len(past),
        "owners": owners,
        "sure": _sure(len(past), owners),
        "how": f"{how_past}; {how_asked}",
    }


def _capped(price: int | None, spec: JobPost) -> int | None:
    return None if price is None else min(price, spec.reserve_price)


def _past_prices(spec: JobPost, points: Sequence[Point]) -> tuple[list[int], str]:
    """Return what auctions of the class cleared at, brought to this job's size where all sizes are known."""
    macs = compute_unit_macs(spec)
    sized = [max(1, point.price * macs // point.macs) for point in points if macs and point.macs]
    if sized:
        return sized, f"{_count(len(sized), 'auction')} of the class by price per multiply-add"
    if points:
        return [point.price for point in points], f"{_count(len(points), 'auction')} of the class by price per unit"
    return [], f"there is no history: no job of class {spec.device_class} was cleared on this ledger"


def _asked_prices(spec: JobPost, facts: Facts) -> tuple[tuple[int, int] | None, str]:
    """Return the auction's price over the idle workers' last asks: if this job comes first, and if all others do."""
    others = facts.bidding_units + facts.order_units
    offered = sum(ask.units for ask in facts.asks)
    unknown = "" if facts.orders is not None else " (open orders are unknown: no node runs here)"
    rivals = f"{_count(others, 'unit')} wanted by others now{unknown}"
    if not facts.asks:
        return None, f"no idle worker is known; {rivals}"
    known = f"idle workers known: {len(facts.asks)}, for {_count(offered, 'unit')}; {rivals}"
    first = _cleared(facts.asks, spec.units_per_round, spec)
    last = _cleared(facts.asks, spec.units_per_round + others, spec)
    if offered < spec.units_per_round:
        known += f"; too few for {spec.units_per_round} units per round, so those that fit are paid the reserve price"
    return (first, last), known


def _cleared(asks: Sequence[Ask], units: int, spec: JobPost) -> int:
    """Return the price by the auction's own rule; with too few offers it is the reserve price."""
    bids = [
        Bid(
            job=NOBODY,
            worker=ask.worker,
            price=ask.price,
            units=ask.units,
            device_class=spec.device_class,
            bond=0,
            status="open",
            entry=NOBODY,
        )
        for ask in asks
        if ask.price <= spec.reserve_price
    ]
    return compute_fill(bids, units, 0, 1, spec.reserve_price).price


# times


def _time(spec: JobPost, facts: Facts, unit_s: float | None) -> dict[str, Any]:
    rounds, how = _round_seconds(spec, facts.paces, unit_s)
    waits_s = (spec.bid_ms + spec.hold_ms) / SECOND_MS
    low, likely, high = _spread(rounds) if rounds else (None, None, None)
    offered = sum(ask.units for ask in facts.asks)
    if offered < spec.units_per_round:
        how += f"; workers must come first: {offered} of {spec.units_per_round} units per round are known to be idle"
    return {
        "low_s": _total(low, spec.rounds, waits_s),
        "likely_s": _total(likely, spec.rounds, waits_s),
        "high_s": _total(high, spec.rounds, waits_s),
        "round_s": None if likely is None else round(likely, 1),
        "bid_s": spec.bid_ms / SECOND_MS,
        "hold_s": spec.hold_ms / SECOND_MS,
        "samples": len(facts.paces),
        "sure": _sure(len(facts.paces), len({point.owner for point in facts.points})),
        "how": how,
    }


def _total(round_s: float | None, rounds: int, waits_s: float) -> float | None:
    return None if round_s is None else round(waits_s + rounds * round_s, 1)


def _round_seconds(spec: JobPost, paces: Sequence[Pace], unit_s: float | None) -> tuple[list[float], str]:
    macs = compute_unit_macs(spec)
    sized = [pace.seconds * macs / pace.macs for pace in paces if macs and pace.macs]
    if sized:
        return sized, f"{_count(len(sized), 'settled round')} of the class, scaled by the multiply-adds of a unit"
    if paces:
        return [pace.seconds for pace in paces], (
            f"{_count(len(paces), 'settled round')} of the class, not scaled: the size of a unit is not known"
        )
    nothing = f"there is no history: no round of class {spec.device_class} has settled on this ledger"
    if unit_s is None:
        return [], nothing
    return [unit_s], f"{nothing}; a unit takes {unit_s:.1f} s on this machine, without its exchange"


# both


def _spread(values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return a low, the middle and a high value: of ten and more, a tenth is left out at each end."""
    ordered = sorted(values)
    out = len(ordered) // GOOD
    return ordered[out], ordered[(len(ordered) - 1) // 2], ordered[-1 - out]


def _sure(samples: int, owners: int) -> str:
    """Say how well a figure is known; what a single owner paid may be what it paid itself."""
    if samples == 0:
        return "not at all"
    if samples < LITTLE or owners < 2:
        return "hardly"
    return "well" if samples >= GOOD else "somewhat"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def price_sentence(price: Mapping[str, Any]) -> str:
    """Return a price range as text."""
    most = f"at most {format_credits(price['most_micro'])}"
    if price["likely_micro"] is None:
        return f"{most}; {price['how']}"
    low, likely, high = (format_credits(price[f"{name}_micro"]) for name in ("low", "likely", "high"))
    return f"{most}; likely {likely}, from {low} to {high} (known {price['sure']}: {price['how']})"


def time_sentence(time: Mapping[str, Any]) -> str:
    """Return an estimated time as text."""
    from gdf_market.commands.watch import duration

    if time["likely_s"] is None:
        return f"unknown: {time['how']}"
    low, likely, high = (duration(time[f"{name}_s"]) for name in ("low", "likely", "high"))
    return f"about {likely}, from {low} to {high} (known {time['sure']}: {time['how']})"
