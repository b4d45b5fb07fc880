"""Which sockets a host keeps: how many in all, from one address, from its neighbourhood, and not logged in yet.

When there is no room, somebody gives way rather than that a crowd keeps everybody else out: first whoever is still not
logged in, of the most crowded neighbourhood; then a peer that the host names as the least worth having.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gdf_market.node import limits
from gdf_market.node.standing import LOOPBACK, Standing, group, source


@dataclass(eq=False)
class Guest:
    """An accepted socket; ``leave`` closes it."""

    host: str
    port: int
    since: float
    leave: Callable[[], None]
    settled: bool = False  # logged in


class Gate:
    """Counts accepted sockets.  ``make_room`` closes a logged-in connection that is worth little, and says whether."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.make_room: Callable[[], bool] = lambda: False
        self._guests: dict[tuple[str, int], Guest] = {}
        self._sources: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()
        self._half_open: Counter[str] = Counter()  # by source

    def __len__(self) -> int:
        return len(self._guests)

    def refuse(self, host: str, now: float) -> str:
        """Return why one more socket from an IP address is not welcome; "" if it is."""
        reason = self.standing.refuse(host, now)
        if reason:
            return reason
        own, times = source(host), limits.LOOPBACK_TIMES if source(host) in LOOPBACK else 1
        most = limits.MAX_PER_LOOPBACK if times > 1 else limits.MAX_PER_ADDRESS
        if self._sources[own] >= most or (times == 1 and self._groups[group(host)] >= limits.MAX_PER_GROUP):
            return "connections"
        if self._half_open[own] >= limits.MAX_HALF_OPEN_PER_ADDRESS * times:
            return "half-open"
        if self._half_open.total() >= limits.MAX_HALF_OPEN and not self._pass_over(now):
            return "half-open"
        if len(self._guests) >= limits.MAX_INBOUND and not self._pass_over(now) and not self.make_room():
            return "connections"
        return ""

    def enter(self, guest: Guest) -> None:
        """Count a socket that is welcome."""
        self._guests[guest.host, guest.port] = guest
        self._count(guest, 1)

    def settle(self, host: str, port: int) -> None:
        """The socket from there is logged in."""
        guest = self._guests.get((host, port))
        if guest is not None and not guest.settled:
            guest.settled = True
            self._take(self._half_open, source(host), 1)

    def blame(self, host: str, port: int, now: float) -> None:
        """Who holds the socket from there was thrown out for what it did."""
        if (host, port) in self._guests:  # one that this node dialled is not counted: others may have named it
            self.standing.blame(host, now)

    def leave(self, guest: Guest) -> None:
        """Forget a socket that is closed."""
        if self._guests.get((guest.host, guest.port)) is guest:
            del self._guests[guest.host, guest.port]
            self._count(guest, -1)

    def _pass_over(self, now: float) -> bool:
        """Close the oldest socket without log-in of the most crowded neighbourhood, unless it is very young."""
        waiting = [
            one for one in self._guests.values() if not one.settled and now - one.since >= limits.HALF_OPEN_SAFE_S
        ]
        if not waiting:
            return False
        crowds = Counter(group(one.host) for one in waiting)
        chosen = max(waiting, key=lambda one: (crowds[group(one.host)], now - one.since))
        self.leave(chosen)
        chosen.leave()
        return True

    def _count(self, guest: Guest, change: int) -> None:
        self._take(self._sources, source(guest.host), -change)
        self._take(self._groups, group(guest.host), -change)
        if not guest.settled:
            self._take(self._half_open, source(guest.host), -change)

    @staticmethod
    def _take(counter: Counter[str], name: str, count: int) -> None:
        counter[name] -= count
        if not counter[name]:
            del counter[name]
