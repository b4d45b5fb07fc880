"""Fetching blobs from several sources at once, resumably, with blame for who sends wrong bytes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio
from libp2p.abc import INetStream

from gdf_market.blobs.manifest import MAX_MANIFEST_BYTES, ContentMismatchError, Manifest, check_manifest, parse_manifest
from gdf_market.blobs.partial import Partial
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import encode, sha256
from gdf_market.errors import GdfError, LocalError, MalformedError, OversizedError, PeerError, UnreachableError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import check_transports
from gdf_market.node.blob_plan import Plan
from gdf_market.node.blob_server import ABSENT, FOUND, MAX_ANSWER_BYTES, PROTOCOL, REQUEST, BlobRequest
from gdf_market.node.frames import StreamReader, frame, write
from gdf_market.node.p2p import Host

_random = random.SystemRandom()
_ACTIVE_SOURCES = 6  # asked at once for one blob
_RETRY_S = 1.0
_ASKING_S = 10.0  # a small answer (manifest, has) must be here by then


class AbsentError(PeerError):
    """The source does not hold the blob; no fault."""

    reason = "absent"


class TooSlowError(PeerError):
    """The source did not answer in time or could not be reached."""

    reason = "slow"


@dataclass
class Source:
    """Where the blobs of one account are served."""

    peer: str
    addresses: tuple[str, ...]
    bad: int = 0
    banned_until: float = 0.0


@dataclass
class _Download:
    root: str
    partial: Partial
    plan: Plan
    absent: set[str] = field(default_factory=set)  # sources that said so
    busy: set[str] = field(default_factory=set)
    retry_at: dict[str, float] = field(default_factory=dict)
    error: LocalError | None = None  # this machine's trouble ends the download
    changed: trio.Event = field(default_factory=trio.Event)

    def wake(self) -> None:
        """Something happened that may end the download."""
        self.changed.set()
        self.changed = trio.Event()


class _Channel:
    """One stream to a source: ask, wait, get."""

    def __init__(self, stream: INetStream, network: str) -> None:
        self._stream, self._network = stream, network
        self._reader = StreamReader(stream, limits.Bucket(float(1 << 30), float(1 << 30)))

    async def ask(self, op: str, root: str, index: int = 0, *, max_bytes: int, timeout_s: float) -> bytes:
        """Return the answer's payload; AbsentError, TooSlowError, or another PeerError."""
        request = BlobRequest(op=op, root=root, index=index, network=self._network)
        with trio.move_on_after(timeout_s):
            await write(self._stream, frame(REQUEST, encode(request)))
            status, payload = await self._reader.frame(max_bytes)
            ensure(status != ABSENT, AbsentError(f"no blob {root}"))
            ensure(status == FOUND, MalformedError(f"an answer of kind {status}"))
            return payload
        raise TooSlowError(f"no answer in {timeout_s:.0f} s")

    async def close(self) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(2):
            await self._stream.reset()


