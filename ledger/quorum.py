"""Simplex agreement (Chan and Pass, ePrint 2023/463) in its notarize / skip / finalize form: one epoch's votes.

Rules kept here (q = floor(2n/3) + 1; the root is the last finalized block and counts as notarized and final):
1. Frontier: the smallest slot above the root with neither a notarization nor a skip certificate, and above any
   finalization.
2. A block of slot s stands on a parent p < s that is notarized, and every slot in (p, s) is skip-certified.
3. NOTAR once per slot, for a block that was executed and satisfies 2.
4. FINAL(s, h) only if I voted NOTAR(s, h), h is notarized, and I did not vote SKIP(s).
5. SKIP(s) only at the frontier and only if I did not vote FINAL(s).
6. A FINAL certificate finalizes its block and all ancestors.
Signatures are checked before anything comes here; what is decided here is signed and made durable outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ledger.block import FINAL, NOTAR, SKIP, Certificate, Vote, certify, quorum_size
from ledger.epochs import Epoch
from ledger.limits import SLOT_WINDOW


@dataclass(frozen=True)
class Position:
    """A slot and the hash of the block in it."""

    slot: int
    hash: str


@dataclass(frozen=True)
class Decision:
    """A vote that the rules call for."""

    kind: str
    slot: int
    hash: str


class Quorum:
    """Votes, certificates and valid blocks above the last finalized block, as one validator (or observer) sees them."""

    def __init__(self, epoch: Epoch, me: str | None, root: Position) -> None:
        self.epoch = epoch
        self.validators = epoch.validators
        self.me = me if me in self.validators else None
        self.root = root
        self.notarized: dict[int, Certificate] = {}
        self.skipped: dict[int, Certificate] = {}
        self.final: Certificate | None = None  # the highest one above the root
        self.frontier = root.slot + 1
        self._votes: dict[int, dict[str, dict[str, Vote]]] = {}
        self._own: dict[tuple[str, int], str] = {}
        self._blocks: dict[int, dict[str, Position]] = {}  # slot -> hash -> parent; executed blocks only
        self._first_known = root.slot  # what happened in earlier slots is not known here
        self._alive: set[int] = set()  # recent finalized slots

    # ---- what others sent

    def leader(self, slot: int) -> str:
        """Return who may propose in a slot."""
        return self.epoch.leader(slot)

    def in_window(self, slot: int) -> bool:
        """Say whether votes, blocks and certificates of a slot are kept."""
        return self.root.slot < slot <= self.frontier + SLOT_WINDOW

    def voters(self, slot: int, kind: str) -> dict[str, Vote]:
        """Return the votes held of one kind in a slot, by voter."""
        return self._votes.get(slot, {}).get(kind, {})

    def certificate(self, kind: str, slot: int) -> Certificate | None:
        """Return the certificate held, if any."""
        if kind == FINAL:
            return self.final if self.final is not None and self.final.slot == slot else None
        return (self.notarized if kind == NOTAR else self.skipped).get(slot)

    def wants_vote(self, vote: Vote) -> bool:
        """Say whether a vote would be new; the first of a voter per slot and kind counts."""
        return (
            vote.voter in self.validators
            and self.in_window(vote.slot)
            and vote.voter not in self.voters(vote.slot, vote.kind)
        )

    def add_vote(self, vote: Vote) -> Certificate | None:
        """Count a verified vote; return the certificate it completes."""
        voters = self._votes.setdefault(vote.slot, {}).setdefault(vote.kind, {})
        voters.setdefault(vote.voter, vote)
        if vote.voter == self.me:
            self._own[vote.kind, vote.slot] = vote.hash
        agreeing = [other for other in voters.values() if other.hash == vote.hash]
        if len(agreeing) < quorum_size(len(self.validators)):
            return None
        certificate = certify(agreeing, self.validators)
        return certificate if self.add_certificate(certificate) else None

    def wants_certificate(self, certificate: Certificate) -> bool:
        """Say whether a certificate would tell something new."""
        if certificate.kind == FINAL:
            newest = self.final.slot if self.final is not None else self.root.slot
            return certificate.slot > newest
        return self.in_window(certificate.slot) and self.certificate(certificate.kind, certificate.slot) is None

    def add_certificate(self, certificate: Certificate) -> bool:
        """Keep a verified certificate; return whether it was new."""
        if not self.wants_certificate(certificate):
            return False
        if certificate.kind == FINAL:
            self.final = certificate
        else:
            (self.notarized if certificate.kind == NOTAR else self.skipped)[certificate.slot] = certificate
        self._advance()
        return True

    def add_block(self, block: Position, parent: Position) -> None:
        """Note a block that was executed on its parent and is valid."""
        if block.slot > self.root.slot:
            self._blocks.setdefault(block.slot, {})[block.hash] = parent

    # ---- what the rules allow me

    def own_vote(self, kind: str, slot: int) -> str | None:
        """Return the hash I voted for, or None if I did not vote."""
        return self._own.get((kind, slot))

    def is_notarized(self, block: Position) -> bool:
        """Say whether a block is the root or certified; a finalization implies a notarization."""
        if block == self.root:
            return True
        certificate = self.notarized.get(block.slot)
        if certificate is not None and certificate.hash == block.hash:
            return True
        return self.final is not None and (self.final.slot, self.final.hash) == (block.slot, block.hash)

    def stands_on(self, slot: int, parent: Position) -> bool:
        """Rule 2."""
        return (
            self.root.slot <= parent.slot < slot
            and self.is_notarized(parent)
            and all(between in self.skipped for between in range(parent.slot + 1, slot))
        )

    def may_notarize(self, slot: int) -> bool:
        """Rule 3, without the block."""
        return self.me is not None and self.own_vote(NOTAR, slot) is None

    def may_finalize(self, slot: int, hash_: str) -> bool:
        """Rule 4."""
        return (
            self.me is not None
            and self.own_vote(FINAL, slot) is None
            and self.own_vote(NOTAR, slot) == hash_
            and self.own_vote(SKIP, slot) is None
        )

    def may_skip(self, slot: int) -> bool:
        """Rule 5."""
        return (
            self.me is not None
            and slot == self.frontier
            and self.own_vote(SKIP, slot) is None
            and self.own_vote(FINAL, slot) is None
        )

    def decisions(self) -> Iterator[Decision]:
        """Yield the NOTAR and FINAL votes that the rules call for now; cast one, then ask again."""
        for slot in sorted(self.notarized):
            certificate = self.notarized[slot]
            if self.may_finalize(slot, certificate.hash):
                yield Decision(FINAL, slot, certificate.hash)
        for slot in sorted(self._blocks):
            if self.may_notarize(slot):
                for hash_, parent in self._blocks[slot].items():
                    if self.stands_on(slot, parent):
                        yield Decision(NOTAR, slot, hash_)

    def parent_for_proposal(self, is_executed: Callable[[str], bool]) -> Position | None:
        """Return the parent on which the frontier's leader builds; None while a notarized block is missing here."""
        for slot in range(self.frontier - 1, self.root.slot, -1):
            notarized = self.notarized.get(slot)
            if notarized is None and self.final is not None and self.final.slot == slot:
                notarized = self.final
            if notarized is not None and is_executed(notarized.hash):
                return Position(slot, notarized.hash)
            if slot not in self.skipped:
                return None
        return self.root

    # ---- progress

    def _advance(self) -> None:
        slot = max(self.frontier, self.root.slot + 1, self.final.slot + 1 if self.final is not None else 0)
        while slot in self.notarized or slot in self.skipped:
            slot += 1
        self.frontier = slot

    @property
    def unfinalized(self) -> int:
        """Slots between the last finalization and the frontier: how far time-outs have backed off."""
        newest = max(self.root.slot, self.final.slot if self.final is not None else 0)
        return self.frontier - 1 - newest

    def is_suspect(self, slot: int) -> bool:
        """Say whether the slot's leader let its previous slot pass; such a leader gets less time."""
        previous = slot - len(self.validators)
        if previous <= self.root.slot:
            return previous > self._first_known and previous not in self._alive
        return previous in self.skipped and previous not in self.notarized

    def finalize(self, blocks: Sequence[Position]) -> None:
        """Move the root to the last of newly finalized blocks (in order) and forget what is below it."""
        self.root = blocks[-1]
        recent = self.root.slot - 2 * len(self.validators)
        self._alive = {slot for slot in self._alive | {block.slot for block in blocks} if slot > recent}
        if self.final is not None and self.final.slot <= self.root.slot:
            self.final = None
        held: Sequence[dict[int, object]] = (self.notarized, self.skipped, self._votes, self._blocks)  # type: ignore[assignment]
        for mapping in held:
            for slot in [slot for slot in mapping if slot <= self.root.slot]:
                del mapping[slot]
        self._own = {key: hash_ for key, hash_ in self._own.items() if key[1] > self.root.slot}
        self._advance()
