"""The control host: links between ledgers, orders on gossip, and finding peers.

Rules kept here:
1. `on_peer_up(peer)` once both sides said hello, `on_peer_down(peer)` exactly
   once after it; frames are delivered only in between, in the order they were sent.
2. A new stream of a peer that has one ends the old link and starts a new one.
3. What a peer can make this node hold is bounded (limits.py); who goes beyond,
   or breaks the protocol, is disconnected and not welcome for a while.
4. The callbacks are plain functions that return soon; a callback that raises is
   counted and the link goes on.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio
from libp2p.abc import INetStream, INotifee

from gdf_market.codec import encode
from gdf_market.errors import MalformedError, PeerError, UsageError, ensure
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.address_book import AddressBook
from gdf_market.node.addresses import check_transports, split_peer
from gdf_market.node.frames import (
    DATA,
    HELLO,
    PROTOCOL,
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
from gdf_market.node.gossip import OrderGossip
from gdf_market.node.link import Link
from gdf_market.node.p2p import Host, open_host

log = structlog.get_logger("gdf.net")
_random = random.SystemRandom()

_VOUCHER_MS = 2 * 3_600_000
_NEWS_S = 0.5  # news are gathered for this long before they are sent
_VOUCHER_EVERY_S = 1_800.0


class FullError(PeerError):
    """One link more than this node accepts; no fault."""

    reason = "full"


class BannedError(PeerError):
    """A peer that was disconnected for a reason and came back too soon."""

    reason = "banned"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Watcher(INotifee):  # type: ignore[misc]
    """Passes connections made and lost on to the control host."""

    def __init__(self, connected: Callable[[str], None], disconnected: Callable[[str], None]) -> None:
        self._connected, self._disconnected = connected, disconnected

    async def connected(self, network: Any, conn: Any) -> None:
        self._connected(str(conn.muxed_conn.peer_id))

    async def disconnected(self, network: Any, conn: Any) -> None:
        self._disconnected(str(conn.muxed_conn.peer_id))

    async def opened_stream(self, network: Any, stream: Any) -> None:
        pass

    async def closed_stream(self, network: Any, stream: Any) -> None:
        pass

    async def listen(self, network: Any, multiaddr: Any) -> None:
        pass

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        pass


class ControlHost:
    """One node's control host; ``async with ControlHost(…).run() as control:`` serves while the block runs.

    ``listen`` is (IP address, port), ``bootstrap`` and ``announce`` are multiaddrs
    (``announce``: extra ones of this node).  ``on_frame(peer, data)``,
    ``on_peer_up(peer)``, ``on_peer_down(peer)``, ``on_order(raw, peer) -> relay it?`` and
    ``on_bulk(peer, address)`` are called in the trio loop; peers are account ids.
    """

    def __init__(
        self,
        identity: Identity,
        network: str,
        *,
        listen: tuple[str, int] = ("0.0.0.0", 0),  # noqa: S104  # a node is there to be reached
        bootstrap: Sequence[str] = (),
        announce: Sequence[str] = (),
        on_frame: Callable[[str, bytes], None],
        on_peer_up: Callable[[str], None],
        on_peer_down: Callable[[str], None],
        on_order: Callable[[bytes, str], bool] = lambda raw, peer: False,
        on_bulk: Callable[[str, BulkAddress], None] = lambda peer, address: None,
    ) -> None:
        self._identity, self._network = identity, network
        self._listen, self._announce = listen, announce
        self._on_frame, self._on_order, self._on_bulk = on_frame, on_order, on_bulk
        self._on_peer_up, self._on_peer_down = on_peer_up, on_peer_down
        self._session = secrets.token_hex(16)
        self._book = AddressBook(identity.account)
        for address in bootstrap:
            self._learn_bootstrap(address)
        self._bulk: BulkAddress | None = None
        self.bulk_hints: dict[str, BulkAddress] = {}
        self._links: dict[str, Link] = {}  # the latest link of each connected peer, up or not yet
        self._up: dict[str, Link] = {}
        self._sessions: dict[str, str] = {}
        self._keepers: dict[str, trio.Event] = {}  # set: something changed, look again
        self._book_changed = trio.Event()
        self._news = trio.Event()
        self._host: Host
        self._gossip: OrderGossip
        self._nursery: trio.Nursery

    # what the node calls

    @asynccontextmanager
    async def run(self) -> AsyncIterator[ControlHost]:
        """Listen, connect and serve while the block runs.  Raises UserError when the port is taken."""
        opened = open_host(self._identity.seed, self._listen, announce=self._announce, prepare=self._prepare)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                async with opened as self._host, self._gossip.run():
                    nursery.start_soon(self._redial)
                    nursery.start_soon(self._send_news)
                    nursery.start_soon(self._watch)
                    yield self
            finally:
                for link in list(self._links.values()):
                    self._end(link, "this node stops")
                nursery.cancel_scope.cancel()

    @property
    def account(self) -> str:
        """This node's account id."""
        return self._identity.account

    @property
    def peers(self) -> frozenset[str]:
        """Peers whose link is up."""
        return frozenset(self._up)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that others can reach this node by, best first."""
        return self._host.addresses

    @property
    def counters(self) -> dict[str, int]:
        """How often each reason to refuse something occurred."""
        return self._host.counters.snapshot()

    @property
    def gossip_peers(self) -> set[str]:
        """Peers that read the orders topic."""
        return self._gossip.subscribers()

    def send(self, peer: str, data: bytes) -> bool:
        """Queue a frame for ``peer``; False if its link is down or the peer was dropped for not draining."""
        assert len(data) <= limits.MAX_FRAME_BYTES, f"frame of {len(data)} bytes; limit {limits.MAX_FRAME_BYTES}"
        link = self._up.get(peer)
        return link is not None and self._queue(link, frame(DATA, data))

    def broadcast(self, data: bytes, exclude: str | None = None) -> None:
        """Queue a frame for every peer but ``exclude``."""
        assert len(data) <= limits.MAX_FRAME_BYTES, f"frame of {len(data)} bytes; limit {limits.MAX_FRAME_BYTES}"
        packed = frame(DATA, data)
        for peer, link in list(self._up.items()):
            if peer != exclude:
                self._queue(link, packed)

    def disconnect(self, peer: str, reason: str | PeerError, *, ban_s: float = limits.BAN_S) -> None:
        """Close everything with ``peer`` and refuse it for ``ban_s`` seconds."""
        text = reason.reason if isinstance(reason, PeerError) else reason
        log.info("disconnecting peer", peer=peer, reason=text, error=str(reason))
        self._host.counters.add("disconnected", peer=peer)
        self._book.ban(peer, trio.current_time() + ban_s)
        link = self._links.get(peer)
        if link is not None:
            self._end(link, text)
        self._nursery.start_soon(self._host.close_peer, peer)

    def publish_order(self, raw: bytes) -> bool:
        """Queue an order for gossip; False when too many wait.  OversizedError above 64 KiB."""
        return self._gossip.publish(raw)

    def add_peer(self, address: str) -> None:
        """Keep trying to reach the peer at ``address``; UsageError if it is no multiaddr with /p2p/…."""
        self._learn_bootstrap(address)
        self._changed()

    def announce_bulk(self, peer: str, addresses: Sequence[str]) -> None:
        """Vouch for this node's bulk host to all peers, from now on."""
        self._bulk = BulkAddress(peer, tuple(addresses[: limits.MAX_ADDRESSES]), 0)
        self._news.set()

    # links

    def _prepare(self, host: Host) -> None:
        self._host = host
        host.handle(PROTOCOL, self._hear, self._blame)
        self._gossip = OrderGossip(host, self._network, self._on_order, self._blame)
        host.swarm.register_notifee(_Watcher(self._connected, self._disconnected))

    def _connected(self, peer: str) -> None:
        if self._book.is_banned(peer, trio.current_time()):
            self._nursery.start_soon(self._host.close_peer, peer)
        elif peer not in self._keepers:
            self._keepers[peer] = trio.Event()
            self._nursery.start_soon(self._keep, peer)

    def _disconnected(self, peer: str) -> None:
        self._wake(peer)

    def _wake(self, peer: str) -> None:
        if peer in self._keepers:
            self._keepers[peer].set()

    async def _keep(self, peer: str) -> None:
        """Have a link with ``peer`` for as long as there is a connection to it."""
        pause = 0.1
        try:
            while self._is_connected(peer) and not self._book.is_banned(peer, trio.current_time()):
                link = self._links.get(peer)
                if link is None:
                    link = self._links[peer] = Link(peer)
                await self._speak(link)
                pause = 0.1 if link.up.is_set() else min(pause * 2, 30.0)
                if peer in self._links:
                    continue  # the peer opened a new one already
                self._keepers[peer] = trio.Event()
                with trio.move_on_after(pause * (0.5 + _random.random())):
                    await self._keepers[peer].wait()
        finally:
            self._keepers.pop(peer, None)
            left = self._links.get(peer)
            if left is not None:
                self._end(left, "connection lost")
            self._gossip.forget(peer)
            self._book.lost(peer, trio.current_time(), _random.random())
            self._changed()

    async def _speak(self, link: Link) -> None:
        """Open our stream, say hello, and send what is queued until the link ends."""
        try:
            stream = await self._host.open_stream(link.account, PROTOCOL)
        except Exception as error:
            self._host.counters.add("no-stream", peer=link.account, error=repr(error))
            self._end(link, "peer opens no stream")
            return
        try:
            with link.scope():
                await self._drain(link, stream)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await stream.reset()

    async def _drain(self, link: Link, stream: INetStream) -> None:
        try:
            await self._write(link, stream, frame(HELLO, self._hello()))
            link.spoken = True
            self._settle(link)
            while True:
                await self._write(link, stream, await link.outbox.take())
        except PeerError as error:
            self._end(link, str(error))

    async def _write(self, link: Link, stream: INetStream, data: bytes) -> None:
        link.writing_since = trio.current_time()
        await write(stream, data)
        link.writing_since = float("inf")

    async def _hear(self, stream: INetStream) -> None:
        """Serve the stream that a peer opened to us."""
        peer = str(stream.muxed_conn.peer_id)
        ensure(not self._book.is_banned(peer, trio.current_time()), BannedError(f"{peer} is banned"))
        reader = StreamReader(stream, limits.Bucket(limits.BYTES_PER_S, limits.BYTES_BURST))
        with trio.move_on_after(limits.HELLO_S) as scope:
            kind, payload = await reader.frame(limits.MAX_HELLO_BYTES)
        ensure(not scope.cancelled_caught, MalformedError(f"{peer} said no hello in {limits.HELLO_S:.0f} s"))
        ensure(kind == HELLO, MalformedError(f"{peer} began with a frame of kind {kind}"))
        hello = read_hello(payload, self._network, peer)
        bulk = self._check_bulk(hello)
        if self._sessions.get(peer, hello.session) != hello.session:
            await self._close_older(peer, stream)
        link = self._adopt(peer)
        try:
            with link.scope():
                self._heard(link, hello, bulk, stream)
                await self._read(link, reader, stream)
        finally:
            self._end(link, "peer ended its stream")

    def _adopt(self, peer: str) -> Link:
        link = self._links.get(peer)
        if link is not None and link.hello is not None:
            self._end(link, "peer opened a new stream")
            link = None
        if link is None:
            ensure(len(self._links) < limits.MAX_LINKS, FullError(f"{limits.MAX_LINKS} links are the most"))
            link = self._links[peer] = Link(peer)
            self._wake(peer)
        return link

    async def _read(self, link: Link, reader: StreamReader, stream: INetStream) -> None:
        with trio.move_on_after(limits.HELLO_S):
            await link.up.wait()
        ensure(link.up.is_set(), StreamEndedError("our own stream did not open in time"))
        while True:
            kind, payload = await reader.frame()
            link.meter(hello=kind == HELLO)
            if kind == DATA:
                self._deliver(link, payload)
            elif kind == HELLO:
                hello = read_hello(payload, self._network, link.account)
                self._heard(link, hello, self._check_bulk(hello), stream)
            else:
                raise MalformedError(f"a frame of unknown kind {kind}")

    def _deliver(self, link: Link, payload: bytes) -> None:
        if link.ended.is_set():
            return
        try:
            self._on_frame(link.account, payload)
        except PeerError:
            raise
        except Exception as error:  # our bug, not the peer's
            self._host.counters.add("callback", error=repr(error))

    def _check_bulk(self, hello: Hello) -> BulkAddress | None:
        if hello.bulk is None:
            return None
        return check_voucher(hello.bulk, self._network, hello.account, _now_ms())

    def _heard(self, link: Link, hello: Hello, bulk: BulkAddress | None, stream: INetStream) -> None:
        link.hello = hello
        self._sessions.pop(link.account, None)
        self._sessions[link.account] = hello.session
        if len(self._sessions) > limits.MAX_KNOWN_PEERS:
            del self._sessions[next(iter(self._sessions))]
        self._learn(link.account, hello, stream)
        if bulk is not None and bulk != self.bulk_hints.get(link.account):
            self.bulk_hints[link.account] = bulk
            self._call(self._on_bulk, link.account, bulk)
        self._settle(link)

    def _settle(self, link: Link) -> None:
        if link.hello is None or not link.spoken or link.up.is_set() or link.ended.is_set():
            return
        self._up[link.account] = link
        link.up.set()
        self._book.linked(link.account)
        self._news.set()
        log.info("peer up", peer=link.account)
        self._call(self._on_peer_up, link.account)

    def _end(self, link: Link, reason: str) -> None:
        if link.ended.is_set():
            return
        link.end()
        if self._links.get(link.account) is link:
            del self._links[link.account]
        if self._up.get(link.account) is link:
            del self._up[link.account]
            self.bulk_hints.pop(link.account, None)
            log.info("peer down", peer=link.account, reason=reason)
            self._call(self._on_peer_down, link.account)

    def _queue(self, link: Link, packed: bytes) -> bool:
        if link.outbox.put(packed):
            return True
        self._host.counters.add("slow", peer=link.account)
        self.disconnect(link.account, "too much waits for it")
        return False

    def _blame(self, peer: str, error: PeerError) -> None:
        """Decide about a peer whose handler ended with ``error`` (counted already)."""
        if isinstance(error, StreamEndedError):
            return
        if isinstance(error, BannedError):
            self._nursery.start_soon(self._host.close_peer, peer)
            return
        seconds = limits.OTHER_NETWORK_S if isinstance(error, OtherNetworkError) else limits.BAN_S
        if isinstance(error, (OtherNetworkError, FullError)):
            log.info("peer refused", peer=peer, reason=error.reason, error=str(error))
        self.disconnect(peer, error, ban_s=seconds)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        try:
            callback(*args)
        except Exception as error:
            self._host.counters.add("callback", error=repr(error))

    async def _close_older(self, peer: str, stream: INetStream) -> None:
        """The peer started anew: what its old process left open is dead, even if nobody told us."""
        link = self._links.get(peer)
        if link is not None:
            self._end(link, "peer started anew")
        for conn in self._connections(peer):
            if conn.muxed_conn is not stream.muxed_conn:
                with trio.move_on_after(2):
                    await conn.close()

    async def _watch(self) -> None:
        """Close connections that hang in a write or are of no use."""
        useless: dict[str, float] = {}
        while True:
            await trio.sleep(1)
            now = trio.current_time()
            for link in list(self._links.values()):
                if now - link.writing_since > limits.WRITE_S:
                    self._host.counters.add("hanging", peer=link.account)
                    self._end(link, "a write hangs")
                    self._nursery.start_soon(self._host.close_peer, link.account)
            used = set(self._up) | self._gossip.gossiping()
            idle = [peer for peer in self._host.connected() if peer not in used]
            useless = {peer: useless.get(peer, now) for peer in idle}
            for peer, since in useless.items():
                if now - since > limits.IDLE_PEER_S:
                    self._host.counters.add("idle", peer=peer)
                    self._nursery.start_soon(self._host.close_peer, peer)

    # finding peers

    def _learn_bootstrap(self, address: str) -> None:
        try:
            account, transport = split_peer(address)
        except PeerError as error:
            raise UsageError(f"not a bootstrap address: {error}") from None
        self._book.learn(account, [transport], bootstrap=True)

    def _learn(self, peer: str, hello: Hello, stream: INetStream) -> None:
        remote = stream.muxed_conn.get_remote_address()
        local = remote is not None and _is_loopback(remote[0])
        own = [one for one in check_transports(peer, hello.addresses) if local or not _names_loopback(one)]
        if remote is not None:  # behind a router a node knows only its inner address: try the one it came from
            ports = {one.split("/")[4] for one in own}
            family = "ip6" if ":" in remote[0] else "ip4"
            own += [f"/{family}/{remote[0]}/tcp/{port}" for port in sorted(ports)]
        changed = bool(own) and self._book.learn(peer, own, replace=True)
        for address in hello.peers:
            try:
                account, transport = split_peer(address)
            except PeerError:
                continue
            if account != peer and (local or not _names_loopback(transport)):
                changed |= self._book.learn(account, [transport])
        if changed:
            self._changed()

    def _hello(self) -> bytes:
        bulk = None
        if self._bulk is not None:
            address = BulkAddress(self._bulk.peer, self._bulk.addresses, _now_ms() + _VOUCHER_MS)
            bulk = sign_voucher(self._identity, self._network, address)
        peers: list[str] = []
        for account, link in sorted(self._up.items(), key=lambda item: _random.random())[: limits.MAX_HELLO_PEERS]:
            assert link.hello is not None
            peers += [f"{one}/p2p/{account}" for one in self._book.addresses(account)[:2]]
        hello = Hello(
            version=VERSION,
            network=self._network,
            account=self.account,
            session=self._session,
            addresses=self.addresses[: limits.MAX_ADDRESSES],
            peers=tuple(peers),
            bulk=bulk,
        )
        return encode(hello)

    async def _send_news(self) -> None:
        """Repeat our hello to all when a peer came or the bulk host changed, and before the voucher expires."""
        while True:
            with trio.move_on_after(_VOUCHER_EVERY_S):
                await self._news.wait()
            await trio.sleep(_NEWS_S)
            self._news = trio.Event()
            if self._up:
                packed = frame(HELLO, self._hello())
                for link in list(self._up.values()):
                    self._queue(link, packed)

    def _changed(self) -> None:
        self._book_changed.set()

    async def _redial(self) -> None:
        """Dial known peers while there are too few links."""
        while True:
            self._book_changed = trio.Event()
            now = trio.current_time()
            wait = float("inf")
            if len(self._links) < limits.MESH_PEERS:
                connected = self._host.connected()
                for peer in self._book.due(now, connected)[: limits.MESH_PEERS - len(self._links)]:
                    self._book.dialing(peer)
                    self._nursery.start_soon(self._dial, peer)
                wait = max(0.05, self._book.next_due(now, connected) - now)
            with trio.move_on_after(wait):
                await self._book_changed.wait()

    async def _dial(self, peer: str) -> None:
        try:
            await self._host.dial(peer, self._book.addresses(peer))
        finally:
            self._book.dialed(peer, trio.current_time(), _random.random())
            self._changed()

    # small things

    def _connections(self, peer: str) -> list[Any]:
        return [conn for conn in self._host.connections(peer) if not conn.is_closed]

    def _is_connected(self, peer: str) -> bool:
        return bool(self._connections(peer))


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")


def _names_loopback(address: str) -> bool:
    return _is_loopback(address.split("/")[2])
