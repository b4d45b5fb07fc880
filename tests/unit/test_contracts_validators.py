"""Joining and leaving the validator set, what evidence of equivocation costs, and who proposed."""

from collections.abc import Callable

import msgspec
import pytest

from contracts.block import check_entry
from contracts.parameters import MAX_CANDIDATES
from contracts.records import Validator
from gdf_market.messages import Entry, Evidence, ValidatorJoin, ValidatorLeave
from gdf_market.statements import FINAL, NOTAR, SKIP, Statement, Vote
from gdf_market.units import CREDIT
from tests.contracts_staking import HASH_A, HASH_B, sign_header, sign_vote
from tests.contracts_world import World, end_epoch, key_of, make_staking_world, text_hash

BOND = 10 * CREDIT + 7
Pair = tuple[Statement, Statement]


def ids(*names: str) -> tuple[str, ...]:
    return tuple(key_of(name).account for name in names)


def join(world: World, name: str) -> Entry:
    return world.entry(name, ValidatorJoin)


def leave(world: World, name: str) -> Entry:
    return world.entry(name, ValidatorLeave)


def two_votes(world: World, name: str, *, epoch: int = 0, slot: int = 7) -> Pair:
    """Return two votes of a validator for different blocks of one slot."""
    first, second = (
        sign_vote(key_of(name), world.network, NOTAR, at, epoch=epoch, slot=slot) for at in (HASH_A, HASH_B)
    )
    return first, second


def evidence(world: World, author: str, pair: Pair) -> Entry:
    return world.entry(author, Evidence, first=pair[0], second=pair[1])


def accuse(world: World, author: str, name: str, **where: int) -> Entry:
    return evidence(world, author, two_votes(world, name, **where))


# joining


def test_a_join_locks_the_bond_and_waits_for_the_end_of_the_epoch() -> None:
    world = make_staking_world(1)
    entry = join(world, "w1")
    result = world.block(entry)
    assert (world.balance("w1"), world.stake("w1")) == (1_000 * CREDIT - BOND, BOND)
    assert world.validator("w1") == Validator(status="candidate")
    assert world.state.network().candidates == ids("w1")
    assert world.state.network().validators == ids("val1")
    locked, waits = result.events
    assert (locked.kind, locked.source, locked.target, locked.amount) == ("bond", *ids("w1"), "stake", BOND)
    assert (waits.kind, waits.account, waits.reason) == ("validator", *ids("w1"), "waits for a seat")
    assert locked.entry == waits.entry == entry.id


def test_a_candidate_takes_its_seat_when_the_epoch_ends() -> None:
    world = make_staking_world(1)
    world.block(join(world, "w1"))
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "w1")
    assert world.state.network().candidates == ()
    assert world.validator("w1") == Validator(status="member", since_epoch=1, proposed_epoch=1)
    assert world.stake("w1") == BOND


def test_a_join_in_the_last_block_of_an_epoch_counts_for_the_next() -> None:
    world = make_staking_world(1)
    end_epoch(world, join(world, "w1"))
    assert world.state.network().validators == ids("val1", "w1")


def test_nobody_joins_twice() -> None:
    world = make_staking_world(3, floor=3)
    world.refuse(join(world, "val1"), "is member already")
    world.block(join(world, "w1"), join(world, "w2"), leave(world, "val1"))
    world.refuse(join(world, "w1"), "is candidate already; join once its bond returned")
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "val2", "val3", "w1")
    end_epoch(world)
    assert world.validator("val1").status == "unlocking"
    world.refuse(join(world, "val1"), "is unlocking already; join once its bond returned")


def test_the_bond_must_be_covered() -> None:
    world = make_staking_world(1, bond=1_000 * CREDIT + 1)
    world.refuse(join(world, "w1"), "the validator's bond takes 1000.000001 credits; .* has 1000")
    world.refuse(join(world, "newcomer"), "has 0")


