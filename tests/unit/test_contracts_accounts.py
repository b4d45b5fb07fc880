"""Transfers, and what every entry must satisfy: lifetime and nonce."""

import msgspec
import pytest

from contracts.accounts import balance, move
from contracts.block import BlockContext, apply_block, check_entry
from contracts.parameters import MAX_LIVE_NONCES, MAX_TTL_MS
from contracts.state import Draft
from gdf_market.errors import RuleError
from gdf_market.messages import Entry, JobPost, Transfer, Void
from gdf_market.units import CREDIT
from tests.contracts_world import World, key_of, make_world


def transfer(world: World, amount: int, to: str = "w1", name: str = "owner", **changes: object) -> Entry:
    fields = {"to": key_of(to).account, "amount": amount, "memo": ""}
    return world.entry(name, Transfer, **(fields | changes))


def test_transfer_moves_credits() -> None:
    world = make_world()
    result = world.block(transfer(world, 3 * CREDIT, memo="thanks"))
    assert world.balance("owner") == 997 * CREDIT
    assert world.balance("w1") == 1_003 * CREDIT
    (event,) = result.events
    assert (event.kind, event.amount, event.reason) == ("transfer", 3 * CREDIT, "thanks")
    assert (event.source, event.target) == (key_of("owner").account, key_of("w1").account)
    assert event.entry == world.entries[-1].id


def test_transfer_of_everything_leaves_zero() -> None:
    world = make_world()
    world.block(transfer(world, 1_000 * CREDIT))
    assert world.balance("owner") == 0


def test_transfer_opens_a_new_account() -> None:
    world = make_world()
    world.block(transfer(world, 1, to="newcomer"))
    assert world.balance("newcomer") == 1


def test_transfer_to_oneself_changes_nothing() -> None:
    world = make_world()
    world.block(transfer(world, 5, to="owner"))
    assert world.balance("owner") == 1_000 * CREDIT


def test_transfer_refuses_more_than_the_balance() -> None:
    world = make_world()
    world.refuse(transfer(world, 1_000 * CREDIT + 1), "the transfer takes 1000.000001 credits; .* has 1000")


def test_transfer_refuses_an_account_that_does_not_exist() -> None:
    world = make_world()
    world.refuse(transfer(world, 1, name="newcomer"), "has 0")


def test_transfer_refuses_a_receiver_that_is_no_key() -> None:
    world = make_world()
    world.refuse(world.entry("owner", Transfer, to="12D3KooW" + "1" * 44, amount=1, memo=""), "is not an account id")


def test_stake_cannot_be_sent() -> None:
    world = make_world()
    world.refuse(transfer(world, 1_000 * CREDIT + 1, name="val"), "has 1000")


def test_an_entry_is_valid_until_the_millisecond_before_it_expires() -> None:
    world = make_world()
    entry = transfer(world, 1, expires_ms=world.time_ms + 1_001)
    world.block(entry, dt=1_000)
    late = transfer(world, 1, expires_ms=world.time_ms + 1_000)
    world.refuse(late, "expired at")


def test_an_entry_may_not_live_longer_than_nonces_are_kept() -> None:
    world = make_world()
    world.refuse(transfer(world, 1, expires_ms=world.time_ms + 1_001 + MAX_TTL_MS), "more than 3600000 ms")
    world.block(transfer(world, 1, expires_ms=world.time_ms + 1_000 + MAX_TTL_MS))


def test_a_nonce_is_used_once() -> None:
    world = make_world()
    world.block(transfer(world, 1, nonce=77))
    world.refuse(transfer(world, 2, nonce=77), "nonce 77 of .* is used")
    world.block(transfer(world, 1, nonce=77, name="w1"))  # another author's 77 is another nonce


def test_an_entry_cannot_be_applied_twice_in_one_block() -> None:
    world = make_world()
    entry = transfer(world, 1)
    with pytest.raises(Exception, match="is used"):
        apply_block(world.state, [entry, entry], world.context())


