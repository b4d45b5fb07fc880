"""Cores of the network layer: rates, queues, the address book, address checks and the socket gate."""

from __future__ import annotations

import math
import socket

import pytest
import trio

from gdf_market.errors import FloodError, MalformedError, OversizedError, UsageError, UserError
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.address_book import FORGET_AFTER, AddressBook
from gdf_market.node.addresses import advertised, check_transports, multiaddr_of, split_peer
from gdf_market.node.collapse import collapsing
from gdf_market.node.counters import Counters
from gdf_market.node.link import Link, Outbox
from gdf_market.node.transport import check_port_free

OWN, PEER, OTHER = (Identity(bytes([number]) * 32).account for number in (1, 2, 3))


def test_bucket_spends_its_burst_then_only_its_rate() -> None:
    bucket = limits.Bucket(10.0, 5.0)
    assert [bucket.take(1, 100.0) for _ in range(6)] == [True] * 5 + [False]
    assert not bucket.take(1, 100.05)
    assert bucket.take(1, 100.15)
    assert bucket.take(5, 1_000.0)
    assert not bucket.take(1, 1_000.0), "an idle hour saves up no more than the burst"


def test_bucket_on_credit_names_the_wait_that_keeps_the_rate() -> None:
    bucket = limits.Bucket(10.0, 5.0)
    assert bucket.spend(5, 7.0) == 0.0
    assert bucket.spend(20, 7.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}",
        f"/ip6/2001:db8::1/tcp/1/p2p/{PEER}",
        f"/dns4/node.example.org/tcp/4001/p2p/{PEER}",
    ],
)
def test_split_peer_takes_direct_tcp_addresses(text: str) -> None:
    assert split_peer(text) == (PEER, text.rpartition("/p2p/")[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "192.0.2.1:4001",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}x",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER[:-1]}",
        f"/ip4/192.0.2.1/tcp/0/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/70000/p2p/{PEER}",
        f"/ip4/192.0.2.1.9/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.1/udp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/4001/ws/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit",
        f"/unix/x/tcp/1/p2p/{PEER}",
        "/" * 6 + "x" * 500,
    ],
)
def test_split_peer_refuses_everything_else(text: str) -> None:
    with pytest.raises(MalformedError):
        split_peer(text)


def test_addresses_that_name_another_peer_are_left_out_and_the_rest_bounded() -> None:
    mine = [f"/ip4/192.0.2.{host}/tcp/1/p2p/{PEER}" for host in range(9)]
    found = check_transports(PEER, [f"/ip4/192.0.2.200/tcp/1/p2p/{OTHER}", "garbage", *mine])
    assert found == tuple(one.rpartition("/p2p/")[0] for one in mine[: limits.MAX_ADDRESSES])


def test_advertised_replaces_the_wildcard_and_puts_announced_addresses_first() -> None:
    found = advertised(["/ip4/0.0.0.0/tcp/4001"], OWN, ["/dns4/me.example.org/tcp/4001"])
    assert found[0] == f"/dns4/me.example.org/tcp/4001/p2p/{OWN}"
    assert f"/ip4/127.0.0.1/tcp/4001/p2p/{OWN}" in found
    assert not any("0.0.0.0" in one for one in found)