def test_the_queue_has_an_end() -> None:
    world = make_staking_world(1, bond=0, epoch_blocks=100)
    world.block(*(join(world, f"candidate {at}") for at in range(MAX_CANDIDATES)))
    assert len(world.state.network().candidates) == MAX_CANDIDATES
    world.refuse(join(world, "w1"), "256 candidates wait for a seat; try again")
    world.block(leave(world, "candidate 7"))
    world.block(join(world, "w1"))
    assert world.state.network().candidates[-1:] == ids("w1")


# leaving


def test_a_candidate_that_leaves_gets_its_bond_back_at_once() -> None:
    world = make_staking_world(1)
    world.block(join(world, "w1"), join(world, "w2"))
    entry = leave(world, "w1")
    result = world.block(entry)
    assert (world.balance("w1"), world.stake("w1")) == (1_000 * CREDIT, 0)
    assert world.state.validator(*ids("w1")) is None
    assert world.state.network().candidates == ids("w2")
    assert [(event.kind, event.amount) for event in result.events] == [("returned", BOND), ("validator", 0)]
    world.block(join(world, "w1"))
    assert world.state.network().candidates == ids("w2", "w1")


def test_a_member_that_leaves_keeps_its_seat_until_the_epoch_ends() -> None:
    world = make_staking_world(4)
    world.block(leave(world, "val2"))
    assert world.state.network().validators == ids("val1", "val2", "val3", "val4")
    assert world.state.network().leaving == ids("val2")
    assert world.events[-1].reason == "gives up its seat at the end of an epoch"
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "val3", "val4")
    assert world.state.network().leaving == ()
    assert world.state.network().unlocking == ids("val2")
    assert world.validator("val2").unlock_epoch == 4
    assert world.stake("val2") == CREDIT


def test_leave_refusals() -> None:
    world = make_staking_world(4)
    world.refuse(leave(world, "w1"), "is no validator and waits for no seat")
    world.block(leave(world, "val2"))
    world.refuse(leave(world, "val2"), "leaves already, at the end of an epoch")
    world.block(accuse(world, "w1", "val3"))
    world.refuse(leave(world, "val3"), "is convicted and leaves at the end of the epoch")
    end_epoch(world)
    world.refuse(leave(world, "val2"), "gave up its seat already; its bond unlocks")


def test_a_bond_returns_when_the_evidence_window_is_over_and_not_before() -> None:
    world = make_staking_world(4)
    end_epoch(world, leave(world, "val4"))  # its last epoch is 0
    for _ in range(2):
        end_epoch(world)
        assert (world.validator("val4").status, world.stake("val4")) == ("unlocking", CREDIT)
    assert world.state.network().epoch == 3
    while (world.height + 1) % 20:
        world.block()
    assert world.stake("val4") == CREDIT
    result = world.block()
    assert world.state.network().epoch == 4
    assert (world.balance("val4"), world.stake("val4")) == (1_001 * CREDIT, 0)
    assert world.state.validator(*ids("val4")) is None
    assert world.state.network().unlocking == ()
    (returned,) = [event for event in result.events if event.kind == "returned"]
    assert (returned.source, returned.target, returned.account) == ("stake", *ids("val4", "val4"))
    world.block(join(world, "val4"))
    assert world.state.network().candidates == ids("val4")


# evidence: what convicts


def vote_pair(world: World, kinds: tuple[str, str], hashes: tuple[str, str]) -> Pair:
    key = key_of("val2")
    first, second = (
        sign_vote(key, world.network, kind, at if kind != SKIP else "") for kind, at in zip(kinds, hashes, strict=True)
    )
    return first, second


