"""Relays on loopback: what a circuit carries, who may use one, and where its limits are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from net_helpers import until

from gdf_market.errors import PeerError
from gdf_market.node.addresses import check_transports
from gdf_market.node.p2p import Host, open_host

pytestmark = pytest.mark.e2e

ECHO = "/echo/1"


@dataclass
class Town:
    """A relay, and a member that is reached through it only."""

    relay: Host
    member: Host
    welcome: set[str]
    blamed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The member's transport address through the relay."""
        return check_transports(self.member.account, self.member.relayed.addresses)[0]  # type: ignore[union-attr]


async def _echo(stream: Any) -> None:
    while data := await stream.read(65_536):
        await stream.write(data)


@asynccontextmanager
async def _host(town: Town | None = None, *, welcome: set[str] | None = None) -> AsyncIterator[Host]:
    def prepare(host: Host) -> None:
        def blame(peer: str, error: PeerError) -> None:
            if town is not None:
                town.blamed.append((peer, error.reason))

        host.use_circuits(lambda peer: welcome is not None and peer in welcome, blame)
        host.handle(ECHO, _echo, blame)

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
