"""How the validator set changes at the end of an epoch: how much, in which order, and who is silent."""

import itertools
from collections.abc import Iterable
from typing import get_type_hints

import pytest

from contracts.epochs import SetChange, compute_change_limit, compute_set_change
from contracts.parameters import MAX_VALIDATORS
from contracts.records import Genesis
from gdf_market.codec import encode
from gdf_market.messages import Entry, Transfer, ValidatorJoin, ValidatorLeave
from gdf_market.units import CREDIT
from ledger import limits
from tests.contracts_world import World, end_epoch, key_of, make_staking_world
from tests.unit.test_contracts_validators import BOND, accuse, ids, join, leave


def change(members: str, **changes: object) -> SetChange:
    """Return the change of a set whose members are letters."""
    fields: dict[str, object] = {"convicted": "", "silent": "", "leaving": "", "candidates": "", "floor": 1} | changes
    return compute_set_change(members, **fields)  # type: ignore[arg-type]


def text(accounts: Iterable[str]) -> str:
    return "".join(accounts)


# the change as a function


@pytest.mark.parametrize(("members", "limit"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (9, 3), (100, 33)])
def test_a_third_may_change_but_always_one(members: int, limit: int) -> None:
    assert compute_change_limit(members) == limit


def test_nothing_changes_when_nobody_asks() -> None:
    assert change("abc") == SetChange(tuple("abc"), (), (), (), ())


def test_newcomers_follow_those_that_stay_in_their_order() -> None:
    found = change("abcdefghi", leaving="c", candidates="xyz")
    assert text(found.members) == "abdefghi" + "xy"  # one went and two came: a third of nine
    assert (text(found.left), text(found.joined)) == ("c", "xy")


def test_silence_goes_before_leaving_and_leaving_before_joining() -> None:
    found = change("abcdef", silent="f", leaving="ba", candidates="xy")
    assert (text(found.silenced), text(found.left), text(found.joined)) == ("f", "b", "")
    found = change("abcdef", silent="edf", leaving="ba", candidates="xy")
    assert (text(found.silenced), text(found.left), text(found.joined)) == ("de", "", "")


def test_leavers_go_in_the_order_in_which_they_asked() -> None:
    assert text(change("abcdef", leaving="fda").left) == "fd"


def test_who_is_silent_and_leaves_is_counted_once() -> None:
    found = change("abcdef", silent="a", leaving="ab")
    assert (text(found.silenced), text(found.left), text(found.stay)) == ("a", "b", "cdef")


def test_equivocators_go_without_a_limit_and_before_the_rest_is_counted() -> None:
    found = change("abcdef", convicted="bdf", leaving="a", candidates="xy")
    assert (text(found.expelled), text(found.left), text(found.joined)) == ("bdf", "a", "")
    assert text(found.members) == "ce"
    found = change("abcdefghi", convicted="abc", candidates="xyz")
    assert text(found.members) == "defghi" + "xy"  # a third of the six that stay


def test_equivocators_go_whatever_the_floor_says() -> None:
    found = change("abcd", convicted="ab", silent="c", leaving="d", floor=4)
    assert (text(found.expelled), text(found.members)) == ("ab", "cd")


def test_the_set_is_never_empty() -> None:
    found = change("abc", convicted="abc", silent="abc", leaving="abc")
    assert (text(found.expelled), text(found.members)) == ("bc", "a")
    assert text(change("a", convicted="a").members) == "a"
    assert text(change("a", convicted="a", candidates="x").members) == "ax"
    assert text(change("ax", convicted="a").members) == "x"
    assert text(change("a", leaving="a", silent="a").members) == "a"


def test_the_floor_holds_for_silence_and_leaving_even_when_somebody_comes() -> None:
    found = change("abcd", silent="a", leaving="b", candidates="x", floor=4)
    assert text(found.members) == "abcdx"
    assert text(change("abcde", silent="a", leaving="b", floor=4).members) == "bcde"
    assert text(change("abcdefghi", silent="ab", leaving="c", floor=7).members) == "cdefghi"
    assert text(change("ab", silent="a", floor=5).members) == "ab"


def test_the_set_has_at_most_a_hundred_members() -> None:
    members = [f"m{at}" for at in range(100)]
    fields = {"convicted": (), "silent": (), "leaving": (), "candidates": [f"c{at}" for at in range(256)], "floor": 1}
    assert len(compute_set_change(members[:99], **fields).joined) == 1  # type: ignore[arg-type]
    assert len(compute_set_change(members, **fields).joined) == 0  # type: ignore[arg-type]
    replaced = compute_set_change(members, **(fields | {"leaving": members[:3]}))  # type: ignore[arg-type]
    assert (len(replaced.joined), len(replaced.members)) == (3, 100)
    assert len(compute_set_change(members[:60], **fields).joined) == 20  # type: ignore[arg-type]


def test_the_limit_of_the_set_is_one_number() -> None:
    assert limits.MAX_VALIDATORS == MAX_VALIDATORS
    (size,) = get_type_hints(Genesis, include_extras=True)["validators"].__metadata__
    assert size.max_length == MAX_VALIDATORS