def test_a_nonce_is_free_again_once_no_entry_of_its_block_can_come_again() -> None:
    world = make_world()
    world.block(transfer(world, 1, nonce=7, expires_ms=world.time_ms + 5_000))
    world.block(dt=MAX_TTL_MS - 1)
    with pytest.raises(RuleError, match=r"nonce 7 .* is used"):
        check_entry(world.state, transfer(world, 1, nonce=7), world.time_ms)
    world.block(transfer(world, 1, nonce=7), dt=1)
    assert len(world.state.used[key_of("owner").account]) == 1


def test_nonces_per_author_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LIVE_NONCES == 4_096
    monkeypatch.setattr("contracts.accounts.MAX_LIVE_NONCES", 40)
    world = make_world()
    for _ in range(4):
        world.block(*(transfer(world, 1) for _ in range(10)))
    world.refuse(transfer(world, 1), "made 40 entries within 3600000 ms; at most 40")
    world.block(transfer(world, 1, name="w1"))
    world.block(dt=MAX_TTL_MS)
    world.block(transfer(world, 1))


def test_nonces_are_forgotten_without_their_author() -> None:
    world = make_world()
    world.block(transfer(world, 1), transfer(world, 1, name="w1"))
    world.block(transfer(world, 1, expires_ms=world.time_ms + 1_000 + MAX_TTL_MS))
    assert world.state.get("spent/0") is not None
    assert len(world.state.used[key_of("owner").account]) == 2
    world.block(dt=MAX_TTL_MS - 1_000)
    assert world.state.get("spent/0") is None
    assert key_of("w1").account not in world.state.used
    assert len(world.state.used[key_of("owner").account]) == 1  # one of them lives on
    world.block(dt=1_000)
    assert world.state.active().spent_first == world.state.active().spent_next == 2
    assert not [key for key in world.state.records if key.startswith("spent/")]
    assert not world.state.used


def test_one_block_prunes_a_bounded_number_of_blocks() -> None:
    world = make_world()
    world.check = False
    for _ in range(70):
        world.block(transfer(world, 1, expires_ms=world.time_ms + 5_000))
    world.block(dt=2 * MAX_TTL_MS)
    assert world.state.active().spent_first == 64
    world.block()
    assert world.state.active().spent_first == 70


def test_moving_more_than_a_pot_holds_is_our_bug() -> None:
    world = make_world()
    draft = Draft(world.state, BlockContext(height=1, time_ms=world.time_ms, beacon="00" * 32, proposer=""))
    with pytest.raises(AssertionError, match="would hold -1"):
        move(draft, "test", balance(key_of("newcomer").account), balance(key_of("owner").account), 1)


def test_a_second_signature_of_a_body_is_the_same_entry() -> None:
    world = make_world()
    entry = transfer(world, 1)
    world.block(entry)
    again = Entry(entry.id, msgspec.structs.replace(entry.body), b"other envelope")
    world.refuse(again, "is used")


def test_a_void_takes_an_order_back_and_an_order_makes_its_void_useless() -> None:
    """Whichever of the entries with one nonce is in a block first is the only one that ever is."""
    world = make_world()
    order = world.job_entry()
    replacement = world.job_entry(nonce=order.body.nonce, title="dearer", reserve_price=11 * CREDIT)
    before = world.balance("owner")
    world.block(world.entry("owner", Void, nonce=order.body.nonce))
    for entry in (order, replacement):
        world.refuse(entry, "nonce")
    assert world.balance("owner") == before
    other = world.job_entry()
    assert isinstance(other.body, JobPost)
    world.block(other)
    world.refuse(world.entry("owner", Void, nonce=other.body.nonce), "nonce")


def test_only_the_author_takes_its_order_back() -> None:
    world = make_world()
    order = world.job_entry()
    world.block(world.entry("w1", Void, nonce=order.body.nonce))
    world.block(order)
    assert world.job(order.id).status == "bidding"
