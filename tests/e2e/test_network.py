"""Control hosts on loopback: links, discovery, gossip, and every attack that took a stock node down.

After each attack an honest newcomer must still get a link and gossip.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import libp2p.security.insecure.transport as plaintext
import pytest
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.peerstore import PeerStore
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import FLAG_RST, FLAG_SYN, TYPE_DATA, TYPE_WINDOW_UPDATE, Yamux, YamuxStream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.utils import encode_varint_prefixed
from net_helpers import MESHSUB, TOPIC, Node, Stranger, check_serves, node, stranger, until

from gdf_market.errors import UserError
from gdf_market.node import limits
from gdf_market.node.frames import DATA, PROTOCOL, frame
from gdf_market.node.p2p import Host, open_host

pytestmark = pytest.mark.e2e


async def _gossips(sender: Node, receiver: Node, order: bytes) -> None:
    await until(lambda: receiver.account in sender.control.gossip_peers)
    await until(lambda: sender.account in receiver.control.gossip_peers)
    assert sender.control.publish_order(order)
    await until(lambda: order in receiver.orders)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# Links, discovery and gossip


async def test_four_nodes_find_each_other_through_one_and_every_order_reaches_all() -> None:
    async with node(1) as a, node(2, [a]) as b, node(3, [a]) as c, node(4, [a]) as d:
        nodes = [a, b, c, d]
        await until(lambda: all(len(one.control.peers) == 3 for one in nodes))
        await until(lambda: all(len(one.control.gossip_peers) == 3 for one in nodes))
        orders = [b"order %d" % number for number in range(20)]
        for number, order in enumerate(orders):
            assert nodes[number % 4].control.publish_order(order)
        for index, one in enumerate(nodes):
            wanted = {order for number, order in enumerate(orders) if number % 4 != index}
            await until(lambda one=one, wanted=wanted: set(one.orders) == wanted)  # type: ignore[misc]
            assert len(one.orders) == len(wanted), "each order is handed on once"
        a.control.broadcast(b"news", exclude=d.account)
        await until(lambda: (a.account, b"news") in b.frames and (a.account, b"news") in c.frames)
        assert d.frames == []
        assert all(len(one.events) == 3 for one in nodes), "no link flapped"


async def test_frames_arrive_in_order_and_the_largest_passes() -> None:
    async with node(1) as a, node(2, [a]) as b:
        await until(lambda: b.account in a.control.peers and a.account in b.control.peers)
        sent = [b"%d" % number for number in range(500)] + [bytes(limits.MAX_FRAME_BYTES)]
        for data in sent:
            assert a.control.send(b.account, data)
        await until(lambda: len(b.frames) == len(sent))
        assert b.frames == [(a.account, data) for data in sent]
        assert not a.control.send("12D3KooWNobody", b"x")


async def test_two_nodes_that_dial_each_other_at_once_end_with_one_link() -> None:
    port = _free_port()
    async with node(1, port=port) as a:
        target = a.address
        async with node(2, [target]) as b:
            a.control.add_peer(b.address)
            await until(lambda: b.account in a.control.peers and a.account in b.control.peers)
            for number in range(50):
                a.control.send(b.account, b"%d" % number)
                b.control.send(a.account, b"%d" % number)
            await until(lambda: len(a.frames) == 50 and len(b.frames) == 50)
            assert a.events == [("up", b.account)]
            assert b.events == [("up", a.account)]


async def test_a_node_that_restarts_with_its_key_is_dialled_again() -> None:
    port = _free_port()
    async with node(1) as a:
        for life in range(2):
            async with node(2, port=port) as b:
                if life == 0:
                    a.control.add_peer(b.address)
                await until(lambda b=b: b.account in a.control.peers and a.account in b.control.peers)  # type: ignore[misc]
                await _gossips(b, a, b"from life %d" % life)
                await _gossips(a, b, b"to life %d" % life)
            await until(lambda: not a.control.peers)
        assert a.events == [("up", b.account), ("down", b.account)] * 2


async def test_a_taken_port_is_a_plain_error_that_names_it() -> None:
    async with node(1) as a:
        with pytest.raises(UserError, match=f"port {a.port}"):
            async with node(2, port=a.port):
                pass


async def test_an_error_of_the_caller_leaves_as_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        async with node(1):
            raise ZeroDivisionError


async def test_the_hello_vouches_for_the_bulk_host_also_later() -> None:
    async with node(1) as a, node(2, [a]) as b:
        await until(lambda: a.account in b.control.peers)
        where = f"/ip4/127.0.0.1/tcp/4002/p2p/{a.account}"
        a.control.announce_bulk(a.account, [where])
        await until(lambda: a.account in b.control.bulk_hints)
        assert b.control.bulk_hints[a.account].addresses == (where,)
        assert b.bulk[0][0] == a.account


async def test_another_networks_node_is_refused_and_left_alone() -> None:
    async with node(1) as a, node(2, [a], network="cd" * 32) as b:
        await until(lambda: a.count("network") + b.count("network") > 0)
        await until(lambda: not b.control._host.connected())
        for one, other in ((a, b), (b, a)):
            if one.count("network"):
                assert one.control._discovery.book.is_banned(other.account, trio.current_time() + limits.BAN_S)
        assert a.events == b.events == []
        await check_serves(a)


# Attacks on the log-in and the connection


async def test_plaintext_log_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stock security options this logs in as Alice, of whom only the public key is known."""
    alice, mine = create_new_key_pair(bytes([7]) * 32), create_new_key_pair()
    stock = plaintext.make_exchange_message
    monkeypatch.setattr(
        plaintext, "make_exchange_message", lambda key: stock(alice.public_key if key == mine.public_key else key)
    )
    attacker = Stranger(99)
    attacker.host = new_host(
        key_pair=mine,
        sec_opt={plaintext.PLAINTEXT_PROTOCOL_ID: plaintext.InsecureTransport(mine, peerstore=PeerStore())},
        muxer_opt={YAMUX: Yamux},
    )
    async with node(1) as victim, attacker.host.run(listen_addrs=[]):
        with trio.fail_after(20), pytest.raises(Exception, match=r".") as caught:
            await attacker.connect(victim.address)
        assert not isinstance(caught.value, trio.TooSlowError)
        assert victim.control._host.connected() == []
        await check_serves(victim)


