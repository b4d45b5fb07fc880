"""The ends of epochs as they are stored and sent: links of the chain of sets with the signatures of their proposers.

A light client needs the links alone (ledger/links.py); a node that starts from a snapshot stores the boundary blocks
and hands them on, so it checks these signatures as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from gdf_market import identity
from gdf_market.codec import Record, Signature
from gdf_market.errors import MalformedError, ensure
from ledger.block import Header, Proposal, open_header
from ledger.epochs import Epoch
from ledger.links import MAX_CLOSING, Link, SetChain


class SignedLink(Record, frozen=True, kw_only=True):
    """A link, and the proposers' signatures over its header and its closing headers."""

    link: Link
    sigs: Annotated[tuple[Signature, ...], msgspec.Meta(min_length=1, max_length=1 + MAX_CLOSING)]


@dataclass(frozen=True)
class Handover:
    """A checked link: the boundary block, the closing blocks, and the epoch that begins with the next block."""

    link: Link
    header: Header
    hash: str
    sig: str
    closing: tuple[Proposal, ...]
    next: Epoch


def follow(chain: SetChain, signed: SignedLink, network: str) -> Handover:
    """Check the link that ends the chain's epoch and go on to the next one.

    Raises MalformedError or SignatureError; ``chain`` stays where it is then.
    """
    link, epoch = signed.link, chain.epoch
    raws = [bytes(raw) for raw in (link.header, *link.closing)]
    headers = [open_header(raw, network) for raw in raws]
    ensure(
        len(signed.sigs) == len(raws),
        MalformedError(f"{len(signed.sigs)} signatures for {len(raws)} headers at the end of epoch {epoch.number}"),
    )
    for raw, header, sig in zip(raws, headers, signed.sigs, strict=True):
        leader = epoch.leader(header.slot)
        ensure(
            header.proposer == leader,
            MalformedError(f"slot {header.slot} belongs to {leader}, not to {header.proposer}"),
        )
        identity.verify(network, "block", leader, raw, bytes.fromhex(sig))
    chain.take(link)
    assert chain.boundary is not None
    closing = tuple(
        Proposal(header=raw, sig=sig, entries=()) for raw, sig in zip(link.closing, signed.sigs[1:], strict=True)
    )
    return Handover(link, headers[0], chain.boundary.hash, signed.sigs[0], closing, chain.epoch)
