"""Rules of blocks, epochs and evidence, removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

import contracts.epochs
import contracts.validators
import ledger.block
import ledger.chain
import ledger.effects
import ledger.handover
import ledger.limits
import ledger.links
import ledger.quorum
import ledger.replica
import ledger.snapshot
import ledger.sync
import ledger.watch
from contracts.records import Genesis
from gdf_market import statements
from gdf_market.statements import Statement
from ledger.block import NOTAR, SKIP, Proposal, Vote, block_hash, open_block, open_header
from ledger.effects import Executed, Finality, Restored
from ledger.epochs import Epoch
from ledger.replica import Replica
from ledger.rules import Rules
from tests.sim.weaken import Patch, allow


def any_height(patch: Patch) -> None:
    """Accept a height that does not follow from the parent's."""

    def check(header: ledger.block.Header, parent: ledger.effects.Tip, epoch: Epoch) -> None:
        original(msgspec.structs.replace(header, height=parent.height + 1), parent, epoch)

    original = ledger.chain.check_follows
    patch.setattr(ledger.chain, "check_follows", check)


def any_epoch(patch: Patch) -> None:
    """Accept a block that names another epoch."""

    def on_proposal(self: Replica, peer: str, proposal: Proposal) -> None:
        header = open_header(bytes(proposal.header), self.network)
        if not self._proposals.wants(header.slot, block_hash(bytes(proposal.header)), None):
            return
        block = open_block(proposal, self.network, self._quorum.leader(header.slot))
        self._proposals.add(block, self._now)
        self._send_all(block.raw, peer)

    patch.setattr(Replica, "_on_proposal", on_proposal)
    allow("is of epoch")(patch)


def any_beacon(patch: Patch) -> None:
    """Accept a beacon that does not follow from the parent's and a VRF proof."""
    patch.setattr(ledger.block, "verify_beacon", lambda header, beacon: None)


def any_time(patch: Patch) -> None:
    """Vote for blocks from the future."""
    patch.setattr(ledger.limits, "MAX_CLOCK_AHEAD_MS", 10**12)


# ---- epochs


def earlier_set(patch: Patch) -> None:
    """Take the next epoch's set from the state before the boundary block."""

    def split(path: Sequence[Executed], epoch: Epoch, genesis: Genesis, rules: Rules) -> Finality:
        finality = original(path, epoch, genesis, rules)
        if finality.next is None:
            return finality
        return dataclasses.replace(finality, next=dataclasses.replace(finality.next, validators=epoch.validators))

    original = ledger.chain.split
    patch.setattr(ledger.chain, "split", split)


def root_at_closing_block(patch: Patch) -> None:
    """Begin the next epoch on the last closing block."""

    def split(path: Sequence[Executed], epoch: Epoch, genesis: Genesis, rules: Rules) -> Finality:
        finality = original(path, epoch, genesis, rules)
        return dataclasses.replace(finality, blocks=tuple(path), closing=()) if finality.closing else finality

    original = ledger.chain.split
    patch.setattr(ledger.chain, "split", split)


def no_change_limit(patch: Patch) -> None:
    """Let the whole set change in one epoch."""
    patch.setattr(contracts.epochs, "compute_change_limit", lambda members: 100)


def no_boundary(patch: Patch) -> None:
    """Put entries into blocks beyond the boundary block and execute them."""

    def transition(parent: Any, entries: Any, context: Any, epoch: Epoch, rules: Rules) -> Any:
        return rules.apply_block(parent.state, entries, context)

    patch.setattr(ledger.chain, "_transition", transition)


# ---- evidence


def look_away(patch: Patch) -> None:
    """Accuse nobody."""
    patch.setattr(ledger.watch.Watch, "catch", lambda self, statement: None)


def forget_evidence(patch: Patch) -> None:
    """Do not report again after a restart what the ledger does not hold yet."""

    def rebuild(self: Replica, restored: Restored) -> None:
        original(self, dataclasses.replace(restored, evidence=()))

    original = Replica._rebuild
    patch.setattr(Replica, "_rebuild", rebuild)


def convict_the_honest(patch: Patch) -> None:
    """Call it an equivocation to notarize a block and to skip its slot."""

    def is_equivocation(first: Statement, second: Statement) -> bool:
        if isinstance(first, Vote) and isinstance(second, Vote) and {first.kind, second.kind} == {NOTAR, SKIP}:
            same = (first.voter, first.epoch, first.slot) == (second.voter, second.epoch, second.slot)
            if same:
                return True
        return statements.is_equivocation(first, second)

    patch.setattr(ledger.watch, "is_equivocation", is_equivocation)
    patch.setattr(contracts.validators, "is_equivocation", is_equivocation)
