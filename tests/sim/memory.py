"""What LedgerStore promises, in memory, and a disk that breaks that promise."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.records import Genesis
from gdf_market.codec import encode
from ledger import wire
from ledger.block import Certificate, Proposal
from ledger.chain import genesis_tip
from ledger.effects import (
    DropEvidence,
    Executed,
    Prune,
    Restored,
    SaveBlocks,
    SaveCandidate,
    SaveEvidence,
    SaveSnapshot,
    SaveVote,
    Tip,
    Write,
)
from ledger.epochs import Epoch, epoch_after
from ledger.handover import SignedLink
from ledger.limits import MAX_LINKS, RECORD_PART_CHARS
from ledger.links import Link
from ledger.rules import Rules

PAGE_RECORDS = 10  # of a snapshot in one message: few, so that there are several


class InvariantError(AssertionError):
    """Honest nodes disagree, or one of them broke a rule."""


class MemoryStore:
    """A Save is all there or not at all, and survives a crash."""

    def __init__(self, genesis: Genesis, rules: Rules) -> None:
        self.genesis = genesis
        self.tip = genesis_tip(genesis, rules)
        self.votes: dict[tuple[int, int, str], bytes] = {}
        self.candidates: dict[str, SaveCandidate] = {}
        self.evidence: dict[tuple[str, int], bytes] = {}
        self.blocks: list[tuple[Executed, Certificate | None]] = []  # from ``oldest`` on
        self.oldest = 1
        self.links: list[SignedLink] = []  # of every epoch that ended
        self.boundary: Tip | None = None  # the last block of an epoch, and the state after it
        self.closing: dict[int, tuple[tuple[Proposal, ...], Certificate]] = {}  # by height of the boundary block
        self.epochs: list[Epoch] = [epoch_after(genesis, 0, self.tip.state, rules)]

    def save(self, writes: Sequence[Write]) -> None:
        """Carry out one Save."""
        for write in writes:
            match write:
                case SaveVote(vote):
                    place = vote.epoch, vote.slot, vote.kind
                    if place in self.votes:
                        raise InvariantError(f"second {vote.kind} vote of {vote.voter} in slot {vote.slot}")
                    self.votes[place] = encode(vote)
                case SaveCandidate():
                    self.candidates.setdefault(write.id, write)
                case SaveBlocks():
                    self._append(write)
                    self._advance(write)
                case SaveSnapshot():
                    self._begin_at(write)
                case Prune(before):
                    self.blocks = self.blocks[before - self.oldest :]
                    self.oldest = before
                case SaveEvidence(accused, epoch, raw):
                    self.evidence[accused, epoch] = raw
                case DropEvidence(accused, epoch):
                    self.evidence.pop((accused, epoch), None)

    def _append(self, write: SaveBlocks) -> None:
        certified = write.blocks[-1] if not write.closing else None
        self.blocks += [(each, write.certificate if each is certified else None) for each in write.blocks]
        if write.closing:
            proposals = tuple(msgspec.json.decode(block.raw, type=Proposal) for block in write.closing)
            self.closing[write.blocks[-1].tip.height] = proposals, write.certificate

    def _advance(self, write: SaveBlocks) -> None:
        self.tip = write.blocks[-1].tip
        if write.next is not None:
            self.votes, self.candidates = {}, {}
            self.epochs.append(write.next)
            self.boundary = self.tip
            self.links.append(self._link(write))
            return
        self.votes = {place: raw for place, raw in self.votes.items() if place[1] > self.tip.slot}
        self.candidates = {name: each for name, each in self.candidates.items() if each.slot > self.tip.slot}

    def _link(self, write: SaveBlocks) -> SignedLink:
        boundary, after = write.blocks[-1].block, write.next
        assert after is not None
        members = after.validators if after.validators != self.epochs[-2].validators else ()
        link = Link(
            header=msgspec.Raw(boundary.header_bytes),
            closing=tuple(msgspec.Raw(block.header_bytes) for block in write.closing),
            certificate=write.certificate,
            validators=members,
        )
        return SignedLink(link=link, sigs=(boundary.signature, *(block.signature for block in write.closing)))

    def _begin_at(self, write: SaveSnapshot) -> None:
        self.tip = self.boundary = write.tip
        self.votes, self.candidates, self.blocks = {}, {}, []
        self.oldest = write.tip.height + 1
        self.epochs = [self.epochs[0], *(each.next for each in write.handovers)]
        self.links = [
            SignedLink(link=each.link, sigs=(each.sig, *(block.sig for block in each.closing)))
            for each in write.handovers
        ]

    def check(self) -> None:
        """Raise InvariantError unless blocks, state and epoch records are of one moment."""
        last = self.blocks[-1][0].tip.height if self.blocks else self.oldest - 1
        if not last == self.tip.height == self.oldest + len(self.blocks) - 1:
            raise InvariantError(f"after a crash the disk holds block {last} and the state of {self.tip.height}")
        if len(self.epochs) - 1 != self.tip.height // self.genesis.staking.epoch_blocks:
            raise InvariantError(f"after a crash the disk holds block {last} and {len(self.epochs)} epochs")

    def restored(self) -> Restored:
        """Return what a replica continues from."""
        candidates = sorted(self.candidates.values(), key=lambda each: (each.slot, each.id))
        return Restored(
            self.genesis,
            self.tip,
            tuple(self.votes.values()),
            tuple(each.raw for each in candidates),
            tuple(self.evidence.values()),
            self.oldest,
        )

    def sync_messages(self, height: int) -> list[bytes]:
        """Return the answer to a sync request: at most 16 blocks, at most four of them in a message."""
        first = height - self.oldest
        chosen = self.blocks[first : first + 16] if first >= 0 else []
        items = [item for each in chosen for item in self._sync_blocks(*each)]
        groups = [tuple(items[start : start + 4]) for start in range(0, len(items), 4)]
        return [
            encode(wire.SyncResponse(blocks=group, more=index + 1 < len(groups))) for index, group in enumerate(groups)
        ]

    def _sync_blocks(self, executed: Executed, certificate: Certificate | None) -> list[wire.SyncBlock]:
        block = msgspec.json.decode(executed.block.raw, type=Proposal)
        closing, last = self.closing.get(executed.tip.height, ((), None))
        return [
            wire.SyncBlock(block=block, certificate=certificate),
            *(wire.SyncBlock(block=each, certificate=last if each is closing[-1] else None) for each in closing),
        ]

    def links_message(self, epoch: int) -> bytes:
        """Return the answer to a request for links."""
        return encode(wire.Links(epoch=epoch, links=tuple(self.links[epoch : epoch + MAX_LINKS])))

    def snapshot_message(self, key: str, part: int) -> bytes:
        """Return a page of the last boundary block's state: what follows the first ``part`` parts of ``key``."""
        records = self.boundary.state.records if self.boundary is not None else {}
        parts: list[wire.SnapshotRecord] = []
        for name in sorted(records):
            text = encode(records[name]).decode()
            kind = type(records[name]).__name__.lower()
            pieces = [text[at : at + RECORD_PART_CHARS] for at in range(0, len(text), RECORD_PART_CHARS)]
            for index, piece in enumerate(pieces):
                if (name, index) >= (key, part):
                    more = index + 1 < len(pieces)
                    parts.append(wire.SnapshotRecord(key=name, kind=kind, value=piece, more=more))
        height = self.boundary.height if self.boundary is not None else 0
        done = len(parts) <= PAGE_RECORDS
        page = wire.SnapshotPage(height=height, key=key, part=part, records=tuple(parts[:PAGE_RECORDS]), done=done)
        return encode(page)


class TornStore(MemoryStore):
    """A disk on which a Save of blocks can break off between the blocks and the state and epoch after them."""

    tear = False  # set for the Save during which the node crashes

    def save(self, writes: Sequence[Write]) -> None:
        if not self.tear:
            super().save(writes)
            return
        for write in writes:
            if isinstance(write, SaveBlocks):
                self._append(write)
                return
            super().save([write])
