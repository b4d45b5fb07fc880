"""Who serves blobs: addresses, measured pace, blame and bans of each source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from gdf_market.errors import PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import check_transports
from gdf_market.node.blob_channel import AbsentError, Channel, TooSlowError
from gdf_market.node.blob_rank import Pace
from gdf_market.node.blob_server import PROTOCOL
from gdf_market.node.meter import Meter
from gdf_market.node.p2p import Host

ASKING_S = 10.0  # a small answer (manifest, has) must be here by then
_AT_ONCE = 8  # sources asked something small at once
_SMALL_BYTES = 65_536  # the time of a larger answer says more of the rate than of the round trip


@dataclass
class Source:
    """Where the blobs of one account are served, and how well."""

    peer: str
    addresses: tuple[str, ...]
    bad: int = 0
    banned_until: float = 0.0
    pace: Pace = field(default_factory=Pace)


class Sources:
    """The sources this node was told of, at most MAX_SOURCES; ``meter`` paces what arrives from all of them."""

    def __init__(self, host: Host, network: str, meter: Meter) -> None:
        self._host, self._network, self.meter = host, network, meter
        self._known: dict[str, Source] = {}

    def add(self, account: str, peer: str, addresses: Sequence[str]) -> None:
        """Know (again) where an account's blobs are served: full multiaddrs of the bulk host ``peer``.

        Addresses that do not name ``peer`` are left out; the oldest of too many sources is forgotten.
        """
        known = self._known.pop(account, None)
        if known is None or known.peer != peer:
            known = Source(peer, ())
        known.addresses = check_transports(peer, addresses)
        self._known[account] = known
        if len(self._known) > limits.MAX_SOURCES:
            del self._known[next(iter(self._known))]

    def remove(self, account: str) -> None:
        """Forget where an account's blobs are served."""
        self._known.pop(account, None)

    def get(self, account: str) -> Source | None:
        """Return a source, if it is still one."""
        return self._known.get(account)

    def welcome(self, now: float) -> dict[str, Source]:
        """Return the sources that are not banned, by account."""
        return {account: source for account, source in self._known.items() if source.banned_until <= now}

    def all_banned(self, now: float) -> bool:
        """Say whether there are sources, and every one sent wrong bytes."""
        return bool(self._known) and not self.welcome(now)

    def __len__(self) -> int:
        return len(self._known)

    def pace(self, account: str) -> Pace:
        """Return the pace of a source; that of a source that was forgotten counts for nothing."""
        source = self._known.get(account)
        return source.pace if source is not None else Pace()

    def blame(self, account: str) -> bool:
        """Count wrong bytes against a source; say whether it is banned now."""
        source = self._known.get(account)
        if source is None:
            return True
        source.bad += 1
        self._host.counters.add("content", peer=source.peer)
        if source.bad < limits.BAD_CHUNKS:
            return False
        source.bad = 0
        source.banned_until = trio.current_time() + limits.SOURCE_BAN_S
        self._host.counters.add("source-banned", peer=source.peer)
        return True

    async def open(self, account: str) -> Channel:
        """Open a stream to a source; AbsentError if it is none any more, TooSlowError if it is not reachable."""
        source, began = self._known.get(account), trio.current_time()
        ensure(source is not None, AbsentError(f"{account} is no source any more"))
        assert source is not None
        try:
            if not await self._host.dial(source.peer, source.addresses):
                raise TooSlowError(f"{account} is not reachable")
            try:
                stream = await self._host.open_stream(source.peer, PROTOCOL)
            except Exception as error:  # the library raises many kinds
                raise TooSlowError(f"{account} opened no stream: {error!r}") from None
        except TooSlowError:
            source.pace.unreachable(now := trio.current_time(), now - began)
            raise
        return Channel(stream, self._network, self.meter)

    async def ask(self, account: str, channel: Channel, op: str, root: str, max_bytes: int) -> bytes:
        """Return a small answer, and measure the round trip by it; raises what Channel.ask does."""
        began = trio.current_time()
        try:
            data = await channel.ask(op, root, max_bytes=max_bytes, patience_s=ASKING_S)
        except AbsentError:
            self.pace(account).rtt_s = trio.current_time() - began
            raise
        if len(data) <= _SMALL_BYTES:
            self.pace(account).rtt_s = trio.current_time() - began
        return data

    async def ask_once(self, account: str, op: str, root: str, max_bytes: int) -> bytes:
        """Open a stream for one small request."""
        channel = await self.open(account)
        try:
            return await self.ask(account, channel, op, root, max_bytes)
        finally:
            await channel.close()

    async def ask_all(self, op: str, root: str, max_bytes: int, use: Callable[[str, bytes], Awaitable[bool]]) -> None:
        """Ask every welcome source; ``use(account, answer)`` says whether that is enough.

        Sources that have no answer or break the protocol are passed over.
        """
        limiter = trio.CapacityLimiter(_AT_ONCE)
        async with trio.open_nursery() as nursery:

            async def one(account: str) -> None:
                async with limiter:
                    try:
                        data = await self.ask_once(account, op, root, max_bytes)
                    except (AbsentError, TooSlowError):
                        return
                    except PeerError:
                        self.blame(account)
                        return
                    if await use(account, data):
                        nursery.cancel_scope.cancel()

            for account in self.welcome(trio.current_time()):
                nursery.start_soon(one, account)
