"""Who gets a place, who gives way, and how peers take turns: floods of sockets, identities, frames and control."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
from libp2p.pubsub.pb import rpc_pb2

from gdf_market.errors import FloodError
from gdf_market.node import fair, limits
from gdf_market.node.crowd import Present, who_gives_way
from gdf_market.node.fair import FairQueue, Requests
from gdf_market.node.gate import Gate, Guest
from gdf_market.node.gossip_control import ControlMeter
from gdf_market.node.standing import Standing, group, source
from ledger.effects import Serve

TOPIC = "/gdf/orders"


@dataclass
class House:
    """A gate, and the guests that it let in; time passes by a second with each guest unless told otherwise."""

    gate: Gate = field(default_factory=Gate)
    inside: list[Guest] = field(default_factory=list)
    left: list[Guest] = field(default_factory=list)
    now: float = 1_000.0

    def come(self, host: str, *, settle: bool = True, pause_s: float = 1.0) -> str:
        self.now += pause_s
        reason = self.gate.refuse(host, self.now)
        if reason:
            return reason
        port = len(self.inside) + 1
        guest = Guest(host, port, self.now, lambda: self.left.append(guest))
        self.gate.enter(guest)
        self.inside.append(guest)
        if settle:
            self.gate.settle(host, port)
        return ""


def test_one_address_and_its_neighbourhood_have_bounded_places() -> None:
    house = House()
    assert [house.come("192.0.2.7", pause_s=5) for _ in range(limits.MAX_PER_ADDRESS)] == [""] * limits.MAX_PER_ADDRESS
    assert house.come("192.0.2.7") == "connections"
    assert house.come("::ffff:192.0.2.7") == "connections", "the same address in IPv6 clothes"
    for number in range(limits.MAX_PER_GROUP - limits.MAX_PER_ADDRESS):
        assert house.come(f"192.0.2.{100 + number}", pause_s=5) == ""
    assert house.come("192.0.2.250", pause_s=5) == "connections"
    house.gate.leave(house.inside[0])
    assert house.come("192.0.2.250", pause_s=5) == ""
    house.gate.leave(house.inside[0])  # once is enough
    assert len(house.gate) == limits.MAX_PER_GROUP


def test_all_places_taken_nobody_comes_in_unless_somebody_worth_little_goes() -> None:
    house = House()
    while len(house.gate) < limits.MAX_INBOUND:
        assert house.come(f"10.{len(house.gate)}.0.1") == ""
    assert house.come("203.0.113.1") == "connections"
    house.gate.make_room = lambda: True
    assert house.come("203.0.113.1") == ""


def test_who_does_not_log_in_gives_way_in_the_most_crowded_neighbourhood() -> None:
    house = House()
    assert house.come("203.0.113.9", settle=False) == ""
    crowded = [f"10.0.0.{number}" for number in range(1, 6)]
    others = [f"10.{number}.0.1" for number in range(1, limits.MAX_HALF_OPEN - len(crowded))]
    assert {house.come(host, settle=False) for host in [*others[:20], *crowded, *others[20:]]} == {""}
    assert not house.left
    assert house.come("198.51.100.1", settle=False) == ""
    assert [one.host for one in house.left] == [crowded[0]]
    assert len(house.gate) == limits.MAX_HALF_OPEN


def test_very_young_log_ins_are_left_alone_and_few_of_one_address() -> None:
    house = House()
    for number in range(limits.MAX_HALF_OPEN):
        assert house.come(f"10.{number}.0.1", settle=False, pause_s=0.001) == ""
    assert house.come("203.0.113.1", settle=False, pause_s=0.001) == "half-open"
    other = House()
    for _ in range(limits.MAX_HALF_OPEN_PER_ADDRESS):
        assert other.come("192.0.2.1", settle=False) == ""
    assert other.come("192.0.2.1", settle=False) == "half-open"


def test_who_connects_too_often_waits_and_loopback_may_more() -> None:
    standing = Standing()
    for host, times in (("192.0.2.1", 1), ("127.0.0.1", limits.LOOPBACK_TIMES)):
        came = [standing.refuse(host, 50.0) for _ in range(int(limits.DIALS_BURST * times) + 1)]
        assert set(came[:-1]) == {""}
        assert came[-1] == "hasty"
        assert standing.refuse(host, 52.0) == ""


def test_an_address_whose_identities_are_thrown_out_is_banned_with_its_neighbourhood_later() -> None:
    standing = Standing()
    for _ in range(int(limits.FAULTS_BURST) + 1):
        standing.blame("192.0.2.1", 10.0)
    assert standing.is_banned("192.0.2.1", 10.0)
    assert standing.refuse("192.0.2.1", 11.0) == "address-banned"
    assert not standing.is_banned("192.0.2.2", 10.0)
    assert not standing.is_banned("192.0.2.1", 10.0 + limits.ADDRESS_BAN_S)
    for number in range(int(limits.FAULTS_BURST * limits.GROUP_TIMES)):
        standing.blame(f"192.0.2.{100 + number}", 10.0)
    assert standing.is_banned("192.0.2.2", 10.0), "one holder may have the whole neighbourhood"
    for _ in range(int(limits.FAULTS_BURST) + 1):
        standing.blame("127.0.0.1", 10.0)
    assert not standing.is_banned("127.0.0.1", 10.0)
    assert not standing.is_banned("::1", 10.0)


def test_the_past_of_addresses_is_bounded() -> None:
    standing = Standing()
    for number in range(limits.MAX_SOURCES_KNOWN):
        standing.blame(f"10.{number // 250}.{number % 250}.1", 1.0)
    assert len(standing) == limits.MAX_SOURCES_KNOWN


def test_an_ipv6_network_is_one_source_and_a_larger_one_a_neighbourhood() -> None:
    assert source("2001:db8::1") == source("2001:db8::ffff:1") != source("2001:db8:0:1::1")
    assert group("2001:db8::1") == group("2001:db8:0:1::1") != group("2001:db9::1")
    assert group("::ffff:192.0.2.7") == group("192.0.2.200") == "192.0.2.0/24"
    assert group("127.0.0.1") == source("127.0.0.1") != group("127.0.0.2")


def test_of_equal_worth_the_youngest_of_the_most_crowded_address_gives_way_to_a_lonelier_one() -> None:
    crowd = [Present(f"s{number}", "192.0.2.1", 0, float(number)) for number in range(10)]
    honest = [Present("old", "198.51.100.1", 0, 0.0), Present("validator", "192.0.2.1", 2, 99.0)]
    assert who_gives_way([*crowd, *honest], "new", "203.0.113.1", 0) == "s9"
    assert who_gives_way([*crowd, *honest], "new", "192.0.2.1", 0) is None, "one more of the crowd"
    assert who_gives_way([*crowd, *honest], "rich", "192.0.2.1", 1) == "s9"
    assert who_gives_way(honest[1:], "rich", "203.0.113.1", 1) is None, "a validator stays"
    assert who_gives_way([], "new", "203.0.113.1", 0) is None


def test_frames_of_peers_take_turns_in_their_own_order() -> None:
    queue = FairQueue()
    for number in range(3):
        queue.put("flood", b"f%d" % number)
    queue.put("honest", b"h0")
    assert [queue.take() for _ in range(5)] == [
        ("flood", b"f0"), ("honest", b"h0"), ("flood", b"f1"), ("flood", b"f2"), None,
    ]  # fmt: skip


def test_what_waits_of_one_peer_and_of_all_is_bounded() -> None:
    queue = FairQueue()
    assert sum(queue.put("flood", b"x") for _ in range(2 * fair.MAX_FRAMES)) == fair.MAX_FRAMES
    big = bytes(65_536)
    for number in range(40):
        while queue.put(f"sybil{number}", big) and queue._sizes[f"sybil{number}"] + len(big) <= fair.MAX_BYTES:
            pass
        assert queue.total_bytes <= fair.MAX_ALL_BYTES
    assert queue.put("honest", b"small")
    for name in ["flood", *(f"sybil{number}" for number in range(40))]:
        queue.forget(name)
    assert queue.take() == ("honest", b"small")
    assert queue.total_bytes == 0


async def test_requests_are_answered_in_turn_and_not_for_who_does_not_read() -> None:
    waiting = {"deaf": limits.SERVE_WAITING}
    requests = Requests(lambda peer: waiting.get(peer, 0))
    for number in range(10):
        requests.put(Serve("greedy", number))
        requests.put(Serve("deaf", number))
    requests.put(Serve("honest", 7))
    requests.put(Serve("gone", 1))
    requests.forget("gone")
    taken = [await requests.take() for _ in range(fair.MAX_REQUESTS + 1)]
    assert taken[1] == Serve("honest", 7)
    assert [one for one in taken if one.peer == "greedy"] == [Serve("greedy", n) for n in range(fair.MAX_REQUESTS)]
    with trio.move_on_after(0) as nothing:
        await requests.take()
    assert nothing.cancelled_caught


def meter(size: int = 1_000) -> ControlMeter:
    return ControlMeter(TOPIC, lambda id_: size)


def test_control_is_followed_for_one_topic_and_dials_nobody() -> None:
    rpc = rpc_pb2.RPC()
    rpc.senderRecord = b"x"
    for topic in (TOPIC, "made up"):
        rpc.control.graft.add(topicID=topic)
        rpc.control.prune.add(topicID=topic, backoff=2**60, peers=[rpc_pb2.PeerInfo(peerID=b"third party")])
        rpc.control.ihave.add(topicID=topic, messageIDs=[topic.encode(), b"x" * 200, topic.encode()])
    rpc.control.idontwant.add(messageIDs=[b"x"])
    rpc.subscriptions.add(subscribe=True, topicid="made up")
    meter().trim(rpc, 0.0)
    assert [one.topicID for one in rpc.control.graft] == [TOPIC]
    assert [(one.topicID, one.backoff, len(one.peers)) for one in rpc.control.prune] == [
        (TOPIC, limits.MAX_BACKOFF_S, 0)
    ]
    assert [list(one.messageIDs) for one in rpc.control.ihave] == [[TOPIC.encode()]]
    assert not rpc.control.idontwant
    assert not rpc.subscriptions
    assert not rpc.senderRecord


def test_a_message_is_sent_again_a_few_times_and_answers_are_bounded_in_bytes() -> None:
    one = meter()
    answered = 0
    for _ in range(10):
        rpc = rpc_pb2.RPC()
        rpc.control.iwant.add(messageIDs=[b"id"] * 500)
        one.trim(rpc, 0.0)
        answered += sum(len(want.messageIDs) for want in rpc.control.iwant)
    assert answered == limits.MAX_RESENT
    large = meter(size=32_768)
    rpc = rpc_pb2.RPC()
    rpc.control.iwant.add(messageIDs=[b"%d" % number for number in range(3_000)])
    large.trim(rpc, 0.0)
    assert len(rpc.control.iwant[0].messageIDs) == limits.IWANT_BYTES_BURST // 32_768
    assert len(large._asked) <= limits.MAX_IDS


def test_ids_without_end_and_flapping_subscriptions_are_a_flood() -> None:
    rpc = rpc_pb2.RPC()
    rpc.control.ihave.add(topicID=TOPIC, messageIDs=[b"x"] * (int(limits.CONTROL_IDS_BURST) + 1))
    with pytest.raises(FloodError):
        meter().trim(rpc, 0.0)
    flapping = rpc_pb2.RPC()
    for number in range(int(limits.SUBSCRIPTIONS_BURST) + 1):
        flapping.subscriptions.add(subscribe=bool(number % 2), topicid=TOPIC)
    with pytest.raises(FloodError):
        meter().trim(flapping, 0.0)
