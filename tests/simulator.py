"""Deterministic simulation of a network of replicas: one seed, one run.

Replicas are the real ones, with real signatures (what all nodes would compute alike is computed once per process).
The network delays, loses, repeats and reorders; it partitions and heals; nodes crash in the middle of an effect list
and come back from what was durable; clocks differ and jump.  Byzantine nodes hold real keys; twins are two nodes with
one key.  Everything agreed is checked after every event (tests/sim/monitor.py).
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from contracts.records import Genesis
from gdf_market.messages import Entry
from ledger.effects import (
    Broadcast,
    Effect,
    Finalized,
    Misbehaved,
    PeerDown,
    PeerUp,
    Received,
    Refused,
    ReplicaEvent,
    Save,
    SaveBlocks,
    SaveSnapshot,
    Send,
    Serve,
    ServeLinks,
    ServeSnapshot,
    SetTimer,
    Started,
    Submitted,
    Timer,
    Write,
)
from ledger.replica import Replica
from ledger.rules import Rules
from tests.sim.caches import cached_crypto
from tests.sim.memory import InvariantError, MemoryStore, TornStore
from tests.sim.monitor import Monitor
from tests.sim.transfers import TRANSFERS, TransferRules
from tests.sim.world import START_MS, Faults, Node, is_flood, key, make_genesis, transfer

__all__ = [
    "START_MS",
    "TRANSFERS",
    "Cluster",
    "Faults",
    "InvariantError",
    "MemoryStore",
    "Node",
    "Tamper",
    "TransferRules",
    "cached_crypto",
    "key",
    "make_genesis",
    "transfer",
]

Tamper = Callable[["Cluster", str, list[Effect]], list[Effect]]


def as_it_is(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Change nothing: what a twin sends breaks the rules only together with what the other one sends."""
    return effects


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
        twins: Collection[int] = (),
        rules: Rules = TRANSFERS,
        genesis: Genesis | None = None,
        links: Callable[[int, int], bool] = lambda a, b: True,
        send_before_save: bool = False,
        stores: Callable[[str], MemoryStore] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults(until_ms=0)
        self.rules = rules
        self.genesis = genesis or make_genesis(validators, others=observers)
        self.network = rules.network_id(self.genesis)
        self.now_ms = 0
        self.delivered = 0
        self.memory: dict[Any, Any] = {}  # attackers' notes
        self.tripped: list[tuple[str, Exception]] = []  # attackers that failed by their own doing
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._groups: dict[str, int] = {}
        self._streams: dict[tuple[str, str], int] = {}  # when the last part of an answer arrives
        self._send_before_save = send_before_save
        make_store = stores or (lambda name: MemoryStore(self.genesis, rules))
        keys = [key(1 + index) for index in range(validators)] + [key(51 + index) for index in range(observers)]
        names = [each.account for each in keys]
        self.nodes: dict[str, Node] = {
            name: Node(name, each, make_store(name), self._draw_skew()) for name, each in zip(names, keys, strict=True)
        }
        self.byzantine: dict[str, Tamper] = {names[index]: tamper for index, tamper in (byzantine or {}).items()}
        self._connect(names, links)
        for index in twins:
            self._add_twin(names[index], make_store(names[index] + "'"))
        self._bad = {self.nodes[name].account for name in self.byzantine}
        self._names: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            self._names.setdefault(node.account, []).append(name)
        self.monitor = Monitor(self.genesis, rules, self.is_honest)
        self._schedule()

    def _draw_skew(self) -> int:
        return self.random.randint(-self.faults.skew_ms, self.faults.skew_ms)

    def _connect(self, names: list[str], links: Callable[[int, int], bool]) -> None:
        self._links: dict[str, dict[str, None]] = {
            a: {b: None for j, b in enumerate(names) if i != j and links(i, j)} for i, a in enumerate(names)
        }

    def _add_twin(self, name: str, store: MemoryStore) -> None:
        """Add a second node with a node's key; the others are linked to one of the two, few of them to both."""
        twin = name + "'"
        self.nodes[twin] = Node(twin, self.nodes[name].key, store, self._draw_skew())
        self.byzantine[name] = self.byzantine[twin] = as_it_is
        self._links[twin] = {}
        others = list(self._links[name])
        self.random.shuffle(others)
        for index, other in enumerate(others):
            if index % 2:
                self._links[twin][other] = self._links[other][twin] = None
                if self.random.random() < 0.8:
                    del self._links[name][other], self._links[other][name]

    def _schedule(self) -> None:
        for name in self.nodes:
            self.at(self.random.randint(0, 50), functools.partial(self.start, name))
        for count, what in (
            (self.faults.partitions, self._partition),
            (self.faults.power_cuts, self._cut_power),
            (self.faults.jumps, self._jump),
        ):
            for _ in range(count):
                self.at(self.random.randint(0, self.faults.until_ms), what)
        self.at(self.faults.until_ms, self._heal)

    # ---- time

    def at(self, when_ms: int, what: Callable[..., object], *arguments: Any) -> None:
        """Do something at a simulated time."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._count, what, arguments))

    def run(self, until_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Run until a time or until ``done``; return whether it is done."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
            if done is not None and done():
                return True
        self.now_ms = until_ms
        return done is not None and done()

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self.now_ms < self.faults.until_ms

    # ---- nodes

    def clock(self, name: str) -> int:
        """Return a node's idea of the time."""
        skew_ms: int = self.nodes[name].skew_ms
        return START_MS + self.now_ms + skew_ms

    def up(self) -> list[str]:
        """Return the nodes that run."""
        return [name for name, node in self.nodes.items() if node.replica is not None]

    def honest(self) -> list[Node]:
        """Return all nodes that follow the rules."""
        return [node for name, node in self.nodes.items() if name not in self.byzantine]

    def is_honest(self, account: str) -> bool:
        """Say whether every node with this key follows the rules."""
        return account not in self._bad

    def start(self, name: str) -> None:
        """Start a node from its store."""
        node = self.nodes[name]
        if node.replica is not None or node.down:
            return
        if name not in self.byzantine:
            self.monitor.on_restart(node.store)
        node.replica = Replica(
            self.genesis,
            node.key,
            node.store.restored(),
            rules=self.rules,
            from_snapshot=node.from_snapshot,
            keep_epochs=node.keep_epochs,
        )
        node.timers, node.got = {}, set()
        node.life += 1
        self.step(name, Started())
        for other in self._links[name]:
            if self.nodes[other].replica is not None:
                self.step(name, PeerUp(self.nodes[other].account))
                self.step(other, PeerUp(node.account))

    def crash(self, name: str, *, back_ms: int | None = None, lost: bool = False) -> None:
        """Stop a node at once; it comes back after ``back_ms``, or when everything heals."""
        node = self.nodes[name]
        if node.replica is None:
            return
        node.replica = None
        node.life += 1
        self.monitor.on_crash(name, lost=lost)
        for other in self._links[name]:
            if self.nodes[other].replica is not None:
                self.at(self.now_ms, self.step, other, PeerDown(node.account))
        if back_ms is not None:
            self.at(self.now_ms + back_ms, self.start, name)

    def take_down(self, name: str, until_ms: int) -> None:
        """Stop a node until a time, even if everything else heals before."""
        self.crash(name)
        self.nodes[name].down = True
        self.at(until_ms, self._bring_up, name)

    def _bring_up(self, name: str) -> None:
        self.nodes[name].down = False
        self.start(name)

    def submit(self, name: str, entry: Entry) -> None:
        """Hand an entry to a node."""
        self.step(name, Submitted(entry))

    def step(self, name: str, event: ReplicaEvent) -> None:
        """Give a node an event and carry out its effects, perhaps only the first few of them."""
        node = self.nodes[name]
        if node.replica is None:
            return
        tamper = self.byzantine.get(name)
        effects = self._decide(node, event) if tamper is None else self._misbehave(node, event, tamper)
        if self._send_before_save:
            effects = sorted(effects, key=lambda effect: isinstance(effect, Save))
        if effects and self.faults.crash and self.faulty and self.random.random() < self.faults.crash:
            self._crash_within(node, effects)
            return
        for effect in effects:
            self._carry_out(name, node, effect)
        saved = bool(effects) and type(effects[0]) is Save  # nothing is finalized without one
        if saved and tamper is None and node.replica is not None:
            self.monitor.on_step(node.replica)

    def _decide(self, node: Node, event: ReplicaEvent) -> list[Effect]:
        assert node.replica is not None
        if self._bad and type(event) is Received:
            self.monitor.on_received(node.name, node.replica, event.data, self.now_ms)
        try:
            return node.replica.step(event, self.clock(node.name))
        except InvariantError:
            raise
        except Exception as error:
            raise InvariantError(f"honest {node.name} failed: {type(error).__name__}: {error}") from error

    def _misbehave(self, node: Node, event: ReplicaEvent, tamper: Tamper) -> list[Effect]:
        """An attacker that trips over its own forgeries is gone."""
        assert node.replica is not None
        try:
            return tamper(self, node.name, node.replica.step(event, self.clock(node.name)))
        except Exception as error:
            self.tripped.append((node.name, error))
            self.crash(node.name)
            node.down = True
            return []

    def _crash_within(self, node: Node, effects: list[Effect]) -> None:
        """Carry out some of the effects: the Save is among them (then it is durable), or lost, or torn."""
        stop = self.random.randint(0, len(effects))
        for effect in effects[:stop]:
            self._carry_out(node.name, node, effect)
        cut = effects[stop] if stop < len(effects) else None
        if isinstance(cut, Save) and isinstance(node.store, TornStore):
            node.store.tear = True
            node.store.save(cut.writes)
            node.store.tear = False
        lost = any(isinstance(effect, Save) for effect in effects[stop:])
        self.crash(node.name, back_ms=self.random.randint(100, 2_500), lost=lost)

    def _carry_out(self, name: str, node: Node, effect: Effect) -> None:
        if isinstance(effect, Broadcast):
            self._broadcast(name, node, effect)
        elif isinstance(effect, Send):
            self.transmit(name, effect.peer, effect.data)
        elif isinstance(effect, SetTimer):
            self._arm(name, node, effect.name, effect.at_ms)
        elif isinstance(effect, Save):
            node.store.save(effect.writes)
            self._check_saved(name, effect.writes)
        else:
            self._note(name, node, effect)

    def _broadcast(self, name: str, node: Node, effect: Broadcast) -> None:
        data = effect.data
        self._check_sent(name, data)
        flood = is_flood(data)
        for peer in self._links[name]:
            other = self.nodes[peer]
            if other.account != effect.exclude:
                self._put(node, other, data, flood=flood)

    def _note(self, name: str, node: Node, effect: Effect) -> None:
        match effect:
            case Serve(peer, height):
                for data in node.store.sync_messages(height):
                    self.transmit(name, peer, data, in_order=True)
            case Finalized():
                node.finalized.append(effect)
            case Misbehaved(peer, error):
                if name not in self.byzantine and self.is_honest(peer):
                    raise InvariantError(f"honest {peer} was blamed: {error!r}")
            case Refused(entry_id, error):
                node.refused.append((entry_id, error))
            case ServeLinks(peer, epoch):
                self.transmit(name, peer, node.store.links_message(epoch), in_order=True)
            case ServeSnapshot(peer, record, part):
                self.transmit(name, peer, node.store.snapshot_message(record, part), in_order=True)

    def _check_saved(self, name: str, writes: Sequence[Write]) -> None:
        if name in self.byzantine:
            return
        for write in writes:
            if isinstance(write, SaveBlocks):
                self.monitor.on_saved(write, START_MS + self.now_ms)
            elif isinstance(write, SaveSnapshot):
                self.monitor.auditor.on_snapshot(write)

    def _check_sent(self, name: str, data: bytes) -> None:
        assert len(data) <= 65_536, "every message fits into one frame"
        if name not in self.byzantine:
            self.monitor.on_sent(data)

    def _arm(self, name: str, node: Node, timer: str, at_ms: int) -> None:
        node.timers[timer] = at_ms
        self.at(at_ms - START_MS - node.skew_ms, self._fire, name, node, node.life, timer, at_ms)

    def _fire(self, name: str, node: Node, life: int, timer: str, at_ms: int) -> None:
        if node.life == life and node.timers.get(timer) == at_ms:
            del node.timers[timer]
            self.step(name, Timer(timer))

    # ---- links

    def transmit(self, source: str, target: str, data: bytes, *, in_order: bool = False) -> None:
        """Send a message from a node to every node of an account; the parts of one answer come in order."""
        self._check_sent(source, data)
        for name in self._names[target]:
            if name in self._links[source]:
                self._put(self.nodes[source], self.nodes[name], data, in_order=in_order)

    def _put(self, source: Node, target: Node, data: bytes, *, flood: bool = False, in_order: bool = False) -> None:
        """Put a message on a link, where it meets the run's faults."""
        if flood and data in target.got and self.random.random() >= self.faults.echo:
            return
        faults, draw = self.faults, self.random.random
        low, high = faults.delay_ms
        copies = 1
        faulty = self.now_ms < faults.until_ms
        if faulty:
            if faults.loss and draw() < faults.loss:
                return
            if faults.repeat and draw() < faults.repeat:
                copies = 2
        for _ in range(copies):
            delay = low + int(draw() * (high - low + 1))
            if faulty and faults.spikes and draw() < faults.spikes:
                delay = 500 + int(draw() * 2_500)
            at_ms = self.now_ms + delay
            if in_order:
                at_ms = max(at_ms, self._streams.get((source.name, target.name), 0))
                self._streams[source.name, target.name] = at_ms
            self.at(at_ms, self._deliver, source, target, data, flood)

    def _deliver(self, source: Node, target: Node, data: bytes, flood: bool) -> None:
        if target.replica is None:
            return
        if self._groups and self.faulty and self._groups[source.name] != self._groups[target.name]:
            return
        if flood and data in target.got and self.random.random() >= self.faults.echo:
            return
        target.got.add(data)
        self.delivered += 1
        self.step(target.name, Received(source.account, data))

    # ---- weather

    def _partition(self) -> None:
        self._groups = {name: self.random.randint(0, 1) for name in self.nodes}

    def _cut_power(self) -> None:
        for name in self.nodes:
            self.crash(name, back_ms=self.random.randint(100, 1_000))

    def _jump(self) -> None:
        self.random.choice(list(self.nodes.values())).skew_ms = self._draw_skew()

    def _heal(self) -> None:
        self._groups = {}
        for name in self.nodes:
            self.start(name)

    # ---- what was agreed

    def heights(self) -> list[int]:
        """Return the finalized heights of honest nodes (durable ones)."""
        return [node.store.tip.height for node in self.honest()]

    def finalized_everywhere(self, entry_ids: Collection[str]) -> bool:
        """Say whether every honest node has finalized all these entries."""
        heights = self.monitor.auditor.heights
        if not all(entry_id in heights for entry_id in entry_ids):
            return False
        last = max((heights[entry_id] for entry_id in entry_ids), default=0)
        return all(node.store.tip.height >= last for node in self.honest())
