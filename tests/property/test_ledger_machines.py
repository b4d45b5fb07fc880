"""Model-based tests: mempool, Merkle log and state root against models that a reader can check by eye."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.records import Account, StateRecord
from contracts.state import network_id
from gdf_market import merkle
from gdf_market.errors import SignatureError
from gdf_market.messages import Entry
from ledger import limits
from ledger.mempool import Mempool, MempoolFullError
from ledger.state_hash import StateHash
from tests.simulator import START_MS, key, make_genesis, transfer

SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
USERS = [key(101 + index) for index in range(4)]

# ---- mempool

GENESIS = make_genesis(4)
NETWORK = network_id(GENESIS)
POOL = [transfer(NETWORK, USERS[n % 4], key(1).account, n, START_MS, amount=10 ** (n % 9)) for n in range(60)]
SMALL = {"MEMPOOL_ENTRIES": 12, "MEMPOOL_BYTES": 5_000, "MEMPOOL_PER_AUTHOR": 6}


class MempoolMachine(RuleBasedStateMachine):
    """A list of (entry, when it was last sent), in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in SMALL.items():
            self.patch.setattr(limits, name, value)
        self.pool = Mempool()
        self.model: list[tuple[Entry, int]] = []
        self.now = START_MS

    def teardown(self) -> None:
        self.patch.undo()

    def _bytes(self, author: str) -> int:
        return sum(len(entry.raw) for entry, _ in self.model if entry.body.author == author)

    def _evicts(self, entry: Entry) -> Entry | None:
        """Return whom the rule names to make room; None if there is room."""
        total = sum(len(each.raw) for each, _ in self.model)
        if len(self.model) < SMALL["MEMPOOL_ENTRIES"] and total + len(entry.raw) <= SMALL["MEMPOOL_BYTES"]:
            return None
        authors = dict.fromkeys(each.body.author for each, _ in self.model)
        heaviest = max(self._bytes(author) for author in authors)
        if self._bytes(entry.body.author) + len(entry.raw) >= heaviest:
            raise MempoolFullError("model")
        victims = {
            [each for each, _ in self.model if each.body.author == author][-1].id: author
            for author in authors
            if self._bytes(author) == heaviest
        }
        return next(each for each, _ in self.model if each.id in victims)  # any of them, if several weigh the same

    @rule(index=st.integers(0, len(POOL) - 1))
    def add(self, index: int) -> None:
        entry = POOL[index]
        held = sum(each.body.author == entry.body.author for each, _ in self.model)
        if entry.id in self.pool:
            return
        try:
            expected = self._evicts(entry) if held < SMALL["MEMPOOL_PER_AUTHOR"] else None
            refused = held >= SMALL["MEMPOOL_PER_AUTHOR"]
        except MempoolFullError:
            refused, expected = True, None
        try:
            evicted = self.pool.add(entry, self.now)
        except MempoolFullError:
            assert refused or expected is not None, "refused with room left"
            return
        assert not refused
        assert (evicted is None) == (expected is None)
        if evicted is not None:
            weight = self._bytes(evicted.body.author)
            assert weight == max(self._bytes(each.body.author) for each, _ in self.model)
            newest = [each for each, _ in self.model if each.body.author == evicted.body.author][-1]
            assert evicted.id == newest.id
            self.model = [(each, sent) for each, sent in self.model if each.id != evicted.id]
        self.model.append((entry, self.now))

    @rule(index=st.integers(0, len(POOL) - 1))
    def discard(self, index: int) -> None:
        entry = POOL[index]
        held = any(each.id == entry.id for each, _ in self.model)
        assert (self.pool.discard(entry.id) is not None) == held
        self.model = [(each, sent) for each, sent in self.model if each.id != entry.id]

    @rule(
        excluded=st.sets(st.integers(0, len(POOL) - 1), max_size=4), most=st.integers(0, 8), room=st.integers(0, 4_000)
    )
    def candidates(self, excluded: set[int], most: int, room: int) -> None:
        left = {POOL[index].id for index in excluded}
        chosen = self.pool.candidates(left, room, most)
        assert len(chosen) <= most
        assert sum(len(entry.raw) + 1 for entry in chosen) <= room
        assert len({entry.id for entry in chosen}) == len(chosen)
        waiting = [entry for entry, _ in self.model if entry.id not in left]
        assert {entry.id for entry in chosen} <= {entry.id for entry in waiting}
        counts = {author.account: 0 for author in USERS}
        for entry in chosen:
            counts[entry.body.author] += 1
        for author, count in counts.items():
            mine = [entry.id for entry in waiting if entry.body.author == author]
            taken = [entry.id for entry in chosen if entry.body.author == author]
            assert [each for each in mine if each in taken] == taken, "an author's entries keep their order"
            if room >= 4_000 and len(mine) > count and most < len(waiting):
                assert max(counts.values()) <= count + 1, "authors take turns"

    @rule(later=st.integers(0, 5_000), age=st.integers(0, 5_000))
    def stale(self, later: int, age: int) -> None:
        self.now += later
        before = self.now - age
        sent = {entry.id for entry in self.pool.stale(before, self.now, 10**6)}
        assert sent == {entry.id for entry, sent_ms in self.model if sent_ms <= before}
        self.model = [(entry, self.now if entry.id in sent else sent_ms) for entry, sent_ms in self.model]

    @invariant()
    def books_are_kept(self) -> None:
        assert [entry.id for entry in self.pool] == [entry.id for entry, _ in self.model]
        assert len(self.pool) == len(self.model) <= SMALL["MEMPOOL_ENTRIES"]
        assert self.pool.total_bytes == sum(len(entry.raw) for entry, _ in self.model) <= SMALL["MEMPOOL_BYTES"]
        assert all(self.pool.has_other_than({entry.id}) == (len(self.model) > 1) for entry, _ in self.model[:1])