def check_golden(members: str, found: SetChange, convicted: str, floor: int) -> None:
    """Check the promises of a set change, in the words of the rules."""
    others = [account for account in members if account not in found.expelled]
    changed = len(found.silenced) + len(found.left) + len(found.joined)
    assert changed <= max(1, len(others) // 3) <= max(1, len(members) // 3)
    assert set(found.expelled) <= set(convicted)
    assert all(account not in found.members or found.stay == (account,) for account in convicted if account in members)
    gone = {*found.expelled, *found.silenced, *found.left}
    assert found.stay == tuple(account for account in members if account not in gone)
    assert len(gone) + len(found.stay) == len(members)
    assert found.stay
    if found.silenced or found.left:
        assert len(found.stay) >= floor


def subsets(letters: str) -> list[str]:
    return [text(each) for size in range(len(letters) + 1) for each in itertools.combinations(letters, size)]


def test_no_case_of_up_to_four_members_changes_more_than_a_third() -> None:
    cases = 0
    for size in range(1, 5):
        members = "abcd"[:size]
        for convicted, silent, leaving in itertools.product(subsets(members), repeat=3):
            for candidates, floor in itertools.product(("", "x", "xyz"), (1, 3)):
                found = compute_set_change(
                    members,
                    convicted=convicted,
                    silent=silent,
                    leaving=leaving[::-1],
                    candidates=candidates,
                    floor=floor,
                )
                check_golden(members, found, convicted, floor)
                cases += 1
    assert cases == 6 * (8 + 64 + 512 + 4096)


@pytest.mark.parametrize("size", [*range(5, 30), 64, 99, 100])
@pytest.mark.parametrize("convicted", [0, 1, 5])
def test_when_everybody_wants_to_move_a_third_does(size: int, convicted: int) -> None:
    members = [f"m{at}" for at in range(size)]
    found = compute_set_change(
        members,
        convicted=members[:convicted],
        silent=members[::3],
        leaving=members[::-1],
        candidates=[f"c{at}" for at in range(256)],
        floor=1,
    )
    assert len(found.expelled) == min(convicted, size - 1)
    moved = len(found.silenced) + len(found.left) + len(found.joined)
    assert moved == max(1, (size - len(found.expelled)) // 3)


def test_less_than_a_ninth_of_a_set_never_has_a_third_of_the_next() -> None:
    """Why coming and going are counted together: the worst is that honest members go and dishonest ones come."""
    for size in range(3, 101):
        limit, bad = compute_change_limit(size), (size - 1) // 9
        for joined in range(limit + 1):
            gone = limit - joined
            assert 3 * (bad + joined) < size - gone + joined
    # with a third each way, who has no seat at all would have a third of the next set
    size = 9
    limit = compute_change_limit(size)
    assert 3 * limit == size - limit + limit


# through blocks


def test_an_epoch_counts_up_and_says_so() -> None:
    world = make_staking_world(2, epoch_blocks=3)
    world.block()
    world.block()
    assert world.state.network().epoch == 0
    result = world.block()
    assert world.state.network().epoch == 1
    assert [(event.kind, event.reason) for event in result.events] == [("epoch", "epoch 1 has 2 validators")]
    for height in range(4, 20):
        world.block()
        assert world.state.network().epoch == height // 3


def test_a_set_lives_from_one_to_seven_and_back_to_one() -> None:
    world = make_staking_world(1, epoch_blocks=16)
    new = [f"n{at}" for at in range(6)]
    sizes = [1]

    def live(*entries: Entry) -> None:
        end_epoch(world, *entries)
        sizes.append(len(world.state.network().validators))

    for name in new:
        world.block(world.entry("owner", Transfer, to=key_of(name).account, amount=BOND, memo=""))
        live(world.entry(name, ValidatorJoin))
    assert world.state.network().validators == ids("val1", *new)
    live(*(world.entry(name, ValidatorLeave) for name in ("val1", *new[:-1])))
    for _ in range(4):
        live()
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 5, 4, 3, 2, 1]
    assert world.state.network().validators == ids(new[-1])
    for _ in range(3):
        live()
    assert world.state.network().unlocking == ()
    assert {world.stake(name) for name in ("val1", *new[:-1])} == {0}
    assert world.balance(new[0]) == BOND


def test_a_convict_is_evicted_and_its_record_goes_with_the_window() -> None:
    world = make_staking_world(4, floor=4)
    world.block(accuse(world, "w1", "val2"))
    result = end_epoch(world)
    assert world.state.network().validators == ids("val1", "val3", "val4")
    (evicted,) = [event for event in result.events if event.kind == "evicted"]
    assert evicted.account == ids("val2")[0]
    assert evicted.reason == "signed conflicting statements; its bond unlocks in epoch 4"
    assert world.validator("val2").status == "unlocking"
    for _ in range(3):
        assert world.state.network().unlocking == ids("val2")
        end_epoch(world)
    assert world.state.network().unlocking == ()
    assert world.state.validator(*ids("val2")) is None


def test_a_convict_that_asked_to_leave_is_evicted_not_counted_as_leaving() -> None:
    world = make_staking_world(4)
    world.block(leave(world, "val2"), leave(world, "val3"))
    world.block(accuse(world, "w1", "val2"))
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "val4")
    assert world.state.network().leaving == ()


