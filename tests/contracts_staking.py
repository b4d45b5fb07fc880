"""What validators sign, for tests of evidence, and what must hold of the validator set after any block."""

from __future__ import annotations

from contracts.parameters import MAX_CANDIDATES, MAX_VALIDATORS
from contracts.records import Account, Validator
from contracts.state import State, present
from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.statements import Header, SignedHeader, Vote, ballot

HASH_A, HASH_B = "aa" * 32, "bb" * 32


def sign_vote(key: Identity, network: str, kind: str, hash: str, *, epoch: int = 0, slot: int = 7) -> Vote:
    """Return a vote as a validator casts it (a skip vote names no block: hash "")."""
    vote = Vote(epoch=epoch, kind=kind, slot=slot, hash=hash, voter=key.account, sig="00" * 64)
    signature = key.sign(network, "vote", ballot(vote)).hex()
    return Vote(epoch=epoch, kind=kind, slot=slot, hash=hash, voter=key.account, sig=signature)


def sign_header(key: Identity, network: str, *, parent: str = HASH_A, epoch: int = 0, slot: int = 7) -> SignedHeader:
    """Return a proposer's signed header; another parent makes it another header of the same slot."""
    header = Header(
        network=network,
        height=3,
        slot=slot,
        epoch=epoch,
        parent=parent,
        parent_slot=slot - 1,
        proposer=key.account,
        time_ms=1,
        entries_root=HASH_A,
        entry_count=0,
        state_root=HASH_A,
        validators=HASH_A,
        beacon=HASH_A,
        vrf_proof="00" * 80,
    )
    return SignedHeader(header=header, sig=key.sign(network, "block", encode(header)).hex())


def check_validators(before: State, state: State, *, boundary: bool) -> None:
    """Check what one block made of the validator set and of what is kept about its members."""
    network = state.network()
    listed = {account: "member" for account in network.validators}
    for status, accounts in (("candidate", network.candidates), ("unlocking", network.unlocking)):
        assert not listed.keys() & set(accounts), "nobody has two places"
        assert len(set(accounts)) == len(accounts)
        listed |= dict.fromkeys(accounts, status)
    records = {key: record for key, record in state.records.items() if isinstance(record, Validator)}
    assert {key.removeprefix("validator/"): record.status for key, record in records.items()} == listed
    for key, record in state.records.items():
        if isinstance(record, Account) and record.stake:
            assert key.removeprefix("account/") in listed, "a bond is locked for nothing"
    assert set(network.leaving) <= set(network.validators)
    assert len(set(network.leaving)) == len(network.leaving)
    assert 1 <= len(network.validators) <= MAX_VALIDATORS
    assert len(network.candidates) <= MAX_CANDIDATES
    old = before.network()
    assert network.epoch == old.epoch + boundary
    if boundary:
        check_set_change(before, state)
    else:
        assert network.validators == old.validators, "the set changes at the end of an epoch only"


def check_set_change(before: State, state: State) -> None:
    """Check that besides equivocators at most a third of the set changed, and that the order of the others stayed."""
    old, new = before.network().validators, state.network().validators
    joined = [account for account in new if account not in old]
    gone = [account for account in old if account not in new]
    stayed = [account for account in old if account in new]
    assert list(new) == stayed + joined
    convicted = {account for account in gone if present(state.validator(account)).convicted}
    # one that came and one that went are two changes
    assert len(joined) + len(gone) - len(convicted) <= max(1, (len(old) - len(convicted)) // 3)
    if len(gone) > len(convicted):
        assert len(stayed) >= state.network().staking.floor
    for account in old:
        if present(state.validator(account)).convicted:
            assert account in gone or stayed == [account], "an equivocator stays only where the set would be empty"
