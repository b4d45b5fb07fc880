"""Which source is asked first, and how much at once: by measured round trip and rate.  No clock, no network.

Times are seconds of one monotonic clock, rates are bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gdf_market.blobs.manifest import CHUNK_BYTES
from gdf_market.node import limits

MEMORY = 0.8  # weight of all earlier chunks against the last one: an average over about five
STALE_S = 300.0  # what was measured longer ago is not known any more: a line may have recovered
HORIZON_S = 2.0  # so much of a source's time is asked for in advance
IDLE = 0.05  # share of a slow source's time that may pass between two chunks
FASTER = 2.0  # a source must be so much faster before it displaces another one


@dataclass
class Pace:
    """How fast one source delivers, over all its streams together."""

    rtt_s: float | None = None
    flying: int = 0  # chunks that it was asked for and that are under way
    _bytes: float = 0.0
    _seconds: float = 0.0
    _since: float = 0.0  # from when on the chunks that are under way count
    _measured: float = -math.inf

    def asked(self, now: float) -> None:
        """A chunk was asked for."""
        if not self.flying:
            self._since = now
        self.flying += 1

    def arrived(self, count: int, now: float) -> None:
        """A chunk of ``count`` bytes is here."""
        self.flying -= 1
        self._sample(count, now)

    def failed(self, now: float) -> None:
        """A chunk will not come, by the source's fault."""
        self.flying -= 1
        self._sample(0, now)

    def abandoned(self, count: int, now: float) -> None:
        """Nobody waits for a chunk any more, of which ``count`` bytes came: a slow source is known by these, too."""
        self.flying -= 1
        if count:
            self._sample(count, now)

    def unreachable(self, now: float, waited_s: float) -> None:
        """No stream could be opened."""
        self._since = now - waited_s
        self._sample(0, now)

    def _sample(self, count: int, now: float) -> None:
        self._bytes = MEMORY * self._bytes + count
        self._seconds = MEMORY * self._seconds + max(1e-6, now - self._since)
        self._since = self._measured = now

    def chunk_s(self, now: float) -> float | None:
        """Return the seconds in which it delivers a chunk (infinite: it delivers nothing); None if that is not known.

        Chunks that are overdue count already: a source that stalls is slow before its time-out says so.
        """
        if now - self._measured > STALE_S:
            return None
        if not self._bytes:
            return math.inf
        expected = CHUNK_BYTES * self._seconds / self._bytes
        # chunks that share the line all arrive at once, after the time of all of them
        overdue = now - self._since - expected * self.flying if self.flying else 0.0
        return expected + max(0.0, overdue)

    def rate(self, now: float) -> int | None:
        """Return the measured bytes a second, None if nothing is known."""
        chunk_s = self.chunk_s(now)
        return None if chunk_s is None else round(CHUNK_BYTES / chunk_s)


def order(paces: Mapping[str, Pace], now: float) -> list[str]:
    """Return the sources in the order in which to ask them.

    Those that are measured come fastest first, then nearest, then by id; those that are not come nearest first.  The
    two lists alternate, so that the best one is used while new ones are tried.
    """

    def near(account: str) -> tuple[float, str]:
        rtt_s = paces[account].rtt_s
        return math.inf if rtt_s is None else rtt_s, account

    speed = {account: pace.chunk_s(now) for account, pace in paces.items()}
    known = sorted(((chunk_s, *near(account)) for account, chunk_s in speed.items() if chunk_s is not None))
    ranked = [account for _, _, account in known]
    new = sorted((account for account, chunk_s in speed.items() if chunk_s is None), key=near)
    both = min(len(ranked), len(new))
    mixed = [account for pair in zip(ranked, new, strict=False) for account in pair]
    return mixed + ranked[both:] + new[both:]


def lanes(pace: Pace, now: float) -> int:
    """Return how many chunks to have under way at a source: one until it is measured, more the faster and farther."""
    chunk_s = pace.chunk_s(now)
    if chunk_s is None or math.isinf(chunk_s):
        return 1
    # one arrives while the request for the next travels, unless that takes next to nothing of a chunk's time
    filling = 1 + math.ceil((pace.rtt_s or 0.0) / chunk_s - IDLE)
    return max(1, min(limits.LANES, max(filling, int(HORIZON_S / chunk_s))))


def spare(mine: Pace, others: Iterable[Pace], now: float) -> int:
    """Return how many chunks faster sources could begin and deliver before this one has delivered one.

    While no more than these are left, a slow source is better not asked: everybody would wait for it in the end.
    """
    mine_s = mine.chunk_s(now)
    if mine_s is None:
        return 0
    found = 0
    for other in others:
        other_s = other.chunk_s(now)
        if other_s is None or other_s * FASTER > mine_s:
            continue
        if math.isinf(mine_s):
            return limits.MAX_SOURCES * limits.LANES
        found += max(0, int(mine_s / other_s) - other.flying)
    return found
