"""Blocks, votes and certificates: their bytes, hashes and signatures.

Rules kept here:
1. A block's hash covers its header's exact bytes; the header covers the entries' exact bytes by their Merkle root.
2. A vote signs (network, epoch, kind, slot, hash); the voter is who verifies it.
3. A certificate is a quorum of distinct validators of the set it is checked against.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from gdf_market import identity, merkle, vrf
from gdf_market.codec import Signature, UInt, decode, digest, encode
from gdf_market.errors import MalformedError, OversizedError, SignatureError, ensure
from gdf_market.statements import (
    FINAL,
    KINDS,
    NOTAR,
    SKIP,
    Ballot,
    Header,
    Kind,
    Message,
    SignedHeader,
    Vote,
    VotedHash,
    block_hash,
    set_hash,
    verify_vote,
)
from ledger.limits import MAX_BLOCK_ENTRIES, MAX_BLOCK_ENTRY_BYTES, MAX_VALIDATORS

__all__ = [
    "FINAL",
    "KINDS",
    "NOTAR",
    "SKIP",
    "Header",
    "Message",
    "SignedHeader",
    "Vote",
    "block_hash",
    "set_hash",
    "verify_vote",
]

Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_VALIDATORS)]


class Proposal(Message, frozen=True, kw_only=True, tag="proposal"):
    """A block as it travels: header and entries keep their signed bytes."""

    header: msgspec.Raw
    sig: Signature
    entries: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_BLOCK_ENTRIES)]


class Certificate(Message, frozen=True, kw_only=True, tag="certificate"):
    """A quorum's signatures; ``signers`` are ascending positions in the validator set."""

    epoch: UInt
    kind: Kind
    slot: UInt
    hash: VotedHash
    signers: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_VALIDATORS)]
    sigs: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_VALIDATORS)]


@dataclass(frozen=True)
class Block:
    """A block whose entries match its header; ``raw`` are the bytes of its Proposal."""

    header: Header
    hash: str
    header_bytes: bytes
    signature: str
    entries: tuple[bytes, ...]
    raw: bytes


def genesis_beacon(network: str) -> str:
    """Return the beacon that the first block builds on (hex)."""
    return digest("gdf/genesis-beacon", bytes.fromhex(network)).hex()


def beacon_alpha(network: str, beacon: str, slot: int) -> bytes:
    """Return the VRF input of the proposer of ``slot`` on a block whose beacon is ``beacon``."""
    return digest("gdf/beacon", bytes.fromhex(network), bytes.fromhex(beacon), slot.to_bytes(8, "big"))


def next_beacon(beacon: str, beta: bytes) -> str:
    """Return H(beacon || VRF output)."""
    return digest("gdf/beacon-next", bytes.fromhex(beacon), beta).hex()


def entries_size(entries: Sequence[bytes]) -> int:
    """Return the bytes that entries take inside a message."""
    return sum(len(raw) + 1 for raw in entries)


def seal_block(key: identity.Identity, header: Header, entries: Sequence[bytes]) -> Block:
    """Sign a header over its entries."""
    header_bytes = encode(header)
    signature = key.sign(header.network, "block", header_bytes).hex()
    return assemble(header, header_bytes, signature, tuple(entries))


def assemble(header: Header, header_bytes: bytes, signature: str, entries: tuple[bytes, ...]) -> Block:
    """Return the block of parts whose agreement was checked before."""
    return Block(
        header, block_hash(header_bytes), header_bytes, signature, entries, pack(header_bytes, signature, entries)
    )


def pack(header_bytes: bytes, signature: str, entries: Sequence[bytes]) -> bytes:
    """Return the canonical Proposal bytes of a block's parts."""
    raw = tuple(msgspec.Raw(entry) for entry in entries)
    return encode(Proposal(header=msgspec.Raw(header_bytes), sig=signature, entries=raw))


def open_header(data: bytes, network: str) -> Header:
    """Decode a header of ``network``; raises MalformedError."""
    header = decode(data, Header)
    ensure(header.network == network, MalformedError(f"block of network {header.network}, this is {network}"))
    return header


