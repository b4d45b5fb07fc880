"""Which chunk is asked from whom next: the core of a download, without clock or network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdf_market.node import limits

OVERDUE = 1.5  # times what was expected: then another source is asked too
SOONER = 2.0  # a source that delivers in half of the time that the first one still needs is asked too


@dataclass
class _Asked:
    """A chunk that is under way: since when, until when it was expected to take (None: not known), from whom."""

    since: float
    due: float | None
    sources: set[str]


class Plan:
    """The chunks of one blob that are still to come.  Times are seconds of one monotonic clock."""

    def __init__(self, missing: Iterable[int], now: float) -> None:
        self._todo = list(missing)[::-1]  # taken from the end, so in ascending order
        self._asked: dict[int, _Asked] = {}
        self.progress_s = now

    def take(self, source: str, now: float, *, takes_s: float | None = None, spare: int = 0) -> int | None:
        """Return the next chunk for ``source``, None if there is none for it now.

        ``takes_s`` is how long the source is expected to need for it.  ``spare`` chunks are left to faster sources.
        In the end game, when nothing is left to ask for, a chunk that is overdue, or that this source would deliver
        sooner, is asked from a second source too.
        """
        if self._todo:
            if len(self._todo) <= spare:
                return None
            index = self._todo.pop()
            self._asked[index] = _Asked(now, None if takes_s is None else now + takes_s, {source})
            return index
        for index, asked in self._asked.items():
            if source not in asked.sources and (_is_late(asked, now) or _is_sooner(asked, now, takes_s)):
                due = None if takes_s is None else now + takes_s
                self._asked[index] = _Asked(now, due, {*asked.sources, source})
                return index
        return None

    def done(self, index: int, now: float) -> None:
        """The chunk is on disk."""
        self._asked.pop(index, None)
        if index in self._todo:
            self._todo.remove(index)
        self.progress_s = now

    def failed(self, source: str, index: int) -> None:
        """``source`` did not deliver the chunk; it is asked again once nobody else is working on it."""
        entry = self._asked.get(index)
        if entry is None:
            return
        entry.sources.discard(source)
        if not entry.sources:
            del self._asked[index]
            self._todo.append(index)

    def open_chunks(self, now: float) -> int:
        """Return how many chunks another source could be asked for now."""
        return len(self._todo) or sum(_is_late(asked, now) for asked in self._asked.values())

    @property
    def complete(self) -> bool:
        """Every chunk is on disk."""
        return not self._todo and not self._asked


def _is_late(asked: _Asked, now: float) -> bool:
    expected = 0.0 if asked.due is None else asked.due - asked.since
    return now - asked.since > max(limits.ENDGAME_S, OVERDUE * expected)


def _is_sooner(asked: _Asked, now: float, takes_s: float | None) -> bool:
    if takes_s is None:
        return False
    if asked.due is None:  # from a source that is tried: it has shown that it is not twice as fast
        return now - asked.since > SOONER * takes_s
    return now + SOONER * takes_s < asked.due
