"""Each rule of agreement, removed: functions that patch one rule out of the ledger."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import ledger.block
import ledger.chain
import ledger.effects
import ledger.envelopes
import ledger.handover
import ledger.limits
import ledger.links
import ledger.quorum
import ledger.replica
import ledger.snapshot
import ledger.sync
import ledger.watch
from gdf_market import identity, statements
from gdf_market.messages import Entry, open_entry
from ledger.block import FINAL, NOTAR, SKIP, Certificate, Vote
from ledger.effects import Restored, SaveCandidate, Write
from ledger.proposals import Proposals
from ledger.quorum import Decision, Position, Quorum
from ledger.replica import Replica

CHECKING = (
    ledger.block,
    ledger.chain,
    ledger.handover,
    ledger.links,
    ledger.replica,
    ledger.snapshot,
    ledger.sync,
)
Patch = pytest.MonkeyPatch
Mutate = Callable[[Patch], None]

# ---- checks that are an ``ensure`` each


def allow(*texts: str) -> Mutate:
    """Return the mutation in which no check refuses what its error says with one of these texts."""

    def mutate(patch: Patch) -> None:
        for module in CHECKING:
            patch.setattr(module, "ensure", functools.partial(_lenient, module.ensure))

    def _lenient(original: Callable[[bool, Exception], None], condition: bool, error: Exception) -> None:
        if not any(text in str(error) for text in texts):
            original(condition, error)

    return mutate


def both(*mutations: Mutate) -> Mutate:
    """Return several mutations at once."""

    def mutate(patch: Patch) -> None:
        for each in mutations:
            each(patch)

    return mutate


# ---- votes


def keep_every_sibling(patch: Patch) -> None:
    """Keep all blocks of a slot: a node that keeps the first alone would hide other mistakes."""
    patch.setattr(Proposals, "wants", lambda self, slot, hash_, certified: self.get(slot, hash_) is None)


def notarize_twice(patch: Patch) -> None:
    """Vote for every valid block of a slot."""

    def decisions(self: Quorum) -> Iterator[Decision]:
        yield from original(self)
        voted: set[str] = self.__dict__.setdefault("voted", set())
        for slot in sorted(self._blocks):
            for hash_, parent in self._blocks[slot].items():
                if self.me is not None and hash_ not in voted and self.stands_on(slot, parent):
                    voted.add(hash_)
                    yield Decision(NOTAR, slot, hash_)

    original = Quorum.decisions
    patch.setattr(Quorum, "decisions", decisions)
    keep_every_sibling(patch)
    patch.setattr(Quorum, "wants_vote", lambda self, vote: vote.voter in self.validators and self.in_window(vote.slot))


def finalize_after_skip(patch: Patch) -> None:
    """Vote to finalize a slot that one voted to skip."""

    def may_finalize(self: Quorum, slot: int, hash_: str) -> bool:
        return self.me is not None and self.own_vote(FINAL, slot) is None and self.own_vote(NOTAR, slot) == hash_

    patch.setattr(Quorum, "may_finalize", may_finalize)


def finalize_unseen(patch: Patch) -> None:
    """Vote to finalize what others notarized, whatever one notarized oneself."""

    def may_finalize(self: Quorum, slot: int, hash_: str) -> bool:
        return self.me is not None and self.own_vote(FINAL, slot) is None and self.own_vote(SKIP, slot) is None

    patch.setattr(Quorum, "may_finalize", may_finalize)


def skip_after_final(patch: Patch) -> None:
    """Vote to skip a slot that was passed, though one voted to finalize it."""

    def skip(self: Replica) -> bool:
        slot = self._quorum.frontier - 1
        if original(self):
            return True
        if self._key is None or slot <= self._quorum.root.slot or self._quorum.own_vote(SKIP, slot) is not None:
            return False
        self._cast(SKIP, slot, "")
        return True

    original = Replica._skip
    patch.setattr(Replica, "_skip", skip)


def parent_not_notarized(patch: Patch) -> None:
    """Vote for a block whose parent no quorum notarized."""

    def stands_on(self: Quorum, slot: int, parent: Position) -> bool:
        return self.root.slot <= parent.slot < slot and all(
            between in self.skipped for between in range(parent.slot + 1, slot)
        )

    patch.setattr(Quorum, "stands_on", stands_on)
    keep_every_sibling(patch)


def no_skip_certificates(patch: Patch) -> None:
    """Vote for a block that passes over slots which no quorum skipped."""

    def stands_on(self: Quorum, slot: int, parent: Position) -> bool:
        return self.root.slot <= parent.slot < slot and self.is_notarized(parent)

    patch.setattr(Quorum, "stands_on", stands_on)


def propose_twice(patch: Patch) -> None:
    """Propose again in a slot where nothing happened for a while."""

    def propose(self: Replica) -> bool:
        slot = self._quorum.frontier
        if original(self):
            self.__dict__["proposed"] = slot, self._now
            return True
        last, at_ms = self.__dict__.get("proposed", (0, 0))
        if last != slot or self._now < at_ms + 200 or self._parent is None:
            return False
        self.__dict__["proposed"] = slot, self._now
        assert self._key is not None
        executed, _ = self._chain.propose(self._key, self._parent, slot, self._now, [])
        self._send_all(executed.block.raw)
        return False

    original = Replica._propose
    patch.setattr(Replica, "_propose", propose)


def propose_before_voting(patch: Patch) -> None:
    """Send a proposal in one step and make it durable, with the vote for it, in a later one."""

    def step(self: Replica, event: Any, now_ms: int) -> Any:
        self.__dict__["fresh"] = None
        return original_step(self, event, now_ms)

    def propose(self: Replica) -> bool:
        proposed = original_propose(self)
        if proposed:
            self.__dict__["fresh"] = self._quorum.frontier
        return proposed

    def decisions(self: Quorum) -> Iterator[Decision]:
        for decision in original_decisions(self):
            if decision.kind != NOTAR or decision.slot != self.__dict__.get("fresh"):
                yield decision

    def vote(self: Replica) -> bool:
        self._quorum.__dict__["fresh"] = self.__dict__.get("fresh")
        return original_vote(self)

    original_step, original_propose, original_vote = Replica.step, Replica._propose, Replica._vote
    original_decisions = Quorum.decisions
    patch.setattr(Replica, "step", step)
    patch.setattr(Replica, "_propose", propose)
    patch.setattr(Replica, "_vote", vote)
    patch.setattr(Quorum, "decisions", decisions)
    patch.setattr(Replica, "_leads", _leads_unless_fresh)


def _leads_unless_fresh(self: Replica) -> bool:
    slot = self._quorum.frontier
    return (
        self._key is not None
        and self._quorum.leader(slot) == self._key.account
        and self._quorum.own_vote(NOTAR, slot) is None
        and not self._proposals.at(slot)
    )


# ---- what is durable


def forget_votes(patch: Patch) -> None:
    """Begin after a restart as if one had not voted."""

    def rebuild(self: Replica, restored: Restored) -> None:
        original(self, dataclasses.replace(restored, votes=()))

    original = Replica._rebuild
    patch.setattr(Replica, "_rebuild", rebuild)


def forget_blocks(patch: Patch) -> None:
    """Do not keep the blocks that one voted for."""

    def step(self: Replica, event: Any, now_ms: int) -> Any:
        effects = original(self, event, now_ms)
        return [
            dataclasses.replace(each, writes=_without_blocks(each.writes))
            if isinstance(each, ledger.effects.Save)
            else each
            for each in effects
        ]

    original = Replica.step
    patch.setattr(Replica, "step", step)


def _without_blocks(writes: Sequence[Write]) -> tuple[Write, ...]:
    return tuple(each for each in writes if not (isinstance(each, SaveCandidate) and each.kind == "block"))


def nothing(patch: Patch) -> None:
    """The fault is the disk's or the shell's, not the replica's."""


