"""The libp2p host: TCP, Noise (nothing else) and Yamux, with every door of the library that a peer could break closed.

Rules kept here:
1. Only Noise is offered, so a peer id is always proven.
2. No exception in a handler or in a task of the library ends the node.
3. One dial at a time per address, without the library's memory of failed dials:
   when to try again is decided by our own back-off.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p import new_host
from libp2p.abc import INetStream, INotifee
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key
from libp2p.host.basic_host import BasicHost
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.tools.anyio_service import TrioManager
from multiaddr import Multiaddr

from gdf_market.errors import LocalError, PeerError
from gdf_market.node import limits
from gdf_market.node.addresses import advertised, is_circuit, multiaddr_of
from gdf_market.node.collapse import collapsing
from gdf_market.node.counters import Counters
from gdf_market.node.frames import StreamEndedError
from gdf_market.node.muxer import LimitedMuxers
from gdf_market.node.relay import RelayService
from gdf_market.node.relayed import Relayed
from gdf_market.node.standing import source
from gdf_market.node.transport import CappedTCP, check_port_free

StreamHandler = Callable[[INetStream], Awaitable[None]]
Blame = Callable[[str, PeerError], None]

logging.getLogger("libp2p").addHandler(logging.NullHandler())  # else its warnings go to stderr unasked


class _NoAutoConnector(AutoConnector):  # type: ignore[misc]
    """The library dials known peers on its own, even with watermarks of 0; who is dialled is our decision."""

    async def maybe_connect(self) -> None:
        """Dial nobody."""


class ContainedManager(TrioManager):  # type: ignore[misc]
    """Runs a libp2p service; a task of it that fails is counted and ends alone."""

    def __init__(self, service: Any, counters: Counters) -> None:
        super().__init__(service)
        self._counters = counters

    def run_task(
        self,
        async_fn: Callable[..., Awaitable[Any]],
        *args: Any,
        daemon: bool = False,
        name: str | None = None,
        _internal: bool = False,
    ) -> None:
        """Start a task as the library does, inside a guard."""

        async def guarded(*values: Any) -> None:
            try:
                await async_fn(*values)
            except Exception as error:
                self._counters.add("task", task=name or repr(async_fn), error=repr(error))
                if daemon:  # a daemon that returned would end the service
                    await trio.sleep_forever()

        super().run_task(guarded, *args, daemon=daemon, name=name, _internal=_internal)


@asynccontextmanager
async def run_service(service: Any, counters: Counters) -> AsyncIterator[None]:
    """Run a libp2p service (swarm, pubsub, router) in the background of the block."""
    manager = ContainedManager(service, counters)
    with collapsing():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run)
            await manager.wait_started()
            try:
                yield
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(5):
                    await manager.stop()
                nursery.cancel_scope.cancel()


def safe_handler(handler: StreamHandler, counters: Counters, blame: Blame) -> StreamHandler:
    """Return ``handler`` so that nothing escapes it and its stream is always reset in the end.

    A PeerError is counted under its reason and goes to ``blame(peer, error)``, which
    decides about the peer (but StreamEndedError, which is no fault); any other
    exception is counted under ``handler`` and costs the peer its stream.
    """

    async def handle(stream: INetStream) -> None:
        peer = str(stream.muxed_conn.peer_id)
        try:
            await handler(stream)
        except StreamEndedError:
            pass
        except PeerError as error:
            counters.add(error.reason, peer=peer, error=str(error))
            blame(peer, error)
        except Exception as error:
            counters.add("handler", peer=peer, error=repr(error))
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await stream.reset()

    return handle


class _Watcher(INotifee):  # type: ignore[misc]
    """Passes on which peer a connection was made to or lost."""

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


class _Settler(_Watcher):
    """Tells the gate which sockets are logged in."""

    def __init__(self, transport: CappedTCP) -> None:
        super().__init__(lambda peer: None, lambda peer: None)
        self._gate = transport.gate

    async def connected(self, network: Any, conn: Any) -> None:
        remote = conn.muxed_conn.get_remote_address()
        if remote is not None:
            self._gate.settle(str(remote[0]).partition("%")[0], int(remote[1]))


class Host:
    """A running host with its counters; made by ``open_host``."""

    def __init__(self, host: BasicHost, transport: CappedTCP, counters: Counters) -> None:
        self.raw = host
        self.counters = counters
        self._transport = transport
        self._dialing = trio.CapacityLimiter(8)
        self.account = str(host.get_id())
        self.direct: tuple[str, ...] = ()  # multiaddrs of this host without those through relays
        self.relay: RelayService | None = None
        self.relayed: Relayed | None = None

    @property
    def swarm(self) -> Any:
        """The library's network object."""
        return self.raw.get_network()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddrs that others can reach this host by, best first.

        Those through relays come before the direct ones: there are some only while nobody can dial this host.
        """
        return self.direct if self.relayed is None else (*self.relayed.addresses, *self.direct)

    @property
    def port(self) -> int:
        """The TCP port that the host listens on."""
        return int(str(self.raw.get_transport_addrs()[0]).split("/")[4])

    def blame_address(self, muxed: Any) -> None:
        """A peer was thrown out: count it against the address that this connection of it came from."""
        remote = muxed.get_remote_address()
        if remote is not None:
            self._transport.gate.blame(str(remote[0]).partition("%")[0], int(remote[1]), trio.current_time())

    def on_flood(self, blame: Blame) -> None:
        """Call ``blame(peer, error)`` for a connection that was closed for what its muxer received."""
        self.swarm.upgrader.muxer_multistream.blame = blame

    def on_crowd(self, make_room: Callable[[], bool]) -> None:
        """Call ``make_room`` when all inbound places are taken; it says whether it closed a connection."""
        self._transport.gate.make_room = make_room

    @property
    def inbound(self) -> int:
        """Accepted sockets that are open now."""
        return len(self._transport.gate)

    def connected(self) -> list[str]:
        """Return the ids of peers with an open connection."""
        return sorted(str(peer) for peer in list(self.swarm.connections) if self.connections(str(peer)))

    def connections(self, peer: str) -> list[Any]:
        """Return the library's open connections to ``peer`` (it keeps closed ones in its table for a while)."""
        return [conn for conn in self.swarm.get_connections(ID.from_string(peer)) if not conn.is_closed]

    def handle(self, protocol: str, handler: StreamHandler, blame: Blame) -> None:
        """Serve ``protocol`` with ``handler``, guarded."""
        self.raw.set_stream_handler(protocol, safe_handler(handler, self.counters, blame))

    def use_circuits(self, may_reserve: Callable[[str], bool], blame: Blame) -> Relayed:
        """Relay for the members that ``may_reserve``, reach others through relays, and be reached so."""
        self.relay = RelayService(self, may_reserve, blame)
        self.relayed = Relayed(self, blame)
        return self.relayed

    def on_connection(self, connected: Callable[[str], None], disconnected: Callable[[str], None]) -> None:
        """Call these with the peer's id after each connection made and each one lost."""
        self.swarm.register_notifee(_Watcher(connected, disconnected))

    async def dial(self, peer: str, addresses: Sequence[str]) -> bool:
        """Try the addresses in order; say whether there is a connection now."""
        peer_id = ID.from_string(peer)
        for address in addresses:
            if self.connections(peer):
                return True
            try:
                if is_circuit(address):
                    await self._dial_through(peer, address)
                else:
                    async with self._dialing:
                        with trio.fail_after(limits.DIAL_S):
                            await self.swarm.dial_addr(Multiaddr(address), peer_id)
                return True
            except Exception as error:  # the library raises many kinds; each means: not reached
                self.counters.add("dial", peer=peer, address=address, error=repr(error))
        return False

    async def _dial_through(self, peer: str, address: str) -> None:
        if self.relayed is None:
            raise LocalError(f"this host uses no relays; {address} is of no use to it")
        with trio.fail_after(3 * limits.DIAL_S):  # the relay may have to be dialled first, and takes its time
            await self.relayed.dial(peer, address)

    async def open_stream(self, peer: str, protocol: str) -> INetStream:
        """Open a stream to a connected peer; raises whatever the library raises."""
        with trio.fail_after(limits.HELLO_S):
            return await self.raw.new_stream(ID.from_string(peer), [protocol])

    def source_of(self, peer: str) -> str:
        """Return the address that a peer's first connection comes from; "" if it leads through a relay."""
        for conn in self.connections(peer):
            remote = conn.muxed_conn.get_remote_address()
            if remote is not None:
                return source(str(remote[0]).partition("%")[0])
        return ""

    async def close_peer(self, peer: str) -> None:
        """Close all connections to ``peer``."""
        peer_id = ID.from_string(peer)
        with trio.CancelScope(shield=True), trio.move_on_after(5):
            await self.swarm.close_peer(peer_id)


