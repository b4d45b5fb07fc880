"""Bytes, hashes and signatures of blocks, votes and certificates."""

from __future__ import annotations

import msgspec
import pytest

from gdf_market import merkle, vrf
from gdf_market.codec import MAX_MESSAGE_BYTES, decode, encode
from gdf_market.errors import MalformedError, OversizedError, PeerError, SignatureError
from ledger import limits, wire
from ledger.block import (
    FINAL,
    NOTAR,
    SKIP,
    Block,
    Certificate,
    Header,
    Proposal,
    beacon_alpha,
    block_hash,
    cast,
    certify,
    genesis_beacon,
    next_beacon,
    open_block,
    open_header,
    pack,
    quorum_size,
    seal_block,
    verify_beacon,
    verify_certificate,
    verify_vote,
)
from tests.simulator import key, transfer

NETWORK = "ab" * 32
HASH = "cd" * 32
SET = tuple(key(number).account for number in range(1, 5))


def make_block(entries: tuple[bytes, ...] = (), **changes: object) -> Block:
    proof = vrf.prove(key(1).seed, beacon_alpha(NETWORK, genesis_beacon(NETWORK), 1))
    header = Header(
        network=NETWORK,
        height=1,
        slot=1,
        epoch=0,
        parent=NETWORK,
        parent_slot=0,
        proposer=key(1).account,
        time_ms=1,
        entries_root=merkle.root(entries).hex(),
        entry_count=len(entries),
        state_root=HASH,
        validators=HASH,
        beacon=next_beacon(genesis_beacon(NETWORK), vrf.output(proof)),
        vrf_proof=proof.hex(),
    )
    return seal_block(key(1), msgspec.structs.replace(header, **changes), entries)


def proposal_of(block: Block) -> Proposal:
    message = wire.read(block.raw)
    assert isinstance(message, Proposal)
    return message


def entry_bytes(count: int) -> tuple[bytes, ...]:
    return tuple(transfer(NETWORK, key(1), key(2).account, nonce, 0).raw for nonce in range(count))


def test_a_block_survives_the_wire_byte_for_byte() -> None:
    block = make_block(entry_bytes(3))
    assert open_block(proposal_of(block), NETWORK, key(1).account) == block
    assert block.hash == block_hash(block.header_bytes)
    assert decode(block.header_bytes, Header) == block.header


def read_block(data: bytes) -> Block:
    message = wire.read(data)
    assert isinstance(message, Proposal)
    return open_block(message, NETWORK, key(1).account)


def test_every_altered_byte_of_a_block_is_refused() -> None:
    block = make_block(entry_bytes(1))
    for position in range(0, len(block.raw), 7):
        altered = block.raw[:position] + bytes([block.raw[position] ^ 1]) + block.raw[position + 1 :]
        with pytest.raises(PeerError):
            read_block(altered)


def test_a_block_of_another_network_or_leader_is_refused() -> None:
    block = make_block()
    with pytest.raises(MalformedError, match="network"):
        open_header(block.header_bytes, "00" * 32)
    with pytest.raises(MalformedError, match="belongs to"):
        open_block(proposal_of(block), NETWORK, key(2).account)


def test_entries_are_bound_by_root_and_count() -> None:
    first, second = entry_bytes(2)
    block = make_block((first, second))
    for entries in ((second, first), (first,), (first, second, second)):
        with pytest.raises(MalformedError, match="do not match"):
            open_block(
                proposal_of(Block(block.header, "", b"", "", (), pack(block.header_bytes, block.signature, entries))),
                NETWORK,
            )


