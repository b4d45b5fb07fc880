"""Model-based test of the chain: a tree of blocks above a head, on two nodes, against a model of payments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from contracts.records import Staking
from gdf_market.errors import PeerError
from gdf_market.messages import Entry
from ledger.block import Proposal, open_block, seal_block
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import Executed, Tip
from ledger.rules import MARKET
from tests.simulator import START_MS, key, make_genesis, transfer

SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
USERS = [key(101 + index) for index in range(4)]
CHAIN_GENESIS = make_genesis(4, staking=Staking(epoch_blocks=4), users=4)


@dataclass(frozen=True)
class Expected:
    """What a model says of a block: its ancestors' entries and the users' balances after it."""

    hash: str
    parent: str
    height: int
    slot: int
    balances: tuple[int, ...]
    entries: frozenset[str]


class ChainMachine(RuleBasedStateMachine):
    """A tree of blocks above a head, each a list of payments; two nodes hold it, and one gets blocks as bytes."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.ours, self.theirs = (
            Chain(CHAIN_GENESIS, MARKET, genesis_tip(CHAIN_GENESIS, MARKET), SeenEntries(100)) for _ in range(2)
        )
        self.network = self.ours.network
        root = Expected(self.network, "", 0, 0, (1_000_000_000,) * 4, frozenset())
        self.known: dict[str, Expected] = {root.hash: root}
        self.head = root
        self.nonce = 0

    @initialize(target=blocks)
    def begin(self) -> str:
        return self.network

    @rule(
        target=blocks,
        parent=blocks,
        skipped=st.integers(0, 3),
        payments=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9)), max_size=4),
    )
    def propose(self, parent: str, skipped: int, payments: list[tuple[int, int, int]]) -> str:
        tip, model = self.ours.tip(parent), self.known.get(parent)
        if tip is None or model is None:
            return parent  # it was dropped: nothing can stand on it
        entries, balances = self._pay(model, payments)
        epoch = self.ours.epoch
        slot = tip.slot + 1 + skipped
        leader = key(1 + epoch.validators.index(epoch.leader(slot)))
        executed, refused = self.ours.propose(leader, tip, slot, tip.time_ms + 1, entries)
        beyond = executed.tip.height > epoch.last
        assert refused == []
        assert len(executed.entries) == (0 if beyond else len(entries))
        self.known[executed.block.hash] = Expected(
            executed.block.hash,
            parent,
            model.height + 1,
            slot,
            model.balances if beyond else balances,
            model.entries if beyond else model.entries | {entry.id for entry in entries},
        )
        return executed.block.hash

    def _pay(self, model: Expected, payments: list[tuple[int, int, int]]) -> tuple[list[Entry], tuple[int, ...]]:
        entries, balances = [], list(model.balances)
        for source, target, amount in payments:
            self.nonce += 1
            entries.append(
                transfer(self.network, USERS[source], USERS[target].account, self.nonce, START_MS, amount=amount)
            )
            balances[source] -= amount
            balances[target] += amount
        return entries, tuple(balances)

    @rule(block=blocks)
    def deliver(self, block: str) -> None:
        """The other node executes a block if it knows the parent, and finds the same."""
        executed = self.ours.candidates.get(block)
        if executed is None or self.theirs.tip(executed.block.header.parent) is None or self.theirs.tip(block):
            return
        proposal = msgspec.json.decode(executed.block.raw, type=Proposal)
        again = self.theirs.execute(open_block(proposal, self.network))
        assert again.tip.sum.root() == executed.tip.sum.root()
        assert again.tip.state.records == executed.tip.state.records

    @rule(
        block=blocks, what=st.sampled_from(["height", "slot", "time_ms", "state_root", "validators", "beacon", "epoch"])
    )
    def refuse(self, block: str, what: str) -> None:
        """A block with a false claim is refused, and leaves nothing behind."""
        executed = self.ours.candidates.get(block)
        if executed is None or self.theirs.tip(executed.block.header.parent) is None:
            return
        header = executed.block.header
        changes: dict[str, Any] = {
            "height": header.height + 1,
            "slot": header.parent_slot,
            "time_ms": 1,
            "state_root": "5a" * 32,
            "validators": "5a" * 32,
            "beacon": "5a" * 32,
            "epoch": header.epoch + 1,
        }
        proposer = key(1 + CHAIN_GENESIS.validators.index(header.proposer))
        false = seal_block(proposer, msgspec.structs.replace(header, **{what: changes[what]}), executed.block.entries)
        before = dict(self.theirs.candidates)
        with pytest.raises(PeerError):
            self.theirs.execute(false)
        assert self.theirs.candidates == before

    @rule(block=blocks)
    def finalize(self, block: str) -> None:
        executed, model = self.ours.candidates.get(block), self.known.get(block)
        if executed is None or model is None:
            return
        for each in self._path(block):
            self.deliver(each.block.hash)
        epoch = self.ours.epoch
        finality = self.ours.finalize(block)
        assert finality is not None
        assert self.theirs.finalize(block) is not None
        last = finality.blocks[-1].tip
        assert last.height == min(executed.tip.height, epoch.last)
        assert len(finality.closing) == executed.tip.height - last.height
        assert (finality.next is not None) == (last.height == epoch.last)
        self.head = self.known[last.hash]
        # slots go on counting, so later blocks of the old epoch are of no use any more
        reach = {self.head.hash} if finality.next is not None else self._descendants(self.head.hash)
        self.known = {hash_: each for hash_, each in self.known.items() if hash_ in reach}

    def _path(self, block: str) -> list[Executed]:
        path = self.ours.path(block)
        assert path is not None
        return path

    def _descendants(self, root: str) -> set[str]:
        found = {root}
        for each in sorted(self.known.values(), key=lambda each: each.height):
            if each.parent in found:
                found.add(each.hash)
        return found

    @invariant()
    def both_hold_the_tree_of_the_model(self) -> None:
        for chain in (self.ours, self.theirs):
            assert chain.head.hash == self.head.hash
            assert set(chain.candidates) <= set(self.known) - {self.head.hash}
            assert chain.epoch.number == self.head.height // 4
        assert set(self.ours.candidates) == set(self.known) - {self.head.hash}
        for model in self.known.values():
            tip = self.ours.tip(model.hash)
            assert tip is not None
            self._check(tip, model)

    def _check(self, tip: Tip, model: Expected) -> None:
        assert (tip.height, tip.slot) == (model.height, model.slot)
        assert tuple(tip.state.account(user.account).balance for user in USERS) == model.balances
        assert self.ours.included(model.hash) == model.entries - self.head.entries
        assert tip.state.supply_check() == tip.state.network().supply


TestChain = ChainMachine.TestCase
TestChain.settings = SETTINGS
