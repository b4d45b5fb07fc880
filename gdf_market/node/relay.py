"""Being a relay: public members pass bytes between peers and members that nobody can dial (circuit relay v2).

Rules kept here:
1. Only a member of the network may reserve (``may_reserve``), and only members that reserved are reached.
2. Reservations, circuits, their bytes, their time and the rate of all of them together are bounded.
3. Nothing is relayed over a circuit: one relay between two peers, never more.
4. The relay passes sealed bytes on; it can neither read nor forge what the two ends say.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from libp2p.abc import INetStream
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import block, is_loopback
from gdf_market.node.circuit import (
    HOP,
    OK,
    STOP,
    hop,
    is_relayed,
    narrow,
    peer_field,
    peer_of,
    pump,
    read_message,
    stop,
    until_ended,
    write_message,
)

if TYPE_CHECKING:
    from gdf_market.node.p2p import Blame, Host

MAX_RESERVATIONS = 64
MAX_RESERVATIONS_PER_ADDRESS = 8  # of one IPv4 address or IPv6 /64; MAX_PER_LOOPBACK from this machine
RESERVATION_S = 600.0
MAX_CIRCUITS = 32
MAX_CIRCUITS_PER_PEER = 8  # from one peer, and to one
CIRCUIT_BYTES = 4 << 30  # both directions together
CIRCUIT_S = 6 * 3_600.0
BYTES_PER_S, BYTES_BURST = float(4 << 20), float(1 << 20)  # of all circuits together, both directions
SETUP_S = 10.0


class RelayLimitError(PeerError):
    """A circuit used up its bytes; no fault."""

    reason = "relay-limit"


@dataclass(frozen=True)
class _Reservation:
    address: str
    until: float


class Reservations:
    """Who may be reached through this relay, and who is being reached; without clock or network."""

    def __init__(self) -> None:
        self._held: dict[str, _Reservation] = {}
        self._sources: Counter[str] = Counter()
        self._targets: Counter[str] = Counter()

    def reserve(self, peer: str, host: str, now: float) -> int:
        """Take or renew a reservation; return the status to answer with."""
        self.expire(now)
        address = block(host, 32, 64)
        others = [one for name, one in self._held.items() if name != peer]
        most = limits.MAX_PER_LOOPBACK if is_loopback(host) else MAX_RESERVATIONS_PER_ADDRESS
        if len(others) >= MAX_RESERVATIONS or sum(one.address == address for one in others) >= most:
            return pb.RESERVATION_REFUSED
        self._held[peer] = _Reservation(address, now + RESERVATION_S)
        return OK

    def begin(self, peer: str, target: str, now: float) -> int:
        """Begin a circuit from ``peer`` to ``target``; return the status to answer with.  If OK, ``end`` it."""
        self.expire(now)
        if target not in self._held:
            return pb.NO_RESERVATION
        full = self._sources[peer] >= MAX_CIRCUITS_PER_PEER or self._targets[target] >= MAX_CIRCUITS_PER_PEER
        if full or self._sources.total() >= MAX_CIRCUITS:
            return pb.RESOURCE_LIMIT_EXCEEDED
        self._sources[peer] += 1
        self._targets[target] += 1
        return OK

    def end(self, peer: str, target: str) -> None:
        """A circuit is over."""
        for count, name in ((self._sources, peer), (self._targets, target)):
            count[name] -= 1
            if not count[name]:
                del count[name]

    def forget(self, peer: str) -> None:
        """A peer left: it cannot be reached any more."""
        self._held.pop(peer, None)

    def expire(self, now: float) -> None:
        """Forget reservations whose time is over."""
        for peer in [name for name, one in self._held.items() if one.until <= now]:
            del self._held[peer]

    @property
    def circuits(self) -> int:
        """Circuits open now."""
        return self._sources.total()

    def __len__(self) -> int:
        return len(self._held)


class RelayService:
    """Serves the relay protocol on one host; ``may_reserve(peer)`` says who may be reached through it."""

    def __init__(self, host: Host, may_reserve: Callable[[str], bool], blame: Blame) -> None:
        self._host, self._may_reserve = host, may_reserve
        self.reservations = Reservations()
        self.passed_bytes = 0
        self._rate = limits.Bucket(BYTES_PER_S, BYTES_BURST)
        host.handle(HOP, self._hop, blame)
        host.on_connection(lambda peer: None, self._disconnected)

    def _disconnected(self, peer: str) -> None:
        if not self._host.connections(peer):
            self.reservations.forget(peer)

    async def _hop(self, stream: INetStream) -> None:
        peer = str(stream.muxed_conn.peer_id)
        with trio.move_on_after(SETUP_S) as scope:
            asked = await read_message(stream, pb.HopMessage)
        ensure(not scope.cancelled_caught, MalformedError(f"{peer} asked the relay nothing in {SETUP_S:.0f} s"))
        if is_relayed(stream):
            await _refuse(stream, pb.PERMISSION_DENIED)
        elif asked.type == pb.HopMessage.RESERVE:
            await self._reserve(stream, peer)
        elif asked.type == pb.HopMessage.CONNECT:
            await self._connect(stream, peer, peer_of(asked.peer))
        else:
            raise MalformedError(f"a relay message of type {asked.type}")

    async def _reserve(self, stream: INetStream, peer: str) -> None:
        connection: Any = stream.muxed_conn
        status: int = pb.PERMISSION_DENIED
        if self._may_reserve(peer):
            status = self.reservations.reserve(peer, connection.get_remote_address()[0], trio.current_time())
        if status != OK:
            await _refuse(stream, status)
            return
        expires = pb.Reservation(expire=int(time.time() + RESERVATION_S))
        await write_message(stream, hop(pb.HopMessage.STATUS, status=OK, reservation=expires, limit=_limit()))
        await until_ended(stream)

    async def _connect(self, stream: INetStream, peer: str, target: str) -> None:
        status = self.reservations.begin(peer, target, trio.current_time())
        if status != OK:
            self._host.counters.add("relay-full" if status == pb.RESOURCE_LIMIT_EXCEEDED else "relay-unknown")
            await _refuse(stream, status)
            return
        try:
            onward = await self._reach(peer, target)
            if onward is None:
                await _refuse(stream, pb.CONNECTION_FAILED)
                return
            try:
                await write_message(stream, hop(pb.HopMessage.STATUS, status=OK, limit=_limit()))
                await self._pass(stream, onward)
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(limits.GOODBYE_S):
                    await onward.reset()
        finally:
            self.reservations.end(peer, target)

    async def _reach(self, peer: str, target: str) -> INetStream | None:
        """Return a stream to the target that it accepted as the way from ``peer``; None if it does not."""
        try:
            with trio.fail_after(SETUP_S):
                onward = await self._host.open_stream(target, STOP)
        except Exception as error:  # the library raises many kinds
            self._host.counters.add("relay-target", peer=target, error=repr(error))
            return None
        try:
            with trio.fail_after(SETUP_S):
                await write_message(onward, stop(pb.StopMessage.CONNECT, peer=peer_field(peer), limit=_limit()))
                answer = await read_message(onward, pb.StopMessage)
            accepted = answer.type == pb.StopMessage.STATUS and answer.status == OK
        except (PeerError, trio.TooSlowError):
            accepted = False
        if not accepted:
            await onward.reset()
            return None
        return onward

    async def _pass(self, one: INetStream, other: INetStream) -> None:
        left = CIRCUIT_BYTES

        def budget(count: int) -> float:
            nonlocal left
            left -= count
            ensure(left >= 0, RelayLimitError(f"a circuit passed {CIRCUIT_BYTES} bytes"))
            self.passed_bytes += count
            return self._rate.spend(count, trio.current_time())

        with trio.move_on_after(CIRCUIT_S):
            async with trio.open_nursery() as nursery:

                async def pass_on(source: INetStream, sink: INetStream) -> None:
                    try:
                        await pump(narrow(source), sink, budget)
                    except PeerError:  # over, one way or the other: nobody is to blame
                        nursery.cancel_scope.cancel()

                nursery.start_soon(pass_on, one, other)
                nursery.start_soon(pass_on, other, one)


def _limit() -> Any:
    return pb.Limit(duration=int(CIRCUIT_S), data=min(CIRCUIT_BYTES, 2**32 - 1))


async def _refuse(stream: INetStream, status: int) -> None:
    await write_message(stream, hop(pb.HopMessage.STATUS, status=status))
    await until_ended(stream)
