"""Bulk hosts in processes of their own, for benchmarks: sources with a limited line, and a receiver that is watched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import trio

from gdf_market.blobs.manifest import CHUNK_BYTES
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import decode, encode
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.blob_server import FOUND, MAX_ANSWER_BYTES, PROTOCOL, BlobRequest
from gdf_market.node.bulk import BulkHost
from gdf_market.node.frames import BulkAddress, StreamReader, frame, write
from gdf_market.node.p2p import Host, open_host

NETWORK = "ab" * 32
FOREVER_MS = 2**52
Midway = Callable[[], Awaitable[None]]


@dataclass
class Source:
    """A running source; ``stop`` ends it for good, ``limit`` sets the bytes a second that it sends."""

    name: str
    address: BulkAddress
    stop: Callable[[], None]
    limit: Callable[[int], None]


@dataclass(frozen=True)
class Fetched:
    """What one download took; ``received`` are bytes on the wire, frames and what came twice included."""

    seconds: float
    size: int
    received: int
    peak_rss: int

    @property
    def bytes_per_s(self) -> float:
        return self.size / self.seconds


class World:
    """A blob of ``chunks`` x 1 MiB, in folders under ``folder``."""

    def __init__(self, folder: Path, chunks: int) -> None:
        self.folder, self.size, self._count = folder, chunks * CHUNK_BYTES, 0
        self._content = folder / "content"
        with self._content.open("wb") as file:
            for _ in range(chunks):
                file.write(os.urandom(CHUNK_BYTES))
        self.root = ""

    def _folder(self, name: str) -> Path:
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def _stored(self) -> Path:
        folder = self._folder("source")
        self.root = BlobStore(folder).put_file(self._content)
        return folder

    @contextlib.asynccontextmanager
    async def sources(self, rates: Sequence[int]) -> AsyncIterator[list[Source]]:
        """Run one source for each rate of upload (bytes a second, 0: as fast as it goes)."""
        async with trio.open_nursery() as nursery:
            made: dict[int, Source] = {}

            async def start(number: int, rate: int) -> None:
                made[number] = await nursery.start(self._serve, f"source {number}", rate)

            async with trio.open_nursery() as starting:
                for number, rate in enumerate(rates):
                    starting.start_soon(start, number, rate)
            yield [made[number] for number in range(len(rates))]
            nursery.cancel_scope.cancel()

    async def _serve(
        self, name: str, rate: int, *, task_status: trio.TaskStatus[Source] = trio.TASK_STATUS_IGNORED
    ) -> None:
        folder = await trio.to_thread.run_sync(self._stored)
        with trio.CancelScope() as scope:
            async with BulkHost(Identity(os.urandom(32)), NETWORK, folder) as bulk:
                bulk.limit_upload(rate)
                address = BulkAddress(bulk.peer, bulk.addresses, FOREVER_MS)
                task_status.started(Source(name, address, scope.cancel, bulk.limit_upload))
                await trio.sleep_forever()

    @contextlib.asynccontextmanager
    async def corrupting(self) -> AsyncIterator[Source]:
        """Run a source that answers every request for a chunk with other bytes."""
        store = BlobStore(await trio.to_thread.run_sync(self._stored))

        async def handle(stream: Any) -> None:
            reader = StreamReader(stream, limits.Bucket(1e9, 1e9))
            while True:
                _, raw = await reader.frame()
                request = decode(raw, BlobRequest)
                answer = {"has": b"", "manifest": encode(store.manifest(request.root)), "chunk": bytes(CHUNK_BYTES)}
                await write(stream, frame(FOUND, answer[request.op], max_payload=MAX_ANSWER_BYTES))

        def prepare(host: Host) -> None:
            host.handle(PROTOCOL, handle, lambda peer, error: None)

        async with open_host(None, ("127.0.0.1", 0), prepare=prepare) as host:
            address = BulkAddress(host.account, host.addresses, FOREVER_MS)
            yield Source("corrupting", address, stop=lambda: None, limit=lambda rate: None)

    async def fetch(
        self,
        sources: Sequence[Source],
        *,
        ranked: bool = True,
        warm: bool = False,
        down: int = 0,
        midway: Midway | None = None,
    ) -> Fetched:
        """Let a new receiver fetch the blob; ``midway`` runs when half of it is there.

        It measured nobody yet; a ``warm`` one fetched it before, and only the second time counts.
        """
        store = self._folder("receiver")
        async with BulkHost(Identity(os.urandom(32)), NETWORK, store, ranked=ranked) as bulk:
            bulk.limit_download(down)
            for source in sources:
                bulk.add_source(source.name, source.address)
            if warm:
                await bulk.fetch(self.root, max_bytes=self.size)
                await trio.to_thread.run_sync(BlobStore(store).delete, self.root)
            before = (await bulk.stats())["received_bytes"]
            assert bulk.process is not None
            watched, peak = psutil.Process(bulk.process.pid), 0
            began = trio.current_time()

            async def watch() -> None:
                nonlocal peak
                done = midway is None
                while True:
                    peak = max(peak, watched.memory_info().rss)
                    if not done and _arrived(store, self.root) * 2 * CHUNK_BYTES >= self.size:
                        done = True
                        assert midway is not None
                        await midway()
                    await trio.sleep(0.02)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await bulk.fetch(self.root, max_bytes=self.size)
                nursery.cancel_scope.cancel()
            seconds = trio.current_time() - began
            received = (await bulk.stats())["received_bytes"] - before
        await trio.to_thread.run_sync(BlobStore(store).delete, self.root)
        return Fetched(seconds, self.size, received, peak)


def _arrived(store: Path, root: str) -> int:
    """Return the chunks of an arriving blob that are there."""
    try:
        return sum((store / "partial" / f"{root}.have").read_bytes())
    except FileNotFoundError:
        return 0