CONVICTING: dict[str, Callable[[World], Pair]] = {
    "two notarize votes": lambda world: vote_pair(world, (NOTAR, NOTAR), (HASH_A, HASH_B)),
    "two finalize votes": lambda world: vote_pair(world, (FINAL, FINAL), (HASH_A, HASH_B)),
    "finalize and skip": lambda world: vote_pair(world, (FINAL, SKIP), (HASH_A, "")),
    "skip and finalize": lambda world: vote_pair(world, (SKIP, FINAL), ("", HASH_A)),
    "notarize one, finalize another": lambda world: vote_pair(world, (NOTAR, FINAL), (HASH_A, HASH_B)),
    "two headers": lambda world: (
        sign_header(key_of("val2"), world.network),
        sign_header(key_of("val2"), world.network, parent=HASH_B),
    ),
}


@pytest.mark.parametrize("name", CONVICTING)
def test_what_no_honest_validator_signs_costs_the_bond(name: str) -> None:
    world = make_staking_world(4)
    entry = evidence(world, "w1", CONVICTING[name](world))
    check_entry(world.state, entry, world.time_ms)
    result = world.block(entry)
    assert world.stake("val2") == 0
    assert world.validator("val2").convicted
    assert world.validator("val2").status == "member"  # until the epoch ends
    convicted = result.events[0]
    assert (convicted.kind, convicted.account, convicted.entry) == ("convicted", *ids("val2"), entry.id)
    assert convicted.reason == "signed two conflicting statements in slot 7 of epoch 0"
    assert {event.kind for event in result.events[1:]} == {"slashed"}
    assert all(event.entry == entry.id and event.account == ids("val2")[0] for event in result.events)


def mixed(world: World, **changes: object) -> Pair:
    """Return a notarize vote and another one of it with changes."""
    fields: dict[str, object] = {"key": key_of("val2"), "network": world.network, "kind": NOTAR, "hash": HASH_A}
    return sign_vote(**fields), sign_vote(**(fields | changes))  # type: ignore[arg-type]


INNOCENT: dict[str, Callable[[World], Pair]] = {
    "the same vote": mixed,
    "notarize and skip": lambda world: mixed(world, kind=SKIP, hash=""),
    "notarize and finalize one block": lambda world: mixed(world, kind=FINAL),
    "another slot": lambda world: mixed(world, hash=HASH_B, slot=8),
    "another epoch": lambda world: mixed(world, hash=HASH_B, epoch=1),
    "another signer": lambda world: mixed(world, hash=HASH_B, key=key_of("val1")),
    "a vote and a header": lambda world: (mixed(world)[0], sign_header(key_of("val2"), world.network)),
    "the same header": lambda world: (sign_header(key_of("val2"), world.network),) * 2,
}


@pytest.mark.parametrize("name", INNOCENT)
def test_what_an_honest_validator_may_sign_convicts_nobody(name: str) -> None:
    world = make_staking_world(4)
    world.refuse(evidence(world, "w1", INNOCENT[name](world)), "the two statements do not convict anybody")


@pytest.mark.parametrize("forged", [0, 1])
def test_both_signatures_must_hold(forged: int) -> None:
    world = make_staking_world(4)
    pair = list(two_votes(world, "val2"))
    vote = pair[forged]
    assert isinstance(vote, Vote)
    pair[forged] = msgspec.structs.replace(vote, sig="11" * 64)
    world.refuse(evidence(world, "w1", (pair[0], pair[1])), "Evidence .* is refused: .*signature")
    assert not world.validator("val2").convicted


def test_what_was_signed_for_another_network_convicts_nobody_here() -> None:
    world = make_staking_world(4)
    other = text_hash("another network")
    votes = [sign_vote(key_of("val2"), other, NOTAR, at) for at in (HASH_A, HASH_B)]
    world.refuse(evidence(world, "w1", (votes[0], votes[1])), "is refused: .*signature")
    headers = [sign_header(key_of("val2"), other, parent=at) for at in (HASH_A, HASH_B)]
    world.refuse(evidence(world, "w1", (headers[0], headers[1])), "header of network")