@pytest.mark.parametrize(
    "data",
    [os.urandom(5_000), b"\xff\xff\xff\xff\x7f" + b"a" * 100, b"GET / HTTP/1.1\r\n\r\n"],
    ids=["noise", "varint", "http"],
)
async def test_raw_garbage_on_the_port(data: bytes) -> None:
    async with node(1) as victim:
        stream = await trio.open_tcp_stream("127.0.0.1", victim.port)
        await stream.send_all(data)
        await check_serves(victim)
        await stream.aclose()


async def test_sockets_that_say_nothing_are_capped_and_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PER_LOOPBACK", 6)
    monkeypatch.setattr(limits, "HANDSHAKE_S", 1.0)
    async with node(1) as victim:
        sockets = [await trio.open_tcp_stream("127.0.0.1", victim.port) for _ in range(20)]
        await until(lambda: victim.count("connections") >= 14)
        assert victim.control._host.inbound <= 6
        await check_serves(victim)
        for one in sockets:
            await one.aclose()


async def test_a_closed_connection_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps the slot until the host ends, so that a long-lived host takes nobody in any more."""
    monkeypatch.setattr(limits, "MAX_INBOUND", 2)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    async with node(1) as victim:
        for number in range(5):
            async with stranger(50 + number) as visitor:
                await visitor.connect(victim.address)
            await until(lambda: victim.control._host.inbound == 0)
        await check_serves(victim)


async def test_a_reset_storm_on_every_protocol() -> None:
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        for protocol in (PROTOCOL, MESHSUB, "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"):
            for _ in range(10):
                if attacker.is_connected():
                    stream = await attacker.stream(protocol)
                    await stream.reset()
        for number in range(1, 200, 2):  # born reset, before any protocol is agreed on
            if attacker.is_connected():
                await attacker.raw_frame(TYPE_WINDOW_UPDATE, FLAG_SYN | FLAG_RST, 10_001 + number, 0)
        await check_serves(victim)


async def test_what_raises_in_a_handler_or_a_task_of_the_library_ends_alone() -> None:
    async def fail(stream: Any = None) -> None:
        if stream is not None:
            await stream.read(1)
        raise RuntimeError("a bug")

    def prepare(host: Host) -> None:
        host.handle("/ours/1", fail, lambda peer, error: None)
        host.raw.set_stream_handler("/librarys/1", fail)  # type: ignore[arg-type]

    async with open_host(None, ("127.0.0.1", 0), prepare=prepare) as victim, stranger() as attacker:
        await attacker.connect(victim.addresses[0])
        victim.swarm.manager.run_task(fail)
        for protocol in ("/ours/1", "/librarys/1", "/ours/1"):
            stream = await attacker.stream(protocol)
            await stream.write(b"x")
        await until(lambda: victim.counters["handler"] == 2)
        await until(lambda: victim.counters["negotiation"] == 1 and victim.counters["task"] == 1)
        assert attacker.is_connected()


async def test_a_flood_of_streams_is_cut_off() -> None:
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        for number in range(300):
            await attacker.raw_frame(TYPE_WINDOW_UPDATE, FLAG_SYN, 10_001 + 2 * number, 0)
        await until(lambda: victim.count("streams") > 100)
        await check_serves(victim)


async def test_a_sender_that_ignores_its_window_is_cut_off() -> None:
    held: list[int] = []

    async def never_reads(stream: Any) -> None:
        while True:
            held.append(sum(map(len, stream.muxed_conn.stream_buffers.values())))
            await trio.sleep(0.01)

    async with (
        open_host(
            None, ("127.0.0.1", 0), prepare=lambda host: host.handle("/deaf/1", never_reads, lambda peer, error: None)
        ) as victim,
        stranger() as attacker,
    ):
        await attacker.connect(victim.addresses[0])
        stream = await attacker.stream("/deaf/1")
        muxed: YamuxStream = stream.muxed_stream
        with trio.move_on_after(20):
            while attacker.is_connected():
                muxed.send_window = 1 << 30
                try:
                    await stream.write(bytes(60_000))
                except Exception:
                    break
        await until(lambda: not attacker.is_connected())
        assert victim.counters["unread"] == 1
        assert max(held) <= limits.MAX_UNREAD_BYTES


async def test_an_announced_giant_frame_of_the_muxer_is_cut_off() -> None:
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        await attacker.raw_frame(TYPE_DATA, FLAG_SYN, 10_001, 15 << 20)
        await until(lambda: not attacker.is_connected())
        assert victim.count("unread") == 1
        await check_serves(victim)


@asynccontextmanager
async def _line(target: Node) -> AsyncIterator[tuple[str, trio.Event]]:
    """Pass bytes on to ``target`` until the event is set; from then on swallow them, sockets open.

    Yields (multiaddr of the line, event).
    """
    frozen = trio.Event()

    async def forward(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        async for data in source:
            if not frozen.is_set():
                await sink.send_all(data)

    async def pass_on(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", target.port)
        async with trio.open_nursery() as pair:
            pair.start_soon(forward, client, server)
            pair.start_soon(forward, server, client)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, pass_on, 0)
        port = listeners[0].socket.getsockname()[1]
        yield f"/ip4/127.0.0.1/tcp/{port}/p2p/{target.account}", frozen
        nursery.cancel_scope.cancel()


async def test_a_silent_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket stays open and takes bytes: only pings tell."""
    monkeypatch.setattr(limits, "PING_EVERY_S", 0.2)
    monkeypatch.setattr(limits, "PING_TIMEOUT_S", 2.0)
    async with node(1) as a, _line(a) as (address, frozen), node(2, [address]) as b:
        await until(lambda: a.account in b.control.peers and b.account in a.control.peers)
        frozen.set()
        await until(lambda: ("down", a.account) in b.events and ("down", b.account) in a.events, 15)
        assert b.count("silent") >= 1


