"""The chain of validator sets, without the blocks between: what a light client or a snapshot needs of each epoch.

Rules kept here:
1. The first set is the genesis's.  The next one is committed to by the header of the epoch's boundary block, which a
   finalize certificate of the set in force covers: itself, or the last of the closing blocks on it.
2. Nothing of a link is believed before all of it was checked against the set before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from contracts.records import Genesis
from gdf_market import identity
from gdf_market.codec import AccountId, Record, Signature
from gdf_market.errors import MalformedError, ensure
from gdf_market.statements import Header, block_hash, set_hash
from ledger.block import FINAL, Certificate, Proposal, open_block, open_header, verify_certificate
from ledger.epochs import Epoch
from ledger.limits import MAX_CLOSING, MAX_VALIDATORS

ValidatorSet = Annotated[tuple[AccountId, ...], msgspec.Meta(max_length=MAX_VALIDATORS)]


class Link(Record, frozen=True, kw_only=True):
    """The end of one epoch; ``validators`` is the next set, empty if it is the same as before."""

    header: msgspec.Raw  # of the boundary block
    sig: Signature  # its proposer's
    closing: Annotated[tuple[Proposal, ...], msgspec.Meta(max_length=MAX_CLOSING)]
    certificate: Certificate
    validators: ValidatorSet


@dataclass(frozen=True)
class Handover:
    """A checked link: the boundary block, and the epoch that begins with the next block."""

    link: Link
    header: Header
    hash: str
    next: Epoch


def first_epoch(genesis: Genesis) -> Epoch:
    """Return epoch 0."""
    return Epoch(0, 1, genesis.staking.epoch_blocks, genesis.validators)


def follow(link: Link, network: str, epoch: Epoch) -> Handover:
    """Check the link that ends ``epoch``; raises MalformedError, OversizedError or SignatureError."""
    header_bytes = bytes(link.header)
    header = open_header(header_bytes, network)
    ensure(
        (header.height, header.epoch) == (epoch.last, epoch.number),
        MalformedError(f"block {header.height} of epoch {header.epoch} does not end epoch {epoch.number}"),
    )
    ensure(
        header.proposer == epoch.leader(header.slot),
        MalformedError(f"slot {header.slot} does not belong to {header.proposer}"),
    )
    identity.verify(network, "block", header.proposer, header_bytes, bytes.fromhex(link.sig))
    hash_ = block_hash(header_bytes)
    verify_final(link.certificate, network, epoch, header, hash_, link.closing)
    validators = link.validators or epoch.validators
    ensure(
        header.validators == set_hash(validators),
        MalformedError(f"the validators after block {header.height} are not those that its header names"),
    )
    blocks = epoch.last - epoch.first + 1
    return Handover(link, header, hash_, Epoch(epoch.number + 1, epoch.last + 1, epoch.last + blocks, validators))


def verify_final(
    certificate: Certificate, network: str, epoch: Epoch, header: Header, hash_: str, closing: Iterable[Proposal]
) -> None:
    """Raise unless ``certificate`` finalizes a block of ``epoch``: directly, or by the closing blocks on it."""
    for proposal in closing:
        block = open_block(proposal, network, epoch.leader(open_header(bytes(proposal.header), network).slot))
        after = block.header
        ensure(
            (after.epoch, after.height, after.parent, after.parent_slot, after.entry_count)
            == (epoch.number, header.height + 1, hash_, header.slot, 0)
            and after.height > epoch.last
            and after.slot > header.slot,
            MalformedError(f"block {after.height} of epoch {after.epoch} does not close epoch {epoch.number}"),
        )
        header, hash_ = after, block.hash
    ensure(
        (certificate.kind, certificate.slot, certificate.hash) == (FINAL, header.slot, hash_),
        MalformedError(f"the certificate is of {certificate.hash or 'a skipped slot'}, not of block {hash_}"),
    )
    verify_certificate(certificate, network, epoch.validators, epoch.number)
