"""Decoders of a node and of training: frames, orders, invites, blobs, key and note files, programs, updates, data."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import libp2p.pubsub.pb.rpc_pb2 as rpc_pb2
import numpy as np
import trio
import zstandard

from gdf_market import keystore
from gdf_market.blobs.manifest import Manifest, parse_manifest
from gdf_market.book.core import OrderBook
from gdf_market.codec import decode, encode, sha256
from gdf_market.errors import KeyLockedError, LocalError, PeerError, UserError
from gdf_market.messages import JobPost
from gdf_market.node import gossip, journal, limits
from gdf_market.node.blob_server import BlobRequest
from gdf_market.node.frames import VERSION, Hello, StreamReader, check_voucher, frame, read_hello
from gdf_market.node.invite import PREFIX, make_invite, parse_invite
from gdf_market.train import checkpoint
from gdf_market.train.codec import MAX_VALUE, Codec
from gdf_market.train.data import DataManifest, check_manifest
from gdf_market.train.program import Program
from tests.fuzz.draw import Draw, Run, Target, canonical, example
from tests.fuzz.ledger_targets import GENESIS, NETWORK, NOW, PEER, reading, samples
from tests.simulator import key

PEER_ERRORS = (PeerError,)


# ---- frames and orders


class _Stream:
    """What a peer wrote, in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def read(self, count: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def prepare_frames() -> Run:
    stream = b"".join(frame(1, data) for data in samples().messages[:6])

    async def read(data: bytes, varints: bool) -> None:
        pieces = [data[start : start + 700] for start in range(0, len(data), 700)]
        reader = StreamReader(_Stream(pieces), limits.Bucket(1e9, 1e9))
        while True:
            await (reader.varint(1 << 20) if varints else reader.frame())

    return lambda draw: trio.run(read, draw.bytes_like([stream]), draw.random() < 0.3)


def prepare_hello() -> Run:
    hello = example(Hello) | {"version": VERSION, "network": NETWORK, "account": PEER}

    def run(draw: Draw) -> None:
        found = read_hello(draw.bytes_like([canonical(hello)]), NETWORK, PEER)
        if found.bulk is not None:
            check_voucher(found.bulk, NETWORK, PEER, NOW)

    return run


def prepare_orders() -> Run:
    book, sample = OrderBook(NETWORK), example(JobPost)

    def run(draw: Draw) -> None:
        body = draw.altered(sample) if draw.random() < 0.7 else sample
        author = key(101)
        if isinstance(body, dict):
            body = body | {"author": author.account, "nonce": draw.randrange(2**40), "expires_ms": NOW + 600_000}
        data = canonical(body)
        signature = author.sign(NETWORK, "entry", data).hex().encode()
        raw = b'{"body":' + data + b',"sig":"' + signature + b'"}'
        raw = raw if draw.random() < 0.6 else draw.bytes_like([raw])
        book.on_order(raw, PEER, NOW, balance_of=lambda account: 10**15, escrow_of=lambda spec: spec.reserve_price)

    return run


def prepare_gossip() -> Run:
    topic = "/gdf/orders/1"
    message = rpc_pb2.Message(
        from_id=b"\0" * 38, seqno=b"\0" * 8, data=b"{}", topicIDs=[topic], signature=b"1", key=b"2"
    )
    sample = message.SerializeToString()

    def run(draw: Draw) -> None:
        found = rpc_pb2.Message()
        try:
            found.ParseFromString(draw.bytes_like([sample]))
        except Exception:
            return  # the library refuses it, and so does what wraps it
        if draw.random() < 0.7:
            found.topicIDs[:], found.seqno, found.from_id = [topic], b"\0" * 8, b"\0" * draw.randrange(1, 60)
        gossip._check(found, topic)

    return run


def prepare_invites() -> Run:
    invite = make_invite(GENESIS, [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"])

    def run(draw: Draw) -> None:
        data = draw.bytes_like([invite.encode(), invite.removeprefix(PREFIX).encode()])
        text = data.decode("latin-1")
        parse_invite(text if draw.random() < 0.5 else PREFIX + text.removeprefix(PREFIX))

    return run


# ---- blobs and files


def read_manifest(data: bytes) -> None:
    """A liar names its blob by the bytes that it will send."""
    parse_manifest(sha256(data).hex(), data)


def blob_manifests() -> list[bytes]:
    return [encode(Manifest(chunk=1 << 20, hashes=("5a" * 32,) * count, size=count << 20)) for count in (0, 1, 40)]


def read_note(data: bytes) -> None:
    decode(data, journal.UnitNote, max_bytes=journal.MAX_NOTE_BYTES)


def read_key(data: bytes) -> None:
    path = Path("key.json")
    found = keystore._parse(path, data)
    if isinstance(found, keystore.PlainKey):
        keystore._open(path, found, None)


def key_files() -> list[bytes]:
    return [keystore._to_bytes(key(1), None, keystore.Cost(1, 8_192)), canonical(example(keystore.SealedKey))]


# ---- training


@functools.cache
def _program() -> bytes:
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    made: Program = importlib.import_module("train_kit").program()
    return made.to_bytes()


def prepare_updates() -> Run:
    """Damaged updates, and damaged bodies below an honest header, compressed anew."""
    delta = np.random.Generator(np.random.PCG64(1)).standard_normal(3_000).astype(np.float32) * 0.01
    dense = [Codec(bits, block) for bits in (2, 3, 4, 8) for block in (16, 64)]
    codecs = [*dense, Codec(2, 64, 31_250), Codec(4, 16, 125_000), Codec(5, 64, 1_000)]
    encoded = {codec: codec.encode(delta) for codec in codecs}
    assert {data[12] for data in encoded.values()} == {0, 1}, "both forms are damaged"

    def run(draw: Draw) -> None:
        codec = draw.choice(codecs)
        data, n = encoded[codec], delta.size
        if draw.random() < 0.5:
            data = _damaged_inside(draw, data)
        else:
            data = draw.bytes_like([data])
            n = n if draw.random() < 0.8 else draw.choice((0, 1, n - 1, 2**31, 2**40))
        read = codec.read(data, n)
        assert np.abs(read.values()).max() <= MAX_VALUE
        assert read.spread(read.steps()).shape == (n,)
        assert np.array_equal(codec.decode(codec.write(read), n), read.spread(read.values()))

    return run


def _damaged_inside(draw: Draw, data: bytes) -> bytes:
    header, rest = data[:24], data[24:]
    body = zstandard.ZstdDecompressor().decompress(rest) if data[12] else rest
    body = draw.bytes_like([body, body[:7] + b"\xff" * 20 + body[27:]])
    if draw.random() < 0.5:
        return header[:12] + b"\0" + header[13:] + body
    options = {"write_content_size": draw.random() < 0.9, "write_checksum": draw.random() < 0.1}
    settings = zstandard.ZstdCompressionParameters.from_level(draw.choice((1, 3, 9)), **options)
    frame = zstandard.ZstdCompressor(compression_params=settings).compress(body)
    return header[:12] + b"\1" + header[13:] + frame + draw.choice((b"", b"", b"", b"\0", frame))


def prepare_checkpoints() -> Run:
    values = np.arange(50, dtype=np.float32)
    packed = [checkpoint.pack(values, values), checkpoint.pack(values, np.zeros_like(values))]
    return lambda draw: _ignore(checkpoint.unpack(draw.bytes_like(packed), draw.choice((50, 50, 50, 49, 0))))


def _ignore(value: Any) -> None:
    """A decoder's result is of no interest."""


def read_data_manifest(data: bytes) -> None:
    check_manifest(decode(data, DataManifest), 4)


def data_manifests() -> list[bytes]:
    return [canonical(example(DataManifest) | {"count": 2_000, "train": 1_500, "vocab": 300, "context": 16})]


TARGETS = (
    Target("frames", prepare_frames, PEER_ERRORS, 0.1),
    Target("hello", prepare_hello, PEER_ERRORS),
    Target("order", prepare_orders, PEER_ERRORS),
    Target("gossip message", prepare_gossip, PEER_ERRORS),
    Target("invite", prepare_invites, (UserError,)),
    Target(
        "blob request",
        reading(lambda data: decode(data, BlobRequest), lambda: [canonical(example(BlobRequest))]),
        PEER_ERRORS,
    ),
    Target("blob manifest", reading(read_manifest, blob_manifests), PEER_ERRORS),
    Target("note", reading(read_note, lambda: [canonical(example(journal.UnitNote))]), (PeerError, LocalError)),
    Target("key file", reading(read_key, key_files), (KeyLockedError,)),
    Target("program", reading(Program.from_bytes, lambda: [_program()]), PEER_ERRORS, 0.02),
    Target("update", prepare_updates, PEER_ERRORS, 2.0),
    Target("checkpoint", prepare_checkpoints, PEER_ERRORS),
    Target("data manifest", reading(read_data_manifest, data_manifests), PEER_ERRORS),
)
