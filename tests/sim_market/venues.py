"""Where the market's entries go: one replica's chain, or a whole network of replicas.

``Solo`` is what one replica does with entries once agreement is taken for granted: admission, mempool, the proposer's
choice, execution, signed headers and beacons, with leaders in turn.  Entries are late, lost or repeated on their way,
parts of the network are cut off, and the pool is lost in a crash.  ``Network`` is tests/simulator.py: real replicas,
their votes and certificates, crashes within effect lists, partitions, and the auditor of agreement.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from contracts.block import next_wake_ms
from contracts.state import State
from gdf_market.errors import PeerError
from gdf_market.messages import Entry
from ledger import limits
from ledger.admission import Admission
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import Effect, Executed, Finalized, SaveBlocks, Write
from ledger.rules import MARKET
from tests.sim.memory import InvariantError
from tests.sim.world import START_MS, Node
from tests.sim_market.market import Market
from tests.sim_market.people import Person
from tests.sim_market.plan import Plan, make_people
from tests.simulator import Cluster

PATIENCE_MS = 60_000  # in which nodes that are all up must have the same ledger


def limit_ms(plan: Plan) -> int:
    """Return the simulated time by which every job must have ended."""
    last = max(job.at_ms + job.life_ms for job in plan.jobs)
    return last + plan.faults.until_ms + 500_000


class Solo:
    """One chain; the members of its set propose in turn."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.now_ms = 0
        self.network = MARKET.network_id(plan.genesis)
        self._seen = SeenEntries(limits.MAX_RAW_SEEN)
        self._chain = Chain(plan.genesis, MARKET, genesis_tip(plan.genesis, MARKET), self._seen)
        self._admission = Admission(self.network, MARKET, self._seen)
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._due = 0  # which of the scheduled proposals counts
        self._slot = 0
        people = make_people(plan)
        self._keys = {person.account: person.key for person in people}
        skew = plan.faults.skew_ms
        self._skews = {account: self.random.randint(-skew, skew) for account in self._keys}
        self._stale: dict[int, tuple[State, int]] = {}  # what those who are cut off see, by home
        self.blocks: list[Executed] = []
        self.market = Market(plan, people, self)
        self._schedule_weather()

    def _schedule_weather(self) -> None:
        faults = self.plan.faults
        for _ in range(faults.partitions):
            at_ms = self.random.randint(0, faults.until_ms)
            self.at(at_ms, self._cut)
            self.at(at_ms + self.random.randint(1_000, 9_000), self._heal)
        for _ in range(faults.power_cuts + (3 if faults.crash else 0)):
            self.at(self.random.randint(0, max(1, faults.until_ms)), self._crash)

    # ---- time

    def at(self, when_ms: int, what: Callable[..., object], *arguments: Any) -> None:
        """Do something at a simulated time."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._count, what, arguments))

    def run(self) -> None:
        """Run until every job has ended."""
        limit = limit_ms(self.plan)
        self._plan_block()
        while not self.market.is_over(self._chain.head.state):
            if not self._heap or self._heap[0][0] > limit:
                raise InvariantError(f"jobs {self._chain.head.state.active().jobs} have not ended by {limit} ms")
            self.now_ms, _, what, arguments = heapq.heappop(self._heap)
            what(*arguments)

    # ---- what the market sees

    def view(self, person: Person) -> tuple[State, int, int] | None:
        """Return what a person's node knows; those who are cut off see what was final then."""
        tip = self._chain.head
        state, time_ms = self._stale.get(person.home, (tip.state, tip.time_ms))
        return state, time_ms, START_MS + self.now_ms

    def submit(self, person: Person, entry: Entry) -> None:
        """Put an entry on its way."""
        faults, draw = self.plan.faults, self.random.random
        faulty = self.now_ms < faults.until_ms
        if person.home in self._stale or (faulty and draw() < faults.loss):
            return
        low, high = faults.delay_ms
        for _ in range(2 if faulty and draw() < faults.repeat else 1):
            delay = self.random.randint(low, high)
            if faulty and draw() < faults.spikes:
                delay += 2_500
            self.at(self.now_ms + delay, self._arrive, person, entry)

    def _arrive(self, person: Person, entry: Entry) -> None:
        """Take an entry as a node does: from its own user, or in a message from a peer."""
        tip, clock = self._chain.head, START_MS + self.now_ms
        if person.home == 0:
            self._admission.submit(entry, tip, clock)
        else:
            try:
                self._admission.receive(f"node {person.home}", [entry.raw], tip, clock)
            except PeerError as error:
                raise InvariantError(f"the node of {person.account} is blamed: {error}") from error
        self._plan_block()

    # ---- blocks

    def _plan_block(self) -> None:
        """Propose when there is work or the rules have something to do."""
        head = self._chain.head
        wake_ms = next_wake_ms(head.state)
        times = [self.now_ms] if len(self._admission.pool) else []
        leader = self._chain.epoch.leader(self._slot + 1)
        if wake_ms is not None:
            times.append(wake_ms - START_MS - self._skews[leader])
        self._due += 1
        if times:
            earliest = max(self.now_ms, head.time_ms - START_MS + self.plan.genesis.block_ms)
            self.at(max(earliest, min(times)), self._propose, self._due)

    def _propose(self, due: int) -> None:
        if due != self._due:
            return
        self._slot += 1
        leader, head = self._chain.epoch.leader(self._slot), self._chain.head
        clock = START_MS + self.now_ms + self._skews[leader]
        pool = self._admission.pool
        waiting = pool.candidates((), limits.MAX_BLOCK_ENTRY_BYTES, limits.MAX_BLOCK_ENTRIES)
        executed, refused = self._chain.propose(self._keys[leader], head, self._slot, clock, waiting)
        for entry, error in refused:
            self._admission.put_aside(entry, error, clock)
        self._chain.finalize(executed.block.hash)
        self._admission.finalized(executed.entries)
        self._admission.on_tip(self._chain.head, (), clock)
        self.blocks.append(executed)
        self.market.books.on_block(executed)
        self.market.on_block()
        self._plan_block()

    # ---- weather

    def _cut(self) -> None:
        """Cut some homes off: they see no new blocks, and nothing that they say arrives."""
        tip = self._chain.head
        for home in range(1, len(self.plan.validators)):
            if self.random.random() < 0.4:
                self._stale.setdefault(home, (tip.state, tip.time_ms))

    def _heal(self) -> None:
        self._stale.clear()
        self.market.on_block()

    def _crash(self) -> None:
        """Lose what waited for a block; what is final is durable, and the chain goes on from there."""
        self._seen = SeenEntries(limits.MAX_RAW_SEEN)
        self._chain = Chain(self.plan.genesis, MARKET, self._chain.head, self._seen)
        self._admission = Admission(self.network, MARKET, self._seen)
        self._plan_block()

    def check_replay(self) -> None:
        """A second replica that gets only the blocks comes to the same state."""
        other = Chain(
            self.plan.genesis, MARKET, genesis_tip(self.plan.genesis, MARKET), SeenEntries(limits.MAX_RAW_SEEN)
        )
        for executed in self.blocks:
            other.execute(executed.block)
            other.finalize(executed.block.hash)
        if other.head.sum.root() != self._chain.head.sum.root():
            raise InvariantError("a replica that replays the blocks has another state")


