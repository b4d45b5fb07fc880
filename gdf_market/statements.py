"""What validators sign while they agree on blocks: headers and votes, and when two of them convict their signer.

Rules kept here:
1. A vote signs (network, epoch, kind, slot, hash); a header is signed by its proposer.  Both name their signer.
2. Two statements are an equivocation exactly when no validator that follows the rules could have signed both, whatever
   it received and whenever it crashed: votes and proposals are durable before they are sent.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gdf_market import identity
from gdf_market.codec import AccountId, Hash, Record, Signature, UInt, VrfProof, digest, encode
from gdf_market.errors import MalformedError, ensure

NOTAR, SKIP, FINAL = "notar", "skip", "final"
KINDS = (NOTAR, SKIP, FINAL)

Kind = Annotated[str, msgspec.Meta(pattern=r"\A(notar|skip|final)\Z")]
VotedHash = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]  # "" in a skip vote


class Header(Record, frozen=True, kw_only=True):
    """What the proposer signs and everything else in the block follows from."""

    network: Hash
    height: UInt
    slot: UInt
    epoch: UInt
    parent: Hash  # the network id for the first block
    parent_slot: UInt
    proposer: AccountId
    time_ms: UInt
    entries_root: Hash
    entry_count: UInt
    state_root: Hash  # after this block
    validators: Hash  # of the set that agrees on the block after this one (``set_hash``)
    beacon: Hash
    vrf_proof: VrfProof


class Message(Record, frozen=True, kw_only=True, tag_field="type"):
    """Base of everything that travels between ledgers; one canonical record per message."""


class Vote(Message, frozen=True, kw_only=True, tag="vote"):
    """One validator's vote of one kind in one slot."""

    epoch: UInt
    kind: Kind
    slot: UInt
    hash: VotedHash
    voter: AccountId
    sig: Signature


class SignedHeader(Message, frozen=True, kw_only=True, tag="header"):
    """A proposer's signature over a header, without the entries."""

    header: Header
    sig: Signature


Statement = Vote | SignedHeader


class Ballot(Record, frozen=True, kw_only=True):
    """The bytes a vote's signature covers (with the network id as their domain)."""

    epoch: UInt
    hash: VotedHash
    kind: Kind
    slot: UInt


def block_hash(header_bytes: bytes) -> str:
    """Return the hex hash that names a block."""
    return digest("gdf/block", header_bytes).hex()


def set_hash(validators: tuple[str, ...]) -> str:
    """Return the hex hash of an ordered validator set."""
    return digest("gdf/validators", encode(list(validators))).hex()


def ballot(vote: Vote) -> bytes:
    """Return the bytes that a vote's signature covers."""
    return encode(Ballot(epoch=vote.epoch, hash=vote.hash, kind=vote.kind, slot=vote.slot))


def verify_vote(vote: Vote, network: str) -> None:
    """Raise SignatureError unless the vote's signature holds, MalformedError for a hash that its kind forbids."""
    ensure((vote.kind == SKIP) == (vote.hash == ""), MalformedError(f"a {vote.kind} vote for {vote.hash!r}"))
    identity.verify(network, "vote", vote.voter, ballot(vote), bytes.fromhex(vote.sig))


def verify_statement(statement: Statement, network: str) -> None:
    """Raise MalformedError or SignatureError unless its signer signed a statement in this network."""
    if isinstance(statement, Vote):
        verify_vote(statement, network)
        return
    header = statement.header
    ensure(header.network == network, MalformedError(f"header of network {header.network}, this is {network}"))
    identity.verify(network, "block", header.proposer, encode(header), bytes.fromhex(statement.sig))


def signer(statement: Statement) -> str:
    """Return whose statement it is."""
    return statement.voter if isinstance(statement, Vote) else statement.header.proposer


def place(statement: Statement) -> tuple[int, int]:
    """Return the (epoch, slot) that a statement is about."""
    at = statement if isinstance(statement, Vote) else statement.header
    return at.epoch, at.slot


def is_equivocation(first: Statement, second: Statement) -> bool:
    """Say whether two statements, whose signatures hold, convict their signer.

    Two votes of one kind for different blocks of one slot; a vote to finalize a block and a vote to skip its slot, or
    to notarize another block of it; two different headers for one slot.
    """
    if signer(first) != signer(second) or place(first) != place(second):
        return False
    if isinstance(first, SignedHeader) and isinstance(second, SignedHeader):
        return first.header != second.header
    if isinstance(first, Vote) and isinstance(second, Vote):
        kinds = {first.kind, second.kind}
        if kinds == {SKIP, FINAL}:
            return True
        return SKIP not in kinds and first.hash != second.hash  # NOTAR and FINAL of one slot name one block
    return False