def test_a_skip_vote_that_names_a_block_is_no_evidence() -> None:
    world = make_staking_world(4)
    pair = mixed(world, kind=FINAL)[1], mixed(world, kind=SKIP, hash=HASH_B)[1]
    world.refuse(evidence(world, "w1", pair), "a skip vote for")


# evidence: against whom, and until when


def test_only_who_has_a_bond_for_its_votes_is_punished() -> None:
    world = make_staking_world(4, epoch_blocks=100)
    world.refuse(accuse(world, "w1", "w2"), "is no validator, and none whose bond is still locked")
    world.block(join(world, "w2"))
    world.refuse(accuse(world, "w1", "w2"), "is no validator, and none whose bond is still locked")


def test_evidence_is_taken_about_the_epochs_whose_bonds_are_locked() -> None:
    world = make_staking_world(4)
    world.refuse(accuse(world, "w1", "val1", epoch=1), "about epoch 1 is not taken in epoch 0, only about 0 and later")
    for _ in range(4):
        end_epoch(world)
    world.refuse(accuse(world, "w1", "val1", epoch=0), "about epoch 0 is not taken in epoch 4, only about 1 and later")
    world.refuse(accuse(world, "w1", "val1", epoch=5), "not taken in epoch 4")
    world.block(accuse(world, "w1", "val1", epoch=1))
    world.block(accuse(world, "w1", "val2", epoch=4))
    assert (world.stake("val1"), world.stake("val2")) == (0, 0)


def test_who_left_is_punished_up_to_the_block_that_returns_its_bond() -> None:
    world = make_staking_world(4)
    end_epoch(world, leave(world, "val4"))
    for _ in range(2):
        end_epoch(world)
    assert world.state.network().epoch == 3
    end_epoch(world, accuse(world, "w1", "val4", epoch=0))  # in the last block of the window
    assert world.state.network().epoch == 4
    assert world.state.validator(*ids("val4")) is None
    assert (world.balance("val4"), world.stake("val4")) == (1_000 * CREDIT, 0)
    assert world.balance("w1") == 1_000 * CREDIT + CREDIT // 10


def test_after_the_bond_returned_nothing_is_left_to_punish() -> None:
    world = make_staking_world(4)
    end_epoch(world, leave(world, "val4"))
    for _ in range(3):
        end_epoch(world)
    world.refuse(accuse(world, "w1", "val4", epoch=0), "is no validator, and none whose bond is still locked")
    end_epoch(world, join(world, "val4"))
    # the new bond does not answer for the old seat
    world.refuse(accuse(world, "w1", "val4", epoch=0), "about epoch 0 is not taken in epoch 5")


def test_a_validator_is_punished_once() -> None:
    world = make_staking_world(4)
    world.block(accuse(world, "w1", "val2"))
    world.refuse(accuse(world, "w1", "val2"), "is punished already")
    world.refuse(accuse(world, "w2", "val2", slot=8), "is punished already")
    end_epoch(world)
    world.refuse(accuse(world, "w2", "val2", slot=8), "is punished already")
    for _ in range(3):
        end_epoch(world)
    assert world.state.validator(*ids("val2")) is None
    assert world.balance("val2") == 1_000 * CREDIT  # nothing was left to return
    end_epoch(world, join(world, "val2"))
    assert ids("val2")[0] in world.state.network().validators
    end_epoch(world)
    world.block(accuse(world, "w1", "val2", epoch=5))
    assert world.stake("val2") == 0


# evidence: who gets the bond


def test_a_tenth_goes_to_the_author_and_the_rest_to_the_other_members() -> None:
    world = make_staking_world(4)
    world.block(accuse(world, "w1", "val2"))
    assert world.balance("w1") == 1_000 * CREDIT + CREDIT // 10
    for name in ("val1", "val3", "val4"):
        assert world.balance(name) == 1_000 * CREDIT + 3 * CREDIT // 10
    assert world.balance("val2") == 1_000 * CREDIT


