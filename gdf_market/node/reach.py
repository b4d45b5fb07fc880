"""Am I reachable?  Peers dial this node back and say whether it worked (`/gdf/reach/1`); several, never one.

Rules kept here:
1. Only the IP address that a request comes from is dialled, at no more than two ports, and no byte that the
   requester chose goes there: nobody can point this node at a third machine.
2. Requests are answered for linked peers over direct connections only, at a bounded rate.
3. The answer of one peer is no verdict that punishes: it decides whether relays are used, nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import structlog
import trio
from libp2p.abc import INetStream
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID

from gdf_market.codec import AccountId, Hash, Record, decode, encode
from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import group, own_hosts
from gdf_market.node.circuit import until_ended
from gdf_market.node.frames import StreamReader, frame, write

if TYPE_CHECKING:
    from gdf_market.node.p2p import Blame, Host

log = structlog.get_logger("gdf.reach")
jitter = random.SystemRandom().random

PROTOCOL = "/gdf/reach/1"
REQUEST, ANSWER = 0, 1
MAX_BYTES = 1_024
MAX_TARGETS = 2  # control host and bulk host
DIAL_BACK_S = 5.0
ANSWER_S = 20.0
AT_ONCE = 4  # requests served at once
PER_PEER_PER_S, PER_PEER_BURST = 1 / 60, 4.0
IN_ALL_PER_S, IN_ALL_BURST = 1.0, 16.0
ASKED = 5  # peers asked for one verdict at most, of which the last ones only if others gave no answer
ENOUGH = 3  # votes after which it is not asked again soon
SETTLE_S, SPREAD_S = (
    2.0,
    4.0,
)  # after the first link, more are on their way; nodes that start together do not ask at once
AGAIN_S, SOON_S = 600.0, 20.0

Inbound = Literal["yes", "no", "unknown"]


class Target(Record, frozen=True, kw_only=True):
    """One host of the requester: the peer id that must answer at ``port``."""

    peer: AccountId
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Request(Record, frozen=True, kw_only=True):
    """“Dial me back at these ports of the address that you see me at.”"""

    network: Hash
    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1, max_length=MAX_TARGETS)]


class Answer(Record, frozen=True, kw_only=True):
    """Where the requester was seen, and which targets answered; ``reached`` is empty if it was asked too often."""

    host: Annotated[str, msgspec.Meta(max_length=45)]
    reached: Annotated[tuple[bool, ...], msgspec.Meta(max_length=MAX_TARGETS)]


@dataclass(frozen=True)
class Verdict:
    """What the last votes say of one host: dialled back by ``reached`` of ``asked`` peers."""

    inbound: Inbound = "unknown"
    reached: int = 0
    asked: int = 0


def choose(hosts: Mapping[str, str], most: int = ASKED) -> list[str]:
    """Return whom to ask, of peers by the IP address they have: one of each network first."""
    ranks: dict[str, int] = {}
    ordered = []
    for peer, host in sorted(hosts.items()):
        network = group(host) or host
        ranks[network] = ranks.get(network, 0) + 1
        ordered.append((ranks[network], peer))
    return [peer for _, peer in sorted(ordered)[:most]]


def count(answers: Iterable[Answer], index: int, own: Iterable[str]) -> Verdict:
    """Return the verdict of the majority on target ``index``.

    Where some see this node at an address that none of its interfaces (``own``) has, it is behind a router, and
    only they count: those inside the router's network reach it whatever the world outside does.
    """
    ours = frozenset(own)
    votes = [answer for answer in answers if len(answer.reached) > index]
    outside = [answer for answer in votes if answer.host not in ours]
    counted = outside or votes
    reached = sum(answer.reached[index] for answer in counted)
    if not counted:
        return Verdict()
    return Verdict("yes" if 2 * reached > len(counted) else "no", reached, len(counted))


class DialBack:
    """Serves the requests of others; ``is_member(peer)`` says whose."""

    def __init__(self, host: Host, network: str, is_member: Callable[[str], bool], blame: Blame) -> None:
        self._host, self._network, self._is_member = host, network, is_member
        self._peers: dict[str, limits.Bucket] = {}
        self._all = limits.Bucket(IN_ALL_PER_S, IN_ALL_BURST)
        self._serving = 0
        host.handle(PROTOCOL, self._serve, blame)

    async def _serve(self, stream: INetStream) -> None:
        peer = str(stream.muxed_conn.peer_id)
        reader = StreamReader(stream, limits.Bucket(float(MAX_BYTES), 4.0 * MAX_BYTES))
        with trio.move_on_after(limits.HELLO_S) as scope:
            kind, payload = await reader.frame(MAX_BYTES)
        ensure(not scope.cancelled_caught and kind == REQUEST, MalformedError(f"{peer} sent no reach request"))
        request = decode(payload, Request, max_bytes=MAX_BYTES)
        remote = stream.muxed_conn.get_remote_address()
        reached: tuple[bool, ...] = ()
        if remote is not None and request.network == self._network and self._welcome(peer):
            reached = await self._dial_all(remote[0], request.targets)
        host = "" if remote is None else remote[0][:45]
        await write(stream, frame(ANSWER, encode(Answer(host=host, reached=reached))))
        await until_ended(stream)

    def _welcome(self, peer: str) -> bool:
        now = trio.current_time()
        if not self._is_member(peer) or self._serving >= AT_ONCE:
            return False
        if peer not in self._peers and len(self._peers) >= limits.MAX_KNOWN_PEERS:
            del self._peers[next(iter(self._peers))]
        bucket = self._peers.setdefault(peer, limits.Bucket(PER_PEER_PER_S, PER_PEER_BURST))
        return bucket.take(1, now) and self._all.take(1, now)

    async def _dial_all(self, host: str, targets: tuple[Target, ...]) -> tuple[bool, ...]:
        self._serving += 1
        reached = [False] * len(targets)
        try:
            async with trio.open_nursery() as nursery:

                async def dial(index: int, target: Target) -> None:
                    reached[index] = await self._dial(host, target)

                for index, target in enumerate(targets):
                    nursery.start_soon(dial, index, target)
        finally:
            self._serving -= 1
        return tuple(reached)

    async def _dial(self, host: str, target: Target) -> bool:
        """Say whether ``target`` logs in at (host, port); the connection is closed at once."""
        with trio.move_on_after(DIAL_BACK_S):
            try:
                socket = await trio.open_tcp_stream(host, target.port)
            except OSError:
                return False
            async with socket:
                raw = RawConnection(TrioTCPStream(socket), initiator=True)
                try:
                    upgrader = self._host.swarm.upgrader
                    secured = await upgrader.upgrade_security(raw, True, ID.from_string(target.peer))
                except Exception:  # the library raises many kinds; each means: it is not there
                    return False
                await secured.close()
                return True
        return False


class Reach:
    """Asks peers and keeps their verdicts; ``peers()`` are those with links, ``targets()`` what they should dial."""

    def __init__(
        self,
        host: Host,
        network: str,
        peers: Callable[[], Iterable[str]],
        targets: Callable[[], tuple[Target, ...]],
        changed: Callable[[], None],
    ) -> None:
        self._host, self._network, self._peers, self._targets, self._changed = host, network, peers, targets, changed
        self._answers: dict[str, Answer] = {}
        self._news = trio.Event()
        self.control, self.bulk = Verdict(), Verdict()

    @property
    def observed(self) -> tuple[str, ...]:
        """IP addresses at which peers see this node."""
        return tuple(sorted({answer.host for answer in self._answers.values()}))

    def news(self) -> None:
        """A link came, or what is to be dialled changed."""
        self._news.set()

    async def run(self) -> None:
        """Ask once the first links are there, soon again while few could be asked, and then every ten minutes."""
        while True:
            self._news = trio.Event()
            if self._hosts():
                await trio.sleep(SETTLE_S + jitter() * SPREAD_S)
                targets = self._targets()
                await self._ask_all(targets)
                with trio.move_on_after(AGAIN_S):
                    await self._worth_asking(targets)
            else:
                await self._news.wait()

    async def _worth_asking(self, targets: tuple[Target, ...]) -> None:
        """Return when there is something else to dial, or, while votes are few, somebody else to ask."""
        while targets == self._targets() and self.control.asked >= ENOUGH:
            await self._news.wait()
            self._news = trio.Event()
        if targets == self._targets():
            await self._news.wait()
            await trio.sleep(SOON_S)

    def _hosts(self) -> dict[str, str]:
        """Return the linked peers that see an address of ours, by theirs."""
        found = {}
        for peer in self._peers():
            for conn in self._host.connections(peer):
                remote = conn.muxed_conn.get_remote_address()
                if remote is not None:
                    found[peer] = remote[0]
        return found

    async def _ask_all(self, targets: tuple[Target, ...]) -> None:
        hosts = self._hosts()
        chosen = choose(hosts)
        fresh: dict[str, Answer] = {}

        async def ask(peer: str) -> None:
            answer = await self._ask(peer, targets)
            if answer is not None and answer.reached:
                fresh[peer] = answer

        async with trio.open_nursery() as nursery:
            for peer in chosen[:ENOUGH]:
                nursery.start_soon(ask, peer)
        for peer in chosen[ENOUGH:]:
            if len(fresh) < ENOUGH:
                await ask(peer)
        self._answers = fresh or {peer: one for peer, one in self._answers.items() if peer in hosts}
        own = own_hosts()
        before = (self.control, self.bulk)
        self.control, self.bulk = (count(self._answers.values(), index, own) for index in range(MAX_TARGETS))
        if before != (self.control, self.bulk):
            log.info("reach", control=self.control, bulk=self.bulk, seen_at=self.observed)
            self._changed()

    async def _ask(self, peer: str, targets: tuple[Target, ...]) -> Answer | None:
        """Return a peer's answer; None if it has none."""
        try:
            stream = await self._host.open_stream(peer, PROTOCOL)
        except Exception:  # the library raises many kinds; it may be an older node
            return None
        try:
            with trio.move_on_after(ANSWER_S):
                await write(stream, frame(REQUEST, encode(Request(network=self._network, targets=targets))))
                reader = StreamReader(stream, limits.Bucket(float(MAX_BYTES), 4.0 * MAX_BYTES))
                kind, payload = await reader.frame(MAX_BYTES)
                ensure(kind == ANSWER, MalformedError(f"{peer} answered with a frame of kind {kind}"))
                answer = decode(payload, Answer, max_bytes=MAX_BYTES)
                ensure(len(answer.reached) in (0, len(targets)), MalformedError(f"{peer} answered for other ports"))
                return answer
        except PeerError as error:
            self._host.counters.add("reach", peer=peer, error=str(error))
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(limits.GOODBYE_S):
                await stream.reset()
        return None
