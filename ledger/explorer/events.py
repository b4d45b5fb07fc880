"""The event list: what happened to money and status, filtered by job, account or kind."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.explorer.queries import Reader
from ledger.explorer.rows import EventView, event_views


@dataclass(frozen=True)
class Filter:
    """Which events; "" means any."""

    job: str = ""
    account: str = ""
    kind: str = ""


@dataclass(frozen=True)
class EventList:
    """One page of events, newest first; ``next_before`` is None on the last page."""

    filter: Filter
    events: list[EventView]
    before: int | None
    next_before: int | None


def load(reader: Reader, wanted: Filter, limit: int, before: int | None) -> EventList:
    """Return one page of events."""

    def read(count: int, below: int | None) -> list[EventView]:
        rows = reader.events(count, job=wanted.job, account=wanted.account, kind=wanted.kind, before=below)
        return event_views(reader, rows)

    events = read(limit, before)
    more = bool(events) and bool(read(1, events[-1].id))
    return EventList(wanted, events, before, events[-1].id if more else None)
