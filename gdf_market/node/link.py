"""One link: what is queued for a peer, and how much it may send us."""

from __future__ import annotations

import math
from collections import deque

import trio

from gdf_market.errors import FloodError, ensure
from gdf_market.node import limits
from gdf_market.node.frames import Hello


class Outbox:
    """Frames that wait for one peer, bounded in number and bytes."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._ready = trio.Event()
        self._rate = limits.Bucket(limits.FRAMES_PER_S * limits.PACE, limits.FRAMES_BURST * limits.PACE)
        self._octets = limits.Bucket(limits.BYTES_PER_S * limits.PACE, limits.BYTES_BURST * limits.PACE)

    def put(self, data: bytes) -> bool:
        """Queue a frame; False if the peer has too much waiting already."""
        if len(self._frames) >= limits.QUEUE_FRAMES or self._bytes + len(data) > limits.QUEUE_BYTES:
            return False
        self._frames.append(data)
        self._bytes += len(data)
        self._ready.set()
        return True

    async def take(self) -> bytes:
        """Wait for frames and for their turn; return as many as fit in one write."""
        while not self._frames:
            self._ready = trio.Event()
            await self._ready.wait()
        batch = [self._frames.popleft()]
        size = len(batch[0])
        while self._frames and size + len(self._frames[0]) <= limits.PIECE_BYTES:
            batch.append(self._frames.popleft())
            size += len(batch[-1])
        self._bytes -= size
        now = trio.current_time()
        pause = max(self._rate.spend(len(batch), now), self._octets.spend(size, now))
        if pause:
            await trio.sleep(pause)
        return b"".join(batch)

    @property
    def waiting_bytes(self) -> int:
        """Bytes queued and not yet taken."""
        return self._bytes


class Link:
    """State of the two streams with one peer.  It is up once both sides said hello, and ends once."""

    def __init__(self, account: str) -> None:
        self.account = account
        self.outbox = Outbox()
        self.hello: Hello | None = None  # theirs
        self.spoken = False  # ours is written
        self.up = trio.Event()
        self.ended = trio.Event()
        self._scopes: list[trio.CancelScope] = []  # two: our stream's and theirs
        self.up_since = -math.inf
        self.writing_since = math.inf
        self._frames = limits.Bucket(limits.FRAMES_PER_S, limits.FRAMES_BURST)
        self._hellos = limits.Bucket(limits.HELLOS_PER_S, limits.HELLOS_BURST)

    def meter(self, *, hello: bool) -> None:
        """Count one frame that arrived; FloodError above the rate."""
        bucket = self._hellos if hello else self._frames
        ensure(
            bucket.take(1, trio.current_time()),
            FloodError(f"more than {bucket.per_s:.0f} {'hellos' if hello else 'frames'} a second"),
        )

    def scope(self) -> trio.CancelScope:
        """Return a scope that the end of this link cancels."""
        scope = trio.CancelScope()
        if self.ended.is_set():
            scope.cancel()
        else:
            self._scopes.append(scope)
        return scope

    def end(self) -> None:
        """End the link: whatever runs for it is cancelled."""
        self.ended.set()
        for scope in self._scopes:
            scope.cancel()
