"""Yamux with limits: what one connection may make this node hold, and how long it may be silent.

Rules kept here:
1. Bytes that arrived and were not read by a handler are bounded, also when the
   sender ignores its window.
2. Streams that a peer opened and that are still alive are bounded.
3. A connection that answers no ping is closed, whatever runs over it.
4. No exception leaves a connection's tasks; they end by closing the connection.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.peer.id import ID
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    GO_AWAY_NORMAL,
    PROTOCOL_ID,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from gdf_market.node import limits
from gdf_market.node.counters import Counters


class _OverBudgetError(trio.TooSlowError):
    """The library closes the connection on TooSlowError from reading a frame's body, and on nothing else."""


class LimitedYamux(Yamux):  # type: ignore[misc]  # libp2p is untyped to mypy
    """One connection's streams; ``counters`` counts what the limits here refused."""

    def __init__(self, secured_conn: ISecureConn, peer_id: ID, counters: Counters) -> None:
        super().__init__(secured_conn, peer_id)
        self._counters = counters
        self._ping_number = 0

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
            alive = sum(1 for other in self.streams.values() if not other.is_initiator and not other.closed)
            if alive <= limits.MAX_STREAMS_PER_PEER:
                return _with_small_window(stream)
            self._counters.add("streams", peer=str(self.peer_id))
            await stream.reset()

    async def open_stream(self) -> YamuxStream:
        """Open a stream to the peer."""
        return _with_small_window(await super().open_stream())

    async def _read_data_body(self, length: int) -> bytes:
        unread = sum(len(buffer) for buffer in self.stream_buffers.values())
        if length > limits.MAX_YAMUX_FRAME or unread + length > limits.MAX_UNREAD_BYTES:
            self._counters.add("unread", peer=str(self.peer_id), unread=unread, length=length)
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


class LimitedMuxers(MuxerMultistream):  # type: ignore[misc]
    """Makes LimitedYamux for every new connection (the library's own selector always makes its plain Yamux)."""

    def __init__(self, counters: Counters) -> None:
        super().__init__({PROTOCOL_ID: LimitedYamux}, int(limits.HANDSHAKE_S))
        self._counters = counters

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Agree on Yamux with the peer and return the connection."""
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed: Any = LimitedYamux(conn, peer_id, self._counters)
        return self._annotate_connection(muxed, conn, protocol)
