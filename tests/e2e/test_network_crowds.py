"""Crowds and floods against a control host: who is thrown out, who gives way, and that the rest goes on."""

from __future__ import annotations

import pytest
import trio
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import FLAG_RST, FLAG_SYN, TYPE_PING, TYPE_WINDOW_UPDATE
from libp2p.utils import encode_varint_prefixed
from net_helpers import MESHSUB, TOPIC, check_serves, node, stranger, until

from gdf_market.node import limits
from gdf_market.node.frames import PROTOCOL

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("kind", "flags", "reason"),
    [(TYPE_PING, FLAG_SYN, "muxer-frames"), (TYPE_WINDOW_UPDATE, FLAG_SYN | FLAG_RST, "flood")],
    ids=["pings", "streams"],
)
async def test_frames_and_streams_without_end_cost_the_connection(
    monkeypatch: pytest.MonkeyPatch, kind: int, flags: int, reason: str
) -> None:
    monkeypatch.setattr(limits, "SMALL_FRAMES_BURST", 500.0)
    monkeypatch.setattr(limits, "SMALL_FRAMES_PER_S", 20.0)
    monkeypatch.setattr(limits, "STREAMS_PER_S", 1.0)
    monkeypatch.setattr(limits, "STREAMS_BURST", 50.0)
    async with node(1) as victim, stranger() as attacker:
        await attacker.connect(victim.address)
        with trio.move_on_after(30):
            for number in range(20_000):
                if not attacker.is_connected():
                    break
                try:
                    await attacker.raw_frame(kind, flags, 10_001 + 2 * number, 0)
                except Exception:
                    break
        await until(lambda: not attacker.is_connected())
        assert victim.count(reason) >= 1
        assert victim.control._discovery.book.is_banned(attacker.account, trio.current_time())
        await check_serves(victim)


async def test_links_begun_again_and_again_are_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINKS_BURST", 3.0)
    async with node(1) as victim, stranger() as attacker:
        await attacker.link(victim)
        with trio.move_on_after(30):
            while attacker.is_connected():
                try:
                    stream = await attacker.stream(PROTOCOL)
                    await stream.write(attacker.hello())
                except Exception:
                    break
        await until(lambda: not attacker.is_connected())
        assert victim.count("flood") == 1
        assert len([kind for kind, _ in victim.events if kind == "up"]) <= 4
        await check_serves(victim)


async def test_one_message_asked_for_a_thousand_times_is_sent_a_few_times() -> None:
    async with node(1) as victim, node(2, [victim]) as honest, stranger() as attacker:
        got: list[bytes] = []

        async def hear(stream) -> None:  # type: ignore[no-untyped-def]
            while data := await stream.read(65_536):
                got.append(data)

        attacker.host.set_stream_handler(MESHSUB, hear)  # type: ignore[arg-type]
        await attacker.connect(victim.address)
        stream = await attacker.stream(MESHSUB)
        subscribe = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
        await stream.write(encode_varint_prefixed(subscribe.SerializeToString()))
        await until(lambda: victim.account in honest.control.gossip_peers)
        await until(lambda: honest.account in victim.control.gossip_peers)
        order = b"order" * 2_000
        assert honest.control.publish_order(order)
        await until(lambda: victim.orders == [order])
        pubsub = victim.control._gossip._pubsub
        known = [entry.mid for entry in pubsub.router.mcache.history[0]]
        ask = rpc_pb2.RPC()
        ask.control.iwant.add(messageIDs=[bytes(one) for one in known] * 1_000)
        await stream.write(encode_varint_prefixed(ask.SerializeToString()))
        await until(lambda: sum(map(len, got)) > len(order))
        await check_serves(victim)
        assert sum(map(len, got)) < 10 * len(order)


async def test_a_crowd_gives_way_to_whom_the_ledger_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINKS", 2)
    known: set[str] = set()
    async with (
        node(1, worth=lambda account: int(account in known)) as victim,
        node(2, [victim]) as first,
        node(3, [victim]) as second,
    ):
        await until(lambda: {first.account, second.account} <= victim.control.peers)
        async with node(4) as newcomer:
            known.add(newcomer.account)
            newcomer.control.add_peer(victim.address)
            await until(lambda: newcomer.account in victim.control.peers)
            assert len(victim.control.peers) == 2
            assert victim.count("gave-way") >= 1
        await until(lambda: {first.account, second.account} <= victim.control.peers, 60)
        assert victim.count("disconnected") == 0, "who finds no place is no offender"


async def test_an_address_answers_for_its_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOPBACK_TIMES", 1)
    monkeypatch.setattr(limits, "FAULTS_BURST", 2.0)
    monkeypatch.setattr(limits, "ADDRESS_BAN_S", 3.0)
    async with node(1) as victim:
        for seed in (91, 92, 93):
            async with stranger(seed) as attacker:
                stream = await attacker.link(victim)
                await stream.write(b"\0\0\0\0")
                await until(lambda attacker=attacker: not attacker.is_connected())  # type: ignore[misc]
        async with stranger(94) as attacker:
            with pytest.raises(Exception, match=r"."):
                await attacker.connect(victim.address)
        assert victim.count("address-banned") >= 1
        await check_serves(victim, 95)  # once the time is over