class _Watched(Cluster):
    """The simulated network, with an ear for what its nodes finalize."""

    market: Market | None = None
    _places: dict[str, int]

    def _check_saved(self, name: str, writes: Sequence[Write]) -> None:
        super()._check_saved(name, writes)
        if self.market is None or name in self.byzantine:
            return
        for write in writes:
            for executed in write.blocks if isinstance(write, SaveBlocks) else ():
                if executed.tip.height == self.market.books.height + 1:
                    self.market.books.on_block(executed)

    def _note(self, name: str, node: Node, effect: Effect) -> None:
        super()._note(name, node, effect)
        if isinstance(effect, Finalized) and self.market is not None:
            self.market.on_block(self._places[name])

    def start(self, name: str) -> None:
        super().start(name)
        if self.market is not None:
            self.market.on_block(self._places[name])


class Network:
    """Real replicas, and people at home on them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cluster = _Watched(
            plan.seed,
            len(plan.validators),
            plan.others,
            faults=plan.faults,
            byzantine=dict(plan.attackers),
            rules=MARKET,
            genesis=plan.genesis,
        )
        self.names = list(self.cluster.nodes)
        self.cluster._places = {name: place for place, name in enumerate(self.names)}
        self.network = self.cluster.network
        self.market = Market(plan, make_people(plan), self)
        self.cluster.market = self.market

    @property
    def now_ms(self) -> int:
        return self.cluster.now_ms

    def at(self, when_ms: int, what: Callable[..., object], *arguments: Any) -> None:
        self.cluster.at(when_ms, what, *arguments)

    def view(self, person: Person) -> tuple[State, int, int] | None:
        """Return what a person's node knows; None while it is down."""
        name = self.names[person.home]
        replica = self.cluster.nodes[name].replica
        return None if replica is None else (replica.state, replica.time_ms, self.cluster.clock(name))

    def submit(self, person: Person, entry: Entry) -> None:
        self.cluster.submit(self.names[person.home], entry)

    def run(self) -> None:
        """Run until every job has ended and every node knows."""
        limit, books = limit_ms(self.plan), self.market.books
        while not self.market.is_over(books.state):
            if self.now_ms > limit:
                raise InvariantError(f"jobs {books.state.active().jobs} have not ended by {limit} ms")
            self.cluster.run(self.now_ms + 250)
        self.cluster.run(max(self.now_ms, self.plan.faults.until_ms) + 1)
        last, until = books.height, self.now_ms + PATIENCE_MS
        while not all(node.store.tip.height >= last for node in self.cluster.honest()):
            if self.now_ms > until:
                raise InvariantError(f"heights {self.cluster.heights()} after the last job ended at {last}")
            self.cluster.run(self.now_ms + 250)
