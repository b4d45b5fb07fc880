"""Yamux with limits: what one connection may make this node hold, and how long it may be silent.

Rules kept here:
1. Bytes that arrived and were not read by a handler are bounded, also when the
   sender ignores its window.
2. Streams that a peer opened and that are still alive are bounded, and so is how many it opens, and small frames.
3. A connection that answers no ping is closed, whatever runs over it.
4. No exception leaves a connection's tasks; they end by closing the connection.
"""

from __future__ import annotations

import contextlib
import struct
import weakref
from collections.abc import Callable
from typing import Any

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.peer.id import ID
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    GO_AWAY_NORMAL,
    HEADER_SIZE,
    PROTOCOL_ID,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from gdf_market.errors import FloodError, PeerError
from gdf_market.node import limits
from gdf_market.node.counters import Counters

Blame = Callable[[str, PeerError], None]


class _OverBudgetError(trio.TooSlowError):
    """The library closes the connection on TooSlowError from reading a frame's body, and on nothing else."""


class LimitedYamux(Yamux):  # type: ignore[misc]  # libp2p is untyped to mypy
    """One connection's streams; ``counters`` counts what the limits here refused."""

    def __init__(
        self, secured_conn: ISecureConn, peer_id: ID, counters: Counters, together: weakref.WeakSet[Any], blame: Blame
    ) -> None:
        super().__init__(_Metered(secured_conn, self._too_many_frames), peer_id)
        self._counters, self._blame = counters, blame
        self._together = together  # all connections of the host
        self._opened = limits.Bucket(limits.STREAMS_PER_S, limits.STREAMS_BURST)
        self._ping_number = 0
        together.add(self)

    async def start(self) -> None:
        """Serve until the connection ends."""
        try:
            await super().start()
        except Exception as error:
            self._counters.add("connection", peer=str(self.peer_id), error=repr(error))
            await self._cleanup_on_error()

    async def accept_stream(self) -> IMuxedStream:
        """Return the peer's next stream; those beyond the limit are reset."""
        while True:
            stream = await super().accept_stream()
            if not self._opened.take(1, trio.current_time()):
                await stream.reset()
                self._flooded(f"more than {self._opened.per_s:.0f} streams a second")
                await self._cleanup_on_error()
                continue
            alive = sum(1 for other in self.streams.values() if not other.is_initiator and not other.closed)
            if alive <= limits.MAX_STREAMS_PER_PEER:
                return _with_small_window(stream)
            self._counters.add("streams", peer=str(self.peer_id))
            await stream.reset()

    async def open_stream(self) -> YamuxStream:
        """Open a stream to the peer."""
        return _with_small_window(await super().open_stream())

    @property
    def unread(self) -> int:
        """Bytes that arrived and that no handler read yet."""
        return sum(len(buffer) for buffer in self.stream_buffers.values())

    def _flooded(self, what: str) -> None:
        self._blame(str(self.peer_id), FloodError(what))

    def _too_many_frames(self) -> None:
        self._counters.add("muxer-frames", peer=str(self.peer_id))
        self._flooded(f"more than {limits.SMALL_FRAMES_PER_S:.0f} small muxer frames a second")

    def _has_room(self, unread: int) -> bool:
        """Say whether so much more than is fair on one connection may wait here: the largest gives way for others."""
        if unread <= limits.FAIR_UNREAD:
            return True
        held = [other.unread for other in self._together if not other.is_closed]
        return sum(held) <= limits.MAX_UNREAD_ALL or unread < max(held, default=0)

    async def _read_data_body(self, length: int) -> bytes:
        self.secured_conn.frame(length)
        unread = self.unread + length
        if (
            length > limits.MAX_YAMUX_FRAME
            or unread > limits.MAX_UNREAD_BYTES
            or (length and not self._has_room(unread))
        ):
            self._counters.add("unread", peer=str(self.peer_id), unread=unread, length=length)
            self._flooded(f"{unread} bytes that nobody reads, with a frame of {length}")
            raise _OverBudgetError
        body: bytes = await super()._read_data_body(length)
        return body

    async def close(self, error_code: int = GO_AWAY_NORMAL) -> None:
        """Say goodbye and close; a peer that takes no bytes cannot delay it for long."""
        with trio.move_on_after(limits.GOODBYE_S):
            await super().close(error_code)
        if not self.is_closed:
            await self._cleanup_on_error()

    async def _measure_rtt_loop(self) -> None:
        while not self.event_shutting_down.is_set():
            with trio.move_on_after(limits.PING_EVERY_S):
                await self.event_shutting_down.wait()
                return
            async with trio.open_nursery() as nursery:
                self._ping_event = trio.Event()
                nursery.start_soon(self._send_ping)
                with trio.move_on_after(limits.PING_TIMEOUT_S):
                    await self._ping_event.wait()
                    continue
                self._counters.add("silent", peer=str(self.peer_id))
                await self._cleanup_on_error()  # closing the socket also ends a write that hangs

    async def _send_ping(self) -> None:
        self._ping_number = (self._ping_number + 1) % 2**32
        self._ping_sent_time = trio.current_time()
        header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, self._ping_number)
        with trio.CancelScope(shield=True), contextlib.suppress(Exception):  # half a frame would ruin the connection
            await self._write_frame(header)


def _with_small_window(stream: Any) -> Any:
    """Keep the library from doubling the stream's receive window up to its 16 MiB."""

    def tune(buffered: int) -> int:
        if stream.target_recv_window >= limits.MAX_WINDOW_BYTES:
            return 0
        return int(YamuxStream._apply_autotune_epoch(stream, buffered))

    stream._apply_autotune_epoch = tune
    return stream


class _Metered:
    """A connection that counts the muxer's small frames: each costs as much work as a large one.

    The library reads a header of 12 bytes, then perhaps a body.  Beyond the rate, reading fails, which closes the
    connection.
    """

    def __init__(self, conn: ISecureConn, flooded: Callable[[], None]) -> None:
        self._conn, self._flooded = conn, flooded
        self._frames = limits.Bucket(limits.SMALL_FRAMES_PER_S, limits.SMALL_FRAMES_BURST)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def frame(self, length: int) -> None:
        """A body of so many bytes follows a header: a large one is not counted."""
        if length >= limits.SMALL_FRAME:
            self._frames.tokens += 1

    async def read(self, count: int | None = None) -> bytes:
        """Read as the connection does; ConnectionError beyond the rate of small frames."""
        if count == HEADER_SIZE and not self._frames.take(1, trio.current_time()):
            self._flooded()
            raise ConnectionError("too many small frames")
        data: bytes = await self._conn.read(count)
        return data


class LimitedMuxers(MuxerMultistream):  # type: ignore[misc]
    """Makes LimitedYamux for every new connection (the library's own selector always makes its plain Yamux)."""

    def __init__(self, counters: Counters) -> None:
        super().__init__({PROTOCOL_ID: LimitedYamux}, int(limits.HANDSHAKE_S))
        self._counters = counters
        self._together: weakref.WeakSet[Any] = weakref.WeakSet()
        self.blame: Blame = lambda peer, error: None

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Agree on Yamux with the peer and return the connection."""
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed: Any = LimitedYamux(
            conn, peer_id, self._counters, self._together, lambda peer, error: self.blame(peer, error)
        )
        return self._annotate_connection(muxed, conn, protocol)
