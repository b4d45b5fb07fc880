"""The state before the first block, and drafts."""

import msgspec
import pytest

from contracts.block import BlockContext
from contracts.records import Account, Active, Allocation
from contracts.state import Draft, account_key, genesis_state, network_id
from gdf_market.codec import decode, encode
from gdf_market.errors import PeerError, UsageError
from gdf_market.units import CREDIT, MAX_INT
from tests.contracts_world import key_of, make_genesis

GENESIS = make_genesis({"a": 3 * CREDIT, "val": 5 * CREDIT}, ("val",))
CONTEXT = BlockContext(height=1, time_ms=1, beacon="00" * 32, proposer="")


def test_genesis_credits_are_the_supply() -> None:
    state = genesis_state(GENESIS)
    assert state.account(key_of("a").account) == Account(balance=3 * CREDIT)
    assert state.account(key_of("val").account).stake == CREDIT
    assert state.network().supply == state.supply_check() == 9 * CREDIT
    assert state.network().validators == (key_of("val").account,)
    assert state.active() == Active()


def test_network_id_changes_with_any_field() -> None:
    names = {network_id(GENESIS), network_id(msgspec.structs.replace(GENESIS, test_network=False))}
    names.add(network_id(msgspec.structs.replace(GENESIS, time_ms=0)))
    assert len(names) == 3
    assert all(len(name) == 64 for name in names)


def test_genesis_survives_its_encoding() -> None:
    again = decode(encode(GENESIS), type(GENESIS))
    assert network_id(again) == network_id(GENESIS)
    assert genesis_state(again).records == genesis_state(GENESIS).records


def test_genesis_refuses_an_account_listed_twice() -> None:
    twice = msgspec.structs.replace(GENESIS, allocations=GENESIS.allocations + GENESIS.allocations[:1])
    with pytest.raises(UsageError, match="one account twice"):
        genesis_state(twice)


def test_genesis_refuses_a_validator_listed_twice() -> None:
    twice = msgspec.structs.replace(GENESIS, validators=GENESIS.validators * 2)
    with pytest.raises(UsageError, match="one validator twice"):
        genesis_state(twice)


def test_genesis_refuses_more_credits_than_fit() -> None:
    rich = tuple(Allocation(account=key_of(name).account, balance=MAX_INT, stake=0) for name in "ab")
    with pytest.raises(UsageError, match="at most"):
        genesis_state(msgspec.structs.replace(GENESIS, allocations=rich))


def test_genesis_refuses_an_account_that_is_no_key() -> None:
    bad = (Allocation(account="12D3KooW" + "1" * 44, balance=1, stake=0),)
    with pytest.raises(PeerError):
        genesis_state(msgspec.structs.replace(GENESIS, allocations=bad))


def test_unknown_accounts_are_empty_and_unknown_records_absent() -> None:
    state = genesis_state(GENESIS)
    nobody = key_of("nobody").account
    assert state.account(nobody) == Account()
    assert state.reputation(nobody, "cpu-fp32").valid == 0
    assert state.job("00" * 32) is None
    assert state.bid("00" * 32, nobody) is None
    assert state.unit("00" * 32, 0, 0) is None
    assert state.get("nothing") is None


def test_a_draft_leaves_its_state_alone_and_names_what_changed() -> None:
    state = genesis_state(GENESIS)
    key, other = account_key(key_of("a").account), account_key(key_of("b").account)
    draft = Draft(state, CONTEXT)
    draft.update(key, balance=1)
    draft.put(other, Account(balance=2))
    assert state.account(key_of("a").account).balance == 3 * CREDIT
    assert draft.changes() == {
        key: (Account(balance=3 * CREDIT), Account(balance=1)),
        other: (None, Account(balance=2)),
    }
    draft.drop(other)
    assert list(draft.changes()) == [key]
    draft.update(key, balance=3 * CREDIT)  # back to what it was: no change
    assert draft.changes() == {}


def test_a_draft_rolls_back_records_and_events() -> None:
    draft = Draft(genesis_state(GENESIS), CONTEXT)
    key = account_key(key_of("a").account)
    mark = draft.mark()
    draft.update(key, balance=0)
    draft.rollback(mark)
    assert draft.changes() == {}
    assert draft.events == []


def test_update_refuses_a_field_that_does_not_exist() -> None:
    draft = Draft(genesis_state(GENESIS), CONTEXT)
    with pytest.raises(TypeError):
        draft.update(account_key(key_of("a").account), balanse=1)