# ---- Merkle log


class MerkleMachine(RuleBasedStateMachine):
    """A list of leaves, and the root that was published at every size."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = merkle.Tree()
        self.leaves: list[bytes] = []
        self.roots: list[bytes] = [self.tree.root()]

    @rule(leaf=st.binary(max_size=40), count=st.integers(1, 9))
    def append(self, leaf: bytes, count: int) -> None:
        for number in range(count):
            assert self.tree.append(leaf + bytes([number])) == len(self.leaves)
            self.leaves.append(leaf + bytes([number]))
            self.roots.append(self.tree.root())

    @precondition(lambda self: self.leaves)
    @rule(data=st.data())
    def include(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(1, len(self.leaves)))
        index = data.draw(st.integers(0, size - 1))
        path = self.tree.path(index, size)
        merkle.verify_inclusion(self.leaves[index], index, size, path, self.roots[size])
        other = data.draw(st.integers(0, size))
        wrong = self.leaves[index] + b"!" if other in (size, index) else self.leaves[other]
        if wrong != self.leaves[index]:
            with pytest.raises(SignatureError):
                merkle.verify_inclusion(wrong, index, size, path, self.roots[size])

    @precondition(lambda self: self.leaves)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        new = data.draw(st.integers(1, len(self.leaves)))
        old = data.draw(st.integers(1, new))
        path = self.tree.consistency(old, new)
        merkle.verify_consistency(old, new, self.roots[old], self.roots[new], path)
        if old < new:
            with pytest.raises(SignatureError):
                merkle.verify_consistency(old, new, self.roots[new], self.roots[old], path)

    @invariant()
    def the_root_is_that_of_the_leaves(self) -> None:
        assert self.tree.root() == merkle.root(self.leaves) == self.roots[len(self.tree)]


# ---- state root


class StateRootMachine(RuleBasedStateMachine):
    """A dictionary, hashed anew each time; earlier roots stay what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.total = StateHash()
        self.records: dict[str, StateRecord] = {}
        self.kept: list[tuple[StateHash, str]] = []

    @rule(changes=st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.integers(0, 3), max_size=5))
    def change(self, changes: dict[str, int | None]) -> None:
        pairs: dict[str, tuple[StateRecord | None, StateRecord | None]] = {}
        for name, balance in changes.items():
            new = None if balance is None else Account(balance=balance)
            pairs[name] = self.records.get(name), new
            if new is None:
                self.records.pop(name, None)
            else:
                self.records[name] = new
        self.kept.append((self.total, self.total.root()))
        self.total = self.total.changed(pairs)

    @rule()
    def store(self) -> None:
        self.total = StateHash.from_bytes(self.total.to_bytes())

    @invariant()
    def it_is_the_hash_of_the_records(self) -> None:
        assert self.total.root() == StateHash.of(reversed(self.records.items())).root()
        assert all(total.root() == root for total, root in self.kept[-3:])


TestMempool = MempoolMachine.TestCase
TestMerkle = MerkleMachine.TestCase
TestStateRoot = StateRootMachine.TestCase
for each in (TestMempool, TestMerkle, TestStateRoot):
    each.settings = SETTINGS
del each