# ---- quorums


def small_quorum(patch: Patch) -> None:
    """A threshold that only looks like two thirds."""
    for module in (ledger.block, ledger.quorum):
        patch.setattr(module, "quorum_size", lambda validators: 2 * validators // 3)


def count_outsiders(patch: Patch) -> None:
    """Count votes of accounts that are in no seat."""

    def certify(votes: Sequence[Vote], validators: Sequence[str]) -> Certificate:
        return original([vote for vote in votes if vote.voter in validators], validators)

    def wants_vote(self: Quorum, vote: Vote) -> bool:
        return self.in_window(vote.slot) and vote.voter not in self.voters(vote.slot, vote.kind)

    original = ledger.block.certify
    patch.setattr(ledger.quorum, "certify", certify)
    patch.setattr(Quorum, "wants_vote", wants_vote)
    allow("who is no validator")(patch)


def first_set_for_ever(patch: Patch) -> None:
    """Check certificates against the set of the genesis."""

    def verify(certificate: Certificate, network: str, validators: Sequence[str], epoch: int) -> None:
        original(certificate, network, first.setdefault(network, validators), epoch)

    first: dict[str, Sequence[str]] = {}
    original = ledger.block.verify_certificate
    for module in (ledger.replica, ledger.sync):
        patch.setattr(module, "verify_certificate", verify)


def unsigned_certificates(patch: Patch) -> None:
    """Believe a certificate whose signatures do not hold."""
    _trust(patch, "vote")


def unsigned_blocks(patch: Patch) -> None:
    """Believe a block whose signature does not hold."""
    _trust(patch, "block")


def _trust(patch: Patch, trusted: str) -> None:
    def verify(network: str, kind: str, account: str, message: bytes, signature: bytes) -> None:
        if kind != trusted:
            identity.verify(network, kind, account, message, signature)

    believing = SimpleNamespace(verify=verify, public_key=identity.public_key, Identity=identity.Identity)
    patch.setattr(ledger.block, "identity", believing)


def unsigned_votes(patch: Patch) -> None:
    """Believe a vote whose signature does not hold."""
    patch.setattr(ledger.replica, "verify_vote", lambda vote, network: None)


def unsigned_entries(patch: Patch) -> None:
    """Execute entries whose signatures do not hold."""

    def opened(raw: bytes, network: str, *, check_signature: bool = True) -> Entry:
        return open_entry(raw, network, check_signature=False)

    for module in (ledger.chain, ledger.envelopes):
        patch.setattr(module, "open_entry", opened)


def no_epoch_in_votes(patch: Patch) -> None:
    """Sign votes without their epoch."""

    def unplaced(**fields: Any) -> statements.Ballot:
        return original(**{**fields, "epoch": 0})

    original = statements.Ballot
    for module in (statements, ledger.block):
        patch.setattr(module, "Ballot", unplaced)


def certificates_of_any_epoch(patch: Patch) -> None:
    """Take certificates of other epochs for ones of this epoch."""

    def on_certificate(self: Replica, peer: str, certificate: Certificate, data: bytes) -> None:
        if not self._quorum.wants_certificate(certificate):
            return
        ledger.block.verify_certificate(certificate, self.network, self._quorum.validators, certificate.epoch)
        self._quorum.add_certificate(certificate)
        self._save_certificate(certificate, data)
        self._send_all(data, peer)

    patch.setattr(Replica, "_on_certificate", on_certificate)
