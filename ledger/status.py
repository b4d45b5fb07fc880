"""The heartbeat that makes agreement survive lost messages: say what you hold, and be sent what you lack."""

from __future__ import annotations

from gdf_market.codec import encode
from ledger import limits
from ledger.block import FINAL, KINDS, NOTAR, SKIP, Certificate
from ledger.proposals import Proposals
from ledger.quorum import Quorum
from ledger.wire import MAX_VOTE_SLOTS, Status, VotesSeen, bitmap, in_bitmap


def make_status(network: str, height: int, oldest: int, quorum: Quorum, proposals: Proposals) -> Status:
    """Describe what a node holds above its last finalized block."""
    return Status(
        network=network,
        epoch=quorum.epoch.number,
        height=height,
        slot=quorum.root.slot,
        oldest=oldest,
        snapshot=quorum.epoch.first - 1,
        frontier=quorum.frontier,
        notarized=tuple(sorted(quorum.notarized)[-limits.SLOT_WINDOW :]),
        skipped=tuple(sorted(quorum.skipped)[-limits.SLOT_WINDOW :]),
        blocks=tuple(block.hash for block in proposals)[-2 * limits.SLOT_WINDOW :],
        votes=_votes_seen(quorum),
    )


def _votes_seen(quorum: Quorum) -> tuple[VotesSeen, ...]:
    seats = {account: index for index, account in enumerate(quorum.validators)}
    first = max(quorum.root.slot + 1, quorum.frontier + 1 - MAX_VOTE_SLOTS)
    return tuple(
        VotesSeen(slot=slot, **{kind: bitmap(seats[voter] for voter in quorum.voters(slot, kind)) for kind in KINDS})
        for slot in range(first, quorum.frontier + 1)
    )


def missing_for(status: Status, quorum: Quorum, proposals: Proposals) -> list[bytes]:
    """Return what a peer with the same last finalized block lacks: certificates, then blocks, then votes."""
    return [
        *_certificates(status, quorum),
        *_blocks(status, quorum, proposals),
        *_votes(status, quorum),
    ]


def _certificates(status: Status, quorum: Quorum) -> list[bytes]:
    missing: list[Certificate] = [quorum.final] if quorum.final is not None else []
    notarized, skipped = set(status.notarized), set(status.skipped)
    missing += [quorum.notarized[slot] for slot in sorted(quorum.notarized) if slot not in notarized]
    missing += [quorum.skipped[slot] for slot in sorted(quorum.skipped) if slot not in skipped]
    return [encode(certificate) for certificate in missing[: limits.SLOT_WINDOW]]


def _blocks(status: Status, quorum: Quorum, proposals: Proposals) -> list[bytes]:
    held = set(status.blocks)
    missing = []
    for block in proposals:
        certificate = quorum.certificate(NOTAR, block.header.slot) or quorum.certificate(FINAL, block.header.slot)
        needed = certificate is not None and certificate.hash == block.hash
        if block.hash not in held and (needed or block.header.slot >= status.frontier):
            missing.append(block.raw)
    return missing[: limits.HELP_BLOCKS]


def _votes(status: Status, quorum: Quorum) -> list[bytes]:
    certified = {NOTAR: set(status.notarized), SKIP: set(status.skipped), FINAL: set()}
    missing = []
    for seen in status.votes:
        for kind in KINDS:
            held = getattr(seen, kind)
            if seen.slot in certified[kind] or quorum.certificate(kind, seen.slot) is not None:
                continue  # the peer is past it, or was sent the certificate
            voters = quorum.voters(seen.slot, kind)
            for seat, voter in enumerate(quorum.validators):
                if voter in voters and not in_bitmap(held, seat):
                    missing.append(encode(voters[voter]))
    return missing[: limits.HELP_VOTES]
