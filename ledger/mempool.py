"""Entries that wait for a block: bounded, fair between authors, in order within an author.

Rules kept here:
1. An entry is here once, by its id; no author holds more than a fixed number.
2. When the pool is full the newest entry of the author with the most bytes makes room: nobody crowds others out.
3. Entries refused by the rules now may become valid with a block under way: they wait apart, fewer and shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gdf_market.errors import LocalError, ensure
from gdf_market.messages import Entry
from ledger import limits


class MempoolFullError(LocalError):
    """This node holds as many waiting entries as it will; try again after the next block."""


@dataclass
class _Waiting:
    entry: Entry
    sent_ms: int  # when it was last relayed


class Mempool:
    """Valid entries by author, in arrival order."""

    def __init__(self) -> None:
        self._authors: dict[str, dict[str, _Waiting]] = {}
        self._ids: dict[str, str] = {}  # entry id -> author, in arrival order
        self._bytes: dict[str, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._ids

    def __iter__(self) -> Iterator[Entry]:
        for entry_id, author in list(self._ids.items()):
            yield self._authors[author][entry_id].entry

    def add(self, entry: Entry, now_ms: int) -> Entry | None:
        """Keep an entry; return the entry evicted for it.  Raises MempoolFullError."""
        author = entry.body.author
        assert entry.id not in self._ids
        held = len(self._authors.get(author, ()))
        ensure(
            held < limits.MEMPOOL_PER_AUTHOR,
            MempoolFullError(f"{author} has {held} entries waiting; at most {limits.MEMPOOL_PER_AUTHOR} may"),
        )
        evicted = self._make_room(entry)
        self._authors.setdefault(author, {})[entry.id] = _Waiting(entry, now_ms)
        self._ids[entry.id] = author
        self._count(author, len(entry.raw))
        return evicted

    def _make_room(self, entry: Entry) -> Entry | None:
        full = len(self._ids) >= limits.MEMPOOL_ENTRIES or self.total_bytes + len(entry.raw) > limits.MEMPOOL_BYTES
        if not full:
            return None
        author, size = max(self._bytes.items(), key=lambda item: item[1])
        ensure(
            self._bytes.get(entry.body.author, 0) + len(entry.raw) < size,
            MempoolFullError(f"{len(self._ids)} entries ({self.total_bytes} bytes) wait on this node; try again later"),
        )
        victim = next(reversed(self._authors[author].values())).entry
        if len(victim.raw) < len(entry.raw) and self.total_bytes - len(victim.raw) + len(entry.raw) > (
            limits.MEMPOOL_BYTES
        ):
            raise MempoolFullError(f"an entry of {len(entry.raw)} bytes does not fit; try again later")
        self.discard(victim.id)
        return victim

    def _count(self, author: str, change: int) -> None:
        self.total_bytes += change
        self._bytes[author] = self._bytes.get(author, 0) + change
        if not self._bytes[author]:
            del self._bytes[author]

    def discard(self, entry_id: str) -> Entry | None:
        """Remove and return an entry, if it is here."""
        author = self._ids.pop(entry_id, None)
        if author is None:
            return None
        entry = self._authors[author].pop(entry_id).entry
        if not self._authors[author]:
            del self._authors[author]
        self._count(author, -len(entry.raw))
        return entry

    def has_other_than(self, ids: Collection[str]) -> bool:
        """Say whether an entry waits that is not among ``ids``."""
        return any(entry_id not in ids for entry_id in self._ids)

    def candidates(self, excluded: Collection[str], max_bytes: int, max_entries: int) -> list[Entry]:
        """Return entries for a block: authors take turns, each in its own order."""
        queues = [
            [waiting.entry for entry_id, waiting in queue.items() if entry_id not in excluded]
            for queue in self._authors.values()
        ]
        chosen: list[Entry] = []
        size = 0
        for turn in range(limits.MEMPOOL_PER_AUTHOR):
            for queue in queues:
                if turn < len(queue) and len(chosen) < max_entries and size + len(queue[turn].raw) + 1 <= max_bytes:
                    size += len(queue[turn].raw) + 1
                    chosen.append(queue[turn])
        return chosen

    def stale(self, before_ms: int, now_ms: int, max_bytes: int) -> list[Entry]:
        """Return entries last relayed before a time, and mark them relayed now."""
        chosen: list[Entry] = []
        for author in self._authors.values():
            for waiting in author.values():
                if waiting.sent_ms <= before_ms and len(waiting.entry.raw) <= max_bytes:
                    max_bytes -= len(waiting.entry.raw)
                    waiting.sent_ms = now_ms
                    chosen.append(waiting.entry)
        return chosen


class Deferred:
    """Entries refused now, to be tried again when the state has changed."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Entry, int]] = {}  # id -> entry, when it is given up

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._entries

    def add(self, entry: Entry, until_ms: int) -> None:
        """Keep an entry until a time; an author beyond its share, and the oldest beyond the total, are dropped."""
        held = sum(1 for other, _ in self._entries.values() if other.body.author == entry.body.author)
        if entry.id in self._entries or held >= limits.DEFERRED_PER_AUTHOR:
            return
        if len(self._entries) >= limits.DEFERRED_ENTRIES:
            self._entries.pop(next(iter(self._entries)))
        self._entries[entry.id] = (entry, until_ms)

    def discard(self, entry_id: str) -> None:
        """Forget an entry."""
        self._entries.pop(entry_id, None)

    def take(self, count: int, now_ms: int) -> list[tuple[Entry, int]]:
        """Remove and return up to ``count`` entries that are still to be tried, the longest untried first."""
        taken = []
        for entry_id in list(self._entries)[:count]:
            entry, until_ms = self._entries.pop(entry_id)
            if until_ms > now_ms:
                taken.append((entry, until_ms))
        return taken
