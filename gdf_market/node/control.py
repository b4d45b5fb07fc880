"""The control host of a node: links between ledgers, orders on gossip, and finding peers.

What a peer can make this node hold or do is bounded by limits.py.  All calls
but ``run`` are plain functions that queue and return.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from gdf_market.codec import encode, sha256
from gdf_market.errors import PeerError
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.addresses import check_transports, is_circuit, port_of
from gdf_market.node.collapse import collapsing
from gdf_market.node.discovery import Discovery
from gdf_market.node.frames import DATA, HELLO, VERSION, BulkAddress, Hello, frame, sign_voucher
from gdf_market.node.gossip import OrderGossip
from gdf_market.node.lan import Lan
from gdf_market.node.links import Callbacks, Links
from gdf_market.node.p2p import Host, open_host
from gdf_market.node.reach import DialBack, Reach, Target
from gdf_market.node.relayed import Relayed

_VOUCHER_MS = 2 * 3_600_000
_VOUCHER_EVERY_S = 1_800.0
_NEWS_S = 0.5  # news are gathered for this long before they are sent


class ControlHost:
    """``async with ControlHost(…).run() as control:`` serves while the block runs.

    ``listen`` is (IP address, port); ``bootstrap`` and ``announce`` are multiaddrs
    (``announce``: extra ones of this node); ``relay``: pass bytes for members that
    cannot be dialled; ``lan``: find and be found by multicast DNS.  ``on_frame(peer, data)``,
    ``on_peer_up(peer)``, ``on_peer_down(peer)``, ``on_order(raw, peer) -> relay it?`` and
    ``on_bulk(peer, address)`` are called in the trio loop and return soon; peers are account ids.
    ``worth(account)`` is what the ledger makes of an account: when all places are taken, who is worth least goes.
    """

    def __init__(
        self,
        identity: Identity,
        network: str,
        *,
        listen: tuple[str, int] = ("0.0.0.0", 0),  # noqa: S104  # a node is there to be reached
        bootstrap: Sequence[str] = (),
        announce: Sequence[str] = (),
        relay: bool = True,
        lan: bool = False,
        on_frame: Callable[[str, bytes], None],
        on_peer_up: Callable[[str], None],
        on_peer_down: Callable[[str], None],
        on_order: Callable[[bytes, str], bool] = lambda raw, peer: False,
        on_bulk: Callable[[str, BulkAddress], None] = lambda peer, address: None,
        worth: Callable[[str], int] = lambda account: 0,
    ) -> None:
        self._identity, self._network = identity, network
        self._listen, self._announce, self._relay, self._lan = listen, announce, relay, lan
        self._callbacks = Callbacks(on_frame, on_peer_up, on_peer_down, on_bulk, worth)
        self._gossip = OrderGossip(network, on_order)
        self._session = secrets.token_hex(16)
        self._discovery = Discovery(identity.account, bootstrap)
        self._bulk: tuple[str, tuple[str, ...]] | None = None
        self._host: Host
        self._links: Links
        self._relayed: Relayed
        self.reach: Reach
        self._nursery: trio.Nursery

    @asynccontextmanager
    async def run(self) -> AsyncIterator[ControlHost]:
        """Listen, connect and serve while the block runs.  Raises UserError when the port is taken."""
        with collapsing():
            async with trio.open_nursery() as self._nursery:
                opened = open_host(self._identity.seed, self._listen, announce=self._announce, prepare=self._prepare)
                async with opened, self._gossip.run():
                    self._nursery.start_soon(self._discovery.run, self._host, lambda: len(self._links))
                    self._nursery.start_soon(self._send_news)
                    self._nursery.start_soon(self._links.watch)
                    self._nursery.start_soon(self.reach.run)
                    self._nursery.start_soon(self._relayed.run)
                    if self._lan:
                        lan = Lan(self._network, self._host.direct, self._discovery.found_on_lan, self._host.counters)
                        self._nursery.start_soon(lan.run)
                    try:
                        yield self
                    finally:
                        self._links.end_all()
                        self._nursery.cancel_scope.cancel()

    @property
    def account(self) -> str:
        """This node's account id."""
        return self._identity.account

    @property
    def peers(self) -> frozenset[str]:
        """Peers whose link is up."""
        return frozenset(self._links.up)

    @property
    def addresses(self) -> list[str]:
        """Multiaddrs that others can reach this node by, best first."""
        return list(self._host.addresses)

    @property
    def port(self) -> int:
        """The TCP port of this host."""
        return self._host.port

    @property
    def relays(self) -> tuple[str, ...]:
        """Peers through which others reach this node; none are wanted while it can be dialled."""
        return self._relayed.relays

    @property
    def relaying(self) -> int:
        """Circuits that pass through this node now."""
        return self._host.relay.reservations.circuits if self._host.relay is not None else 0

    @property
    def dialled(self) -> frozenset[str]:
        """Linked peers that this node dialled at an address of theirs."""
        return frozenset(peer for peer in self._links.up if self._has(peer, initiator=True))

    def reachability(self) -> dict[str, Any]:
        """Return what `status` shows of both directions; peers are account ids."""
        control, bulk = self.reach.control, self.reach.bulk
        return {
            "outbound": len(self.dialled),
            "over_relays": sum(
                not (self._has(peer, initiator=True) or self._has(peer, initiator=False)) for peer in self._links.up
            ),
            "inbound": control.inbound,
            "reached": control.reached,
            "asked": control.asked,
            "bulk_inbound": bulk.inbound,
            "bulk_reached": bulk.reached,
            "bulk_asked": bulk.asked,
            "ports": [target.port for target in self._reach_targets()],
            "observed": list(self.reach.observed),
            "relays": list(self.relays),
            "bulk_relayed": self._bulk is not None and any("/p2p-circuit/" in one for one in self._bulk[1]),
            "relaying": self.relaying,
            "relayed_bytes": self._host.relay.passed_bytes if self._host.relay is not None else 0,
        }

    @property
    def peer_addresses(self) -> tuple[str, ...]:
        """Multiaddrs of connected peers, to find them again later."""
        return self._discovery.known(self._links.up)

    @property
    def bulk_hints(self) -> dict[str, BulkAddress]:
        """Where the connected peers serve blobs, as they vouched for it."""
        return self._links.bulk_hints

    @property
    def counters(self) -> dict[str, int]:
        """How often each reason to refuse something occurred."""
        return self._host.counters.snapshot()

    @property
    def gossip_peers(self) -> set[str]:
        """Peers that read the orders topic."""
        return self._gossip.subscribers()

    def send(self, peer: str, data: bytes) -> bool:
        """Queue a frame for ``peer``; False if its link is down, or it was dropped now for not draining."""
        packed = frame(DATA, data)
        link = self._links.up.get(peer)
        return link is not None and self._links.queue(link, packed)

    def broadcast(self, data: bytes, exclude: str | None = None) -> None:
        """Queue a frame for every peer but ``exclude``."""
        packed = frame(DATA, data)
        for peer, link in list(self._links.up.items()):
            if peer != exclude:
                self._links.queue(link, packed)

    def disconnect(self, peer: str, reason: str | PeerError) -> None:
        """Close everything with ``peer``, and refuse it for a minute."""
        self._links.disconnect(peer, f"{reason.reason}: {reason}" if isinstance(reason, PeerError) else reason)

    def waiting_bytes(self, peer: str) -> int:
        """Return what is queued for a peer and not sent yet."""
        return self._links.waiting_bytes(peer)

    def publish_order(self, raw: bytes) -> bool:
        """Queue an order for gossip; False when too many wait.  OversizedError above 64 KiB."""
        return self._gossip.publish(raw)

    def add_peer(self, address: str) -> None:
        """Keep trying to reach the peer at ``address``; UsageError if it is no multiaddr with /p2p/…."""
        self._discovery.add_bootstrap(address)

    def announce_bulk(self, peer: str, addresses: Sequence[str]) -> None:
        """Vouch for this node's bulk host to all peers, from now on."""
        self._bulk = (peer, tuple(addresses[: limits.MAX_ADDRESSES]))
        self._links.news.set()
        self.reach.news()

    def bulk_relays(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return (peer, transport addresses) of bulk hosts that may relay for ours, best first; none if it needs none.

        Those of the accounts that relay for the control host come first.
        """
        if self.reach.bulk.inbound != "no":
            return []
        hints = self.bulk_hints
        accounts = dict.fromkeys([*self._relayed.relays, *self._relay_order()])
        found = (
            (hints[one].peer, check_transports(hints[one].peer, hints[one].addresses))
            for one in accounts
            if one in hints
        )
        return [(peer, direct) for peer, all_ in found if (direct := tuple(one for one in all_ if not is_circuit(one)))]

    def _prepare(self, host: Host) -> None:
        self._host = host
        self._links = Links(
            host,
            self._network,
            self._discovery,
            self._nursery,
            self._callbacks,
            self._hello,
            self._gossip,
        )
        self._gossip.attach(host, self._links.blame)
        self._relayed = host.use_circuits(self._may_reserve, self._links.blame)
        self._relayed.want(self._relay_candidates)
        self._relayed.changed = self._discovery.retell = lambda: self._links.news.set()
        self.reach = Reach(host, self._network, lambda: self._links.up, self._reach_targets, self._relayed.look)
        self._relayed.seen = lambda: self.reach.observed
        DialBack(host, self._network, lambda peer: peer in self._links.up, self._links.blame)

    def _reach_targets(self) -> tuple[Target, ...]:
        """Return what peers should dial: the ports that others are told of, announced ones first."""
        control = Target(peer=self.account, port=int(port_of(self._host.direct[0])))
        if self._bulk is None:
            return (control,)
        direct = [one for one in check_transports(*self._bulk) if not is_circuit(one)]
        return (control, *(Target(peer=self._bulk[0], port=int(port_of(one))) for one in direct[:1]))

    def _may_reserve(self, peer: str) -> bool:
        """A relay that cannot be dialled itself is of no use to anybody."""
        return self._relay and peer in self._links.up and self.reach.control.inbound != "no"

    def _relay_candidates(self) -> list[tuple[str, Sequence[str]]]:
        if self.reach.control.inbound != "no":
            return []
        return [(peer, self._discovery.book.addresses(peer)) for peer in self._relay_order()]

    def _relay_order(self) -> list[str]:
        """Return linked peers that this node dialled, in an order of its own, so that not all use the same relay."""
        return sorted(self.dialled, key=lambda peer: sha256((self.account + peer).encode()))

    def _has(self, peer: str, *, initiator: bool) -> bool:
        """Say whether there is a direct connection to ``peer`` that this node dialled (or, else, accepted)."""
        return any(
            conn.muxed_conn.is_initiator == initiator and conn.muxed_conn.get_remote_address() is not None
            for conn in self._host.connections(peer)
        )

    def _hello(self) -> bytes:
        voucher = None
        if self._bulk is not None:
            expires_ms = time.time_ns() // 1_000_000 + _VOUCHER_MS
            voucher = sign_voucher(self._identity, self._network, BulkAddress(*self._bulk, expires_ms))
        hello = Hello(
            version=VERSION,
            network=self._network,
            account=self.account,
            session=self._session,
            addresses=self._host.addresses[: limits.MAX_ADDRESSES],
            peers=self._discovery.known(self._links.up),
            bulk=voucher,
        )
        return encode(hello)

    async def _send_news(self) -> None:
        """Repeat our hello to all when a peer came or the bulk host changed, and before the voucher expires."""
        while True:
            with trio.move_on_after(_VOUCHER_EVERY_S):
                await self._links.news.wait()
            await trio.sleep(_NEWS_S)
            self._links.news = trio.Event()
            self.reach.news()
            if self._links.up:
                packed = frame(HELLO, self._hello())
                for link in list(self._links.up.values()):
                    self._links.queue(link, packed)
