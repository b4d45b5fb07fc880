"""Being reached through relays, and reaching others through theirs: the client side of circuit relay v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from multiaddr import Multiaddr

from gdf_market.errors import PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import CIRCUIT, is_circuit, split_circuit
from gdf_market.node.circuit import (
    HOP,
    OK,
    STOP,
    CircuitStream,
    RefusedError,
    connection,
    hop,
    is_relayed,
    peer_field,
    peer_of,
    read_message,
    stop,
    until_ended,
    write_message,
)
from gdf_market.node.punch import Puncher
from gdf_market.node.relay import RESERVATION_S, SETUP_S

if TYPE_CHECKING:
    from gdf_market.node.p2p import Blame, Host

log = structlog.get_logger("gdf.relay")

WANTED = 2  # relays at once: one may leave
MAX_INBOUND = 16  # circuits to this host at once
LOOK_EVERY_S = 15.0
RENEW_S = RESERVATION_S / 2
RETRY_S = 60.0  # a relay that refused is asked again after so long


@dataclass
class _Held:
    transport: str  # where the relay is
    renew_at: float


class Relayed:
    """The circuits of one host.  ``candidates`` are (peer, transport addresses), best first; none: no relay is wanted.

    ``changed()`` is called when ``addresses`` became others.
    """

    def __init__(self, host: Host, blame: Blame) -> None:
        self._host = host
        self._held: dict[str, _Held] = {}
        self._refused: dict[str, float] = {}
        self._candidates: Callable[[], Sequence[tuple[str, Sequence[str]]]] = lambda: ()
        self._look = trio.Event()
        self._inbound = 0
        self.changed: Callable[[], None] = lambda: None
        self.seen: Callable[[], Sequence[str]] = lambda: ()  # IP addresses at which peers see this host
        self._puncher = Puncher(host, lambda: self.seen(), blame)
        host.handle(STOP, self._accept, blame)
        host.on_connection(lambda peer: None, self._disconnected)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddrs by which this host is reached through relays."""
        own = self._host.account
        return tuple(f"{held.transport}/p2p/{relay}{CIRCUIT}/p2p/{own}" for relay, held in sorted(self._held.items()))

    @property
    def relays(self) -> tuple[str, ...]:
        """Peers that hold a reservation for this host."""
        return tuple(sorted(self._held))

    def want(self, candidates: Callable[[], Sequence[tuple[str, Sequence[str]]]]) -> None:
        """Have relays among ``candidates()`` from now on."""
        self._candidates = candidates
        self.look()

    def look(self) -> None:
        """Something changed: see at once whether relays are to be had or given up."""
        self._look.set()

    async def run(self) -> None:
        """Take, renew and give up reservations."""
        while True:
            self._look = trio.Event()
            await self._tend()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._look.wait()

    async def _tend(self) -> None:
        before, now = self.addresses, trio.current_time()
        candidates = dict(self._candidates())
        self._held = {relay: held for relay, held in self._held.items() if relay in candidates}
        self._refused = {relay: until for relay, until in self._refused.items() if until > now and relay in candidates}
        for relay, held in list(self._held.items()):
            if held.renew_at <= now:
                await self._reserve(relay, [held.transport])
        for relay, addresses in candidates.items():
            if len(self._held) >= WANTED:
                break
            if relay not in self._held and relay not in self._refused:
                await self._reserve(relay, addresses)
        if self.addresses != before:
            self.changed()

    async def _reserve(self, relay: str, addresses: Sequence[str]) -> None:
        direct = [one for one in addresses if not is_circuit(one)]
        try:
            ensure(await self._host.dial(relay, direct), RefusedError(f"relay {relay} is not reachable"))
            transport = self._transport(relay)
            stream = await self._ask(relay, pb.HopMessage.RESERVE)
            await stream.reset()
        except PeerError as error:
            log.info("no reservation", relay=relay, reason=str(error))
            self._held.pop(relay, None)
            self._refused[relay] = trio.current_time() + RETRY_S
            return
        log.info("reachable through a relay", relay=relay)
        self._held[relay] = _Held(transport, trio.current_time() + RENEW_S)

    def _transport(self, relay: str) -> str:
        """Return the address that this host itself reaches a relay by; RefusedError if it dialled us."""
        for conn in self._host.connections(relay):
            remote = conn.muxed_conn.get_remote_address()
            if remote is not None and conn.muxed_conn.is_initiator:
                return f"/{'ip6' if ':' in remote[0] else 'ip4'}/{remote[0]}/tcp/{remote[1]}"
        raise RefusedError(f"{relay} dialled this node; where others reach it is not known")

    async def _ask(self, relay: str, kind: int, **fields: Any) -> INetStream:
        """Ask a relay; return the stream after a good answer.  PeerError otherwise."""
        try:
            stream = await self._host.open_stream(relay, HOP)
        except Exception as error:  # the library raises many kinds
            raise RefusedError(f"{relay} relays nothing: {error!r}") from None
        try:
            with trio.fail_after(2 * SETUP_S):
                await write_message(stream, hop(kind, **fields))
                answer = await read_message(stream, pb.HopMessage)
            good = answer.type == pb.HopMessage.STATUS and answer.status == OK
            ensure(good, RefusedError(f"relay {relay} answered with status {answer.status}"))
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(limits.GOODBYE_S):
                await stream.reset()
            if isinstance(error, trio.TooSlowError):
                raise RefusedError(f"relay {relay} did not answer") from None
            raise
        return stream

    async def dial(self, peer: str, transport: str) -> None:
        """Connect to ``peer`` through the relay that ``transport`` names.  Raises whatever fails."""
        relay, direct = split_circuit(transport)
        ensure(await self._host.dial(relay, [direct]), RefusedError(f"relay {relay} is not reachable"))
        stream = await self._ask(relay, pb.HopMessage.CONNECT, peer=peer_field(peer))
        circuit = CircuitStream(stream)
        raw = connection(circuit, f"{transport}/p2p/{peer}", initiator=True)
        try:
            with trio.fail_after(2 * limits.HANDSHAKE_S):
                await self._host.swarm.upgrade_outbound_raw_conn(raw, ID.from_string(peer))
        except BaseException:
            await circuit.close()
            raise

    async def _accept(self, stream: INetStream) -> None:
        """A relay brings a peer."""
        relay = str(stream.muxed_conn.peer_id)
        with trio.fail_after(SETUP_S):
            asked = await read_message(stream, pb.StopMessage)
        peer = peer_of(asked.peer)
        held = self._held.get(relay)
        if is_relayed(stream) or held is None or self._inbound >= MAX_INBOUND:
            await write_message(stream, stop(pb.StopMessage.STATUS, status=pb.RESOURCE_LIMIT_EXCEEDED))
            await until_ended(stream)
            return
        self._inbound += 1
        circuit = CircuitStream(stream)
        try:
            await write_message(stream, stop(pb.StopMessage.STATUS, status=OK))
            address = f"{held.transport}/p2p/{relay}{CIRCUIT}/p2p/{peer}"
            raw = connection(circuit, address, initiator=False)
            with trio.fail_after(2 * limits.HANDSHAKE_S):
                await self._host.swarm.upgrade_inbound_raw_conn(raw, Multiaddr(address))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._puncher.punch, peer)
                await circuit.closed.wait()
                nursery.cancel_scope.cancel()
        except Exception as error:  # the other end's log-in, whatever the library calls it; the relay is not to blame
            self._host.counters.add("circuit", relay=relay, error=repr(error))
        finally:
            self._inbound -= 1
            await circuit.close()

    def _disconnected(self, peer: str) -> None:
        if peer in self._held and not self._host.connections(peer):
            del self._held[peer]
            self.changed()
            self.look()
