"""A small network of real replicas on real ledger files, in which nodes stop at chosen Saves and come back.

Three of four genesis validators run; the fourth only equivocates, is convicted and put out.  A newcomer starts from a
snapshot, prunes what is old, and joins the set.  Epochs have three blocks, so that a short run crosses everything that
a Save can hold: votes, candidates, blocks, epochs with and without closing blocks, evidence, a snapshot, pruning.

Messages take a fixed time and nothing is random: the same stops give the same run.  A node that stops leaves its files
as they are at that moment; what starts again opens a copy of them, as after ``kill -9``.
"""

from __future__ import annotations

import heapq
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.records import Staking
from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.messages import Entry, ValidatorJoin, seal
from gdf_market.statements import SignedHeader, Statement, is_equivocation, place, signer
from ledger import effects as core
from ledger import wire
from ledger.block import FINAL, NOTAR, Proposal, Vote, cast, open_header
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.serving import links_message, snapshot_message
from ledger.store import LedgerStore
from tests.simulator import START_MS, key, make_genesis, transfer

DELAY_MS = 20
PAUSE_MS = 60  # between two transfers, and between a stop and the new start
BOND = 50_000_000  # micro-credits
EPOCH_BLOCKS = 3
HONEST = (1, 2, 3)
EQUIVOCATOR = 4
NEWCOMER = 51

# To the files a Save that fails although everything is on disk is the same as a stop right after the Save.
REFUSED = "the Save fails, nothing is on disk"
DURABLE = "the Save fails or the process stops, everything is on disk"
BETWEEN = "the process stops between two effects after the Save"
MODES = (REFUSED, DURABLE, BETWEEN)


class CrashError(Exception):
    """The process is gone; whatever it was about to do is not done."""


class QuickStore(LedgerStore):
    """Waits for no disk: only processes end here, and what they wrote stays with the system."""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA synchronous=OFF")
        return connection


@dataclass
class Stop:
    """Where a node stops: at Saves of these numbers (counted over all its lives, from 0), in one way."""

    node: int
    mode: str
    saves: Collection[int]


@dataclass
class Node:
    """One node: its files of this life, what it runs, and what it promised."""

    number: int
    path: Path
    store: LedgerStore
    replica: Replica | None = None
    life: int = 0
    saves: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    flooded: set[bytes] = field(default_factory=set)  # messages that need not reach it twice in one life
    promised: list[Vote] = field(default_factory=list)  # own votes that were sent

    @property
    def account(self) -> str:
        return key(self.number).account


class Agreed:
    """What honest nodes signed and finalized: nobody equivocates, no height has two blocks, no entry is paid twice."""

    def __init__(self, network: str, honest: Collection[str]) -> None:
        self.blocks: dict[int, tuple[str, str]] = {}  # height -> (hash, state root)
        self.entries: dict[str, int] = {}
        self._network, self._honest = network, honest
        self._statements: dict[tuple[str, tuple[int, int]], list[Statement]] = {}

    def signed(self, data: bytes) -> Vote | None:
        """Check a message that somebody sends; return the vote if it is one."""
        message = wire.read(data)
        statement: Statement
        if isinstance(message, Vote):
            statement = message
        elif isinstance(message, Proposal):
            statement = SignedHeader(header=open_header(bytes(message.header), self._network), sig=message.sig)
        else:
            return None
        if signer(statement) in self._honest:
            known = self._statements.setdefault((signer(statement), place(statement)), [])
            for other in known:
                assert not is_equivocation(other, statement), f"{signer(statement)} signed {other} and {statement}"
            if statement not in known:
                known.append(statement)
        return message if isinstance(message, Vote) else None

    def finalized(self, height: int, hash_: str, root: str, entries: Collection[str]) -> None:
        """Check a block that a node holds as final."""
        assert self.blocks.setdefault(height, (hash_, root)) == (hash_, root), f"two blocks of height {height}"
        for entry in entries:
            assert self.entries.setdefault(entry, height) == height, f"entry {entry} is in two blocks"


