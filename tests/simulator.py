"""Deterministic simulation of a network of replicas: one seed, one run.

Replicas are the real ones, with real signatures (verification is cached, nothing else is replaced).  The market is
transfers only unless other rules are given.  The network delays, loses, repeats and reorders; it partitions and heals;
nodes crash in the middle of an effect list and come back from what was durable.  Byzantine nodes hold real keys.
Everything agreed is checked after every event.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import immutables
import msgspec

from contracts.block import Transition
from contracts.records import Account, Allocation, Event, Genesis, Nonce, StateRecord
from contracts.state import BlockContext, State, genesis_state, network_id
from gdf_market import identity, vrf
from gdf_market.codec import encode
from gdf_market.errors import RuleError, ensure
from gdf_market.identity import Identity
from gdf_market.messages import Entry, Transfer, seal
from ledger import wire
from ledger.block import FINAL, NOTAR, SKIP, Certificate, Proposal, Vote
from ledger.chain import genesis_tip
from ledger.effects import (
    Broadcast,
    Effect,
    Executed,
    Finalized,
    Misbehaved,
    PeerDown,
    PeerUp,
    Received,
    Restored,
    Save,
    SaveBlocks,
    SaveCandidate,
    SaveVote,
    Send,
    Serve,
    SetTimer,
    Started,
    Submitted,
    Timer,
    Write,
)
from ledger.replica import Replica
from ledger.rules import Rules

START_MS = 1_700_000_000_000


class InvariantError(AssertionError):
    """Honest nodes disagree, or one of them broke a voting rule."""


# ---- a market of transfers


class TransferRules:
    """Only transfers: balance, nonce, expiry.  Small, so that a simulation spends its time on agreement."""

    def network_id(self, genesis: Genesis) -> str:
        return network_id(genesis)

    def genesis_state(self, genesis: Genesis) -> State:
        return genesis_state(genesis)

    def validators(self, state: State) -> tuple[str, ...]:
        return state.network().validators

    def restore(self, records: Mapping[str, StateRecord]) -> State:
        return State(immutables.Map(records))

    def apply_block(self, state: State, entries: Sequence[Entry], context: BlockContext) -> Transition:
        events: list[Event] = []
        records = state.records
        touched: dict[str, None] = {}
        for entry in entries:
            for key, record in self._transfer(State(records), entry, context.time_ms).items():
                records = records.set(key, record)
                touched[key] = None
            events.append(Event(kind="transfer", entry=entry.id))
        changes = {key: (state.records.get(key), records.get(key)) for key in touched}
        return Transition(state=State(records), events=tuple(events), changes=changes)

    def _transfer(self, state: State, entry: Entry, time_ms: int) -> dict[str, StateRecord]:
        body = entry.body
        ensure(isinstance(body, Transfer), RuleError("only transfers here"))
        assert isinstance(body, Transfer)
        ensure(time_ms < body.expires_ms, RuleError(f"entry {entry.id} has expired"))
        nonce = f"nonce/{body.author}/{body.nonce}"
        ensure(state.get(nonce) is None, RuleError(f"nonce {body.nonce} is used"))
        payer = state.account(body.author)
        ensure(payer.balance >= body.amount, RuleError(f"balance {payer.balance} does not cover {body.amount}"))
        changed: dict[str, StateRecord] = {
            f"account/{body.author}": msgspec.structs.replace(payer, balance=payer.balance - body.amount),
            nonce: Nonce(expires_ms=body.expires_ms),
        }
        receiver = changed.get(f"account/{body.to}", state.account(body.to))
        assert isinstance(receiver, Account)
        changed[f"account/{body.to}"] = msgspec.structs.replace(receiver, balance=receiver.balance + body.amount)
        return changed

    def select_entries(
        self, state: State, candidates: Sequence[Entry], context: BlockContext
    ) -> tuple[list[Entry], list[tuple[Entry, RuleError]]]:
        chosen: list[Entry] = []
        refused: list[tuple[Entry, RuleError]] = []
        for entry in candidates:
            try:
                state = self.apply_block(state, [entry], context).state
                chosen.append(entry)
            except RuleError as error:
                refused.append((entry, error))
        return chosen, refused

    def check_entry(self, state: State, entry: Entry, time_ms: int) -> None:
        self._transfer(state, entry, time_ms)

    def next_wake_ms(self, state: State) -> int | None:
        return None


TRANSFERS = TransferRules()


# ---- crypto, verified once per process instead of once per node

_cached_verify = functools.lru_cache(maxsize=200_000)(identity.verify)
_cached_vrf = functools.lru_cache(maxsize=50_000)(vrf.verify)
_cached_prove = functools.lru_cache(maxsize=50_000)(vrf.prove)


@contextlib.contextmanager
def cached_crypto() -> Iterator[None]:
    """Let nodes of one process share the results of verification."""
    saved = identity.verify, vrf.verify, vrf.prove
    identity.verify, vrf.verify, vrf.prove = _cached_verify, _cached_vrf, _cached_prove  # type: ignore[assignment]
    try:
        yield
    finally:
        identity.verify, vrf.verify, vrf.prove = saved


@functools.lru_cache(maxsize=256)
def key(number: int) -> Identity:
    """Return the identity of a number."""
    return Identity(number.to_bytes(32, "big"))


def make_genesis(validators: int, *, block_ms: int = 200, heartbeat_ms: int = 1_500, users: int = 4) -> Genesis:
    """Return a network of ``key(1..validators)`` and users ``key(101..)`` with 1000 credits each."""
    accounts = [key(1 + index) for index in range(validators)] + [key(101 + index) for index in range(users)]
    return Genesis(
        name="sim",
        test_network=True,
        time_ms=START_MS,
        allocations=tuple(Allocation(account=each.account, balance=1_000_000_000, stake=0) for each in accounts),
        validators=tuple(key(1 + index).account for index in range(validators)),
        block_ms=block_ms,
        heartbeat_ms=heartbeat_ms,
        audit_bond=0,
        max_void_rounds=3,
    )


def transfer(network: str, sender: Identity, to: str, nonce: int, now_ms: int, amount: int = 5) -> Entry:
    """Return a signed transfer that lives for half an hour."""
    body = Transfer(author=sender.account, nonce=nonce, expires_ms=now_ms + 1_800_000, to=to, amount=amount, memo="")
    return seal(sender, network, body)


# ---- durable memory


class MemoryStore:
    """What LedgerStore promises, in memory: a Save is all there or not at all, and survives a crash."""

    def __init__(self, genesis: Genesis, rules: Rules) -> None:
        self.genesis = genesis
        self.tip = genesis_tip(genesis, rules)
        self.votes: dict[tuple[int, str], bytes] = {}
        self.candidates: dict[str, SaveCandidate] = {}
        self.blocks: list[tuple[Executed, Certificate | None]] = []

    def save(self, writes: Sequence[Write]) -> None:
        for write in writes:
            match write:
                case SaveVote(vote):
                    if (vote.slot, vote.kind) in self.votes:
                        raise InvariantError(f"second {vote.kind} vote of {vote.voter} in slot {vote.slot}")
                    self.votes[vote.slot, vote.kind] = encode(vote)
                case SaveCandidate():
                    self.candidates.setdefault(write.id, write)
                case SaveBlocks(blocks, certificate):
                    self.blocks += [(each, certificate if each is blocks[-1] else None) for each in blocks]
                    self.tip = blocks[-1].tip
                    self.votes = {key: raw for key, raw in self.votes.items() if key[0] > self.tip.slot}
                    self.candidates = {name: c for name, c in self.candidates.items() if c.slot > self.tip.slot}

    def restored(self) -> Restored:
        candidates = sorted(self.candidates.values(), key=lambda each: (each.slot, each.id))
        return Restored(self.genesis, self.tip, tuple(self.votes.values()), tuple(each.raw for each in candidates))

    def sync_messages(self, height: int) -> list[bytes]:
        chunk = self.blocks[height - 1 : height + 15]
        items = [
            wire.SyncBlock(block=msgspec.json.decode(each.block.raw, type=Proposal), certificate=certificate)
            for each, certificate in chunk
        ]
        groups = [tuple(items[start : start + 4]) for start in range(0, len(items), 4)]
        return [
            encode(wire.SyncResponse(blocks=group, more=index + 1 < len(groups))) for index, group in enumerate(groups)
        ]


# ---- the network


@dataclass(frozen=True)
class Faults:
    """What goes wrong while the run is young; afterwards the network is well and every node is up."""

    until_ms: int = 6_000
    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: tuple[int, int] = (5, 60)
    spikes: float = 0.0  # share of messages that take up to 3 s
    crash: float = 0.0  # chance per step to crash within its effects
    partitions: int = 0


@dataclass
class Node:
    key: Identity
    store: MemoryStore
    skew_ms: int
    replica: Replica | None = None
    timers: dict[str, int] = field(default_factory=dict)
    life: int = 0  # counts restarts: what was scheduled for an earlier life is void
    refused: list[tuple[str, Exception]] = field(default_factory=list)
    finalized: list[Finalized] = field(default_factory=list)


Tamper = Callable[["Cluster", str, list[Effect]], list[Effect]]


class Cluster:
    """Nodes, the messages between them, and what must hold of them at every moment."""

    def __init__(
        self,
        seed: int,
        validators: int = 4,
        observers: int = 0,
        *,
        faults: Faults | None = None,
        byzantine: Mapping[int, Tamper] | None = None,
        rules: Rules = TRANSFERS,
        genesis: Genesis | None = None,
        links: Callable[[int, int], bool] = lambda a, b: True,
        send_before_save: bool = False,
        stores: Callable[[str], MemoryStore] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults(until_ms=0)
        self.rules = rules
        self.genesis = genesis or make_genesis(validators)
        self.network = rules.network_id(self.genesis)
        self.now_ms = 0
        self.delivered = 0
        self.memory: dict[Any, Any] = {}  # attackers' notes
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._groups: dict[str, int] = {}
        self._send_before_save = send_before_save
        make_store = stores or (lambda name: MemoryStore(self.genesis, rules))
        keys = [key(1 + index) for index in range(validators)] + [key(51 + index) for index in range(observers)]
        self.nodes: dict[str, Node] = {
            each.account: Node(each, make_store(each.account), self.random.randint(-300, 300)) for each in keys
        }
        names = list(self.nodes)
        self.byzantine = {names[index]: tamper for index, tamper in (byzantine or {}).items()}
        self._links = {(a, b) for i, a in enumerate(names) for j, b in enumerate(names) if i != j and links(i, j)}
        self._agreed: dict[int, tuple[str, str]] = {}  # height -> hash, state root
        self._votes: dict[tuple[str, int, str], str] = {}  # sent by honest validators
        for name in names:
            self.at(self.random.randint(0, 50), functools.partial(self.start, name))
        for _ in range(self.faults.partitions):
            self.at(self.random.randint(0, self.faults.until_ms), self._partition)
        self.at(self.faults.until_ms, self._heal)

    # ---- time

    def at(self, when_ms: int, what: Callable[[], None]) -> None:
        """Do something at a simulated time."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._count, what))

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Run until a time or until ``done``; return whether it is done."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, what = heapq.heappop(self._heap)
            what()
            if done():
                return True
        self.now_ms = until_ms
        return done()

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self.now_ms < self.faults.until_ms

    # ---- nodes

    def clock(self, name: str) -> int:
        """Return a node's idea of the time."""
        return START_MS + self.now_ms + self.nodes[name].skew_ms

    def up(self) -> list[str]:
        """Return the nodes that run."""
        return [name for name, node in self.nodes.items() if node.replica is not None]

    def honest(self) -> list[Node]:
        """Return all nodes that follow the rules."""
        return [node for name, node in self.nodes.items() if name not in self.byzantine]

    def start(self, name: str) -> None:
        """Start a node from its store."""
        node = self.nodes[name]
        if node.replica is not None:
            return
        node.replica = Replica(self.genesis, node.key, node.store.restored(), rules=self.rules)
        node.timers = {}
        node.life += 1
        self.step(name, Started())
        for other in self.up():
            if (name, other) in self._links:
                self.step(name, PeerUp(other))
                self.step(other, PeerUp(name))

    def crash(self, name: str, *, back_ms: int | None = None) -> None:
        """Stop a node at once; it comes back after ``back_ms``, or when everything heals."""
        node = self.nodes[name]
        if node.replica is None:
            return
        node.replica = None
        node.life += 1
        for other in self.up():
            if (name, other) in self._links:
                self.at(self.now_ms, functools.partial(self.step, other, PeerDown(name)))
        if back_ms is not None:
            self.at(self.now_ms + back_ms, functools.partial(self.start, name))

    def submit(self, name: str, entry: Entry) -> None:
        """Hand an entry to a node."""
        self.step(name, Submitted(entry))

    def step(self, name: str, event: object) -> None:
        """Give a node an event and carry out its effects, perhaps only the first few of them."""
        node = self.nodes[name]
        if node.replica is None:
            return
        effects = node.replica.step(event, self.clock(name))  # type: ignore[arg-type]
        if name in self.byzantine:
            effects = self.byzantine[name](self, name, effects)
        if self._send_before_save:
            effects = sorted(effects, key=lambda effect: isinstance(effect, Save))
        stop = len(effects) + 1
        if self.faulty and effects and self.random.random() < self.faults.crash:
            stop = self.random.randint(0, len(effects))
        for effect in effects[:stop]:
            self._carry_out(name, node, effect)
        if stop <= len(effects):
            self.crash(name, back_ms=self.random.randint(100, 2_500))

    def _carry_out(self, name: str, node: Node, effect: Effect) -> None:  # noqa: C901 - one arm per effect
        match effect:
            case Save(writes):
                node.store.save(writes)
                self._check_saved(name, writes)
            case Send(peer, data):
                self.transmit(name, peer, data)
            case Broadcast(data, exclude):
                for peer in self.nodes:
                    if peer != exclude:
                        self.transmit(name, peer, data)
            case Serve(peer, height):
                for data in node.store.sync_messages(height):
                    self.transmit(name, peer, data)
            case SetTimer(timer, at_ms):
                self._arm(name, node, timer, at_ms)
            case Finalized():
                node.finalized.append(effect)
            case Misbehaved(peer, error):
                if name not in self.byzantine and peer not in self.byzantine:
                    raise InvariantError(f"honest {peer} was blamed: {error!r}")
            case _:
                node.refused.append((effect.entry_id, effect.error))

    def _arm(self, name: str, node: Node, timer: str, at_ms: int) -> None:
        node.timers[timer] = at_ms
        life = node.life

        def fire() -> None:
            if node.life == life and node.timers.get(timer) == at_ms:
                del node.timers[timer]
                self.step(name, Timer(timer))

        self.at(at_ms - START_MS - node.skew_ms, fire)

    # ---- links

    def transmit(self, source: str, target: str, data: bytes) -> None:
        """Put a message on a link, where it meets the run's faults."""
        if (source, target) not in self._links:
            return
        assert len(data) <= 65_536, "every message fits into one frame"
        self._check_sent(source, data)
        faults = self.faults
        copies = 1
        if self.faulty:
            if self.random.random() < faults.loss:
                copies = 0
            elif self.random.random() < faults.repeat:
                copies = 2
        for _ in range(copies):
            delay = self.random.randint(*faults.delay_ms)
            if self.faulty and self.random.random() < faults.spikes:
                delay = self.random.randint(500, 3_000)
            self.at(self.now_ms + delay, functools.partial(self._deliver, source, target, data))

    def _deliver(self, source: str, target: str, data: bytes) -> None:
        if self.faulty and self._groups.get(source) != self._groups.get(target):
            return
        self.delivered += 1
        self.step(target, Received(source, data))

    def _partition(self) -> None:
        self._groups = {name: self.random.randint(0, 1) for name in self.nodes}

    def _heal(self) -> None:
        self._groups = {}
        for name in self.nodes:
            self.start(name)

    # ---- invariants

    def _check_saved(self, name: str, writes: Sequence[Write]) -> None:
        if name in self.byzantine:
            return
        for write in writes:
            if isinstance(write, SaveBlocks):
                for executed in write.blocks:
                    self._check_finalized(name, executed)

    def _check_finalized(self, name: str, executed: Executed) -> None:
        header = executed.block.header
        agreed = self._agreed.setdefault(header.height, (executed.block.hash, header.state_root))
        if agreed != (executed.block.hash, header.state_root):
            raise InvariantError(f"two finalized blocks at height {header.height}")
        if header.proposer != self.genesis.validators[header.slot % len(self.genesis.validators)]:
            raise InvariantError(f"block {header.height} of slot {header.slot} is not by the slot's leader")
        before = self._agreed.get(header.height - 1, (self.network, ""))
        if header.parent != before[0]:
            raise InvariantError(f"block {header.height} does not follow the finalized block before it")
        state = executed.tip.state
        if state.supply_check() != state.network().supply:
            raise InvariantError(f"credits were made or lost at height {header.height}")

    def _check_sent(self, name: str, data: bytes) -> None:
        if name in self.byzantine or b'"type":"vote"' not in data:
            return
        vote = msgspec.json.decode(data, type=Vote)
        if vote.voter in self.byzantine:
            return
        earlier = self._votes.setdefault((vote.voter, vote.slot, vote.kind), vote.hash)
        if earlier != vote.hash:
            raise InvariantError(f"{vote.voter} sent two {vote.kind} votes in slot {vote.slot}")
        other = {SKIP: FINAL, FINAL: SKIP, NOTAR: ""}[vote.kind]
        if (vote.voter, vote.slot, other) in self._votes:
            raise InvariantError(f"{vote.voter} voted both to skip and to finalize slot {vote.slot}")

    def heights(self) -> list[int]:
        """Return the finalized heights of honest nodes (durable ones)."""
        return [node.store.tip.height for node in self.honest()]

    def finalized_everywhere(self, entry_ids: Sequence[str]) -> bool:
        """Say whether every honest node has finalized all these entries."""
        wanted = set(entry_ids)
        return all(
            wanted <= {entry.id for executed, _ in node.store.blocks for entry in executed.entries}
            for node in self.honest()
        )