class BlobClient:
    """Downloads into a BlobStore from the sources it was told of."""

    def __init__(self, host: Host, store: BlobStore, network: str) -> None:
        self._host, self._store, self._network = host, store, network
        self.sources: dict[str, Source] = {}
        self._fetching: dict[str, trio.Event] = {}
        self._slots = trio.CapacityLimiter(limits.MAX_FETCHES)

    def add_source(self, account: str, peer: str, addresses: Sequence[str]) -> None:
        """Know (again) where an account's blobs are served: full multiaddrs of the bulk host ``peer``.

        Addresses that do not name ``peer`` are left out; the oldest of too many sources is forgotten.
        """
        known = self.sources.pop(account, None)
        if known is None or known.peer != peer:
            known = Source(peer, ())
        known.addresses = check_transports(peer, addresses)
        self.sources[account] = known
        if len(self.sources) > limits.MAX_SOURCES:
            del self.sources[next(iter(self.sources))]

    def remove_source(self, account: str) -> None:
        """Forget where an account's blobs are served."""
        self.sources.pop(account, None)

    async def holders(self, root: str) -> int:
        """Return how many sources say that they hold the blob."""
        found = 0

        async def ask(account: str) -> None:
            nonlocal found
            try:
                await self._ask_once(account, "has", root, 0)
            except PeerError:
                return
            found += 1

        await self._for_each(ask)
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
        partial = await trio.to_thread.run_sync(self._store.resume, root)
        if partial is None:
            manifest = await self._manifest(root, max_bytes)
            partial = await trio.to_thread.run_sync(
                lambda: self._store.open_partial(root, manifest, max_bytes=max_bytes)
            )
        else:
            check_manifest(root, partial.manifest, max_bytes)
        missing = await trio.to_thread.run_sync(partial.missing)
        download = _Download(root, partial, Plan(missing, trio.current_time()))
        async with trio.open_nursery() as nursery:
            for _ in range(_ACTIVE_SOURCES):
                nursery.start_soon(self._work, download)
            problem = await self._until_complete(download)
            nursery.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return await trio.to_thread.run_sync(partial.finish)

    async def _until_complete(self, download: _Download) -> GdfError | None:
        """Return None once all is there, or why it will not be."""
        while not download.plan.complete:
            with trio.move_on_after(1):
                await download.changed.wait()
            now = trio.current_time()
            if download.error is not None:
                return download.error
            if not download.plan.complete and not download.busy and not self._candidates(download, now, waiting=True):
                return self._give_up(download.root, now)
            if now - download.plan.progress_s > limits.NO_PROGRESS_S:
                return UnreachableError(
                    f"blob {download.root} made no progress for {limits.NO_PROGRESS_S:.0f} s; what arrived is kept, "
                    "try again when its holders are online"
                )
        return None

    def _give_up(self, root: str, now: float) -> UnreachableError | ContentMismatchError:
        banned = sum(1 for source in self.sources.values() if source.banned_until > now)
        if banned and banned == len(self.sources):
            return ContentMismatchError(f"every source of blob {root} sent wrong bytes")
        return UnreachableError(
            f"none of {len(self.sources)} connected peers holds blob {root}; try again when its owner is online"
        )

    # sources

    def _candidates(self, download: _Download, now: float, *, waiting: bool = False) -> list[str]:
        return [
            account
            for account, source in self.sources.items()
            if source.banned_until <= now
            and account not in download.absent
            and account not in download.busy
            and (waiting or download.retry_at.get(account, 0.0) <= now)
        ]

    async def _work(self, download: _Download) -> None:
        """Take one source after the other and use it for as long as it delivers."""
        while True:
            found = self._candidates(download, trio.current_time())
            if not found:
                await trio.sleep(0.1)
                continue
            account = _random.choice(found)
            download.busy.add(account)
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(limits.LANES):
                        nursery.start_soon(self._lane, download, account, nursery.cancel_scope)
            finally:
                download.busy.discard(account)
                download.wake()
                download.retry_at[account] = trio.current_time() + _RETRY_S

    async def _lane(self, download: _Download, account: str, scope: trio.CancelScope) -> None:
        try:
            channel = await self._open(account)
        except PeerError:
            scope.cancel()
            return
        try:
            while not download.plan.complete:
                index = download.plan.take(account, trio.current_time())
                if index is None:
                    await trio.sleep(0.05)
                    continue
                await self._get(download, account, channel, index)
        except AbsentError:
            download.absent.add(account)
            scope.cancel()
        except PeerError:
            scope.cancel()
        except LocalError as error:  # the disk
            download.error = error
            download.wake()
        finally:
            await channel.close()

    async def _get(self, download: _Download, account: str, channel: _Channel, index: int) -> None:
        done = False
        try:
            data = await channel.ask(
                "chunk", download.root, index, max_bytes=MAX_ANSWER_BYTES, timeout_s=limits.CHUNK_S
            )
            await trio.to_thread.run_sync(download.partial.write_chunk, index, data)
            done = True
        except ContentMismatchError:
            if self._blame(account):
                raise
        except (MalformedError, OversizedError):  # the stream is out of step
            self._blame(account)
            raise
        finally:
            if done:
                download.plan.done(index, trio.current_time())
                download.wake()
            else:
                download.plan.failed(account, index)

    def _blame(self, account: str) -> bool:
        """Count wrong bytes against a source; say whether it is banned now."""
        source = self.sources.get(account)
        if source is None:
            return True
        source.bad += 1
        self._host.counters.add("content", peer=source.peer)
        if source.bad >= limits.BAD_CHUNKS:
            source.bad = 0
            source.banned_until = trio.current_time() + limits.SOURCE_BAN_S
            self._host.counters.add("source-banned", peer=source.peer)
            return True
        return False

    async def _open(self, account: str) -> _Channel:
        source = self.sources.get(account)
        ensure(source is not None, AbsentError(f"{account} is no source any more"))
        assert source is not None
        if not await self._host.dial(source.peer, source.addresses):
            raise TooSlowError(f"{account} is not reachable")
        try:
            stream = await self._host.open_stream(source.peer, PROTOCOL)
        except Exception as error:  # the library raises many kinds
            raise TooSlowError(f"{account} opened no stream: {error!r}") from None
        return _Channel(stream, self._network)

    async def _ask_once(self, account: str, op: str, root: str, max_bytes: int) -> bytes:
        channel = await self._open(account)
        try:
            return await channel.ask(op, root, max_bytes=max_bytes, timeout_s=_ASKING_S)
        finally:
            await channel.close()

    async def _manifest(self, root: str, max_bytes: int) -> Manifest:
        """Return the manifest from the first source that has it."""
        found: list[Manifest] = []
        oversized: list[OversizedError] = []

        async with trio.open_nursery() as nursery:

            async def ask(account: str) -> None:
                try:
                    data = await self._ask_once(account, "manifest", root, MAX_MANIFEST_BYTES)
                    # before its size is believed: a lie must not pass for a blob that is too large
                    ensure(sha256(data).hex() == root, ContentMismatchError(f"not the manifest of blob {root}"))
                    found.append(await trio.to_thread.run_sync(parse_manifest, root, data, max_bytes))
                except OversizedError as error:
                    oversized.append(error)
                except (AbsentError, TooSlowError):
                    return
                except PeerError:
                    self._blame(account)
                    return
                nursery.cancel_scope.cancel()

            await self._for_each(ask)
        if found:
            return found[0]
        if oversized:
            raise oversized[0]
        raise self._give_up(root, trio.current_time())

    async def _for_each(self, ask: Callable[[str], Awaitable[None]]) -> None:
        limiter = trio.CapacityLimiter(8)
        now = trio.current_time()

        async def one(account: str) -> None:
            async with limiter:
                await ask(account)

        async with trio.open_nursery() as nursery:
            for account, source in list(self.sources.items()):
                if source.banned_until <= now:
                    nursery.start_soon(one, account)
