"""Reaching and being reached: addresses through relays, what is announced, votes, reservations, the LAN's records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from libp2p.relay.circuit_v2.pb import dcutr_pb2 as dcutr
from multiaddr import Multiaddr

from gdf_market.commands.reach_checks import in_short, judge
from gdf_market.errors import MalformedError, OversizedError, UsageError
from gdf_market.identity import Identity
from gdf_market.node import limits, relay
from gdf_market.node.address_book import FORGET_AFTER, FORGOTTEN_S, MAX_TOLD, AddressBook
from gdf_market.node.addresses import (
    advertised,
    announced_elsewhere,
    check_announce,
    group,
    is_circuit,
    observed,
    split_circuit,
    split_peer,
)
from gdf_market.node.circuit import MAX_MESSAGE_BYTES, OK, peer_of, read_message
from gdf_market.node.counters import Counters
from gdf_market.node.discovery import MAX_PER_GROUP, PUT_OFF_S, Discovery
from gdf_market.node.frames import StreamEndedError
from gdf_market.node.lan import HEARD_BURST, MAX_HEARD, Lan, read_txt, service_type, txt
from gdf_market.node.punch import MAX_SEEN, targets
from gdf_market.node.reach import ENOUGH, Answer, Verdict, choose, count
from gdf_market.node.relay import RESERVATION_S, Reservations
from gdf_market.node.settings import Settings

OWN, PEER, RELAY = (Identity(bytes([number]) * 32).account for number in (1, 2, 3))
DIRECT = f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY}"
THROUGH = f"{DIRECT}/p2p-circuit/p2p/{PEER}"


# Addresses


def test_an_address_through_one_relay_is_taken_apart() -> None:
    account, transport = split_peer(THROUGH)
    assert (account, transport) == (PEER, f"{DIRECT}/p2p-circuit")
    assert is_circuit(transport)
    assert split_circuit(transport) == (RELAY, "/ip4/192.0.2.1/tcp/4001")
    assert len(f"/ip4/192.168.100.200/tcp/65535/p2p/{RELAY}/p2p-circuit/p2p/{PEER}") <= limits.MAX_ADDRESS_TEXT


@pytest.mark.parametrize(
    "text",
    [
        f"{DIRECT}/p2p-circuit",
        f"{DIRECT}/p2p-circuit/p2p/{RELAY}",  # through itself
        f"{DIRECT}/p2p-circuit/p2p/{OWN}/p2p-circuit/p2p/{PEER}",  # through two
        f"/ip4/192.0.2.1/tcp/4001/p2p-circuit/p2p/{PEER}",  # through nobody
        f"/p2p/{RELAY}/p2p-circuit/p2p/{PEER}",  # a relay that is nowhere
        f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY[:-1]}/p2p-circuit/p2p/{PEER}",
        f"/ip4/192.0.2.1/udp/4001/p2p/{RELAY}/p2p-circuit/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/\u0664/p2p/{PEER}",  # a digit, but none of a port
    ],
)
def test_other_ways_through_relays_are_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        split_peer(text)


def test_the_port_of_a_relay_is_not_taken_for_the_peers() -> None:
    assert observed([f"{DIRECT}/p2p-circuit", "/ip4/10.0.0.1/tcp/7"], ("192.0.2.9", 999)) == ["/ip4/192.0.2.9/tcp/7"]


def test_networks_of_addresses() -> None:
    assert group("8.8.8.8") == group("8.8.8.200") == "8.8.8.0/24"
    assert group("::ffff:8.8.8.8") == "8.8.8.0/24"
    assert group("2600:1:2:3::1") == group("2600:1:2:4::1") != group("2600:1:3::1")
    assert group("node.example.org") == "node.example.org"
    assert group("127.0.0.1") == group("192.168.1.7") == group("::1") == group("::ffff:10.0.0.1") == ""


# Announcing


def test_an_announced_place_gets_the_port_of_each_host() -> None:
    given = ["/ip4/203.0.113.7/tcp/14001", "/dns4/node.example.org"]
    found = advertised(["/ip4/127.0.0.1/tcp/4001"], OWN, given)
    assert found[:2] == (
        f"/ip4/203.0.113.7/tcp/14001/p2p/{OWN}",
        f"/dns4/node.example.org/tcp/4001/p2p/{OWN}",
    )
    blobs = advertised(["/ip4/127.0.0.1/tcp/4002"], PEER, announced_elsewhere(given))
    assert blobs[:2] == (f"/ip4/203.0.113.7/tcp/4002/p2p/{PEER}", f"/dns4/node.example.org/tcp/4002/p2p/{PEER}")


@pytest.mark.parametrize("text", ["", "203.0.113.7", "/ip4/203.0.113/tcp/1", "/ip4/203.0.113.7/udp/1", THROUGH])
def test_what_cannot_be_announced_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot announce"):
        check_announce(text)
    if text:
        with pytest.raises(ValueError, match="cannot announce"):
            Settings(announce=[text])


def test_announced_addresses_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_ANNOUNCE", "/ip4/203.0.113.7, /dns4/node.example.org/tcp/4001")
    settings = Settings()
    assert settings.announce == ["/ip4/203.0.113.7", "/dns4/node.example.org/tcp/4001"]
    assert not settings.uses_lan(), "who listens to this machine only has nobody to find on the LAN"
    assert Settings(listen_host="0.0.0.0").uses_lan()
    assert not Settings(listen_host="0.0.0.0", lan=False).uses_lan()


# What peers tell


def test_one_peer_cannot_fill_the_book() -> None:
    book = AddressBook(OWN)
    for number in range(2 * MAX_TOLD):
        book.learn(f"told{number}", ["/ip4/192.0.2.2/tcp/1"], teller="liar")
    assert len(book) == MAX_TOLD
    assert book.learn(PEER, ["/ip4/192.0.2.3/tcp/1"], teller="another")
    book.linked("told0")
    assert book.learn("one more", ["/ip4/192.0.2.2/tcp/1"], teller="liar"), "what was true does not count"


def test_a_full_book_gives_up_first_what_the_most_talkative_told() -> None:
    book = AddressBook(OWN)
    tellers = limits.MAX_KNOWN_PEERS // MAX_TOLD
    for teller in range(tellers - 1):
        for number in range(MAX_TOLD):
            book.learn(f"{teller}/{number}", ["/ip4/192.0.2.2/tcp/1"], teller=f"liar{teller}")
    for number in range(MAX_TOLD):
        book.learn(f"honest{number}", ["/ip4/192.0.2.3/tcp/1"], teller=f"teller{number}")
    assert len(book) == limits.MAX_KNOWN_PEERS
    assert book.learn("late", ["/ip4/192.0.2.4/tcp/1"], teller="teller0")
    assert all(book.addresses(f"honest{number}") for number in range(MAX_TOLD))


def test_who_answered_nowhere_is_not_believed_again_soon() -> None:
    book = AddressBook(OWN)
    book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"], teller="a", now=0.0)
    for _ in range(FORGET_AFTER):
        book.dialed(PEER, 10.0, 0.5)
    assert not book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"], teller="b", now=11.0)
    assert book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"], teller="b", now=10.0 + FORGOTTEN_S + 1)


def test_the_newest_word_of_an_unreached_peer_comes_first_and_the_lan_before_all() -> None:
    book = AddressBook(OWN)
    for number in range(limits.MAX_ADDRESSES + 1):
        book.learn(PEER, [f"/ip4/192.0.2.2/tcp/{number + 1}"], teller=f"t{number}")
    assert book.addresses(PEER)[0] == f"/ip4/192.0.2.2/tcp/{limits.MAX_ADDRESSES + 1}"
    assert book.learn_lan(PEER, [f"/ip4/10.0.0.{number}/tcp/1" for number in range(9)], 0.0)
    assert book.addresses(PEER)[:2] == ("/ip4/10.0.0.0/tcp/1", "/ip4/10.0.0.1/tcp/1")
    assert len(book.addresses(PEER)) == limits.MAX_ADDRESSES + 2
    assert not book.learn_lan(OWN, ["/ip4/10.0.0.1/tcp/1"], 0.0)


def test_one_network_of_addresses_gets_few_of_the_links_a_node_dials() -> None:
    discovery = Discovery(OWN, [f"/ip4/8.8.8.250/tcp/1/p2p/{PEER}"])
    for number in range(10):
        discovery.book.learn(f"crowd{number}", [f"/ip4/8.8.8.{number + 1}/tcp/1"])
        discovery.book.learn(f"near{number}", [f"/ip4/192.168.1.{number + 1}/tcp/1"])
    discovery.book.learn("other", ["/ip4/9.9.9.9/tcp/1"])
    chosen = discovery.choose(0.0, [], Counter(), 100)
    assert PEER in chosen, "who was named at this node is dialled wherever it is"
    assert "other" in chosen
    crowd = [one for one in chosen if one.startswith("crowd")]
    assert len(crowd) + 1 == MAX_PER_GROUP, "the bootstrap peer counts, too"
    assert len([one for one in chosen if one.startswith("near")]) == 10, "a private network is no crowd"
    put_off = {f"crowd{number}" for number in range(10)} - set(crowd)
    assert not put_off & set(discovery.book.due(1.0, []))
    assert put_off <= set(discovery.book.due(PUT_OFF_S, []))
    assert len(discovery.choose(PUT_OFF_S, [], Counter({"8.8.8.0/24": MAX_PER_GROUP}), 4)) == 4


def test_hearsay_sends_this_node_to_no_machine_again_and_again() -> None:
    discovery = Discovery(OWN, [])
    for number in range(200):
        discovery.book.learn(f"made up {number}", [f"/ip4/192.168.1.9/tcp/{number + 1}"])
    discovery.book.learn("real", ["/ip4/192.168.1.9/tcp/999"])
    discovery.book.linked("real")
    chosen = discovery.choose(0.0, [], Counter(), 500)
    assert len(chosen) == limits.HEARSAY_BURST + 1
    assert "real" in chosen, "who answered once is dialled wherever it is"
    discovery.book.learn("elsewhere", ["/ip4/192.168.1.10/tcp/1"])
    assert "elsewhere" in discovery.choose(0.0, [], Counter(), 500)


# Votes


def test_those_asked_are_of_different_networks_first() -> None:
    hosts = {f"a{number}": f"8.8.8.{number}" for number in range(1, 9)} | {"b": "9.9.9.9", "c": "7.7.7.7"}
    assert set(choose(hosts, 3)) == {"a1", "b", "c"}
    assert len(choose(hosts)) == 5
    assert len(choose({"x": "192.168.1.2", "y": "192.168.1.3"})) == 2
    assert ENOUGH <= 5


def answer(host: str, *reached: bool) -> Answer:
    return Answer(host=host, reached=reached)


def test_the_majority_decides_and_a_tie_is_a_no() -> None:
    own = ["8.8.4.4"]
    votes = [answer("8.8.4.4", True, False), answer("8.8.4.4", True, False), answer("8.8.4.4", False, True)]
    assert count(votes, 0, own) == Verdict("yes", 2, 3)
    assert count(votes, 1, own) == Verdict("no", 1, 3)
    assert count(votes[1:], 0, own) == Verdict("no", 1, 2)
    assert count([], 0, own) == Verdict("unknown", 0, 0)
    assert count([answer("8.8.4.4")], 0, own) == Verdict("unknown", 0, 0), "who was too busy has no vote"


def test_neighbours_behind_the_same_router_do_not_outvote_the_world() -> None:
    own = ["192.168.1.2"]
    votes = [answer("192.168.1.2", True)] * 3 + [answer("203.0.113.9", False)]
    assert count(votes, 0, own) == Verdict("no", 0, 1)
    assert count(votes[:3], 0, own) == Verdict("yes", 3, 3)


# Relaying


def test_reservations_are_bounded_in_all_and_by_address_and_run_out() -> None:
    held = Reservations()
    for number in range(relay.MAX_RESERVATIONS_PER_ADDRESS):
        assert held.reserve(f"a{number}", "192.0.2.1", 0.0) == OK
    assert held.reserve("one more", "::ffff:192.0.2.1", 0.0) == pb.RESERVATION_REFUSED
    assert held.reserve("a0", "192.0.2.1", 0.0) == OK, "a renewal takes no more room"
    for number in range(relay.MAX_RESERVATIONS):
        held.reserve(f"b{number}", f"198.51.100.{number}", 0.0)
    assert len(held) == relay.MAX_RESERVATIONS
    assert held.reserve("late", "203.0.113.1", RESERVATION_S - 1) == pb.RESERVATION_REFUSED
    assert held.reserve("late", "203.0.113.1", RESERVATION_S) == OK
    assert len(held) == 1


def test_circuits_are_bounded_and_lead_only_to_who_reserved() -> None:
    held = Reservations()
    assert held.begin("x", PEER, 0.0) == pb.NO_RESERVATION
    held.reserve(PEER, "192.0.2.1", 0.0)
    for _ in range(relay.MAX_CIRCUITS_PER_PEER):
        assert held.begin("x", PEER, 0.0) == OK
    assert held.begin("x", PEER, 0.0) == pb.RESOURCE_LIMIT_EXCEEDED
    assert held.begin("y", PEER, 0.0) == pb.RESOURCE_LIMIT_EXCEEDED, "the target has its share, too"
    held.end("x", PEER)
    assert held.begin("y", PEER, 0.0) == OK
    for number in range(relay.MAX_CIRCUITS):
        held.reserve(f"t{number}", f"198.51.100.{number}", 0.0)
        held.begin(f"s{number}", f"t{number}", 0.0)
    assert held.circuits == relay.MAX_CIRCUITS
    held.forget(PEER)
    assert held.begin("z", PEER, 0.0) == pb.NO_RESERVATION


class Bytes:
    """A stream that gives what it has in small pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, count: int) -> bytes:
        piece, self._data = self._data[: min(count, 7)], self._data[min(count, 7) :]
        return piece


