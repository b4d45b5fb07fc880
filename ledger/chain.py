"""Execution: the finalized head, and every block above it that was executed on its parent's state.

Rules kept here:
1. A block is valid if its header follows from its parent (network, epoch, height, slot, time, beacon), its entries
   are signed, the contract rules accept them in order, and the state root after them is the header's.
2. The header also commits to the validator set that the state after the block names.
3. Beyond its epoch's boundary block a block is empty and changes nothing (ledger/epochs.py).
4. States are immutable; a candidate that is never finalized is dropped and leaves nothing behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from contracts.block import Transition
from contracts.records import Genesis
from contracts.state import BlockContext
from gdf_market import merkle, vrf
from gdf_market.codec import sha256
from gdf_market.errors import MalformedError, RuleError, ensure
from gdf_market.identity import Identity
from gdf_market.messages import Entry, open_entry
from gdf_market.statements import set_hash
from ledger import block as blocks
from ledger.block import Block, Header
from ledger.effects import Executed, Finality, Tip
from ledger.envelopes import OpenMany, open_each
from ledger.epochs import Epoch, epoch_after
from ledger.rules import Rules
from ledger.state_hash import StateHash

_set_hash = functools.lru_cache(maxsize=64)(set_hash)


class SeenEntries:
    """Digests of envelopes whose signatures were verified, the oldest forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._digests: dict[bytes, None] = {}

    def __contains__(self, raw: bytes) -> bool:
        return sha256(raw) in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, raw: bytes) -> None:
        """Remember an envelope."""
        self._digests[sha256(raw)] = None
        if len(self._digests) > self._limit:
            del self._digests[next(iter(self._digests))]


def genesis_tip(genesis: Genesis, rules: Rules) -> Tip:
    """Return what the first block builds on; its hash is the network id."""
    network, state = rules.network_id(genesis), rules.genesis_state(genesis)
    beacon = blocks.genesis_beacon(network)
    return Tip(0, 0, network, genesis.time_ms, beacon, state, StateHash.of(state.records.items()))


class Chain:
    """The finalized head and the executed candidates above it."""

    def __init__(
        self, genesis: Genesis, rules: Rules, head: Tip, seen: SeenEntries, open_many: OpenMany = open_each
    ) -> None:
        self.network = rules.network_id(genesis)
        self.head = head
        self.epoch = epoch_after(genesis, head.height, head.state, rules)
        self._genesis = genesis
        self.candidates: dict[str, Executed] = {}
        self._rules = rules
        self._seen = seen
        self._open_many = open_many

    def tip(self, hash_: str) -> Tip | None:
        """Return the state after an executed block or the head."""
        if hash_ == self.head.hash:
            return self.head
        executed = self.candidates.get(hash_)
        return executed.tip if executed is not None else None

    def path(self, hash_: str) -> list[Executed] | None:
        """Return the executed blocks from above the head to ``hash_``; None if one is missing."""
        found: list[Executed] = []
        while hash_ != self.head.hash:
            executed = self.candidates.get(hash_)
            if executed is None:
                return None
            found.append(executed)
            hash_ = executed.block.header.parent
        return found[::-1]

    def included(self, hash_: str) -> set[str]:
        """Return the ids of entries in blocks from above the head to an executed block."""
        return {entry.id for executed in self.path(hash_) or () for entry in executed.entries}

    def open_entries(self, block: Block) -> tuple[Entry, ...]:
        """Decode a block's entries and verify the signatures not seen yet."""
        seen = [raw in self._seen for raw in block.entries]
        fresh = iter(
            self._open_many([raw for raw, known in zip(block.entries, seen, strict=True) if not known], self.network)
        )
        opened = [
            open_entry(raw, self.network, check_signature=False) if known else next(fresh)
            for raw, known in zip(block.entries, seen, strict=True)
        ]
        for raw in block.entries:
            self._seen.add(raw)
        return tuple(opened)

    def execute(self, block: Block) -> Executed:
        """Apply a block whose parent is the head or a candidate; keep and return the result.

        Raises PeerError naming what is wrong; nothing changes then.
        """
        parent = self.tip(block.header.parent)
        assert parent is not None, "execute() is for blocks whose parent was executed"
        executed = execute(block, parent, self.epoch, self._rules, self.open_entries)
        self.candidates[block.hash] = executed
        return executed

    def propose(
        self, key: Identity, parent: Tip, slot: int, now_ms: int, candidates: Sequence[Entry]
    ) -> tuple[Executed, list[tuple[Entry, RuleError]]]:
        """Build, sign and execute a block of the entries that the rules accept; also return the refused ones.

        On the boundary block it is a closing block: without entries.
        """
        proof = vrf.prove(key.seed, blocks.beacon_alpha(self.network, parent.beacon, slot))
        beacon = blocks.next_beacon(parent.beacon, vrf.output(proof))
        time_ms = max(parent.time_ms + 1, now_ms)
        context = BlockContext(height=parent.height + 1, time_ms=time_ms, beacon=beacon, proposer=key.account)
        chosen: list[Entry] = []
        refused: list[tuple[Entry, RuleError]] = []
        if context.height <= self.epoch.last:
            chosen, refused = self._rules.select_entries(parent.state, candidates, context)
        transition = _transition(parent, chosen, context, self.epoch, self._rules)
        total = parent.sum.changed(transition.changes)
        raws = tuple(entry.raw for entry in chosen)
        header = Header(
            network=self.network,
            height=context.height,
            slot=slot,
            epoch=self.epoch.number,
            parent=parent.hash,
            parent_slot=parent.slot,
            proposer=key.account,
            time_ms=time_ms,
            entries_root=merkle.root(raws).hex(),
            entry_count=len(raws),
            state_root=total.root(),
            validators=_set_hash(self._rules.validators(transition.state)),
            beacon=beacon,
            vrf_proof=proof.hex(),
        )
        block = blocks.seal_block(key, header, raws)
        tip = Tip(header.height, slot, block.hash, time_ms, beacon, transition.state, total)
        executed = self.candidates[block.hash] = Executed(block, tuple(chosen), transition, tip)
        return executed, refused

    def finalize(self, hash_: str) -> Finality | None:
        """Make an executed block final; return what that finalizes, None if an ancestor is missing.

        Candidates that do not descend from it are dropped: no certificate can lead to them any more.  At the boundary
        block the epoch ends, and everything above it.
        """
        path = self.path(hash_)
        if not path:
            return None
        finality = split(path, self.epoch, self._genesis, self._rules)
        self.head = finality.blocks[-1].tip
        if finality.next is None:
            self._drop_orphans()
        else:
            self.candidates = {}
            self.epoch = finality.next
        return finality

    def start_at(self, tip: Tip) -> None:
        """Make a verified boundary block the head, whatever came before it."""
        self.head = tip
        self.candidates = {}
        self.epoch = epoch_after(self._genesis, tip.height, tip.state, self._rules)

    def _drop_orphans(self) -> None:
        kept: dict[str, Executed] = {}
        for candidate, executed in sorted(self.candidates.items(), key=lambda item: item[1].tip.slot):
            if executed.block.header.parent in kept or executed.block.header.parent == self.head.hash:
                kept[candidate] = executed
        self.candidates = kept


