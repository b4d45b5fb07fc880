"""Links: a pair of frame streams with each connected peer, from hello to end.

Rules kept here:
1. `on_peer_up(peer)` once both sides said hello, `on_peer_down(peer)` exactly
   once after it; frames are delivered only in between, in the order they were sent.
2. A new stream of a peer that has one ends the old link and starts a new one, so
   two nodes that dial each other at once, or one that restarts, end with one link.
3. Who breaks the protocol or goes beyond its limits is disconnected and not
   welcome for a while, and it counts against the address that it came from.
4. A callback that raises is counted and the link goes on.
5. When all places are taken, who is worth least gives way (crowd.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
import trio
from libp2p.abc import INetStream

from gdf_market.errors import FloodError, MalformedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import check_transports, observed
from gdf_market.node.crowd import Present, who_gives_way
from gdf_market.node.discovery import Discovery, jitter
from gdf_market.node.frames import (
    DATA,
    HELLO,
    PROTOCOL,
    BulkAddress,
    Hello,
    OtherNetworkError,
    StreamEndedError,
    StreamReader,
    check_voucher,
    frame,
    read_hello,
    write,
)
from gdf_market.node.link import Link
from gdf_market.node.p2p import Host

log = structlog.get_logger("gdf.net")

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 30.0  # between two links with one connected peer
_STABLE_S = 5.0  # a link that lasted so long was no accident


class FullError(PeerError):
    """One link more than this node accepts; no fault."""

    reason = "full"


class BannedError(PeerError):
    """A peer that was disconnected for a reason and came back too soon."""

    reason = "banned"


@dataclass(frozen=True)
class Callbacks:
    """What the node is told; plain functions that return soon.  Peers are account ids."""

    on_frame: Callable[[str, bytes], None]
    on_peer_up: Callable[[str], None]
    on_peer_down: Callable[[str], None]
    on_bulk: Callable[[str, BulkAddress], None]
    worth: Callable[[str], int] = lambda account: 0  # what the ledger makes of an account, 0: nothing


class GossipPeers(Protocol):
    """What links tell gossip about peers, and ask it."""

    def forget(self, peer: str) -> None:
        """The peer left."""

    def reopen(self, peer: str) -> None:
        """The peer started anew: a stream to its old process is dead."""

    def gossiping(self) -> set[str]:
        """Peers with an open gossip stream."""


class Links:
    """All links of one host.  ``make_hello`` gives the payload of our hello as of now."""

    def __init__(
        self,
        host: Host,
        network: str,
        discovery: Discovery,
        nursery: trio.Nursery,
        callbacks: Callbacks,
        make_hello: Callable[[], bytes],
        gossip: GossipPeers,
    ) -> None:
        self._host, self._network, self._discovery, self._nursery = host, network, discovery, nursery
        self._callbacks, self._make_hello, self._gossip = callbacks, make_hello, gossip
        self._book = discovery.book
        self.news = trio.Event()  # our hello changed
        self.bulk_hints: dict[str, BulkAddress] = {}
        self.up: dict[str, Link] = {}
        self._links: dict[str, Link] = {}  # the latest link of each connected peer, up or not yet
        self._sessions: dict[str, str] = {}
        self._keepers: dict[str, trio.Event] = {}  # set: something changed, look again
        self._begun: dict[str, limits.Bucket] = {}  # links that a peer began
        host.handle(PROTOCOL, self._hear, self.blame)
        host.on_connection(self._connected, self._disconnected)
        host.on_flood(self._flooded)
        host.on_crowd(self._make_room)

    def __len__(self) -> int:
        return len(self._links)

    def queue(self, link: Link, packed: bytes) -> bool:
        """Queue a frame; a peer that has too much waiting is dropped."""
        if not link.outbox.put(packed):
            self._too_slow(link)
            return False
        if link.outbox.waiting_bytes > limits.FAIR_QUEUE:
            most = max(self.up.values(), key=lambda one: one.outbox.waiting_bytes)
            if sum(one.outbox.waiting_bytes for one in self.up.values()) > limits.QUEUE_ALL_BYTES:
                self._too_slow(most)
        return not link.ended.is_set()

    def _too_slow(self, link: Link) -> None:
        self._host.counters.add("slow", peer=link.account)
        self.disconnect(link.account, "too much waits for it")

    def waiting_bytes(self, peer: str) -> int:
        """Return what is queued for a peer and not sent yet."""
        link = self.up.get(peer)
        return link.outbox.waiting_bytes if link is not None else 0

    def disconnect(self, peer: str, reason: str, *, ban_s: float = limits.BAN_S) -> None:
        """Close everything with ``peer`` and refuse it for ``ban_s`` seconds."""
        log.info("disconnecting peer", peer=peer, reason=reason)
        self._host.counters.add("disconnected", peer=peer)
        self._book.ban(peer, trio.current_time() + ban_s)
        for conn in self._host.connections(peer)[:1]:  # once for each time that it was thrown out
            self._host.blame_address(conn.muxed_conn)
        link = self._links.get(peer)
        if link is not None:
            self._end(link, reason)
        self._nursery.start_soon(self._host.close_peer, peer)

    def blame(self, peer: str, error: PeerError) -> None:
        """Decide about a peer whose handler ended with ``error`` (counted already)."""
        if isinstance(error, BannedError | FullError):
            self._nursery.start_soon(self._host.close_peer, peer)
            return
        seconds = limits.OTHER_NETWORK_S if isinstance(error, OtherNetworkError) else limits.BAN_S
        self.disconnect(peer, f"{error.reason}: {error}", ban_s=seconds)

    def _flooded(self, peer: str, error: PeerError) -> None:
        self._host.counters.add(error.reason, peer=peer, error=str(error))
        self.blame(peer, error)

    def _present(self) -> list[Present]:
        return [
            Present(peer, self._host.source_of(peer), self._callbacks.worth(peer), max(link.up_since, 0.0))
            for peer, link in self._links.items()
        ]

    def _make_room(self) -> bool:
        """Close a connection that is worth little, for a newcomer of whom nothing is known yet."""
        idle = [peer for peer in self._host.connected() if peer not in self.up and not self._callbacks.worth(peer)]
        chosen = idle[0] if idle else who_gives_way(self._present(), "", "", 0)
        if chosen is None:
            return False
        self._give_way(chosen)
        return True

    def _has_place(self, peer: str) -> bool:
        """Say whether one more link is possible; somebody worth less than ``peer`` goes for it if need be."""
        if len(self._links) < limits.MAX_LINKS:
            return True
        worth, address = self._callbacks.worth(peer), self._host.source_of(peer)
        chosen = who_gives_way(self._present(), peer, address, worth)
        if chosen is not None:
            self._give_way(chosen)
        return chosen is not None

    def _give_way(self, peer: str) -> None:
        self._host.counters.add("gave-way", peer=peer)
        link = self._links.get(peer)
        if link is not None:
            self._end(link, "others are worth more")
        self._nursery.start_soon(self._host.close_peer, peer)

    def _check_begun(self, peer: str) -> None:
        bucket = self._begun.pop(peer, None) or limits.Bucket(limits.LINKS_PER_S, limits.LINKS_BURST)
        self._begun[peer] = bucket
        if len(self._begun) > limits.MAX_KNOWN_PEERS:
            del self._begun[next(iter(self._begun))]
        ensure(bucket.take(1, trio.current_time()), FloodError(f"{peer} begins one link after the other"))

    def end_all(self) -> None:
        """End every link (the node stops)."""
        for link in list(self._links.values()):
            self._end(link, "this node stops")

    def _connected(self, peer: str) -> None:
        if self._book.is_banned(peer, trio.current_time()):
            self._nursery.start_soon(self._host.close_peer, peer)
        elif peer not in self._keepers:
            self._keepers[peer] = trio.Event()
            self._nursery.start_soon(self._keep, peer)

    def _disconnected(self, peer: str) -> None:
        self._wake(peer)
        self._discovery.changed()

    def _wake(self, peer: str) -> None:
        if peer in self._keepers:
            self._keepers[peer].set()

    async def _keep(self, peer: str) -> None:
        """Have a link with ``peer`` for as long as there is a connection to it."""
        pause = _PAUSE_FIRST_S
        try:
            while self._host.connections(peer) and not self._book.is_banned(peer, trio.current_time()):
                link = self._links.get(peer)
                if link is None and self._has_place(peer):
                    link = self._links[peer] = Link(peer)
                began = trio.current_time()
                if link is not None:
                    await self._speak(link)
                lasted = link is not None and link.up.is_set() and trio.current_time() - began > _STABLE_S
                pause = _PAUSE_FIRST_S if lasted else min(pause * 2, _PAUSE_MAX_S)
                if peer in self._links:
                    continue  # the peer opened a new one already
                self._keepers[peer] = trio.Event()
                with trio.move_on_after(pause * (0.5 + jitter())):
                    await self._keepers[peer].wait()
        finally:
            self._keepers.pop(peer, None)
            left = self._links.get(peer)
            if left is not None:
                self._end(left, "connection lost")
            self._gossip.forget(peer)
            self._discovery.lost(peer)

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
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._notice_end, link, stream)
                    await self._drain(link, stream)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await stream.reset()

    async def _drain(self, link: Link, stream: INetStream) -> None:
        try:
            await self._write(link, stream, frame(HELLO, self._make_hello()))
            link.spoken = True
            self._settle(link)
            while True:
                await self._write(link, stream, await link.outbox.take())
        except PeerError as error:
            self._end(link, str(error))

    async def _notice_end(self, link: Link, stream: INetStream) -> None:
        """Nothing is ever sent back on our stream; reading it tells when the peer or the connection ended it."""
        try:
            await stream.read(1)
        except Exception as error:  # the library raises a dozen kinds for a stream that is over
            log.debug("stream ended", peer=link.account, error=repr(error))
        self._end(link, "peer ended our stream")

    async def _write(self, link: Link, stream: INetStream, data: bytes) -> None:
        link.writing_since = trio.current_time()
        await write(stream, data)
        link.writing_since = float("inf")

    async def _hear(self, stream: INetStream) -> None:
        """Serve the stream that a peer opened to us."""
        peer = str(stream.muxed_conn.peer_id)
        ensure(not self._book.is_banned(peer, trio.current_time()), BannedError(f"{peer} is banned"))
        self._check_begun(peer)
        reader = StreamReader(stream, limits.Bucket(limits.BYTES_PER_S, limits.BYTES_BURST))
        with trio.move_on_after(limits.HELLO_S) as scope:
            kind, payload = await reader.frame(limits.MAX_HELLO_BYTES)
        ensure(not scope.cancelled_caught, MalformedError(f"{peer} said no hello in {limits.HELLO_S:.0f} s"))
        ensure(kind == HELLO, MalformedError(f"{peer} began with a frame of kind {kind}"))
        hello = read_hello(payload, self._network, peer)
        bulk = self._check_bulk(hello, stream)
        if self._sessions.get(peer, hello.session) != hello.session and not await self._displace(peer, hello, stream):
            return
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
            ensure(self._has_place(peer), FullError(f"{limits.MAX_LINKS} links are the most"))
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
                self._heard(link, hello, self._check_bulk(hello, stream), stream)
            else:
                raise MalformedError(f"a frame of unknown kind {kind}")

    def _deliver(self, link: Link, payload: bytes) -> None:
        if link.ended.is_set():
            return
        try:
            self._callbacks.on_frame(link.account, payload)
        except PeerError:
            raise
        except Exception as error:  # our bug, not the peer's
            self._host.counters.add("callback", error=repr(error))

    def _check_bulk(self, hello: Hello, stream: INetStream) -> BulkAddress | None:
        if hello.bulk is None:
            return None
        bulk = check_voucher(hello.bulk, self._network, hello.account, time.time_ns() // 1_000_000)
        if bulk is None:
            return None
        own = check_transports(bulk.peer, bulk.addresses)
        seen = observed(own, stream.muxed_conn.get_remote_address())
        return replace(bulk, addresses=tuple(f"{one}/p2p/{bulk.peer}" for one in dict.fromkeys([*own, *seen])))

    def _heard(self, link: Link, hello: Hello, bulk: BulkAddress | None, stream: INetStream) -> None:
        link.hello = hello
        self._remember(link.account, hello.session)
        self._discovery.learn(hello, stream.muxed_conn.get_remote_address())
        if bulk is not None and bulk != self.bulk_hints.get(link.account):
            self.bulk_hints[link.account] = bulk
            self._call(self._callbacks.on_bulk, link.account, bulk)
        self._settle(link)

    def _settle(self, link: Link) -> None:
        if link.hello is None or not link.spoken or link.up.is_set() or link.ended.is_set():
            return
        self.up[link.account] = link
        link.up.set()
        link.up_since = trio.current_time()
        self._book.linked(link.account)
        self.news.set()
        log.info("peer up", peer=link.account)
        self._call(self._callbacks.on_peer_up, link.account)

    def _end(self, link: Link, reason: str) -> None:
        if link.ended.is_set():
            return
        link.end()
        if self._links.get(link.account) is link:
            del self._links[link.account]
        if self.up.get(link.account) is link:
            del self.up[link.account]
            self.bulk_hints.pop(link.account, None)
            log.info("peer down", peer=link.account, reason=reason)
            self._call(self._callbacks.on_peer_down, link.account)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        try:
            callback(*args)
        except Exception as error:
            self._host.counters.add("callback", error=repr(error))

    async def _displace(self, peer: str, hello: Hello, stream: INetStream) -> bool:
        """The peer started anew: close what its old process left open, dead as it is even if nobody told us.

        False: the old link is too young to be dead, so two nodes run with one key; the newcomer is turned away,
        for else the two would push each other out without end.
        """
        link = self._links.get(peer)
        newcomer = stream.muxed_conn
        if link is not None and trio.current_time() - link.up_since < limits.DISPLACE_S:
            log.warning("an account runs on two nodes at once; stop one of them", account=peer)
            self._host.counters.add("duplicate", peer=peer)
            stale = [conn for conn in self._host.connections(peer) if conn.muxed_conn is newcomer]
        else:
            self._remember(peer, hello.session)
            if link is not None and link.hello is not None:
                self._end(link, "peer started anew")
            stale = [conn for conn in self._host.connections(peer) if conn.muxed_conn is not newcomer]
        displaced = self._sessions.get(peer) == hello.session
        for conn in stale:
            with trio.move_on_after(2):
                await conn.close()
        if displaced:
            self._gossip.reopen(peer)
        return displaced

    def _remember(self, peer: str, session: str) -> None:
        self._sessions.pop(peer, None)  # the one heard of longest ago is first in line to be forgotten
        self._sessions[peer] = session
        if len(self._sessions) > limits.MAX_KNOWN_PEERS:
            del self._sessions[next(iter(self._sessions))]

    async def watch(self) -> None:
        """Close connections that hang in a write, or that serve neither a link nor gossip."""
        useless: dict[str, float] = {}
        while True:
            await trio.sleep(1)
            now = trio.current_time()
            for link in list(self._links.values()):
                if now - link.writing_since > limits.WRITE_S:
                    self._host.counters.add("hanging", peer=link.account)
                    self._end(link, "a write hangs")
                    self._nursery.start_soon(self._host.close_peer, link.account)
            used = set(self.up) | self._gossip.gossiping()
            idle = [peer for peer in self._host.connected() if peer not in used]
            useless = {peer: useless.get(peer, now) for peer in idle}
            for peer, since in useless.items():
                if now - since > limits.IDLE_PEER_S:
                    self._host.counters.add("idle", peer=peer)
                    self._nursery.start_soon(self._host.close_peer, peer)