async def test_messages_are_read_to_the_byte_and_bounded() -> None:
    raw = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=b"x" * 38)).SerializeToString()
    stream: Any = Bytes(bytes([len(raw)]) + raw + b"rest")
    assert (await read_message(stream, pb.HopMessage)).type == pb.HopMessage.CONNECT
    assert await stream.read(7) == b"rest"
    bad: list[tuple[bytes, type[Exception]]] = [
        ((MAX_MESSAGE_BYTES + 1).to_bytes(1, "big") if MAX_MESSAGE_BYTES < 127 else b"\x81\x20", OversizedError),
        (b"\xff\xff\xff\xff", MalformedError),
        (b"\x03\xff\xff\xff", MalformedError),
        (b"\x05ab", StreamEndedError),
    ]
    for data, error in bad:
        broken: Any = Bytes(data)
        with pytest.raises(error):
            await read_message(broken, pb.HopMessage)


@pytest.mark.parametrize("raw", [b"", b"x", b"\x00\x24" + bytes(36), bytes(500)])
def test_a_message_must_name_a_peer(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        peer_of(pb.PeerId(id=raw))


# The local network


def test_only_nodes_of_one_network_meet_on_a_lan() -> None:
    assert service_type("ab" * 32) != service_type("cd" * 32)
    assert len(service_type("ab" * 32).split(".")[0]) <= 16  # RFC 6763, 7.2: 15 characters and an underscore


def record(*addresses: str) -> dict[bytes, bytes | None]:
    return {f"dnsaddr{number}".encode(): one.encode() for number, one in enumerate(addresses)}


def test_a_record_says_what_was_announced() -> None:
    near, here = f"/ip4/192.168.1.7/tcp/4001/p2p/{PEER}", f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"
    told = txt([near, here, THROUGH])
    assert told == {"dnsaddr": near}
    assert read_txt({name.encode(): value.encode() for name, value in told.items()}) == (
        PEER,
        ("/ip4/192.168.1.7/tcp/4001",),
    )


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {b"dnsaddr": None},
        {b"dnsaddr": b"\xff"},
        {b"other": f"/ip4/192.168.1.7/tcp/1/p2p/{PEER}".encode()},
        record(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"),
        record(THROUGH),
        record(f"/ip4/192.168.1.7/tcp/1/p2p/{PEER}", f"/ip4/192.168.1.7/tcp/1/p2p/{RELAY}"),
        record(*["junk"] * 8, f"/ip4/192.168.1.7/tcp/1/p2p/{PEER}"),
    ],
)
def test_other_records_are_ignored(properties: dict[bytes, bytes | None]) -> None:
    assert read_txt(properties) is None