def test_a_block_with_too_many_bytes_of_entries_is_refused() -> None:
    entries = entry_bytes(limits.MAX_BLOCK_ENTRY_BYTES // len(entry_bytes(1)[0]) + 1)
    with pytest.raises(OversizedError, match="bytes of entries"):
        open_block(msgspec.json.decode(make_block(entries).raw, type=Proposal), NETWORK)


def test_the_largest_block_with_the_widest_certificate_fits_into_one_message() -> None:
    entry = entry_bytes(1)[0]
    entries = entry_bytes(limits.MAX_BLOCK_ENTRY_BYTES // (len(entry) + 4))
    block = make_block(entries, height=2**53 - 1, slot=2**53 - 1, parent_slot=2**53 - 1, time_ms=2**53 - 1)
    quorum = quorum_size(limits.MAX_VALIDATORS)
    certificate = Certificate(
        epoch=2**53 - 1,
        kind=FINAL,
        slot=2**53 - 1,
        hash=HASH,
        signers=tuple(range(limits.MAX_VALIDATORS - quorum, limits.MAX_VALIDATORS)),
        sigs=("ab" * 64,) * quorum,
    )
    item = wire.SyncBlock(block=proposal_of(block), certificate=certificate)
    slack = limits.MAX_BLOCK_ENTRY_BYTES - sum(len(raw) + 1 for raw in entries)
    assert len(encode(wire.SyncResponse(blocks=(item,), more=False))) + slack <= MAX_MESSAGE_BYTES


def test_the_beacon_follows_from_the_proposers_proof_only() -> None:
    block = make_block()
    verify_beacon(block.header, genesis_beacon(NETWORK))
    with pytest.raises(SignatureError):
        verify_beacon(block.header, "00" * 32)
    with pytest.raises(SignatureError):
        verify_beacon(msgspec.structs.replace(block.header, slot=2), genesis_beacon(NETWORK))
    with pytest.raises(SignatureError, match="beacon"):
        verify_beacon(msgspec.structs.replace(block.header, beacon=HASH), genesis_beacon(NETWORK))


@pytest.mark.parametrize(("validators", "quorum"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (100, 67)])
def test_quorum_size(validators: int, quorum: int) -> None:
    assert quorum_size(validators) == quorum
    assert 3 * quorum > 2 * validators


def test_a_vote_is_bound_to_network_kind_slot_and_hash() -> None:
    vote = cast(key(1), NETWORK, 0, NOTAR, 5, HASH)
    verify_vote(vote, NETWORK)
    for changed in (
        {"kind": FINAL},
        {"slot": 6},
        {"hash": "00" * 32},
        {"epoch": 1},
        {"voter": key(2).account},
    ):
        with pytest.raises(SignatureError):
            verify_vote(msgspec.structs.replace(vote, **changed), NETWORK)
    with pytest.raises(SignatureError):
        verify_vote(vote, "00" * 32)
    with pytest.raises(MalformedError):
        verify_vote(cast(key(1), NETWORK, 0, SKIP, 5, HASH), NETWORK)
    with pytest.raises(MalformedError):
        verify_vote(cast(key(1), NETWORK, 0, FINAL, 5, ""), NETWORK)


def make_certificate(voters: tuple[int, ...] = (1, 2, 4)) -> Certificate:
    return certify([cast(key(number), NETWORK, 0, FINAL, 9, HASH) for number in voters], SET)


def test_a_certificate_needs_a_quorum_of_distinct_validators() -> None:
    good = make_certificate((4, 1, 2))
    assert good.signers == (0, 1, 3)
    verify_certificate(good, NETWORK, SET, 0)
    for changes in (
        {"signers": good.signers[:2], "sigs": good.sigs[:2]},  # too few
        {"signers": (0, 0, 3)},  # one counted twice
        {"signers": (1, 0, 3)},  # not ascending
        {"signers": (0, 1, 4)},  # no such validator
        {"signers": (0, 2, 3)},  # somebody else's signature
        {"sigs": good.sigs[:2]},
        {"slot": 8},
        {"kind": NOTAR},
        {"hash": ""},
        {"epoch": 1},
    ):
        with pytest.raises(PeerError):
            verify_certificate(msgspec.structs.replace(good, **changes), NETWORK, SET, 0)


def test_a_certificate_is_a_quorum_of_the_set_it_is_checked_against() -> None:
    with pytest.raises(PeerError):
        verify_certificate(make_certificate(), NETWORK, tuple(reversed(SET)), 0)
    with pytest.raises(PeerError):
        verify_certificate(make_certificate(), NETWORK, (*SET, key(5).account), 0)
