"""Real replicas on a virtual clock, and a ledger file that they made: what the ledger's benchmarks measure.

Nodes are ``ledger.replica.Replica`` under the market's rules, with real signatures.  Time is the event heap's, so a
run takes as long as its computation, and a message takes exactly the link's delay.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contracts.records import Allocation, Genesis, Staking
from gdf_market import identity, vrf
from gdf_market.identity import Identity
from gdf_market.messages import Entry, Transfer, seal
from ledger.block import FINAL, Certificate, cast, certify, quorum_size
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import (
    Broadcast,
    Finalized,
    Misbehaved,
    PeerUp,
    Received,
    Refused,
    ReplicaEvent,
    Save,
    SaveBlocks,
    Send,
    Serve,
    SetTimer,
    Started,
    Submitted,
    Timer,
    Write,
)
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.store import LedgerStore

START_MS = 1_700_000_000_000
LIFE_MS = 1_800_000  # of an entry
USERS = 100  # accounts that pay each other
BLOCK_MS = 30_000  # of a history
EPOCH_BLOCKS = 100  # a history has several epochs, and so the cost of handing over and of what snapshots need
SAVE_BLOCKS = 100
BLOCK_ENTRIES = 120  # as many of these entries fill a block


@functools.lru_cache(maxsize=1024)
def key(number: int) -> Identity:
    """Return the identity of a number: 1.. are validators, 1001.. users."""
    return Identity(number.to_bytes(32, "big"))


def user(number: int) -> Identity:
    """Return the key of a user."""
    return key(1_001 + number)


def validator_accounts(count: int) -> list[str]:
    """Return the accounts of ``key(1..count)``."""
    return [key(1 + index).account for index in range(count)]


def make_genesis(validators: Sequence[str], *, block_ms: int, heartbeat_ms: int, time_ms: int = START_MS) -> Genesis:
    """Return a network of validators and USERS users, with credits enough for any number of entries."""
    accounts = [*validators, *(user(index).account for index in range(USERS))]
    return Genesis(
        name="benchmark",
        test_network=True,
        time_ms=time_ms,
        allocations=tuple(Allocation(account=each, balance=10**12, stake=0) for each in accounts),
        validators=tuple(validators),
        block_ms=block_ms,
        heartbeat_ms=heartbeat_ms,
        audit_bond=0,
        max_void_rounds=3,
        staking=Staking(epoch_blocks=EPOCH_BLOCKS),
    )


class Payments:
    """Signed transfers between random users, each with a nonce of its own."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._random = random.Random(0)
        self._nonces = itertools.count(1)

    def make(self, now_ms: int) -> Entry:
        """Return the next transfer."""
        sender, receiver = self._random.sample(range(USERS), 2)
        body = Transfer(
            author=user(sender).account,
            nonce=next(self._nonces) << 20 | self._random.getrandbits(20),
            expires_ms=now_ms + LIFE_MS,
            to=user(receiver).account,
            amount=self._random.randint(1, 1_000_000),
            memo="a payment",
        )
        return seal(user(sender), self._network, body)


@contextlib.contextmanager
def shared_crypto() -> Iterator[None]:
    """Let the nodes of one process share what they verified; nothing else of them is replaced."""
    saved = identity.verify, vrf.verify
    identity.verify = functools.lru_cache(maxsize=100_000)(identity.verify)
    vrf.verify = functools.lru_cache(maxsize=10_000)(vrf.verify)
    try:
        yield
    finally:
        identity.verify, vrf.verify = saved


@dataclass
class Node:
    """One replica, its timers and its links."""

    name: str
    replica: Replica
    links: tuple[str, ...] = ()
    timers: dict[str, int] = field(default_factory=dict)