def open_block(proposal: Proposal, network: str, leader: str | None = None) -> Block:
    """Check a block against itself: leader, signature, entry root, count and size.

    ``leader`` is who may propose in the slot (None: whoever the header names).
    Raises MalformedError, OversizedError or SignatureError.
    """
    header_bytes = bytes(proposal.header)
    header = open_header(header_bytes, network)
    ensure(
        leader is None or header.proposer == leader,
        MalformedError(f"slot {header.slot} belongs to {leader}, not to {header.proposer}"),
    )
    identity.verify(network, "block", header.proposer, header_bytes, bytes.fromhex(proposal.sig))
    entries = tuple(bytes(raw) for raw in proposal.entries)
    size = entries_size(entries)
    ensure(size <= MAX_BLOCK_ENTRY_BYTES, OversizedError(f"block with {size} bytes of entries"))
    ensure(
        header.entry_count == len(entries) and header.entries_root == merkle.root(entries).hex(),
        MalformedError(f"entries of block {header.height} do not match its header"),
    )
    return assemble(header, header_bytes, proposal.sig, entries)


def verify_beacon(header: Header, parent_beacon: str) -> None:
    """Raise SignatureError unless the header's VRF proof and beacon follow from the parent's beacon."""
    alpha = beacon_alpha(header.network, parent_beacon, header.slot)
    beta = vrf.verify(identity.public_key(header.proposer), alpha, bytes.fromhex(header.vrf_proof))
    ensure(
        header.beacon == next_beacon(parent_beacon, beta),
        SignatureError(f"beacon of block {header.height} does not follow from its proof"),
    )


def quorum_size(validators: int) -> int:
    """Return floor(2n/3) + 1: any two quorums share an honest validator while fewer than a third are not."""
    return 2 * validators // 3 + 1


def cast(key: identity.Identity, network: str, epoch: int, kind: str, slot: int, hash_: str) -> Vote:
    """Sign one vote."""
    ballot = encode(Ballot(epoch=epoch, hash=hash_, kind=kind, slot=slot))
    signature = key.sign(network, "vote", ballot).hex()
    return Vote(epoch=epoch, kind=kind, slot=slot, hash=hash_, voter=key.account, sig=signature)


def verify_certificate(certificate: Certificate, network: str, validators: Sequence[str], epoch: int) -> None:
    """Raise SignatureError or MalformedError unless a quorum of distinct ``validators`` signed."""
    signers, needed = certificate.signers, quorum_size(len(validators))
    ensure(certificate.epoch == epoch, MalformedError(f"certificate of epoch {certificate.epoch}, now {epoch}"))
    ensure(
        (certificate.kind == SKIP) == (certificate.hash == ""),
        MalformedError(f"a {certificate.kind} certificate for {certificate.hash!r}"),
    )
    ensure(
        len(signers) == len(certificate.sigs)
        and all(a < b for a, b in itertools.pairwise(signers))
        and all(signer < len(validators) for signer in signers),
        MalformedError("signers of a certificate are not distinct validators with a signature each"),
    )
    ensure(len(signers) >= needed, SignatureError(f"{len(signers)} signatures; {needed} are a quorum"))
    ballot = encode(
        Ballot(epoch=certificate.epoch, hash=certificate.hash, kind=certificate.kind, slot=certificate.slot)
    )
    for signer, signature in zip(signers, certificate.sigs, strict=True):
        identity.verify(network, "vote", validators[signer], ballot, bytes.fromhex(signature))


def certify(votes: Sequence[Vote], validators: Sequence[str]) -> Certificate:
    """Return the certificate of a quorum of agreeing, verified votes (the first ``quorum_size`` by position)."""
    position = {account: index for index, account in enumerate(validators)}
    chosen = sorted(votes, key=lambda vote: position[vote.voter])[: quorum_size(len(validators))]
    first = chosen[0]
    return Certificate(
        epoch=first.epoch,
        kind=first.kind,
        slot=first.slot,
        hash=first.hash,
        signers=tuple(position[vote.voter] for vote in chosen),
        sigs=tuple(vote.sig for vote in chosen),
    )