@asynccontextmanager
async def open_host(
    seed: bytes | None,
    listen: tuple[str, int],
    *,
    announce: Sequence[str] = (),
    counters: Counters | None = None,
    prepare: Callable[[Host], None] = lambda host: None,
) -> AsyncIterator[Host]:
    """Run a host with the key of 32-byte ``seed`` (None: a fresh key), listening on (IP address, port).

    ``prepare`` installs handlers before the first connection can come in.
    ``announce`` are extra multiaddrs that others can reach this host by.
    Raises UserError when the port is taken and UsageError for an address that is none.
    """
    counters = counters or Counters()
    maddr = multiaddr_of(*listen)
    check_port_free(*listen)
    raw, transport = _make(seed if seed is not None else secrets.token_bytes(32), counters)
    host = Host(raw, transport, counters)
    host.swarm.register_notifee(_Settler(transport))
    prepare(host)
    async with run_service(host.swarm, counters):
        try:
            if not await host.swarm.listen(Multiaddr(maddr)):
                check_port_free(*listen)
                raise LocalError(f"cannot listen on {maddr}")
            bound = [str(address) for address in raw.get_transport_addrs()]
            host.direct = advertised(bound, host.account, announce)
            yield host
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await raw.close()


def _make(seed: bytes, counters: Counters) -> tuple[BasicHost, CappedTCP]:
    key = create_new_key_pair(seed)
    transport = CappedTCP(counters)
    host = new_host(
        key_pair=key,
        sec_opt={NOISE: NoiseTransport(key, noise_privkey=create_noise_key().private_key)},  # never the default
        muxer_opt={YAMUX: Yamux},
        transports=[transport],
        connection_config=_config(),
        disable_identify_address_discovery=True,
    )
    swarm: Any = host.get_network()
    swarm.upgrader.muxer_multistream = LimitedMuxers(counters)
    swarm.set_resource_manager(None)  # its global stream count lets one peer use up everybody's; ours are per peer
    swarm.auto_connector = _NoAutoConnector(swarm=swarm, auto_connect_interval=3_600.0)
    swarm.retry_config = RetryConfig(max_retries=0)
    swarm.set_stream_handler(_guard_negotiation(host._swarm_stream_handler, counters))
    return host, transport


def _config() -> ConnectionConfig:
    return ConnectionConfig(
        max_connections=limits.MAX_CONNECTIONS,
        min_connections=0,  # else so many inbound slots are held back for its own dials
        low_watermark=0,
        high_watermark=limits.MAX_CONNECTIONS,
        max_connections_per_peer=3,
        dial_timeout=limits.DIAL_S,
        inbound_upgrade_timeout=limits.HANDSHAKE_S,
        outbound_upgrade_timeout=limits.HANDSHAKE_S,
        enable_health_monitoring=False,  # muxer.LimitedYamux pings every connection, cheaper and without a stream
    )


def _guard_negotiation(handler: StreamHandler, counters: Counters) -> StreamHandler:
    """Guard what runs before and around our own handlers: protocol negotiation, identify, ping."""

    async def handle(stream: INetStream) -> None:
        try:
            await handler(stream)
        except Exception as error:
            counters.add("negotiation", peer=str(stream.muxed_conn.peer_id), error=repr(error))
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await stream.reset()

    return handle
