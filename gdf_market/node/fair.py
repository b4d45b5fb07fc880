"""Queues in which peers take turns: a flood of one, or of many names, delays nobody else by more than one turn each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from gdf_market.node import limits
from ledger.effects import Serve, ServeLinks, ServeSnapshot

MAX_FRAMES = 512  # waiting of one peer; more are dropped (the sender repeats what matters)
MAX_BYTES = 4 << 20  # waiting of one peer
MAX_ALL_BYTES = 48 << 20  # waiting of all peers
MAX_REQUESTS = 4  # waiting of one peer; honest ones have one

Request = Serve | ServeLinks | ServeSnapshot


class FairQueue:
    """Frames by peer; ``take`` gives those of each peer in their order, and peers in turn."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[bytes]] = {}  # the peer whose turn it is comes first
        self._sizes: dict[str, int] = {}
        self.total_bytes = 0

    def put(self, peer: str, data: bytes) -> bool:
        """Queue a frame; False if there is no room for it.

        When all peers together have too much waiting, whoever has most loses its newest frame.
        """
        mine = self._waiting.setdefault(peer, deque())
        size = self._sizes.get(peer, 0)
        if len(mine) >= MAX_FRAMES or size + len(data) > MAX_BYTES:
            return False
        mine.append(data)
        self._count(peer, len(data))
        kept = True
        while self.total_bytes > MAX_ALL_BYTES:
            largest = max(self._sizes, key=lambda one: self._sizes[one])
            kept = kept and largest != peer
            self._count(largest, -len(self._waiting[largest].pop()))
        return kept

    def take(self) -> tuple[str, bytes] | None:
        """Return (peer, frame), or None if nothing waits."""
        while self._waiting:
            peer = next(iter(self._waiting))
            mine = self._waiting.pop(peer)
            if mine:
                data = mine.popleft()
                self._count(peer, -len(data))
                if mine:
                    self._waiting[peer] = mine  # last in turn
                return peer, data
        return None

    def forget(self, peer: str) -> None:
        """The peer left: its frames are of no use."""
        for data in self._waiting.pop(peer, ()):
            self._count(peer, -len(data))

    def _count(self, peer: str, change: int) -> None:
        self.total_bytes += change
        self._sizes[peer] = self._sizes.get(peer, 0) + change
        if not self._sizes[peer]:
            del self._sizes[peer]


class Requests:
    """Requests that are answered from the file, one at a time; who does not read its answers gets no more.

    ``waiting_bytes(peer)`` is what is queued for a peer and not sent yet.
    """

    def __init__(self, waiting_bytes: Callable[[str], int]) -> None:
        self._waiting_bytes = waiting_bytes
        self._waiting: dict[str, deque[Request]] = {}
        self._came = trio.Event()

    def put(self, request: Request) -> None:
        """Queue a request; beyond what a peer may have waiting it is dropped (honest ones ask again)."""
        mine = self._waiting.setdefault(request.peer, deque())
        if len(mine) < MAX_REQUESTS:
            mine.append(request)
            self._came.set()

    async def take(self) -> Request:
        """Wait for a request, and return the next one of the peer whose turn it is."""
        while True:
            while self._waiting:
                peer = next(iter(self._waiting))
                mine = self._waiting.pop(peer)
                request = mine.popleft()
                if mine:
                    self._waiting[peer] = mine
                if self._waiting_bytes(peer) < limits.SERVE_WAITING:
                    return request
            self._came = trio.Event()
            await self._came.wait()

    def forget(self, peer: str) -> None:
        """The peer left."""
        self._waiting.pop(peer, None)
