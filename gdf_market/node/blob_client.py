"""Fetching blobs from several sources at once, resumably, with blame for who sends wrong bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from gdf_market.blobs.manifest import MAX_MANIFEST_BYTES, ContentMismatchError, Manifest, check_manifest, parse_manifest
from gdf_market.blobs.partial import Partial
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import sha256
from gdf_market.errors import OversizedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.blob_download import Download, give_up
from gdf_market.node.blob_sources import Sources
from gdf_market.node.meter import Meter
from gdf_market.node.p2p import Host

_MOST_FLYING = 4 * limits.MAX_SOURCES * limits.LANES  # chunks under way, where no rate is set: never reached


class BlobClient:
    """Downloads into a BlobStore from the sources it was told of.

    ``ranked`` orders them by what was measured of them; without it a shared queue treats all alike.
    """

    def __init__(self, host: Host, store: BlobStore, network: str, *, ranked: bool = True) -> None:
        self._host, self._store, self._ranked = host, store, ranked
        self.meter = Meter()
        self.sources = Sources(host, network, self.meter)
        self._fetching: dict[str, trio.Event] = {}
        self._slots = trio.CapacityLimiter(limits.MAX_FETCHES)
        self._flight = trio.CapacityLimiter(_MOST_FLYING)

    def add_source(self, account: str, peer: str, addresses: Sequence[str]) -> None:
        """Know (again) where an account's blobs are served: full multiaddrs of the bulk host ``peer``."""
        self.sources.add(account, peer, addresses)

    def remove_source(self, account: str) -> None:
        """Forget where an account's blobs are served."""
        self.sources.remove(account)

    def limit_download(self, bytes_per_s: int) -> None:
        """Take at most this much a second from all together (0: no limit)."""
        self.meter.limit(bytes_per_s)
        self._flight.total_tokens = self.meter.at_once(limits.SHARE_BYTES_PER_S, _MOST_FLYING)

    def measured(self) -> list[dict[str, Any]]:
        """Return what is known of each source: account, round trip in ms and rate in bytes a second (None: nothing)."""
        now = trio.current_time()
        return [
            {
                "account": account,
                "rtt_ms": None if source.pace.rtt_s is None else round(source.pace.rtt_s * 1_000, 1),
                "rate_bytes_per_s": source.pace.rate(now),
            }
            for account, source in self.sources.welcome(now).items()
        ]

    async def holders(self, root: str) -> int:
        """Return how many sources say that they hold the blob."""
        found = 0

        async def count(account: str, answer: bytes) -> bool:
            nonlocal found
            found += 1
            return False

        await self.sources.ask_all("has", root, 0, count)
        return found

    async def fetch(self, root: str, max_bytes: int) -> Path:
        """Return the path of the complete blob, downloaded if need be.

        Raises UnreachableError (nobody has it or progress stopped), PeerError
        (every source sent wrong bytes, or it is larger than ``max_bytes``), StorageError.
        """
        while root in self._fetching:
            await self._fetching[root].wait()
        done = self._fetching[root] = trio.Event()  # before the next await, so that only one gets here
        try:
            if await trio.to_thread.run_sync(self._store.has, root):
                return await self._held(root, max_bytes)
            async with self._slots:
                return await self._download(root, max_bytes)
        finally:
            del self._fetching[root]
            done.set()

    async def _held(self, root: str, max_bytes: int) -> Path:
        path = await trio.to_thread.run_sync(self._store.path, root)
        size = (await trio.to_thread.run_sync(path.stat)).st_size
        ensure(size <= max_bytes, OversizedError(f"blob {root} has {size} bytes; at most {max_bytes} are wanted"))
        return path

    async def _download(self, root: str, max_bytes: int) -> Path:
        partial = await self._partial(root, max_bytes)
        missing = await trio.to_thread.run_sync(partial.missing)
        problem = await Download(partial, missing, self.sources, self._flight, ranked=self._ranked).run()
        if problem is not None:
            raise problem
        return await trio.to_thread.run_sync(partial.finish)

    async def _partial(self, root: str, max_bytes: int) -> Partial:
        """Return what is there of a blob; resumed, or begun with the manifest of the first source that answers."""
        partial = await trio.to_thread.run_sync(self._store.resume, root)
        if partial is not None:
            check_manifest(root, partial.manifest, max_bytes)
            return partial
        manifest = await self._manifest(root, max_bytes)
        return await trio.to_thread.run_sync(lambda: self._store.open_partial(root, manifest, max_bytes=max_bytes))

    async def _manifest(self, root: str, max_bytes: int) -> Manifest:
        """Return the manifest from the first source that has it."""
        found: list[Manifest] = []
        oversized: list[OversizedError] = []

        async def use(account: str, data: bytes) -> bool:
            try:
                # before its size is believed: a lie must not pass for a blob that is too large
                ensure(sha256(data).hex() == root, ContentMismatchError(f"not the manifest of blob {root}"))
                found.append(await trio.to_thread.run_sync(parse_manifest, root, data, max_bytes))
            except OversizedError as error:
                oversized.append(error)
            except PeerError:
                self.sources.blame(account)
                return False
            return True

        await self.sources.ask_all("manifest", root, MAX_MANIFEST_BYTES, use)
        if found:
            return found[0]
        if oversized:
            raise oversized[0]
        raise give_up(self.sources, root)
