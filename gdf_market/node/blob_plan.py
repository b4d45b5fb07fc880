"""Which chunk is asked from whom next: the core of a download, without clock or network."""

from __future__ import annotations

from collections.abc import Iterable

from gdf_market.node import limits


class Plan:
    """The chunks of one blob that are still to come.  Times are seconds of one monotonic clock."""

    def __init__(self, missing: Iterable[int], now: float) -> None:
        self._todo = list(missing)[::-1]  # taken from the end, so in ascending order
        self._asked: dict[int, tuple[float, set[str]]] = {}  # chunk -> when it was asked last, and whom
        self.progress_s = now

    def take(self, source: str, now: float) -> int | None:
        """Return the next chunk for ``source``, None if there is none for it now.

        In the end game, when nothing is left to ask for, a chunk that was asked a
        while ago is asked from a second source too.
        """
        if self._todo:
            index = self._todo.pop()
            self._asked[index] = (now, {source})
            return index
        for index, (since, sources) in self._asked.items():
            if source not in sources and now - since > limits.ENDGAME_S:
                self._asked[index] = (now, {*sources, source})
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
        entry[1].discard(source)
        if not entry[1]:
            del self._asked[index]
            self._todo.append(index)

    @property
    def complete(self) -> bool:
        """Every chunk is on disk."""
        return not self._todo and not self._asked