def test_a_member_that_brings_the_evidence_gets_both() -> None:
    world = make_staking_world(4)
    world.block(accuse(world, "val3", "val2"))
    assert world.balance("val3") == 1_000 * CREDIT + 4 * CREDIT // 10


def test_what_does_not_divide_goes_to_the_first_members() -> None:
    world = make_staking_world(3)
    end_epoch(world, join(world, "w2"))
    world.block(accuse(world, "w1", "w2", epoch=1))
    assert BOND == 10_000_007  # a tenth is 1_000_000; 9_000_007 are three times 3_000_002 and one more
    assert world.balance("w1") - 1_000 * CREDIT == 1_000_000
    shares = [world.balance(name) - 1_000 * CREDIT for name in ("val1", "val2", "val3")]
    assert shares == [3_000_003, 3_000_002, 3_000_002]


def test_who_accuses_itself_saves_nothing() -> None:
    world = make_staking_world(4)
    world.block(accuse(world, "val2", "val2"))
    assert (world.balance("val2"), world.stake("val2")) == (1_000 * CREDIT, 0)
    shares = [world.balance(name) - 1_000 * CREDIT for name in ("val1", "val3", "val4")]
    assert shares == [333_334, 333_333, 333_333]


def test_equivocators_do_not_pay_each_other() -> None:
    world = make_staking_world(4)
    world.block(accuse(world, "w1", "val1"), accuse(world, "w1", "val2"))
    assert world.balance("val1") == 1_000 * CREDIT
    assert world.balance("val2") == 1_000 * CREDIT + 3 * CREDIT // 10  # it was not convicted yet
    for name in ("val3", "val4"):
        assert world.balance(name) == 1_000 * CREDIT + (3 * CREDIT + 9 * CREDIT // 2) // 10


def test_with_no_other_member_the_author_gets_all() -> None:
    world = make_staking_world(1)
    world.block(accuse(world, "w1", "val1"))
    assert world.balance("w1") == 1_001 * CREDIT
    assert world.stake("val1") == 0


def test_a_lonely_validator_cannot_use_up_its_punishment() -> None:
    world = make_staking_world(1)
    world.refuse(accuse(world, "val1", "val1"), "accuses itself and nobody else is there to receive its bond")
    world.block(accuse(world, "w1", "val1"))
    assert world.validator("val1").convicted


def test_an_author_without_an_account_is_paid() -> None:
    world = make_staking_world(4, entry_fee=1_000)
    world.block(accuse(world, "newcomer", "val2"))
    assert world.balance("newcomer") == CREDIT // 10  # evidence pays no fee


def test_evidence_against_nothing_at_stake_still_evicts() -> None:
    world = make_staking_world(4, bond=0)
    end_epoch(world, join(world, "w2"))
    world.block(accuse(world, "w1", "w2", epoch=1))
    assert world.balance("w1") == 1_000 * CREDIT
    end_epoch(world)
    assert ids("w2")[0] not in world.state.network().validators


# proposers


def test_a_proposer_is_noted_once_in_an_epoch() -> None:
    world = make_staking_world(2)
    end_epoch(world)
    first = world.leader()
    key = f"validator/{first}"
    result = world.block()
    assert result.changes[key][1] == Validator(status="member", proposed_epoch=1)
    result = world.block()
    assert key not in result.changes
    assert world.leader() == first
    assert dict(world.block().changes) == {}


def test_only_members_are_noted() -> None:
    world = make_staking_world(4)
    end_epoch(world, leave(world, "val4"), join(world, "w1"), join(world, "w2"))
    before = world.state
    world.leader = lambda: ids("val4")[0]  # type: ignore[method-assign]
    world.block()
    world.leader = lambda: ids("w2")[0]  # type: ignore[method-assign]
    world.block()
    world.leader = lambda: ids("other")[0]  # type: ignore[method-assign]
    world.block()
    assert world.state.records == before.records
