"""The page of the state before and after an entry; the replay behind it runs in a process of its own, one at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ledger.explorer.differences import MAX_BLOCKS, Differences, blocks_to_replay
from ledger.explorer.queries import Reader
from ledger.explorer.rows import EntryView, entry_views
from ledger.explorer.worker import DONE, Worker

LIMIT_S = 60
WAIT_S = 70  # for one that is under way
KEPT = 64  # answers: an entry's effect never changes


@dataclass(frozen=True)
class ChangesPage:
    """``found`` is None where it could not be replayed; ``error`` says why."""

    view: EntryView
    found: Differences | None
    error: str


@dataclass(frozen=True)
class Offer:
    """How many blocks would be executed again; ``possible`` is False where that is too much or they are not here."""

    blocks: int
    possible: bool


def offer(reader: Reader, height: int) -> Offer:
    """Return what showing the state around an entry of a height would take."""
    blocks = blocks_to_replay(height, reader.boundary())
    from_genesis = blocks == height
    return Offer(blocks, blocks <= MAX_BLOCKS and not (from_genesis and reader.oldest() > 1))


class EntryChanges:
    """Computes the page, and keeps the latest answers."""

    def __init__(self, db: Path, clock: Callable[[], int]) -> None:
        self._db, self._clock = db, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Differences] = OrderedDict()

    def load(self, reader: Reader, entry_id: str) -> ChangesPage | None:
        """Return the page of an entry; None if there is no such entry."""
        row = reader.entry(entry_id)
        if row is None:
            return None
        view = entry_views(reader, [row])[0]
        known = self._kept.get(entry_id)
        if known is not None:
            return ChangesPage(view, known, "")
        if not self._lock.acquire(timeout=WAIT_S):
            return ChangesPage(view, None, "other replays are under way; load the page again in a moment")
        try:
            progress = Worker(self._db, self._clock, LIMIT_S).run(entry_id)
            if progress.status != DONE or progress.result is None:
                return ChangesPage(view, None, progress.error)
            found = msgspec.convert(progress.result, Differences)
            self._kept[entry_id] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return ChangesPage(view, found, "")
        finally:
            self._lock.release()
