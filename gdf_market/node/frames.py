"""The frames of `/gdf/ledger/1` and of `/gdf/blob/1`, and the hello that opens a link (docs/protocol.md).

A frame is a 4-byte big-endian length, then that many bytes: a kind byte and the
payload.  Both directions of a link are streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import trio
from libp2p.abc import INetStream

from gdf_market import identity
from gdf_market.codec import AccountId, Hash, Record, Signature, UInt, decode, encode
from gdf_market.errors import FloodError, MalformedError, OversizedError, PeerError, SignatureError, ensure
from gdf_market.node import limits

PROTOCOL = "/gdf/ledger/1"
VERSION = 1
HELLO, DATA = 0, 1
_READ_BYTES = 65_536

Address = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_ADDRESS_TEXT)]
Addresses = Annotated[tuple[Address, ...], msgspec.Meta(max_length=limits.MAX_ADDRESSES)]


class OtherNetworkError(PeerError):
    """A peer of another network or protocol version."""

    reason = "network"


class StreamEndedError(PeerError):
    """The peer closed or reset the stream; no fault."""

    reason = "ended"


class Voucher(Record, frozen=True, kw_only=True):
    """The control account's word that this peer id is its bulk host, until ``expires_ms``."""

    peer: AccountId
    addresses: Addresses
    expires_ms: UInt
    sig: Signature  # by the control account over (network, "bulk", the canonical other fields)


class Hello(Record, frozen=True, kw_only=True):
    """First frame of a link in both directions; sent again when something in it changed."""

    version: UInt
    network: Hash
    account: AccountId
    session: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # random per start of the process
    addresses: Addresses
    peers: Annotated[tuple[Address, ...], msgspec.Meta(max_length=limits.MAX_HELLO_PEERS * 2)]
    bulk: Voucher | None


@dataclass(frozen=True)
class BulkAddress:
    """Where the blobs of an account are served: peer id of its bulk host, and its multiaddrs."""

    peer: str
    addresses: tuple[str, ...]
    expires_ms: int


def sign_voucher(key: identity.Identity, network: str, bulk: BulkAddress) -> Voucher:
    """Return ``key``'s voucher for a bulk host."""
    addresses = bulk.addresses[: limits.MAX_ADDRESSES]
    covered = _covered(bulk.peer, addresses, bulk.expires_ms)
    signature = key.sign(network, "bulk", covered).hex()
    return Voucher(peer=bulk.peer, addresses=addresses, expires_ms=bulk.expires_ms, sig=signature)


def check_voucher(voucher: Voucher, network: str, account: str, now_ms: int) -> BulkAddress | None:
    """Return what ``voucher`` says, None if it expired; SignatureError unless ``account`` signed it."""
    covered = _covered(voucher.peer, voucher.addresses, voucher.expires_ms)
    identity.verify(network, "bulk", account, covered, bytes.fromhex(voucher.sig))
    if voucher.expires_ms <= now_ms:
        return None
    return BulkAddress(voucher.peer, voucher.addresses, voucher.expires_ms)


def _covered(peer: str, addresses: Sequence[str], expires_ms: int) -> bytes:
    return encode({"addresses": list(addresses), "expires_ms": expires_ms, "peer": peer})


def read_hello(payload: bytes, network: str, peer: str) -> Hello:
    """Return the hello in ``payload``, checked to be from ``peer`` and of ``network``.

    Raises MalformedError, OversizedError, OtherNetworkError or SignatureError.
    """
    hello = decode(payload, Hello, max_bytes=limits.MAX_HELLO_BYTES)
    ensure(
        hello.version == VERSION,
        OtherNetworkError(f"{peer} speaks version {hello.version} of the protocol, this node version {VERSION}"),
    )
    ensure(
        hello.network == network,
        OtherNetworkError(f"{peer} belongs to network {hello.network[:16]}…, this node to {network[:16]}…"),
    )
    ensure(hello.account == peer, SignatureError(f"{peer} introduced itself as {hello.account}"))
    return hello


def frame(kind: int, payload: bytes, *, max_payload: int = limits.MAX_FRAME_BYTES) -> bytes:
    """Return the bytes of one frame."""
    assert len(payload) <= max_payload
    return (len(payload) + 1).to_bytes(4, "big") + bytes((kind,)) + payload


class StreamReader:
    """Buffered reading of one stream, with ``octets`` metering what arrives."""

    def __init__(self, stream: INetStream, octets: limits.Bucket) -> None:
        self._stream = stream
        self._octets = octets
        self._buffer = bytearray()
        self._at = 0

    async def exactly(self, count: int) -> bytes:
        """Return the next ``count`` bytes; raises StreamEndedError or FloodError."""
        while len(self._buffer) - self._at < count:
            await self._more()
        data = bytes(memoryview(self._buffer)[self._at : self._at + count])
        self._at += count
        if self._at == len(self._buffer):
            self._buffer = bytearray()
            self._at = 0
        return data

    async def frame(self, max_payload: int = limits.MAX_FRAME_BYTES) -> tuple[int, bytes]:
        """Return (kind, payload) of the next frame; OversizedError or MalformedError for a bad length."""
        length = int.from_bytes(await self.exactly(4), "big")
        ensure(length >= 1, MalformedError("a frame of length 0"))
        ensure(length <= max_payload + 1, OversizedError(f"a frame of {length} bytes; limit {max_payload + 1}"))
        data = await self.exactly(length)
        return data[0], data[1:]

    async def varint(self, limit: int) -> int:
        """Return the next unsigned LEB128 number, at most ``limit``."""
        value = 0
        for shift in range(0, 35, 7):
            byte = (await self.exactly(1))[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                ensure(value <= limit, OversizedError(f"a message of {value} bytes; limit {limit}"))
                return value
        raise MalformedError("a length of more than five bytes")

    async def _more(self) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        try:
            data = await self._stream.read(_READ_BYTES)
        except Exception as error:  # the library raises a dozen kinds for a stream that is over
            raise StreamEndedError(f"stream ended: {error!r}") from None
        ensure(bool(data), StreamEndedError("stream ended"))
        ensure(
            self._octets.take(len(data), trio.current_time()),
            FloodError(f"more than {self._octets.per_s:.0f} bytes a second"),
        )
        self._buffer += data


async def write(stream: INetStream, data: bytes) -> None:
    """Write ``data`` in pieces that each are one Yamux frame; raises StreamEndedError.

    A piece is shielded, because cancelling it would leave half a frame on the
    connection; between two pieces cancellation works.
    """
    for start in range(0, len(data), limits.PIECE_BYTES):
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            with trio.CancelScope(shield=True):
                await stream.write(data[start : start + limits.PIECE_BYTES])
        except Exception as error:
            raise StreamEndedError(f"stream ended: {error!r}") from None
