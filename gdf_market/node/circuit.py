"""Circuit relay v2 on the wire: its two messages, and a stream through a relay that serves as a connection.

Only the formats are the library's; its relay service and transport are not used, because they read without
a bound and end on a wrong message.  Both ends of a circuit log in with Noise over it, so that a
relay sees sealed bytes and no peer can pretend to be another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import trio
from google.protobuf.message import DecodeError, Message
from libp2p.abc import INetStream
from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from libp2p.utils import encode_varint_prefixed
from multiaddr import Multiaddr

from gdf_market.errors import MalformedError, OversizedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.frames import StreamEndedError, write

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
OK: int = pb.OK
MAX_MESSAGE_BYTES = 4_096
WINDOW_BYTES = 256 << 10  # of a circuit's streams: what a relay may hold back, and what a ping waits behind

Wire = TypeVar("Wire", bound=Message)


class RefusedError(PeerError):
    """A relay or its peer declined; no fault."""

    reason = "relay-refused"


async def read_message(stream: INetStream, kind: type[Wire]) -> Wire:
    """Return the next message, and read not a byte more.  MalformedError, OversizedError or StreamEndedError."""
    length, shift = 0, 0
    while True:
        byte = (await _exactly(stream, 1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        ensure(shift < 21, MalformedError("a length of more than three bytes"))
    ensure(length <= MAX_MESSAGE_BYTES, OversizedError(f"a message of {length} bytes; limit {MAX_MESSAGE_BYTES}"))
    message = kind()
    try:
        message.ParseFromString(await _exactly(stream, length))
    except DecodeError:
        raise MalformedError("a relay message that cannot be decoded") from None
    return message


async def _exactly(stream: INetStream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += await read_some(stream, count - len(data))
    return bytes(data)


async def read_some(stream: INetStream, count: int) -> bytes:
    """Return up to ``count`` bytes, at least one; StreamEndedError at the end, whatever the library calls it."""
    try:
        data: bytes = await stream.read(count)
    except Exception as error:
        raise StreamEndedError(f"stream ended: {error!r}") from None
    ensure(bool(data), StreamEndedError("stream ended"))
    return data


async def until_ended(stream: INetStream, seconds: float = 2.0) -> None:
    """Wait for the peer to end the stream, so that a reset does not overtake what was written last."""
    with trio.move_on_after(seconds), contextlib.suppress(StreamEndedError):
        await read_some(stream, 1)


async def write_message(stream: INetStream, message: Message) -> None:
    """Write a message; StreamEndedError."""
    await write(stream, encode_varint_prefixed(message.SerializeToString()))


def hop(kind: int, **fields: Any) -> Message:
    """Return a message of the relay's protocol."""
    return pb.HopMessage(type=kind, **fields)  # type: ignore[arg-type]


def stop(kind: int, **fields: Any) -> Message:
    """Return a message of the protocol between relay and target."""
    return pb.StopMessage(type=kind, **fields)  # type: ignore[arg-type]


def peer_field(peer: str) -> Any:
    """Return how a message names a peer."""
    return pb.PeerId(id=ID.from_string(peer).to_bytes())


def peer_of(field: Any) -> str:
    """Return the peer that a message names; MalformedError if it names none."""
    try:
        found = str(ID(bytes(field.id)))
    except ValueError:
        found = ""
    ensure(found.startswith("12D3KooW") and len(found) == 52, MalformedError("a relay message that names no peer"))
    return found


def narrow(stream: INetStream) -> INetStream:
    """Keep the library from widening the stream's receive window beyond its first size (``WINDOW_BYTES``)."""
    muxed: Any = getattr(stream, "muxed_stream", None)
    if muxed is not None:
        muxed._apply_autotune_epoch = lambda buffered: 0
    return stream


class CircuitStream(ReadWriteCloser):  # type: ignore[misc]
    """The bytes between the two ends of a circuit; ``closed`` is set once this end is done with it."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = narrow(stream)
        self._writing = trio.Lock()
        self.closed = trio.Event()

    async def read(self, n: int | None = None) -> bytes:
        """Return up to ``n`` bytes; ConnectionClosedError at the end, as a socket of the library does."""
        try:
            return await read_some(self._stream, n or limits.PIECE_BYTES)
        except StreamEndedError as error:
            raise ConnectionClosedError(str(error), transport="circuit") from None

    async def write(self, data: bytes) -> None:
        """Write all of ``data``; ConnectionClosedError if the circuit ended."""
        async with self._writing:
            try:
                await write(self._stream, data)
            except StreamEndedError as error:
                raise ConnectionClosedError(str(error), transport="circuit") from None

    async def close(self) -> None:
        """End the circuit."""
        self.closed.set()
        with trio.CancelScope(shield=True), trio.move_on_after(limits.GOODBYE_S):
            await self._stream.reset()

    def get_remote_address(self) -> None:
        """A peer behind a relay has no address that could be seen."""


def connection(stream: CircuitStream, address: str, *, initiator: bool) -> RawConnection:
    """Return what the library upgrades to a connection; ``address`` is the circuit's multiaddr."""
    return RawConnection(stream, initiator, ConnectionType.RELAYED, [Multiaddr(address)])


def is_relayed(stream: INetStream) -> bool:
    """Say whether a stream runs over a circuit."""
    found: Any = stream.muxed_conn
    return bool(found.get_remote_address() is None)


async def pump(source: INetStream, sink: INetStream, budget: Callable[[int], float]) -> None:
    """Pass bytes on until either end is over; ``budget(bytes)`` returns the seconds to wait, or raises to end it."""
    while True:
        data = await read_some(source, limits.PIECE_BYTES)
        pause = budget(len(data))
        if pause > 0:
            await trio.sleep(pause)
        await write(sink, data)