@pytest.mark.parametrize("text", ["nonsense", f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"])
def test_advertised_refuses_to_announce_what_is_not_this_node(text: str) -> None:
    with pytest.raises(UsageError, match="cannot announce"):
        advertised([], OWN, [text])


@pytest.mark.parametrize(("host", "port"), [("localhost", 1), ("127.0.0.1", 65_536), ("127.0.0.1", -1)])
def test_listening_needs_an_ip_address_and_a_port(host: str, port: int) -> None:
    with pytest.raises(UsageError):
        multiaddr_of(host, port)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}"):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_book_dials_later_after_each_failure_and_never_itself() -> None:
    book = AddressBook(OWN)
    assert not book.learn(OWN, ["/ip4/192.0.2.1/tcp/1"])
    assert book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"], bootstrap=True)
    now, waits = 0.0, []
    for _ in range(12):
        assert book.due(now, []) == [PEER]
        book.dialing(PEER)
        assert book.due(now, []) == []
        book.dialed(PEER, now, 0.5)
        waits.append(book.next_due(now, []) - now)
        now = book.next_due(now, [])
    assert waits == sorted(waits)
    assert waits[0] < 2
    assert waits[-1] == limits.REDIAL_MAX_S


def test_book_starts_anew_once_a_link_was_up() -> None:
    book = AddressBook(OWN)
    book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"])
    for _ in range(FORGET_AFTER - 1):
        book.dialed(PEER, 0.0, 0.5)
    book.linked(PEER)
    book.lost(PEER, 100.0, 0.5)
    assert book.next_due(100.0, []) == pytest.approx(100.0 + limits.REDIAL_FIRST_S)
    for _ in range(2 * FORGET_AFTER):
        book.dialed(PEER, 100.0, 0.5)
    assert len(book) == 1, "a peer that was reached once is kept"


def test_book_forgets_hearsay_that_answers_nowhere() -> None:
    book = AddressBook(OWN)
    book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"])
    for _ in range(FORGET_AFTER):
        book.dialed(PEER, 0.0, 0.5)
    assert len(book) == 0


def test_book_skips_connected_and_banned_peers_and_prefers_bootstrap() -> None:
    book = AddressBook(OWN)
    book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"])
    book.learn(OTHER, ["/ip4/192.0.2.3/tcp/1"], bootstrap=True)
    assert book.due(0.0, []) == [OTHER, PEER]
    assert book.due(0.0, [OTHER]) == [PEER]
    book.ban(PEER, 50.0)
    assert book.due(0.0, []) == [OTHER]
    assert book.next_due(0.0, [OTHER]) == 50.0
    assert not book.is_banned(PEER, 50.0)
    assert book.due(50.0, [OTHER]) == [PEER]


def test_book_is_bounded_in_peers_addresses_and_bans() -> None:
    book = AddressBook(OWN)
    book.learn("reached", ["/ip4/192.0.2.2/tcp/1"])
    book.linked("reached")
    for number in range(limits.MAX_KNOWN_PEERS + 10):
        book.learn(f"peer{number}", [f"/ip4/192.0.2.2/tcp/{port}" for port in range(1, 20)])
        book.ban(f"peer{number}", float(number))
    assert len(book) == limits.MAX_KNOWN_PEERS
    assert book.addresses("reached"), "hearsay never pushes out a peer that was reached"
    assert len(book.addresses(f"peer{limits.MAX_KNOWN_PEERS + 9}")) == limits.MAX_ADDRESSES
    assert not book.is_banned("peer0", -1.0), "the ban that ends first made room"
    assert book.is_banned(f"peer{limits.MAX_KNOWN_PEERS + 9}", 0.0)


def test_book_full_of_reached_peers_takes_no_hearsay() -> None:
    book = AddressBook(OWN)
    for number in range(limits.MAX_KNOWN_PEERS):
        book.learn(f"peer{number}", ["/ip4/192.0.2.2/tcp/1"])
        book.linked(f"peer{number}")
    assert not book.learn(PEER, ["/ip4/192.0.2.2/tcp/1"])


def test_book_without_addresses_has_nothing_to_dial() -> None:
    book = AddressBook(OWN)
    book.learn(PEER, [])
    assert book.due(0.0, []) == []
    assert book.next_due(0.0, []) == math.inf


async def test_outbox_is_bounded_in_frames_and_bytes() -> None:
    outbox = Outbox()
    accepted = 0
    while outbox.put(b"x"):
        accepted += 1
    assert accepted == limits.QUEUE_FRAMES
    outbox = Outbox()
    accepted = 0
    while outbox.put(bytes(limits.MAX_FRAME_BYTES)):
        accepted += 1
    assert accepted == limits.QUEUE_BYTES // limits.MAX_FRAME_BYTES
    await outbox.take()
    assert outbox.put(b"x"), "what was taken makes room"


async def test_outbox_gathers_small_frames_into_one_write_in_order() -> None:
    outbox = Outbox()
    frames = [b"%05d" % number for number in range(100)]
    for one in frames:
        assert outbox.put(one)
    assert await outbox.take() == b"".join(frames)
    assert outbox.waiting_bytes == 0


async def test_outbox_paces_itself_below_what_the_other_side_accepts(autojump_clock: trio.testing.MockClock) -> None:
    outbox = Outbox()
    began, sent = trio.current_time(), 0
    while sent < limits.FRAMES_BURST * 3:
        outbox.put(bytes(limits.PIECE_BYTES // 2 + 1))
        await outbox.take()
        sent += 1
    seconds = trio.current_time() - began
    bytes_sent = sent * (limits.PIECE_BYTES // 2 + 1)
    assert bytes_sent <= limits.BYTES_BURST + limits.BYTES_PER_S * (seconds + 1)
    assert sent <= limits.FRAMES_BURST + limits.FRAMES_PER_S * (seconds + 1)


async def test_a_link_meters_frames_and_hellos(autojump_clock: trio.testing.MockClock) -> None:
    link = Link(PEER)
    for _ in range(int(limits.FRAMES_BURST)):
        link.meter(hello=False)
    with pytest.raises(FloodError):
        link.meter(hello=False)
    for _ in range(int(limits.HELLOS_BURST)):
        link.meter(hello=True)
    with pytest.raises(FloodError):
        link.meter(hello=True)


async def test_the_end_of_a_link_cancels_what_runs_and_what_comes_too_late() -> None:
    link = Link(PEER)
    with link.scope() as running:
        link.end()
        await trio.sleep_forever()
    with link.scope() as late:
        await trio.sleep_forever()
    assert running.cancelled_caught
    assert late.cancelled_caught


def test_counters_count_by_reason() -> None:
    counters = Counters()
    counters.add("flood", peer=PEER)
    counters.add("flood")
    counters.add("content")
    assert counters["flood"] == 2
    assert counters.snapshot() == {"content": 1, "flood": 2}


def test_collapsing_raises_the_only_exception_and_keeps_a_real_group() -> None:
    with pytest.raises(OversizedError), collapsing():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [OversizedError("x")])])
    with pytest.raises(ExceptionGroup), collapsing():
        raise ExceptionGroup("outer", [OversizedError("x"), ValueError("y")])
