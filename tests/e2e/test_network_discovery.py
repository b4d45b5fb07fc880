"""Control hosts on loopback find each other, past dead addresses too, and are told whether they are reached."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from net_helpers import NETWORK, Stranger, node, stranger, until

from gdf_market.codec import decode, encode
from gdf_market.identity import Identity
from gdf_market.node import reach
from gdf_market.node.frames import PROTOCOL as LINK
from gdf_market.node.frames import StreamReader, frame, write
from gdf_market.node.limits import Bucket
from gdf_market.node.reach import ANSWER, PROTOCOL, REQUEST, Answer, Request, Target

pytestmark = pytest.mark.e2e

DEAD = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity(bytes([200]) * 32).account}"


async def test_six_hosts_that_know_one_become_a_full_mesh_and_a_dead_bootstrap_peer_does_not_matter() -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(node(1))
        others = [await stack.enter_async_context(node(number, [DEAD, first.address])) for number in range(2, 7)]
        everybody = [first, *others]
        await until(lambda: all(len(one.control.peers) == 5 for one in everybody), 60)
        assert all(one.count("dial") > 0 for one in others), "the dead one was tried"
        assert all(kind == "up" for one in everybody for kind, _ in one.events), "no link flapped"


async def test_peers_tell_a_node_that_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SETTLE_S", 0.1)
    monkeypatch.setattr(reach, "SPREAD_S", 0.0)
    monkeypatch.setattr(reach, "SOON_S", 0.1)
    async with node(1) as a, node(2, [a]) as b, node(3, [a]) as c, node(4, [a]) as d:
        await until(lambda: all(len(one.control.peers) == 3 for one in (a, b, c, d)))
        await until(lambda: a.control.reachability()["asked"] == 3)
        shown = a.control.reachability()
        assert (shown["inbound"], shown["reached"]) == ("yes", 3)
        assert shown["ports"] == [a.port]
        assert shown["observed"] == ["127.0.0.1"]
        assert shown["relays"] == []
        assert b.control.reachability()["outbound"] >= 1


async def test_the_announced_port_is_the_one_that_peers_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SETTLE_S", 0.1)
    monkeypatch.setattr(reach, "SPREAD_S", 0.0)
    async with node(1, announce=["/ip4/127.0.0.1/tcp/9"]) as a, node(2) as b:
        assert a.address == f"/ip4/127.0.0.1/tcp/9/p2p/{a.account}"
        a.control.add_peer(b.address)
        await until(lambda: a.control.reachability()["asked"] == 1)
        shown = a.control.reachability()
        assert (shown["ports"], shown["inbound"], shown["reached"]) == ([9], "no", 0)
        assert b.control.relaying == 0
        await until(lambda: a.control.relays == (b.account,))
        assert a.address.startswith(f"/ip4/127.0.0.1/tcp/{b.port}/p2p/{b.account}/p2p-circuit/")


async def _ask(visitor: Stranger, targets: tuple[Target, ...]) -> Answer:
    stream = await visitor.stream(PROTOCOL)
    await write(stream, frame(REQUEST, encode(Request(network=NETWORK, targets=targets))))
    kind, payload = await StreamReader(stream, Bucket(1e6, 1e6)).frame()
    assert kind == ANSWER
    await stream.reset()
    return decode(payload, Answer, max_bytes=1_024)


async def test_only_members_are_dialled_back_only_where_they_are_and_not_often() -> None:
    async with node(1) as a, stranger(70) as visitor, trio.open_nursery() as nursery:
        heard: list[bytes] = []

        async def listens(stream: trio.SocketStream) -> None:
            heard.append(await stream.receive_some(1_000))

        listeners = await nursery.start(partial(trio.serve_tcp, listens, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        targets = (Target(peer=visitor.account, port=port), Target(peer=a.account, port=a.port))
        await visitor.connect(a.address)
        assert (await _ask(visitor, targets)).reached == (), "no member"
        assert heard == []
        stream = await visitor.stream(LINK)
        visitor.host.set_stream_handler(LINK, _reads)  # type: ignore[arg-type]
        await stream.write(visitor.hello())
        await until(lambda: visitor.account in a.control.peers)
        answers = [await _ask(visitor, targets) for _ in range(int(reach.PER_PEER_BURST) + 1)]
        assert answers[0] == Answer(host="127.0.0.1", reached=(False, True)), (
            "something listens, but it is not the peer"
        )
        assert heard[0].startswith(b"\x13/multistream/1.0.0"), "a log-in, and nothing that the requester chose"
        assert [len(one.reached) for one in answers] == [2] * int(reach.PER_PEER_BURST) + [0]
        nursery.cancel_scope.cancel()


async def _reads(stream: Any) -> None:
    while await stream.read(65_536):
        pass


async def test_a_wrong_reach_request_costs_the_connection() -> None:
    async with node(1) as a, stranger(70) as visitor:
        await visitor.connect(a.address)
        stream = await visitor.stream(PROTOCOL)
        await stream.write(frame(REQUEST, b"nonsense"))
        await until(lambda: not visitor.is_connected())
        assert a.count("malformed") == 1
