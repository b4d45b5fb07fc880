"""Sums over all events: who earned what, and what audits found when.  One pass, kept until the head moves.

They are of the events in this file: where old ones were pruned, of the time since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import case, func
from sqlalchemy import select as select_columns
from sqlmodel import col

from ledger.explorer.queries import Reader
from ledger.tables import BlockRow, EventRow

BUCKETS = 40  # of the chart over time

V = TypeVar("V")


@dataclass(frozen=True)
class Earned:
    """What one account earned, in micro-credits: released base and merit pay, fees of audits."""

    account: str
    base: int
    merit: int
    audits: int

    @property
    def total(self) -> int:
        return self.base + self.merit + self.audits


@dataclass(frozen=True)
class Bucket:
    """What happened in one part of the ledger's time; ``start_ms`` is where it begins."""

    start_ms: int
    audits: int
    failed: int
    convictions: int


def rewards(reader: Reader) -> list[Earned]:
    """Return every account that earned something, by account."""
    event = EventRow
    base = func.sum(case((col(event.kind) == "paid", event.amount), else_=0))
    merit = func.sum(case((col(event.kind) == "merit", event.amount), else_=0))
    audits = func.sum(case((col(event.kind) == "audit", event.amount), else_=0))
    query = (
        select_columns(col(event.target), base, merit, audits)
        .where(
            (col(event.kind).in_(("paid", "merit")) & (col(event.source) == "held"))
            | ((col(event.kind) == "audit") & (col(event.source) == "audit_escrow"))
        )
        .group_by(col(event.target))
        .order_by(col(event.target))
    )
    return [Earned(account, int(a), int(b), int(c)) for account, a, b, c in reader.rows(query)]


def over_time(reader: Reader) -> list[Bucket]:
    """Return verdicts of audits and convictions of units by time, in at most ``BUCKETS`` equal parts."""
    span = reader.rows(select_columns(func.min(col(BlockRow.time_ms)), func.max(col(BlockRow.time_ms))))[0]
    if span[0] is None:
        return []
    start, width = int(span[0]), max(1, -(-(int(span[1]) - int(span[0]) + 1) // BUCKETS))
    part = (col(BlockRow.time_ms) - start) // width
    query = (
        select_columns(col(EventRow.kind), col(EventRow.reason) == "fail", part.label("part"), func.count())
        .join(BlockRow, col(BlockRow.height) == col(EventRow.height))
        .where(col(EventRow.kind).in_(("verdict", "convicted")), col(EventRow.source) == "", col(EventRow.slot) >= 0)
        .group_by(col(EventRow.kind), col(EventRow.reason) == "fail", "part")
    )
    counts: dict[tuple[str, bool, int], int] = {
        (kind, bool(failed), int(index)): int(count) for kind, failed, index, count in reader.rows(query)
    }
    last = max((index for _, _, index in counts), default=-1)
    return [
        Bucket(
            start_ms=start + index * width,
            audits=counts.get(("verdict", False, index), 0) + counts.get(("verdict", True, index), 0),
            failed=counts.get(("verdict", True, index), 0),
            convictions=counts.get(("convicted", False, index), 0) + counts.get(("convicted", True, index), 0),
        )
        for index in range(last + 1)
    ]


class Cached(Generic[V]):
    """A value of the latest head that was asked for; one thread computes it, the others wait."""

    def __init__(self, compute: Callable[[Reader], V]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._kept: tuple[int, V] | None = None

    def get(self, reader: Reader) -> V:
        """Return the value for the reader's snapshot."""
        head = reader.head()
        height = head.height if head else 0
        with self._lock:
            if self._kept is None or self._kept[0] != height:
                self._kept = (height, self._compute(reader))
            return self._kept[1]