async def test_records_are_bounded_in_number_and_rate(autojump_clock: object) -> None:
    found: list[str] = []
    counters = Counters()
    own = f"/ip4/192.168.1.2/tcp/4001/p2p/{OWN}"
    lan = Lan("ab" * 32, [own], lambda account, transports: found.append(account), counters)
    lan.record(record(own))
    assert found == [], "its own record"
    lan.record(record(f"/ip4/192.168.1.7/tcp/1/p2p/{PEER}"))
    assert found == [PEER]
    for number in range(1_000):
        lan._heard(f"name{number}")
    assert counters["lan-flood"] == 1_000 - min(HEARD_BURST, MAX_HEARD)


# What is shown


def shown(**given: Any) -> dict[str, Any]:
    usual = {
        "outbound": 3, "inbound": "yes", "reached": 3, "asked": 3, "bulk_inbound": "yes", "bulk_reached": 3,
        "bulk_asked": 3, "ports": [4001, 4002], "observed": ["203.0.113.9"], "relays": [], "bulk_relayed": False,
    }  # fmt: skip
    return usual | given


def test_doctor_says_nothing_is_to_do_where_peers_came_in() -> None:
    lines = judge(shown(), 3, expects_peers=True)
    assert all(line.ok and not line.fix for line in lines)
    assert "3 of 3 peers could dial this node at 203.0.113.9" in lines[1].actual


