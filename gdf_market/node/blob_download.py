"""One blob on its way: several sources at once, the nearest and fastest first, each with as much as it can carry."""

from __future__ import annotations

import random
from dataclasses import dataclass

import trio

from gdf_market.blobs.manifest import ContentMismatchError
from gdf_market.blobs.partial import Partial
from gdf_market.errors import GdfError, LocalError, MalformedError, OversizedError, PeerError, UnreachableError
from gdf_market.node import blob_rank, limits
from gdf_market.node.blob_channel import AbsentError, Channel
from gdf_market.node.blob_plan import Plan
from gdf_market.node.blob_server import MAX_ANSWER_BYTES
from gdf_market.node.blob_sources import Sources

ACTIVE_SOURCES = 6  # used at once for one blob
_RETRY_S = 1.0
_NOTHING_S = 0.05  # pause of a stream that has nothing to ask for
_random = random.SystemRandom()


@dataclass
class _Use:
    """A source while this download uses it."""

    nursery: trio.Nursery
    lanes: int = 0
    leaving: bool = False  # a better one waits for its place


class Download:
    """Fetches the missing chunks of ``partial``.

    ``flight`` bounds the chunks under way in all downloads.  Without ``ranked`` every source is used alike, from a
    plain shared queue: what benchmarks compare with.
    """

    def __init__(
        self, partial: Partial, missing: list[int], sources: Sources, flight: trio.CapacityLimiter, *, ranked: bool
    ) -> None:
        self._partial, self._sources, self._flight, self._ranked = partial, sources, flight, ranked
        self._plan = Plan(missing, trio.current_time())
        self._absent: set[str] = set()  # sources that said so
        self._used: dict[str, _Use] = {}
        self._opening = 0  # sources chosen that took no chunk yet
        self._retry_at: dict[str, float] = {}
        self._error: LocalError | None = None  # this machine's trouble ends the download
        self._changed = trio.Event()

    async def run(self) -> GdfError | None:
        """Return None once all is there, or why it will not be."""
        async with trio.open_nursery() as nursery:
            for _ in range(ACTIVE_SOURCES):
                nursery.start_soon(self._work)
            problem = await self._until_complete()
            nursery.cancel_scope.cancel()
        return problem

    async def _until_complete(self) -> GdfError | None:
        root = self._partial.root
        while not self._plan.complete:
            with trio.move_on_after(1):
                await self._changed.wait()
            now = trio.current_time()
            if self._error is not None:
                return self._error
            if not self._plan.complete and not self._used and not self._candidates(now, waiting=True):
                return give_up(self._sources, root)
            if now - self._plan.progress_s > limits.NO_PROGRESS_S:
                return UnreachableError(
                    f"blob {root} made no progress for {limits.NO_PROGRESS_S:.0f} s; what arrived is kept, "
                    "try again when its holders are online"
                )
        return None

    def _wake(self) -> None:
        """Something happened that may end the download."""
        self._changed.set()
        self._changed = trio.Event()

    # which source

    def _candidates(self, now: float, *, waiting: bool = False) -> list[str]:
        """Return the sources that could be used besides those that are, best first."""
        paces = {
            account: source.pace
            for account, source in self._sources.welcome(now).items()
            if account not in self._absent
            and account not in self._used
            and (waiting or self._retry_at.get(account, 0.0) <= now)
        }
        if self._ranked:
            return blob_rank.order(paces, now)
        return _random.sample(sorted(paces), len(paces))

    def _wanted_lanes(self, account: str, now: float) -> int:
        return blob_rank.lanes(self._sources.pace(account), now) if self._ranked else limits.LANES

    def _is_outranked(self, account: str, now: float) -> bool:
        """Say whether a source should leave its place to one that waits: one much faster, or one not measured yet."""
        mine_s = self._sources.pace(account).chunk_s(now)
        if not self._ranked or mine_s is None or len(self._used) < ACTIVE_SOURCES:
            return False
        if any(use.leaving for use in self._used.values()):
            return False  # one at a time
        speeds = {other: self._sources.pace(other).chunk_s(now) for other in self._used}
        if any(speed is not None and speed > mine_s for speed in speeds.values()):
            return False  # a slower one leaves first
        waiting = [self._sources.pace(other).chunk_s(now) for other in self._candidates(now)]
        return any(speed is None or speed * blob_rank.FASTER < mine_s for speed in waiting)

    async def _work(self) -> None:
        """Take one source after the other and use it for as long as it delivers."""
        while True:
            now = trio.current_time()
            found = self._candidates(now) if self._plan.open_chunks(now) > self._opening else []
            if not found:
                await trio.sleep(0.1)
                continue
            account = found[0]
            self._opening += 1
            try:
                async with trio.open_nursery() as nursery:
                    self._used[account] = _Use(nursery)
                    self._add_lane(account, opening=True)
            finally:
                del self._used[account]
                self._wake()
                self._retry_at[account] = trio.current_time() + _RETRY_S

    # one source

    def _add_lane(self, account: str, *, opening: bool = False) -> None:
        use = self._used[account]
        use.lanes += 1
        use.nursery.start_soon(self._lane, account, use, opening)

    async def _lane(self, account: str, use: _Use, opening: bool) -> None:
        """Ask for chunks on a stream of its own; the first lane of a source opens the others."""
        channel: Channel | None = None
        try:
            try:
                channel = await self._sources.open(account)
                if self._ranked and self._sources.pace(account).rtt_s is None:
                    await self._sources.ask(account, channel, "has", self._partial.root, 0)
            finally:
                if opening:
                    self._opening -= 1
            await self._ask_all(account, use, channel)
        except AbsentError:
            self._absent.add(account)
            use.nursery.cancel_scope.cancel()
        except PeerError as error:
            if isinstance(error, (MalformedError, OversizedError)):  # the stream is out of step
                self._sources.blame(account)
            use.nursery.cancel_scope.cancel()
        except LocalError as error:  # the disk
            self._error = error
            self._wake()
        finally:
            use.lanes -= 1
            if channel is not None:
                await channel.close()

    async def _ask_all(self, account: str, use: _Use, channel: Channel) -> None:
        while not self._plan.complete and not use.leaving:
            wanted = self._wanted_lanes(account, trio.current_time())
            if use.lanes > wanted:
                return
            if use.lanes < wanted and self._plan.open_chunks(trio.current_time()):
                self._add_lane(account)
            async with self._flight:
                index = self._take(account, trio.current_time())
                if index is not None:
                    await self._get(account, channel, index)
            use.leaving |= self._is_outranked(account, trio.current_time())
            if index is None:
                await trio.sleep(_NOTHING_S)

    def _take(self, account: str, now: float) -> int | None:
        if not self._ranked:
            return self._plan.take(account, now)
        mine = self._sources.pace(account)
        others = [self._sources.pace(other) for other in self._used if other != account]
        chunk_s = mine.chunk_s(now)
        takes_s = None if chunk_s is None else chunk_s * (mine.flying + 1)
        return self._plan.take(account, now, takes_s=takes_s, spare=blob_rank.spare(mine, others, now))

    async def _get(self, account: str, channel: Channel, index: int) -> None:
        """Fetch one chunk and keep it; a PeerError ends the use of the source, but a single wrong chunk does not."""
        pace, done = self._sources.pace(account), False
        pace.asked(trio.current_time())
        try:
            try:
                data = await channel.ask(
                    "chunk", self._partial.root, index, max_bytes=MAX_ANSWER_BYTES, patience_s=limits.CHUNK_S
                )
            except PeerError:
                pace.failed(trio.current_time())
                raise
            except BaseException:
                pace.abandoned(channel.arrived_bytes, trio.current_time())
                raise
            pace.arrived(len(data), trio.current_time())
            await trio.to_thread.run_sync(self._partial.write_chunk, index, data)
            done = True
        except ContentMismatchError:
            if self._sources.blame(account):
                raise
        finally:
            if done:
                self._plan.done(index, trio.current_time())
                self._wake()
            else:
                self._plan.failed(account, index)


def give_up(sources: Sources, root: str) -> UnreachableError | ContentMismatchError:
    """Return why nobody is left to ask for a blob."""
    if sources.all_banned(trio.current_time()):
        return ContentMismatchError(f"every source of blob {root} sent wrong bytes")
    return UnreachableError(
        f"none of {len(sources)} connected peers holds blob {root}; try again when its owner is online"
    )
