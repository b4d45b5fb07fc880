"""The rows that several pages list: events, entries, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdf_market.errors import PeerError
from gdf_market.messages import open_entry
from ledger.explorer.queries import Reader
from ledger.explorer.sentences import entry_sentence, event_sentence
from ledger.tables import BlockRow, EntryRow, EventRow


@dataclass(frozen=True)
class EventView:
    """One event with its block's time; ``amount`` in micro-credits."""

    id: int
    height: int
    time_ms: int
    kind: str
    sentence: str
    job: str
    round: int
    slot: int
    account: str
    source: str
    target: str
    amount: int
    reason: str
    entry: str


@dataclass(frozen=True)
class EntryView:
    """One entry as a line of a list."""

    id: str
    height: int
    position: int
    time_ms: int
    kind: str
    author: str
    job: str
    sentence: str


@dataclass(frozen=True)
class BlockView:
    """One block as a line of a list."""

    height: int
    hash: str
    slot: int
    time_ms: int
    proposer: str
    entries: int
    state_root: str


def event_views(reader: Reader, rows: Sequence[EventRow]) -> list[EventView]:
    """Return events with the times of their blocks."""
    times = reader.block_times([row.height for row in rows])
    return [
        EventView(
            id=row.id or 0,
            height=row.height,
            time_ms=times.get(row.height, 0),
            kind=row.kind,
            sentence=event_sentence(row),
            job=row.job,
            round=row.round,
            slot=row.slot,
            account=row.account,
            source=row.source,
            target=row.target,
            amount=row.amount,
            reason=row.reason,
            entry=row.entry,
        )
        for row in rows
    ]


def entry_views(reader: Reader, rows: Sequence[EntryRow]) -> list[EntryView]:
    """Return entries with their sentences; one that cannot be read says so instead of ending the page."""
    times = reader.block_times([row.height for row in rows])
    return [
        EntryView(
            id=row.id,
            height=row.height,
            position=row.position,
            time_ms=times.get(row.height, 0),
            kind=row.kind,
            author=row.author,
            job=row.job,
            sentence=_sentence(row),
        )
        for row in rows
    ]


def _sentence(row: EntryRow) -> str:
    try:
        return entry_sentence(open_entry(row.raw, "", check_signature=False).body)
    except PeerError as error:
        return f"The stored bytes are no entry: {error}"


def block_views(rows: Sequence[BlockRow]) -> list[BlockView]:
    """Return blocks as lines of a list."""
    return [
        BlockView(
            height=row.height,
            hash=row.hash,
            slot=row.slot,
            time_ms=row.time_ms,
            proposer=row.proposer,
            entries=row.entry_count,
            state_root=row.state_root,
        )
        for row in rows
    ]