def test_doctor_tells_a_node_behind_a_router_which_ports_to_forward() -> None:
    no = {"inbound": "no", "reached": 0, "bulk_inbound": "no", "bulk_reached": 0}
    lines = judge(shown(**no), 3, expects_peers=True)
    assert not lines[1].ok
    assert "TCP ports 4001 and 4002" in lines[1].fix
    relayed = judge(shown(**no, relays=[RELAY], bulk_relayed=True), 3, expects_peers=True)
    assert all(line.ok for line in relayed)
    assert "works through relays" in relayed[1].fix
    assert in_short(shown(**no, relays=[RELAY])).startswith("cannot be dialled; 1 relay in use")


def test_doctor_never_relies_on_one_peer() -> None:
    lines = judge(
        shown(asked=1, reached=1, bulk_asked=0, bulk_reached=0, bulk_inbound="unknown"), 1, expects_peers=True
    )
    assert all("fewer than 2 peers could be asked" in line.actual for line in lines[1:])
    assert lines[2].ok


def test_doctor_misses_peers_only_where_some_are_known() -> None:
    assert not judge(shown(), 0, expects_peers=True)[0].ok
    assert judge(shown(), 0, expects_peers=False)[0].ok


# Holes


def named(*addresses: str) -> Any:
    raw = [Multiaddr(one).to_bytes() for one in addresses]
    return dcutr.HolePunch(type=dcutr.HolePunch.CONNECT, ObsAddrs=raw)


def test_where_a_peer_is_seen_is_checked_and_bounded() -> None:
    many = [f"/ip4/203.0.113.{number}/tcp/4001" for number in range(1, 9)]
    assert targets(PEER, named(*many)) == many[:MAX_SEEN]
    assert targets(PEER, named("/ip4/127.0.0.1/tcp/1", "/ip4/203.0.113.1/udp/1")) == []
    assert targets(PEER, named(f"{DIRECT}/p2p-circuit", "/dns4/victim.example.org/tcp/80")) == []


@pytest.mark.parametrize(
    "message",
    [
        dcutr.HolePunch(type=dcutr.HolePunch.SYNC),
        dcutr.HolePunch(type=dcutr.HolePunch.CONNECT, ObsAddrs=[b"\xff\xff"]),
    ],
)
def test_other_messages_punch_nothing(message: Any) -> None:
    with pytest.raises(MalformedError):
        targets(PEER, message)