def split(path: Sequence[Executed], epoch: Epoch, genesis: Genesis, rules: Rules) -> Finality:
    """Return what a certificate of the last of some consecutive blocks of an epoch finalizes."""
    blocks = tuple(each for each in path if each.tip.height <= epoch.last)
    tip = blocks[-1].tip
    if tip.height < epoch.last:
        return Finality(blocks)
    closing = tuple(each.block for each in path[len(blocks) :])
    return Finality(blocks, closing, epoch_after(genesis, tip.height, tip.state, rules))


def execute(
    block: Block, parent: Tip, epoch: Epoch, rules: Rules, open_entries: Callable[[Block], tuple[Entry, ...]]
) -> Executed:
    """Check a block of an epoch against its parent and apply it (pure).  Raises PeerError."""
    header = block.header
    check_follows(header, parent, epoch)
    blocks.verify_beacon(header, parent.beacon)
    entries = open_entries(block)
    context = BlockContext(height=header.height, time_ms=header.time_ms, beacon=header.beacon, proposer=header.proposer)
    transition = _transition(parent, entries, context, epoch, rules)
    total = parent.sum.changed(transition.changes)
    ensure(
        total.root() == header.state_root,
        MalformedError(f"block {header.height} claims state {header.state_root}, execution gives {total.root()}"),
    )
    ensure(
        header.validators == _set_hash(rules.validators(transition.state)),
        MalformedError(f"block {header.height} names other validators than the state after it"),
    )
    tip = Tip(header.height, header.slot, block.hash, header.time_ms, header.beacon, transition.state, total)
    return Executed(block, entries, transition, tip)


def _transition(parent: Tip, entries: Sequence[Entry], context: BlockContext, epoch: Epoch, rules: Rules) -> Transition:
    if context.height > epoch.last:
        return Transition(parent.state, (), {})
    return rules.apply_block(parent.state, entries, context)


def check_follows(header: Header, parent: Tip, epoch: Epoch) -> None:
    """Raise MalformedError unless a header's position and time follow from its parent's."""
    ensure(
        header.epoch == epoch.number,
        MalformedError(f"block {header.height} is of epoch {header.epoch}; this is epoch {epoch.number}"),
    )
    ensure(
        header.height <= epoch.last or header.entry_count == 0,
        MalformedError(f"block {header.height} has entries; epoch {epoch.number} ended at {epoch.last}"),
    )
    ensure(
        header.parent == parent.hash and header.parent_slot == parent.slot and header.height == parent.height + 1,
        MalformedError(f"block {header.height} of slot {header.slot} does not follow block {parent.height}"),
    )
    ensure(header.slot > parent.slot, MalformedError(f"slot {header.slot} is not after its parent's {parent.slot}"))
    ensure(
        header.time_ms > parent.time_ms,
        MalformedError(f"block time {header.time_ms} is not after its parent's {parent.time_ms}"),
    )
