"""Frames, hellos and vouchers as bytes from a peer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gdf_market.codec import encode
from gdf_market.errors import FloodError, MalformedError, OversizedError, SignatureError
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.frames import (
    DATA,
    HELLO,
    VERSION,
    BulkAddress,
    Hello,
    OtherNetworkError,
    StreamEndedError,
    StreamReader,
    check_voucher,
    frame,
    read_hello,
    sign_voucher,
    write,
)

NETWORK, OTHER = "ab" * 32, "cd" * 32
KEY, PEER = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)


class FakeStream:
    """A stream that returns the given pieces, then ends; remembers what is written."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = list(pieces)
        self.written: list[bytes] = []

    async def read(self, count: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.pieces:
            raise RuntimeError("the library's way to say that a stream is over")
        return self.pieces.pop(0)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.written.append(data)


def reader(*pieces: bytes, burst: float = 1e9) -> StreamReader:
    return StreamReader(FakeStream(list(pieces)), limits.Bucket(1.0, burst))  # type: ignore[arg-type]


def hello(**changes: object) -> Hello:
    values: dict[str, object] = {
        "version": VERSION,
        "network": NETWORK,
        "account": PEER.account,
        "session": "00" * 16,
        "addresses": (),
        "peers": (),
        "bulk": None,
    }
    return Hello(**{**values, **changes})  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_frames_arrive_as_sent_however_the_bytes_are_cut(payloads: list[bytes], step: int) -> None:
    data = b"".join(frame(DATA, payload) for payload in payloads)
    pieces = [data[start : start + step] for start in range(0, len(data), step)]

    async def read() -> list[tuple[int, bytes]]:
        stream = reader(*pieces)
        return [await stream.frame() for _ in payloads]

    assert trio.run(read) == [(DATA, payload) for payload in payloads]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\0\0\0\0", MalformedError),
        ((limits.MAX_FRAME_BYTES + 2).to_bytes(4, "big"), OversizedError),
        (b"\xff\xff\xff\xff", OversizedError),
        (b"\0\0\0\5\1ab", StreamEndedError),
        (b"\0\0", StreamEndedError),
        (b"", StreamEndedError),
    ],
)
async def test_a_bad_length_or_a_torn_frame_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await reader(data).frame()


async def test_the_largest_frame_passes() -> None:
    payload = bytes(limits.MAX_FRAME_BYTES)
    assert await reader(frame(DATA, payload)).frame() == (DATA, payload)


async def test_more_bytes_than_the_rate_end_the_stream() -> None:
    with pytest.raises(FloodError):
        await reader(*[bytes(1_000)] * 10, burst=5_000).exactly(10_000)


@given(st.integers(0, 2**35 - 1))
def test_varints_are_read_as_protobuf_writes_them(value: int) -> None:
    from libp2p.utils import encode_uvarint

    async def read() -> int:
        return await reader(encode_uvarint(value)).varint(2**35)

    assert trio.run(read) == value


@pytest.mark.parametrize(("data", "error"), [(b"\xff" * 6, MalformedError), (b"\xff\x7f", OversizedError)])
async def test_a_length_beyond_the_limit_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await reader(data).varint(1_000)


async def test_writes_are_cut_into_pieces_of_one_yamux_frame() -> None:
    stream = FakeStream([])
    data = bytes(range(256)) * 1_000
    await write(stream, data)  # type: ignore[arg-type]
    assert b"".join(stream.written) == data
    assert max(map(len, stream.written)) <= limits.PIECE_BYTES


async def test_a_cancelled_write_ends_between_two_pieces() -> None:
    with trio.CancelScope() as scope:

        class Cancelling(FakeStream):
            async def write(self, data: bytes) -> None:
                scope.cancel()
                await super().write(data)

        stream = Cancelling([])
        await write(stream, bytes(3 * limits.PIECE_BYTES))  # type: ignore[arg-type]
    assert [len(piece) for piece in stream.written] == [limits.PIECE_BYTES]


async def test_nothing_is_written_after_cancellation() -> None:
    """A hello of a link that ended while its stream opened would end the peer's good link."""
    stream = FakeStream([])
    with trio.CancelScope() as scope:
        scope.cancel()
        await write(stream, b"hello")  # type: ignore[arg-type]
    assert stream.written == []


def test_hello_is_read_back() -> None:
    voucher = sign_voucher(PEER, NETWORK, BulkAddress(KEY.account, ("/ip4/192.0.2.1/tcp/1",), 5_000))
    sent = hello(bulk=voucher)
    assert read_hello(encode(sent), NETWORK, PEER.account) == sent


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"network": OTHER}, OtherNetworkError),
        ({"version": VERSION + 1}, OtherNetworkError),
        ({"account": KEY.account}, SignatureError),
        ({"session": "zz"}, MalformedError),
        ({"addresses": tuple("/x" for _ in range(limits.MAX_ADDRESSES + 1))}, MalformedError),
        ({"peers": tuple("/x" for _ in range(2 * limits.MAX_HELLO_PEERS + 1))}, MalformedError),
        ({"peers": ("x" * (limits.MAX_ADDRESS_TEXT + 1),)}, MalformedError),
    ],
)
def test_a_hello_that_is_not_ours_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_hello(encode(hello(**change)), NETWORK, PEER.account)


def test_the_largest_hello_fits_its_limit() -> None:
    address = "/dns4/" + "x" * (limits.MAX_ADDRESS_TEXT - 80) + f"/tcp/65535/p2p/{PEER.account}"
    voucher = sign_voucher(PEER, NETWORK, BulkAddress(KEY.account, (address,) * limits.MAX_ADDRESSES, 2**52))
    largest = hello(
        addresses=(address,) * limits.MAX_ADDRESSES, peers=(address,) * (2 * limits.MAX_HELLO_PEERS), bulk=voucher
    )
    assert len(encode(largest)) <= limits.MAX_HELLO_BYTES
    assert len(frame(HELLO, encode(largest))) <= limits.MAX_FRAME_BYTES


def test_a_voucher_holds_for_its_signer_network_and_time_only() -> None:
    bulk = BulkAddress(KEY.account, ("/ip4/192.0.2.1/tcp/1",), 5_000)
    voucher = sign_voucher(PEER, NETWORK, bulk)
    assert check_voucher(voucher, NETWORK, PEER.account, 4_999) == bulk
    assert check_voucher(voucher, NETWORK, PEER.account, 5_000) is None
    refused: list[Callable[[], object]] = [
        lambda: check_voucher(voucher, OTHER, PEER.account, 0),
        lambda: check_voucher(voucher, NETWORK, KEY.account, 0),
        lambda: check_voucher(type(voucher)(**{**_fields(voucher), "expires_ms": 6_000}), NETWORK, PEER.account, 0),
        lambda: check_voucher(type(voucher)(**{**_fields(voucher), "peer": PEER.account}), NETWORK, PEER.account, 0),
    ]
    for check in refused:
        with pytest.raises(SignatureError):
            check()


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}  # type: ignore[attr-defined]