def test_the_last_member_stays_though_convicted_until_another_comes() -> None:
    world = make_staking_world(1)
    end_epoch(world, accuse(world, "w1", "val1"))
    assert world.state.network().validators == ids("val1")
    assert world.validator("val1").convicted
    end_epoch(world, join(world, "w1"))
    assert world.state.network().validators == ids("val1", "w1")
    end_epoch(world)
    assert world.state.network().validators == ids("w1")


# silence


def test_a_member_that_makes_no_block_is_evicted_with_its_bond_whole() -> None:
    world = make_staking_world(4)
    world.down = set(ids("val3"))
    end_epoch(world)  # the first epoch counts as one with a block
    assert world.validator("val3").silent == 0
    end_epoch(world)
    assert world.validator("val3").silent == 1
    result = end_epoch(world)
    assert world.state.network().validators == ids("val1", "val2", "val4")
    (evicted,) = [event for event in result.events if event.kind == "evicted"]
    assert evicted.reason == "made no block in 2 epochs; its bond unlocks in epoch 6"
    assert (world.validator("val3").status, world.stake("val3")) == ("unlocking", CREDIT)
    for _ in range(3):
        end_epoch(world)
    assert (world.balance("val3"), world.stake("val3")) == (1_001 * CREDIT, 0)


def test_one_block_ends_the_silence() -> None:
    world = make_staking_world(4)
    end_epoch(world)
    world.down = set(ids("val3"))
    end_epoch(world)
    assert world.validator("val3").silent == 1
    world.down = set()
    end_epoch(world)
    assert world.validator("val3").silent == 0
    world.down = set(ids("val3"))
    end_epoch(world)
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "val2", "val4")


def test_an_epoch_too_short_for_two_turns_each_counts_nobody_silent() -> None:
    for blocks, silent in ((7, 0), (8, 1)):
        world = make_staking_world(4, epoch_blocks=blocks)
        end_epoch(world)
        world.down = set(ids("val3"))
        end_epoch(world)
        assert world.validator("val3").silent == silent


def test_the_first_epoch_of_a_member_is_not_counted() -> None:
    world = make_staking_world(4)
    end_epoch(world, join(world, "w1"))
    world.down = set(ids("w1"))
    end_epoch(world)
    assert world.validator("w1").silent == 0
    end_epoch(world)
    assert world.validator("w1").silent == 1
    end_epoch(world)
    assert world.validator("w1").status == "unlocking"
    assert world.stake("w1") == BOND


def test_the_floor_keeps_silent_members_until_others_come() -> None:
    world = make_staking_world(4, floor=4)
    world.down = set(ids("val3"))
    for _ in range(5):
        end_epoch(world)
    assert world.validator("val3").silent == 4
    end_epoch(world, join(world, "w1"))
    assert len(world.state.network().validators) == 5
    end_epoch(world)
    assert world.state.network().validators == ids("val1", "val2", "val4", "w1")


def test_half_the_set_falling_silent_goes_a_third_at_a_time() -> None:
    world = make_staking_world(9)
    world.down = set(ids("val1", "val2", "val3", "val4"))
    sizes = []
    for _ in range(5):
        end_epoch(world)
        sizes.append(len(world.state.network().validators))
    assert sizes == [9, 9, 6, 5, 5]
    assert world.state.network().validators == ids("val5", "val6", "val7", "val8", "val9")


# bounds


def test_a_full_network_record_stays_small_and_its_epoch_ends_in_bounded_work() -> None:
    world = make_staking_world(100, bond=0, epoch_blocks=200)
    world.check = False
    world.block(*(world.entry(f"candidate {at}", ValidatorJoin) for at in range(256)))
    world.block(*(world.entry(f"val{at}", ValidatorLeave) for at in range(1, 101)))
    result = end_epoch(world)
    network = world.state.network()
    assert (len(network.validators), len(network.candidates), len(network.leaving)) == (67, 256, 67)
    assert len(network.unlocking) == 33
    assert len(encode(network)) < 32_768
    assert len(result.events) == 34
    assert sum(key.startswith("validator/") for key in result.changes) <= 100


def test_entries_of_the_last_block_come_before_the_end_of_the_epoch() -> None:
    world = make_staking_world(4)
    result = end_epoch(world, leave(world, "val1"), accuse(world, "w1", "val2"))
    assert world.state.network().validators == ids("val3", "val4")
    kinds = [event.kind for event in result.events]
    assert kinds.index("convicted") < kinds.index("evicted") < kinds.index("epoch")
    assert result.events[-1].entry == ""


def test_worlds_that_do_not_check_make_the_same_state() -> None:
    worlds: list[World] = [make_staking_world(4), make_staking_world(4)]
    worlds[1].check = False
    for world in worlds:
        end_epoch(world, join(world, "w1"), leave(world, "val2"))
        end_epoch(world, accuse(world, "w2", "val3", epoch=1))
    assert worlds[0].state.records == worlds[1].state.records
