"""Serving blobs: `/gdf/blob/1`, one request frame, one answer frame, on a stream that stays open (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
import trio
from libp2p.abc import INetStream

from gdf_market.blobs.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES
from gdf_market.blobs.store import BlobStore, MissingBlobError
from gdf_market.codec import Hash, Record, UInt, decode, encode
from gdf_market.errors import MalformedError, PeerError, SlowError, StorageError, ensure
from gdf_market.node import limits
from gdf_market.node.counters import Counters
from gdf_market.node.frames import OtherNetworkError, StreamEndedError, StreamReader, frame, write
from gdf_market.node.meter import Meter

PROTOCOL = "/gdf/blob/1"
REQUEST = 0  # kind of a request frame; the kinds of an answer follow
FOUND, ABSENT = 0, 1
_LEAST_SLOTS = 2  # at a low rate: one transfer alone could be one that does not move
MAX_ANSWER_BYTES = max(CHUNK_BYTES, MAX_MANIFEST_BYTES)


class BlobRequest(Record, frozen=True, kw_only=True):
    """``index`` is the chunk's, and 0 for the other operations."""

    op: Annotated[str, msgspec.Meta(pattern=r"\A(manifest|chunk|has)\Z")]
    root: Hash
    index: UInt = 0
    network: Hash  # a node serves the blobs of its own network only


class BlobServer:
    """Answers requests from a BlobStore; disk work runs in threads, a bounded number at once."""

    def __init__(self, store: BlobStore, network: str, counters: Counters) -> None:
        self._store, self._network, self._counters = store, network, counters
        self._unwelcome: dict[str, float] = {}
        self._slots = trio.CapacityLimiter(limits.SERVING_SLOTS)
        self._quick = trio.CapacityLimiter(limits.SERVING_SLOTS)  # questions without content do not wait for transfers
        self._peers: dict[str, trio.Semaphore] = {}
        self._users: dict[str, int] = {}
        self._slow: dict[str, limits.Bucket] = {}  # answers that a peer did not read
        self._upload = Meter()
        self.sent_bytes = 0

    def limit_upload(self, bytes_per_s: int) -> None:
        """Send at most this much a second to all together (0: no limit)."""
        self._upload.limit(bytes_per_s)
        at_once = self._upload.at_once(limits.SHARE_BYTES_PER_S // 2, limits.SERVING_SLOTS)
        self._slots.total_tokens = max(_LEAST_SLOTS, at_once)

    async def handle(self, stream: INetStream) -> None:
        """Serve one stream until the peer ends it, is idle, or breaks the protocol (PeerError)."""
        peer = str(stream.muxed_conn.peer_id)
        if self._unwelcome.get(peer, 0.0) > trio.current_time():
            return
        reader = StreamReader(stream, limits.Bucket(float(1 << 20), float(1 << 20)))
        while True:
            with trio.move_on_after(limits.IDLE_STREAM_S) as idle:
                kind, payload = await reader.frame(limits.REQUEST_BYTES)
            if idle.cancelled_caught:
                return
            ensure(kind == REQUEST, MalformedError(f"a blob frame of kind {kind}"))
            request = decode(payload, BlobRequest, max_bytes=limits.REQUEST_BYTES)
            ensure(request.network == self._network, OtherNetworkError(f"{peer} asks for a blob of another network"))
            async with self._slot(peer, self._quick if request.op == "has" else self._slots):
                if not await self._answer_in_time(request, stream):
                    self._count_slow(peer)
                    return

    def blame(self, peer: str, error: PeerError) -> None:
        """Refuse a peer that broke the protocol for a while."""
        if isinstance(error, OtherNetworkError):
            return
        if len(self._unwelcome) >= limits.MAX_BANNED:
            del self._unwelcome[next(iter(self._unwelcome))]
        self._unwelcome[peer] = trio.current_time() + limits.BAN_S

    async def _answer_in_time(self, request: BlobRequest, stream: INetStream) -> bool:
        """Answer; False if the peer asked and does not read, for which the library gives up a write after 5 s."""
        try:
            return await self._answer(request, stream)
        except StreamEndedError:
            if stream.muxed_conn.is_closed or getattr(stream, "muxed_stream", stream).closed:
                raise  # the peer went
            self._counters.add("slow-reader", peer=str(stream.muxed_conn.peer_id))
            return False

    def _count_slow(self, peer: str) -> None:
        """Who does not read what it asked for keeps others waiting: now and then any machine may, but not often."""
        bucket = self._slow.pop(peer, None) or limits.Bucket(limits.SLOW_PER_S, limits.SLOW_BURST)
        self._slow[peer] = bucket
        if len(self._slow) > limits.MAX_BANNED:
            del self._slow[next(iter(self._slow))]
        ensure(bucket.take(1, trio.current_time()), SlowError(f"{peer} does not read the blobs that it asks for"))

    @asynccontextmanager
    async def _slot(self, peer: str, slots: trio.CapacityLimiter) -> AsyncIterator[None]:
        """Wait for one of the peer's slots, then for one of all."""
        mine = self._peers.setdefault(peer, trio.Semaphore(limits.SLOTS_PER_PEER))
        self._users[peer] = self._users.get(peer, 0) + 1
        try:
            async with mine, slots:
                yield
        finally:
            self._users[peer] -= 1
            if not self._users[peer]:
                del self._users[peer], self._peers[peer]

    async def _answer(self, request: BlobRequest, stream: INetStream) -> bool:
        data = await trio.to_thread.run_sync(self._look_up, request)
        status, payload = (ABSENT, b"") if data is None else (FOUND, data)
        if not await self._send(frame(status, payload, max_payload=MAX_ANSWER_BYTES), stream):
            self._counters.add("slow-reader", peer=str(stream.muxed_conn.peer_id))
            return False
        self.sent_bytes += len(payload)
        return True

    async def _send(self, data: bytes, stream: INetStream) -> bool:
        """Write at the agreed rate; False if the peer takes too long, without the time that the rate costs."""
        left_s = limits.ANSWER_S
        for start in range(0, len(data), limits.PIECE_BYTES):
            piece = data[start : start + limits.PIECE_BYTES]
            await self._upload.spend(len(piece))
            began = trio.current_time()
            with trio.move_on_after(min(limits.CHUNK_S, left_s)) as slow:
                await write(stream, piece)
            if slow.cancelled_caught:
                return False
            left_s -= trio.current_time() - began
        return True

    def _look_up(self, request: BlobRequest) -> bytes | None:
        try:
            if request.op == "has":
                return b"" if self._store.has(request.root) else None
            manifest = self._store.manifest(request.root)
            if request.op == "manifest":
                return encode(manifest)
            if request.index >= len(manifest.hashes):
                return None
            return self._store.read_chunk(request.root, request.index)
        except MissingBlobError:
            return None
        except StorageError as error:
            self._counters.add("damaged", error=str(error))
            return None
