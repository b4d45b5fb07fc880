"""Prices from the ledger's own history: what auctions cleared at, by device class, over a window of blocks.

Anybody can recompute them from the same blocks.  They are what was agreed, not what anything is worth: an owner that
bids on its own job moves them for the price of its fees, so a summary says how many owners and jobs it rests on.

Rules kept here:
1. Every read has a limit: ``MAX_MATCHES`` events, ``MAX_POINTS`` points, of the newest blocks.
2. A point is an auction: a job counts once for each price that it was cleared at, whoever joins it later.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlmodel import col, select

from contracts.auction import read_match
from contracts.records import Job
from contracts.state import job_key
from gdf_market.messages import JobPost
from ledger.reading import record_of
from ledger.store import LedgerStore
from ledger.tables import BlockRow, EventRow

MAX_MATCHES = 20_000  # events that one read looks at
MAX_POINTS = 2_000
WINDOW_BLOCKS = 100_000  # where nobody asks for another
TERA = 10**12
MACS_PER_VALUE = 3  # multiply-adds per value and token: one forward, two backward (Kaplan et al. 2020, section 2.1)
_HEIGHTS = 500  # in one question: SQLite bounds the variables of a statement


@dataclass(frozen=True)
class Point:
    """A clearing price: micro-credits per unit; ``macs`` of a unit are 0 where the job's terms do not tell them."""

    height: int
    time_ms: int
    job: str
    owner: str
    device_class: str
    price: int
    slots: int
    macs: int

    @property
    def per_tera(self) -> int | None:
        """Micro-credits per 10^12 multiply-adds."""
        return self.price * TERA // self.macs if self.macs else None


@dataclass(frozen=True)
class Range:
    """Of prices in micro-credits: the newest, the median (of an even number, the lower one), the least, the most."""

    last: int
    median: int
    least: int
    most: int


@dataclass(frozen=True)
class Index:
    """The prices of one device class."""

    device_class: str
    points: int
    jobs: int
    owners: int
    per_unit: Range
    per_tera: Range | None  # of jobs whose size is known


def compute_unit_macs(spec: JobPost) -> int:
    """Return the multiply-adds of a unit of a job on tokens, about; 0 where samples have no known size.

    Values that are not trained (under adapters) are not counted, as the terms do not name them.
    """
    return MACS_PER_VALUE * spec.parameters * spec.tokens_per_unit


def read_points(store: LedgerStore, *, device_class: str | None = None, blocks: int = WINDOW_BLOCKS) -> list[Point]:
    """Return the clearing prices of the last ``blocks`` blocks, oldest first, at most MAX_POINTS.

    Raises StorageError.
    """
    head = store.head()
    if head is None:
        return []
    newest = _read_auctions(store, max(1, head.height - blocks + 1))
    jobs = {job: record_of(store, Job, job_key(job)) for job in {each.job for each in newest}}
    times = _read_times(store, {each.height for each in newest})
    return [
        Point(
            height=each.height,
            time_ms=times.get(each.height, 0),
            job=job.id,
            owner=job.spec.author,
            device_class=job.spec.device_class,
            price=each.price,
            slots=each.slots,
            macs=compute_unit_macs(job.spec),
        )
        for each in newest
        if (job := jobs[each.job]) is not None and device_class in (None, job.spec.device_class)
    ]


@dataclass(frozen=True)
class _Auction:
    job: str
    height: int
    price: int
    slots: int


def _read_auctions(store: LedgerStore, since: int) -> list[_Auction]:
    """Return auctions from a height on, oldest first: one for each price of a job in a row."""
    statement = (
        select(EventRow)
        .where(col(EventRow.kind) == "matched", col(EventRow.height) >= since)
        .order_by(col(EventRow.id).desc())
        .limit(MAX_MATCHES)
    )
    rows: list[EventRow] = store.all(statement)[::-1]
    found: list[_Auction] = []
    last: dict[str, int] = {}
    for (height, job), group in itertools.groupby(rows, key=lambda row: (row.height, row.job)):
        matches = [match for row in group if (match := read_match(row.reason)) is not None]
        if matches and last.get(job) != matches[0][1]:
            last[job] = matches[0][1]
            found.append(_Auction(job, height, last[job], sum(slots for slots, _ in matches)))
    return found[-MAX_POINTS:]


def _read_times(store: LedgerStore, heights: Iterable[int]) -> dict[int, int]:
    wanted = sorted(heights)
    times: dict[int, int] = {}
    for start in range(0, len(wanted), _HEIGHTS):
        some = wanted[start : start + _HEIGHTS]
        statement = select(BlockRow.height, BlockRow.time_ms).where(col(BlockRow.height).in_(some))
        times |= {int(height): int(time_ms) for height, time_ms in store.all(statement)}
    return times


def summarize(points: Sequence[Point]) -> list[Index]:
    """Return an index for each device class among points that are ordered from old to new, by class."""
    found = []
    for name in sorted({point.device_class for point in points}):
        own = [point for point in points if point.device_class == name]
        sized = [point.per_tera for point in own if point.per_tera is not None]
        found.append(
            Index(
                device_class=name,
                points=len(own),
                jobs=len({point.job for point in own}),
                owners=len({point.owner for point in own}),
                per_unit=range_of([point.price for point in own]),
                per_tera=range_of(sized) if sized else None,
            )
        )
    return found


def range_of(prices: Sequence[int]) -> Range:
    """Return the range of prices that are ordered from old to new; there is at least one."""
    return Range(prices[-1], statistics.median_low(prices), min(prices), max(prices))


def price_report(store: LedgerStore, *, device_class: str | None = None, blocks: int = WINDOW_BLOCKS) -> dict[str, Any]:
    """Return index and history by device class as JSON values; ``_micro`` are micro-credits.  Raises StorageError."""
    points = read_points(store, device_class=device_class, blocks=blocks)
    head = store.head()
    height = head.height if head else 0
    return {
        "from_height": max(min(height, 1), height - blocks + 1, store.oldest() if height else 0),
        "to_height": height,
        "classes": [_class_report(index, points) for index in summarize(points)],
    }


def _class_report(index: Index, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "device_class": index.device_class,
        "auctions": index.points,
        "jobs": index.jobs,
        "owners": index.owners,
        "per_unit_micro": asdict(index.per_unit),
        "per_tera_macs_micro": asdict(index.per_tera) if index.per_tera else None,
        "history": [
            {
                "height": point.height,
                "time_ms": point.time_ms,
                "job": point.job,
                "slots": point.slots,
                "price_micro": point.price,
                "per_tera_macs_micro": point.per_tera,
            }
            for point in points
            if point.device_class == index.device_class
        ],
    }