async def test_a_node_that_starts_anew_while_its_old_connection_looks_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves no goodbye; the new process must not have to wait until the old one is found dead."""
    monkeypatch.setattr(limits, "DISPLACE_S", 0.0)
    async with node(1) as a, _line(a) as (address, frozen):
        async with node(2, [address]) as old:
            await _gossips(old, a, b"before")
            frozen.set()
        async with node(2, [a]) as new:
            await until(lambda: a.account in new.control.peers and len(a.events) == 3)
            assert a.events[1:] == [("down", new.account), ("up", new.account)]
            a.control.send(new.account, b"frame")
            await until(lambda: new.frames == [(a.account, b"frame")])
            await _gossips(new, a, b"from the new one")
            await _gossips(a, new, b"to the new one")


async def test_two_nodes_with_one_key_do_not_push_each_other_out() -> None:
    async with node(1) as a, node(2, [a]) as first:
        await until(lambda: first.account in a.control.peers and a.account in first.control.peers)
        async with node(2, [a]) as second:
            await until(lambda: a.count("duplicate") >= 2)
            assert second.control.peers == frozenset()
        first.control.send(a.account, b"undisturbed")
        await until(lambda: a.frames == [(first.account, b"undisturbed")])
        assert a.events == [("up", first.account)]


# Attacks on the frames


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((1 << 20).to_bytes(4, "big"), "oversized"),
        (b"\0\0\0\0", "malformed"),
        (frame(9, b"x"), "malformed"),
        (frame(0, b"{}"), "malformed"),
    ],
    ids=["oversized", "empty", "kind", "hello"],
)
async def test_a_bad_frame_ends_in_disconnection(data: bytes, reason: str) -> None:
    async with node(1) as victim, stranger() as attacker:
        stream = await attacker.link(victim)
        await stream.write(data)
        await until(lambda: not attacker.is_connected())
        assert victim.count(reason) == 1
        assert victim.events == [("up", attacker.account), ("down", attacker.account)]
        await check_serves(victim)


async def test_a_stream_that_begins_without_hello_is_refused() -> None:
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        stream = await attacker.stream(PROTOCOL)
        await stream.write(frame(DATA, b"hi"))
        await until(lambda: not attacker.is_connected())
        assert victim.count("malformed") == 1
        assert victim.events == []


async def test_a_hello_in_anothers_name_is_refused() -> None:
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        stream = await attacker.stream(PROTOCOL)
        await stream.write(attacker.hello(account=victim.account))
        await until(lambda: not attacker.is_connected())
        assert victim.count("signature") == 1


async def test_a_flood_of_frames_hits_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAMES_PER_S", 50.0)
    monkeypatch.setattr(limits, "FRAMES_BURST", 300.0)
    async with node(1) as victim, stranger() as attacker:
        stream = await attacker.link(victim)
        await stream.write(frame(DATA, b"x") * 3_000)
        await until(lambda: not attacker.is_connected())
        assert victim.count("flood") == 1
        assert 300 <= len(victim.frames) < 1_000
        await check_serves(victim)


async def test_a_peer_that_does_not_read_costs_a_bounded_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_BYTES", 1 << 20)
    async with node(1) as victim, stranger() as attacker:
        await attacker.link(victim, reads=False)
        link = victim.control._links.up[attacker.account]
        queued = 0
        while victim.control.send(attacker.account, bytes(30_000)):
            queued += 1
            assert link.outbox.waiting_bytes <= 1 << 20
            await trio.lowlevel.checkpoint()
        assert queued >= (1 << 20) // 30_100
        assert victim.count("slow") == 1
        assert victim.events == [("up", attacker.account), ("down", attacker.account)]
        await until(lambda: not attacker.is_connected())
        await check_serves(victim)


async def test_callbacks_that_raise_cost_nothing_but_a_count() -> None:
    def fail(*args: object) -> bool:
        raise RuntimeError("a bug of the node")

    async with (
        node(1, on_frame=fail, on_peer_up=fail, on_peer_down=fail, on_order=fail) as a,
        node(2, [a]) as b,
    ):
        await until(lambda: b.account in a.control.peers and a.account in b.control.peers)
        b.control.send(a.account, b"one")
        b.control.send(a.account, b"two")
        await until(lambda: a.count("callback") == 3)
        await until(lambda: a.account in b.control.gossip_peers)
        b.control.publish_order(b"order")
        await until(lambda: a.count("callback") == 4)
        a.control.send(b.account, b"still here")
        await until(lambda: b.frames == [(a.account, b"still here")])


# Attacks on gossip

M = rpc_pb2.Message
_BAD_KEY = M(
    data=b"x", topicIDs=[TOPIC], from_id=b"\x12\x20" + b"\0" * 32, seqno=b"\0" * 8, key=b"\x08\x07junk", signature=b"s"
)
_BAD_CONTROL = rpc_pb2.RPC()
_BAD_CONTROL.control.graft.add(topicID=TOPIC)
_BAD_CONTROL.control.prune.add(topicID=TOPIC, backoff=2**60)
_BAD_CONTROL.control.ihave.add(topicID=TOPIC, messageIDs=[b"\xff" * 40] * 1_000)
_BAD_CONTROL.control.iwant.add(messageIDs=[b"zz"] * 1_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x05\xff\xff\xff\xff\xff", "malformed"),
        (b"\xff\xff\xff\xff\xff\xff", "malformed"),
        (b"\x80\x80\x80\x80\x08" + b"x" * 100, "oversized"),
        (encode_varint_prefixed(rpc_pb2.RPC(publish=[_BAD_KEY]).SerializeToString()), "order-signature"),
        (
            encode_varint_prefixed(
                rpc_pb2.RPC(publish=[M(data=b"x", topicIDs=[TOPIC], seqno=b"\0" * 8)]).SerializeToString()
            ),
            "order-malformed",
        ),
        (
            encode_varint_prefixed(
                rpc_pb2.RPC(
                    publish=[M(data=bytes(limits.MAX_ORDER_BYTES + 1), topicIDs=[TOPIC], from_id=b"x", seqno=b"\0" * 8)]
                ).SerializeToString()
            ),
            "order-oversized",
        ),
        (encode_varint_prefixed(rpc_pb2.RPC(publish=[_BAD_KEY] * 100).SerializeToString()), "flood"),
        (encode_varint_prefixed(_BAD_CONTROL.SerializeToString()), ""),
        (encode_varint_prefixed(rpc_pb2.RPC(senderRecord=b"\xff\x01bad").SerializeToString()), ""),
    ],
    ids=["six-bytes", "length", "huge", "key", "no-sender", "large-order", "many-bad", "control", "record"],
)
async def test_hostile_gossip_leaves_the_service_standing(data: bytes, reason: str) -> None:
    async with node(1) as victim, node(2, [victim]) as honest, stranger() as attacker:
        await attacker.connect(victim.address)
        stream = await attacker.stream(MESHSUB)
        await stream.write(data)
        if reason:
            await until(lambda: victim.count(reason) >= 1)
        if reason in ("malformed", "oversized", "flood"):
            await until(lambda: not attacker.is_connected())
        await _gossips(honest, victim, b"after the attack")
        await _gossips(victim, honest, b"and back")
        assert victim.orders == [b"after the attack"]


async def test_refused_orders_are_not_relayed_and_their_source_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BAD_MESSAGES_BURST", 2.0)
    async with (
        node(1, on_order=lambda raw, peer: raw.startswith(b"good")) as middle,
        node(2, [middle]) as left,
        node(3, [middle]) as right,
    ):
        await until(lambda: len(middle.control.gossip_peers) == 2)
        right.control.disconnect(left.account, "so that orders pass through the middle only")
        await until(lambda: left.account not in right.control.peers)
        await until(lambda: middle.account in left.control.gossip_peers)
        for number in range(7):
            left.control.publish_order(b"bad %d" % number)
        left.control.publish_order(b"good")
        await until(lambda: b"good" in right.orders)
        assert right.orders == [b"good"]
        for number in range(40):
            left.control.publish_order(b"worse %d" % number)
        await until(lambda: ("down", left.account) in middle.events)
        assert middle.count("flood") == 1
