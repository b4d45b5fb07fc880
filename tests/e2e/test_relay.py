"""Relays on loopback: what a circuit carries, who may use one, and where its limits are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from net_helpers import stranger, until

from gdf_market.node import relay as relaying
from gdf_market.node.addresses import check_transports
from gdf_market.node.circuit import HOP, OK, STOP, hop, peer_field, read_message, stop, write_message
from gdf_market.node.p2p import Host, open_host

pytestmark = pytest.mark.e2e

ECHO = "/echo/1"


@dataclass
class Town:
    """A relay, and a member that is reached through it only."""

    relay: Host
    member: Host
    welcome: set[str]

    @property
    def address(self) -> str:
        """The member's transport address through the relay."""
        return check_transports(self.member.account, self.member.relayed.addresses)[0]  # type: ignore[union-attr]


async def _echo(stream: Any) -> None:
    while data := await stream.read(65_536):
        await stream.write(data)


@asynccontextmanager
async def _host(*, welcome: set[str] | None = None) -> AsyncIterator[Host]:
    def prepare(host: Host) -> None:
        host.use_circuits(lambda peer: welcome is not None and peer in welcome, lambda peer, error: None)
        host.handle(ECHO, _echo, lambda peer, error: None)

    async with open_host(None, ("127.0.0.1", 0), prepare=prepare) as host, trio.open_nursery() as nursery:
        assert host.relayed is not None
        nursery.start_soon(host.relayed.run)
        yield host
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _town() -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        welcome: set[str] = set()
        relay = await stack.enter_async_context(_host(welcome=welcome))
        member = await stack.enter_async_context(_host())
        town = Town(relay, member, welcome)
        welcome.add(member.account)
        assert member.relayed is not None
        where = check_transports(relay.account, relay.direct)
        member.relayed.want(lambda: [(relay.account, where)])
        await until(lambda: member.relayed is not None and member.relayed.addresses)
        yield town


async def _said_back(host: Host, peer: str, data: bytes) -> bytes:
    stream = await host.open_stream(peer, ECHO)
    back = bytearray()

    async def send() -> None:
        for start in range(0, len(data), 60_000):
            await stream.write(data[start : start + 60_000])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while len(back) < len(data):
            back += await stream.read(65_536)
    await stream.reset()
    return bytes(back)


async def test_a_member_is_reached_through_a_relay_and_knows_who_it_is() -> None:
    async with _town() as town, _host() as visitor:
        assert await visitor.dial(town.member.account, [town.address])
        sent = bytes(range(256)) * 8_192
        with trio.fail_after(30):
            assert await _said_back(visitor, town.member.account, sent) == sent
            assert await _said_back(town.member, visitor.account, b"and the other way") == b"and the other way"
        assert town.relay.relay is not None
        assert town.relay.relay.passed_bytes > len(sent)
        assert town.relay.relay.reservations.circuits == 1
        conn = visitor.connections(town.member.account)[0]
        assert conn.muxed_conn.get_remote_address() is None, "no address of a peer behind a relay can be seen"
        await visitor.close_peer(town.member.account)
        await until(lambda: town.relay.relay is not None and town.relay.relay.reservations.circuits == 0)
        await until(lambda: not town.member.connections(visitor.account))


async def test_a_relay_serves_members_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "MAX_CIRCUITS_PER_PEER", 1)
    async with _town() as town, _host() as visitor, _host() as other:
        assert not await visitor.dial(other.account, [town.address]), "who did not reserve is not reached"
        assert await visitor.dial(town.member.account, [town.address])
        assert not await other.dial(town.member.account, [town.address]), "one circuit is the most here"
        assert town.relay.counters["relay-full"] == 1
        assert town.relay.counters["relay-unknown"] == 1
        town.welcome.clear()
        assert other.relayed is not None
        other.relayed.want(lambda: [(town.relay.account, check_transports(town.relay.account, town.relay.direct))])
        await until(lambda: other.relayed is not None and town.relay.account in other.relayed._refused)
        assert other.relayed.addresses == ()


async def test_a_circuit_ends_when_its_bytes_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _town() as town, _host() as visitor:
        monkeypatch.setattr(relaying, "CIRCUIT_BYTES", 200_000)
        assert await visitor.dial(town.member.account, [town.address])
        with trio.fail_after(30), pytest.raises(Exception, match=r".") as caught:
            await _said_back(visitor, town.member.account, bytes(1_000_000))
        assert not isinstance(caught.value, trio.TooSlowError)
        await until(lambda: not visitor.connections(town.member.account))
        assert town.relay.relay is not None
        assert town.relay.relay.passed_bytes <= 200_000
        assert town.relay.counters["malformed"] == 0, "nobody broke the protocol"


async def test_a_relay_that_goes_takes_the_address_with_it() -> None:
    async with _town() as town:
        told: list[tuple[str, ...]] = []
        relayed = town.member.relayed
        assert relayed is not None
        relayed.changed = lambda: told.append(relayed.addresses)
        relayed.want(lambda: ())
        await until(lambda: relayed.addresses == ())
        assert told == [()]
        await town.member.close_peer(town.relay.account)
        await until(lambda: town.relay.relay is not None and len(town.relay.relay.reservations) == 0)


async def test_strangers_and_nonsense_cost_a_relay_nothing() -> None:
    async with _town() as town, stranger() as visitor:
        await visitor.connect(town.relay.direct[0])
        member = peer_field(town.member.account)
        asked = [
            (pb.HopMessage.RESERVE, {}, pb.PERMISSION_DENIED),
            (pb.HopMessage.CONNECT, {"peer": peer_field(town.relay.account)}, pb.NO_RESERVATION),
            (pb.HopMessage.CONNECT, {"peer": member}, OK),
        ]
        for kind, fields, status in asked:
            stream = await visitor.stream(HOP)
            await write_message(stream, hop(kind, **fields))
            assert (await read_message(stream, pb.HopMessage)).status == status
            await stream.reset()
        for number, data in enumerate((b"\xff\xff\xff\xff", b"\x03\xff\xff\xff", b"\x02\x08\x02", b"\x02\x08\x01"), 1):
            stream = await visitor.stream(HOP)
            await stream.write(data)
            await until(lambda number=number: town.relay.counters["malformed"] == number)  # type: ignore[misc]
        await until(lambda: town.relay.relay is not None and town.relay.relay.reservations.circuits == 0)
        async with _host() as newcomer:
            assert await newcomer.dial(town.member.account, [town.address])


async def test_only_its_own_relay_brings_somebody_to_a_member() -> None:
    async with _town() as town, stranger() as visitor:
        await visitor.connect(town.member.direct[0])
        stream = await visitor.stream(STOP)
        await write_message(stream, stop(pb.StopMessage.CONNECT, peer=peer_field(town.relay.account)))
        assert (await read_message(stream, pb.StopMessage)).status == pb.RESOURCE_LIMIT_EXCEEDED