class Net:
    """Replicas whose messages take ``delay_ms`` each; what they save, finalize and serve goes to the callbacks."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        *,
        delay_ms: int,
        degree: int = 0,
        on_save: Callable[[str, Sequence[Write]], None] = lambda name, writes: None,
        on_final: Callable[[str, Finalized], None] = lambda name, block: None,
        serve: Callable[[str, int], list[bytes]] = lambda name, height: [],
    ) -> None:
        """Link everybody with everybody, or in a ring in which each node knows ``degree`` others."""
        self.now_ms = START_MS
        self.messages = 0
        self.bytes = 0
        self._delay_ms = delay_ms
        self._on_save, self._on_final, self._serve = on_save, on_final, serve
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        names = list(replicas)
        steps = _steps(len(names), degree)
        self.nodes = {
            name: Node(name, replicas[name], tuple(names[(index + step) % len(names)] for step in steps))
            for index, name in enumerate(names)
        }

    def start(self) -> None:
        """Start everybody and connect the links."""
        for name in self.nodes:
            self.step(name, Started())
        for node in self.nodes.values():
            for other in node.links:
                self.step(node.name, PeerUp(other))

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        """Run something at a time."""
        heapq.heappush(self._heap, (time_ms, next(self._sequence), action))

    def run(self, until: Callable[[], bool], *, limit_ms: int) -> None:
        """Go on until a condition holds.  Raises TimeoutError when the virtual time is up."""
        end_ms = self.now_ms + limit_ms
        while not until():
            if not self._heap or self._heap[0][0] > end_ms:
                raise TimeoutError(f"the network did not get there within {limit_ms} ms of its own time")
            self.now_ms, _, action = heapq.heappop(self._heap)
            action()

    def submit(self, name: str, entry: Entry) -> None:
        """Hand an entry to a node as its user would."""
        self.step(name, Submitted(entry))

    def step(self, name: str, event: ReplicaEvent) -> None:  # noqa: C901 - one arm per effect
        """Give a node an event and carry out its effects."""
        node = self.nodes[name]
        for effect in node.replica.step(event, self.now_ms):
            match effect:
                case Save(writes):
                    self._on_save(name, writes)
                case Send(peer, data):
                    self._transmit(name, peer, data)
                case Broadcast(data, exclude):
                    for peer in node.links:
                        if peer != exclude:
                            self._transmit(name, peer, data)
                case SetTimer(timer, at_ms):
                    self._arm(node, timer, at_ms)
                case Finalized():
                    self._on_final(name, effect)
                case Serve(peer, height):
                    for data in self._serve(name, height):
                        self._transmit(name, peer, data)
                case Refused(_, error) | Misbehaved(_, error):
                    raise error

    def _transmit(self, source: str, target: str, data: bytes) -> None:
        self.messages += 1
        self.bytes += len(data)
        self.at(self.now_ms + self._delay_ms, functools.partial(self.step, target, Received(source, data)))

    def _arm(self, node: Node, timer: str, at_ms: int) -> None:
        node.timers[timer] = at_ms

        def fire() -> None:
            if node.timers.get(timer) == at_ms:
                del node.timers[timer]
                self.step(node.name, Timer(timer))

        self.at(max(at_ms, self.now_ms), fire)


def validators_of(genesis: Genesis) -> dict[str, Replica]:
    """Return a fresh replica of every validator of a ``make_genesis``."""
    keys = [key(1 + index) for index in range(len(genesis.validators))]
    return {each.account: Replica(genesis, each, None) for each in keys}


def _steps(count: int, degree: int) -> list[int]:
    """Return whom a node of a ring knows, as distances: powers of two first, so that any two are few hops apart."""
    if not degree or degree >= count - 1:
        return list(range(1, count))
    steps: list[int] = []
    reach = 1
    while len(steps) + 2 <= degree and reach < count:
        steps += [reach, count - reach]
        reach *= 2
    return sorted(set(steps))


@dataclass(frozen=True)
class History:
    """A ledger that four validators agreed on, as a file."""

    genesis: Genesis
    network: str
    path: Path
    blocks: int
    entries: int

    @contextlib.contextmanager
    def open(self) -> Iterator[LedgerStore]:
        """Open the file for reading."""
        with contextlib.closing(LedgerStore(self.path, read_only=True)) as store:
            yield store


def make_history(path: Path, entries: int, say: Callable[[str], None]) -> History:
    """Write a ledger of full blocks, one each half minute: used nonces are pruned as they are in a network of age."""
    genesis = make_genesis(validator_accounts(4), block_ms=BLOCK_MS, heartbeat_ms=BLOCK_MS)
    network = MARKET.network_id(genesis)
    payments = Payments(network)
    chain = Chain(genesis, MARKET, genesis_tip(genesis, MARKET), SeenEntries(1))
    made = 0
    with contextlib.closing(LedgerStore(path)) as store:
        store.create(genesis)
        batch: list[SaveBlocks] = []
        while made < entries:
            now_ms = chain.head.time_ms + BLOCK_MS
            batch.append(_next_block(chain, [payments.make(now_ms) for _ in range(min(BLOCK_ENTRIES, entries - made))]))
            made += len(batch[-1].blocks[0].entries)
            if len(batch) == SAVE_BLOCKS or made == entries:
                store.save(batch)
                batch = []
                say(f"made {made} of {entries} entries")
    return History(genesis, network, path, chain.head.height, made)


def _next_block(chain: Chain, entries: Sequence[Entry]) -> SaveBlocks:
    """Make the next block and finalize it with a quorum's votes."""
    parent, epoch = chain.head, chain.epoch
    keys = {key(1 + index).account: key(1 + index) for index in range(len(epoch.validators))}
    slot = parent.slot + 1
    executed, refused = chain.propose(keys[epoch.leader(slot)], parent, slot, parent.time_ms + BLOCK_MS, entries)
    assert not refused, refused[0]
    voters = epoch.validators[: quorum_size(len(epoch.validators))]
    votes = [cast(keys[name], chain.network, epoch.number, FINAL, slot, executed.block.hash) for name in voters]
    return finalize(chain, certify(votes, epoch.validators))


def finalize(chain: Chain, certificate: Certificate) -> SaveBlocks:
    """Finalize an executed block and return the write that makes it durable."""
    done = chain.finalize(certificate.hash)
    assert done is not None, "its ancestors were executed"
    return SaveBlocks(done.blocks, certificate, done.closing, done.next)
