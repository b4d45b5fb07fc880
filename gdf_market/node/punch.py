"""Hole punching (DCUtR): two nodes behind routers that met through a relay try to connect directly.

Both dial the address at which the world sees the other, from the port that they listen on, at the same moment: a router
that keeps the port lets in what answers a packet that went out.  Where it does not work, the circuit stays.

Rules kept here:
1. It is spoken over circuits only, once per circuit, with at most ``ROUNDS`` attempts at ``MAX_SEEN`` addresses.
2. What a peer names is checked like any address; Noise proves who is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import dcutr_pb2 as pb
from multiaddr import Multiaddr

from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import check_transports, host_of, is_circuit, is_loopback
from gdf_market.node.circuit import is_relayed, read_message, until_ended, write_message

if TYPE_CHECKING:
    from gdf_market.node.p2p import Blame, Host

log = structlog.get_logger("gdf.punch")

PROTOCOL = "/libp2p/dcutr"
ROUNDS = 3
MAX_SEEN = 2
ANSWER_S = 10.0
DIAL_S = 4.0
SETTLE_S = 2.0  # after a circuit came, and before it is closed for a direct connection


class Puncher:
    """Punches for one host; ``seen()`` are the IP addresses at which peers see it."""

    def __init__(self, host: Host, seen: Callable[[], Sequence[str]], blame: Blame) -> None:
        self._host, self._seen = host, seen
        host.handle(PROTOCOL, self._serve, blame)

    async def punch(self, peer: str) -> bool:
        """Try, as the side that a circuit came to, to have a direct connection instead; say whether there is one."""
        await trio.sleep(SETTLE_S)
        for _ in range(ROUNDS):
            if self._is_direct(peer):
                break
            if not self._seen() or not self._host.connections(peer):
                return False
            try:
                await self._round(peer)
            except (PeerError, trio.TooSlowError) as error:
                log.info("no hole was punched", peer=peer, reason=repr(error))
        if not self._is_direct(peer):
            return False
        await trio.sleep(SETTLE_S)
        log.info("connected directly", peer=peer)
        for conn in self._host.connections(peer):
            if conn.muxed_conn.get_remote_address() is None:
                await conn.close()
        return True

    async def _round(self, peer: str) -> None:
        try:
            stream = await self._host.open_stream(peer, PROTOCOL)
        except Exception as error:  # the library raises many kinds
            raise PeerError(f"{peer} punches no holes: {error!r}") from None
        try:
            with trio.fail_after(ANSWER_S):
                ensure(is_relayed(stream), PeerError(f"{peer} is connected directly"))
                began = trio.current_time()
                await write_message(stream, self._connect())
                named = targets(peer, await read_message(stream, pb.HolePunch))
                round_trip_s = trio.current_time() - began
                await write_message(stream, pb.HolePunch(type=pb.HolePunch.SYNC))
            await trio.sleep(round_trip_s / 2)
            await self._dial(peer, named, first=False)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(limits.GOODBYE_S):
                await stream.reset()

    async def _serve(self, stream: INetStream) -> None:
        """Answer the side that a circuit of ours went to."""
        peer = str(stream.muxed_conn.peer_id)
        ensure(is_relayed(stream), MalformedError(f"{peer} punches a hole where there is a way"))
        with trio.move_on_after(ANSWER_S):
            named = targets(peer, await read_message(stream, pb.HolePunch))
            await write_message(stream, self._connect())
            sync = await read_message(stream, pb.HolePunch)
            ensure(sync.type == pb.HolePunch.SYNC, MalformedError(f"{peer} sent no SYNC"))
            await self._dial(peer, named, first=True)
            await until_ended(stream)

    def _connect(self) -> Any:
        port = self._host.port
        seen = [f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}" for host in self._seen()[:MAX_SEEN]]
        return pb.HolePunch(type=pb.HolePunch.CONNECT, ObsAddrs=[Multiaddr(one).to_bytes() for one in seen])

    async def _dial(self, peer: str, named: Sequence[str], *, first: bool) -> None:
        """Dial from the listening port; who dialled the circuit (``first``) is who begins the log-in here, too."""
        swarm = self._host.swarm
        dial = swarm.dial_addr if first else swarm.dial_addr_as_responder

        async def one(target: str) -> None:
            source = ("::" if target.startswith("/ip6/") else "0.0.0.0", self._host.port)  # noqa: S104
            try:
                await dial(Multiaddr(target), ID.from_string(peer), source)
            except Exception as error:  # the library raises many kinds; each means: not this time
                self._host.counters.add("punch", peer=peer, address=target, error=repr(error))

        with trio.move_on_after(DIAL_S):
            async with trio.open_nursery() as nursery:
                for target in named:
                    nursery.start_soon(one, target)

    def _is_direct(self, peer: str) -> bool:
        return any(conn.muxed_conn.get_remote_address() is not None for conn in self._host.connections(peer))


def targets(peer: str, message: Any) -> list[str]:
    """Return the transport addresses that a CONNECT names; MalformedError if it is none."""
    ensure(message.type == pb.HolePunch.CONNECT, MalformedError(f"{peer} sent no CONNECT"))
    found = []
    for raw in message.ObsAddrs[:MAX_SEEN]:
        try:
            found.append(f"{Multiaddr(bytes(raw))}/p2p/{peer}")
        except Exception:  # the library raises many kinds for bytes that are no multiaddr
            raise MalformedError(f"{peer} named an address that is none") from None
    usable = check_transports(peer, found)
    return [one for one in usable if not is_circuit(one) and one.startswith("/ip") and not is_loopback(host_of(one))]