class Net:
    """The network; ``stops`` say which node stops where."""

    def __init__(self, folder: Path, stops: Collection[Stop] = (), *, record: bool = False) -> None:
        staking = Staking(epoch_blocks=EPOCH_BLOCKS, bond=BOND, floor=1, silent_epochs=100, evidence_epochs=3)
        self.genesis = make_genesis(4, block_ms=100, heartbeat_ms=400, others=1, staking=staking, entry_fee=10)
        self.network = MARKET.network_id(self.genesis)
        self.agreed = Agreed(self.network, {key(number).account for number in (*HONEST, NEWCOMER)})
        self.now_ms = 0
        self.crashes = 0
        self.recorded: list[tuple[int, tuple[core.Write, ...]]] = []
        self.after_save: Callable[[Node], None] = lambda node: None
        self._folder, self._stops, self._record = folder, {stop.node: stop for stop in stops}, record
        self._unlucky = -1  # the slot whose votes to finalize get lost: its epoch ends by a closing block
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.nodes: dict[int, Node] = {}
        self._by_account: dict[str, Node] = {}
        for number in HONEST:
            self.add(number)
        self.at(PAUSE_MS, self._pay, 1)
        self.at(0, self._join)
        self.at(5 * PAUSE_MS, self._equivocate)

    # ---- time

    def at(self, when_ms: int, what: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._count, what, arguments))

    def run(self, done: Callable[[], bool], limit_ms: int = 200_000) -> None:
        """Run until something holds.  AssertionError when it does not within a simulated time."""
        end = self.now_ms + limit_ms
        while not done():
            self.now_ms, _, what, arguments = heapq.heappop(self._heap)
            assert self.now_ms < end, f"after {limit_ms} ms the network stands at {self.heights()}"
            what(*arguments)

    @property
    def clock_ms(self) -> int:
        return START_MS + self.now_ms

    def heights(self) -> dict[int, int]:
        """Return the heights of nodes that run."""
        return {node.number: node.replica.height for node in self.nodes.values() if node.replica is not None}

    def live(self, last: int = 10) -> None:
        """Run through the whole story: until all four nodes hold block ``last``."""
        self.run(lambda: max(self.heights().values(), default=0) >= 4)
        self.add(NEWCOMER)
        self.run(lambda: len(heights := self.heights()) == len(self.nodes) and min(heights.values()) >= last)

    # ---- nodes

    def add(self, number: int) -> None:
        """Start a node that has no ledger yet."""
        path = self._folder / f"{number}-0" / "ledger.sqlite"
        path.parent.mkdir(parents=True)
        store = QuickStore(path)
        store.create(self.genesis)
        node = Node(number, path, store)
        self.nodes[number] = self._by_account[node.account] = node
        self._start(node)

    def _start(self, node: Node) -> None:
        restored = node.store.restored()
        assert restored is not None
        self._check_restored(node, restored)
        new = node.number == NEWCOMER
        node.replica = Replica(
            self.genesis, key(node.number), restored, from_snapshot=new, keep_epochs=1 if new else None
        )
        self.step(node, core.Started())
        for other in self._up():
            if other is not node:
                self.step(node, core.PeerUp(other.account))
                self.step(other, core.PeerUp(node.account))

    def _up(self) -> Iterator[Node]:
        yield from [node for node in self.nodes.values() if node.replica is not None]

    def _check_restored(self, node: Node, restored: core.Restored) -> None:
        """What a node finds is of one moment, and holds every vote that it sent and may still be asked about."""
        head, oldest = node.store.head(), restored.oldest
        assert restored.tip.height == (head.height if head is not None else 0)
        assert restored.tip.sum.root() == (head.state_root if head is not None else restored.tip.sum.root())
        held = [row.height for row in node.store.blocks_from(oldest, 1_000)]
        assert held == list(range(oldest, restored.tip.height + 1))
        epoch, validators = node.store.epoch_at(restored.tip.height + 1)
        assert epoch == restored.tip.height // EPOCH_BLOCKS
        assert validators == restored.tip.state.network().validators
        for vote in node.promised:
            if (vote.epoch, vote.slot) > (epoch, restored.tip.slot) and vote.epoch == epoch:
                assert encode(vote) in restored.votes, f"the {vote.kind} vote in slot {vote.slot} is forgotten"

    def crash(self, node: Node) -> None:
        """Stop a node; another process goes on with what is in its files."""
        self.crashes += 1
        node.replica, node.timers, node.flooded = None, {}, set()
        node.life += 1
        path = self._folder / f"{node.number}-{node.life}" / "ledger.sqlite"
        path.parent.mkdir()
        for suffix in ("", "-wal"):
            source = node.path.with_name(node.path.name + suffix)
            if source.exists():
                shutil.copy(source, path.with_name(path.name + suffix))
        node.store._engine.dispose()  # without the checkpoint of a clean end
        node.path, node.store = path, QuickStore(path)
        for other in self._up():
            self.at(self.now_ms, self.step, other, core.PeerDown(node.account))
        self.at(self.now_ms + PAUSE_MS, self._start, node)

    def close(self) -> None:
        for node in self.nodes.values():
            node.store.close()

    # ---- steps

    def step(self, node: Node, event: core.ReplicaEvent) -> None:
        """Give a node an event and carry out the effects in order, as far as it comes."""
        if node.replica is None:
            return
        effects = node.replica.step(event, self.clock_ms)
        try:
            for index, effect in enumerate(effects):
                self._carry_out(node, effect, effects[index + 1 :])
        except CrashError:
            self.crash(node)

    def _carry_out(  # noqa: C901 - one arm per effect
        self, node: Node, effect: core.Effect, later: list[core.Effect]
    ) -> None:
        match effect:
            case core.Save(writes):
                self._save(node, writes, later)
            case core.Broadcast(data, exclude):
                self._sent(node, data)
                for other in self.nodes.values():
                    if other is not node and other.account != exclude and data not in other.flooded:
                        other.flooded.add(data)
                        self._put(node, other, data)
            case core.Send(peer, data):
                self._sent(node, data)
                self._put(node, self._by_account[peer], data)
            case core.Serve(peer, height):
                for data in node.store.sync_messages(height):
                    self._put(node, self._by_account[peer], data)
            case core.ServeLinks(peer, epoch):
                self._put(node, self._by_account[peer], links_message(node.store, epoch))
            case core.ServeSnapshot(peer, name, part):
                self._put(node, self._by_account[peer], snapshot_message(node.store, name, part))
            case core.SetTimer(name, at_ms):
                node.timers[name] = at_ms
                self.at(at_ms - START_MS, self._fire, node, node.life, name, at_ms)
            case core.Misbehaved(peer, error):
                raise AssertionError(f"{node.number} blames {peer}: {error!r}")

    def _save(self, node: Node, writes: tuple[core.Write, ...], later: list[core.Effect]) -> None:
        stop = self._stops.get(node.number)
        mode = stop.mode if stop is not None and node.saves in stop.saves else ""
        node.saves += 1
        if self._record:
            self.recorded.append((node.number, writes))
        if mode == REFUSED:
            raise CrashError
        node.store.save(writes)
        self.after_save(node)
        for write in writes:
            if isinstance(write, core.SaveBlocks):
                for each in write.blocks:
                    ids = [entry.id for entry in each.entries]
                    self.agreed.finalized(each.tip.height, each.tip.hash, each.tip.sum.root(), ids)
        if mode == BETWEEN:
            for effect in later[: (len(later) + 1) // 2]:
                self._carry_out(node, effect, [])
        if mode:
            raise CrashError

    def _sent(self, node: Node, data: bytes) -> None:
        message = wire.read(data)
        if isinstance(message, Proposal) and self._unlucky < 0:
            header = open_header(bytes(message.header), self.network)
            if header.height == 2 * EPOCH_BLOCKS:
                self._unlucky = header.slot
        vote = self.agreed.signed(data)
        if vote is not None and vote.voter == node.account:
            node.promised.append(vote)

    def _put(self, node: Node, target: Node, data: bytes) -> None:
        message = wire.read(data)
        if isinstance(message, Vote) and (message.kind, message.slot) == (FINAL, self._unlucky):
            return
        self.at(self.now_ms + DELAY_MS, self._deliver, node, target, target.life, data)

    def _deliver(self, source: Node, target: Node, life: int, data: bytes) -> None:
        if target.life == life:  # what was sent before its sender stopped still arrives
            self.step(target, core.Received(source.account, data))

    def _fire(self, node: Node, life: int, name: str, at_ms: int) -> None:
        if node.life == life and node.timers.get(name) == at_ms:
            del node.timers[name]
            self.step(node, core.Timer(name))

    # ---- what happens in every run

    def submit(self, entry: Entry) -> None:
        for node in list(self._up())[:2]:
            self.step(node, core.Submitted(entry))

    def _pay(self, nonce: int) -> None:
        sender = key(101 + nonce % 4)
        self.submit(transfer(self.network, sender, key(1).account, nonce, self.clock_ms))
        self.at(self.now_ms + 3 * PAUSE_MS, self._pay, nonce + 1)

    def _join(self) -> None:
        """The newcomer asks for a seat, with a key that no node holds yet."""
        who: Identity = key(NEWCOMER)
        body = ValidatorJoin(author=who.account, nonce=1, expires_ms=START_MS + 1_800_000)
        self.submit(seal(who, self.network, body))

    def _equivocate(self) -> None:
        """The equivocator sends each node two votes for one slot, again and again until the ledger convicts it."""
        if self.is_convicted():
            return
        for node in list(self._up()):
            assert node.replica is not None
            slot = node.replica._quorum.frontier
            for digit in "ab":
                vote = cast(key(EQUIVOCATOR), self.network, node.replica.epoch.number, NOTAR, slot, digit * 64)
                self.step(node, core.Received(key(EQUIVOCATOR).account, encode(vote)))
        self.at(self.now_ms + 5 * PAUSE_MS, self._equivocate)

    def is_convicted(self) -> bool:
        """Say whether the equivocator's bond is slashed, by the state of whoever is furthest."""
        nodes = [node for node in self._up() if node.replica is not None]
        if not nodes:
            return False
        best = max(nodes, key=lambda node: node.replica.height if node.replica is not None else 0)
        assert best.replica is not None
        record = best.replica.state.validator(key(EQUIVOCATOR).account)
        return record is None or record.convicted
