"""Fees: who pays, how much, to whom, and that what is free can be said only once."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from contracts.block import check_entry, select_entries
from contracts.fees import PAYING, compute_fee, compute_post_fee
from contracts.parameters import ROUND_KIB_PER_UNIT
from contracts.records import Staking
from contracts.state import genesis_state
from gdf_market.errors import RuleError, UsageError
from gdf_market.messages import (
    AuditClasses,
    BidWithdraw,
    Entry,
    EntryBody,
    Evidence,
    JobCancel,
    JobPost,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
    Void,
    seal,
)
from gdf_market.units import CREDIT
from tests.contracts_world import (
    Actor,
    World,
    bid_entry,
    cast_all,
    key_of,
    make_genesis,
    make_staking_world,
    make_world,
    play_to_end,
    start,
)

FEE = 1_000
RULES = Path(__file__).parents[2] / "docs" / "rules.md"
FREE = set(get_args(EntryBody)) - set(PAYING)


def transfer(world: World, amount: int, name: str = "owner", **changes: object) -> Entry:
    return world.entry(name, Transfer, **({"to": key_of("w1").account, "amount": amount, "memo": ""} | changes))


def fees(world: World) -> list[int]:
    return [event.amount for event in world.events if event.kind == "fee"]


# how much


@pytest.mark.parametrize(("size", "kib"), [(1, 1), (1_023, 1), (1_024, 1), (1_025, 2), (2_048, 2), (32_768, 32)])
def test_every_started_kib_costs(size: int, kib: int) -> None:
    body = transfer(make_world(), 1).body
    assert compute_fee(FEE, Entry("00" * 32, body, b"x" * size)) == FEE * kib
    assert compute_fee(0, Entry("00" * 32, body, b"x" * size)) == 0


def test_a_post_pays_for_the_rounds_too() -> None:
    world = make_world()
    entry = world.job_entry(rounds=3, units_per_round=5)
    assert len(entry.raw) <= 2_048
    assert compute_fee(FEE, entry) == FEE * (-(-len(entry.raw) // 1_024) + 15 * ROUND_KIB_PER_UNIT)


def test_every_kind_of_entry_is_in_the_table_of_the_rules() -> None:
    table = RULES.read_text(encoding="utf-8").split("\n## Fees\n")[1].split("\n## ")[0]
    rows = dict(line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `"))
    found = {name.strip(" `"): cost.strip() for name, cost in rows.items()}
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(EntryBody)}
    assert found.keys() == kinds.keys()
    assert {kinds[name] for name, cost in found.items() if cost == "fee"} == set(PAYING) - {kinds["job_post"]}
    assert found["job_post"].startswith("fee and")
    assert {kinds[name] for name, cost in found.items() if cost == "free"} == FREE


# who pays whom


def test_the_fee_goes_from_the_author_to_the_proposer() -> None:
    world = make_staking_world(2, entry_fee=FEE)
    proposer = world.leader()
    entry = transfer(world, 5)
    result = world.block(entry)
    assert world.balance("owner") == 1_000 * CREDIT - FEE - 5
    assert world.state.account(proposer).balance == 1_000 * CREDIT + FEE
    fee, moved = result.events
    assert (fee.kind, fee.source, fee.target, fee.amount) == ("fee", key_of("owner").account, proposer, FEE)
    assert (fee.entry, fee.account) == (entry.id, key_of("owner").account)
    assert moved.kind == "transfer"


def test_a_proposer_pays_itself() -> None:
    world = make_staking_world(1, entry_fee=FEE)
    result = world.block(transfer(world, 5, "val1"))
    assert world.balance("val1") == 1_000 * CREDIT - 5
    assert result.events[0].kind == "fee"
    world.block(transfer(world, 1_000 * CREDIT - 5, "val1"))  # what it pays itself it can send
    assert world.balance("val1") == 0
    world.refuse(transfer(world, 1, "val1"), "the entry's fee takes 0.001 credits; .* has 0")


def test_a_proposer_may_be_an_account_that_nobody_paid_yet() -> None:
    world = make_staking_world(1, entry_fee=FEE)
    world.leader = lambda: key_of("newcomer").account  # type: ignore[method-assign]
    world.block(transfer(world, 5))
    assert world.balance("newcomer") == FEE


def test_the_fee_comes_first_and_must_be_covered() -> None:
    world = make_staking_world(1, entry_fee=CREDIT)
    whole = transfer(world, 1_000 * CREDIT)
    reason = "the transfer takes 1000 credits; .* has 999"
    world.refuse(whole, reason)
    with pytest.raises(RuleError, match=reason):
        check_entry(world.state, whole, world.time_ms)
    rest = transfer(world, 999 * CREDIT)
    check_entry(world.state, rest, world.time_ms)
    world.block(rest)
    assert world.balance("owner") == 0
    poor, reason = transfer(world, 1), r"the entry's fee takes 1 credits; 12D3KooW\w+ has 0"
    world.refuse(poor, reason)
    with pytest.raises(RuleError, match=reason):
        check_entry(world.state, poor, world.time_ms)
    world.refuse(transfer(world, 1, "newcomer"), "the entry's fee takes 1 credits; .* has 0")


def test_a_check_without_a_block_changes_nothing() -> None:
    world = make_staking_world(1, entry_fee=FEE)
    before = world.state.records
    check_entry(world.state, transfer(world, 5), world.time_ms)
    assert world.state.records is before


def test_a_refused_entry_pays_nothing() -> None:
    world = make_staking_world(1, entry_fee=FEE)
    good, bad = transfer(world, 5), transfer(world, 2_000 * CREDIT)
    selected, refused = select_entries(world.state, [bad, good], world.context())
    assert (selected, [entry for entry, _ in refused]) == ([good], [bad])
    world.block(*selected)
    assert fees(world) == [FEE]


def test_what_a_proposer_earns_in_a_block_it_can_spend_in_it() -> None:
    world = make_staking_world(1, entry_fee=FEE)
    world.block(transfer(world, 1_000 * CREDIT - FEE, "val1", to=key_of("w2").account))
    entries = [transfer(world, 5), transfer(world, 5, "w3"), transfer(world, FEE, "val1")]
    selected, refused = select_entries(world.state, entries, world.context())
    assert refused == []
    world.block(*selected)
    assert world.balance("val1") == 2 * FEE


def test_each_paying_kind_pays() -> None:
    world = make_staking_world(4, entry_fee=FEE)
    world.block(transfer(world, 5))
    post = world.job_entry()
    world.block(post)
    for entry in (
        bid_entry(world, "w1", post.id),
        world.entry("w1", BidWithdraw, job=post.id),
        world.entry("owner", JobCancel, job=post.id),
        world.entry("w3", AuditClasses, classes=("cpu-fp32",)),
        world.entry("w2", ValidatorJoin),
        world.entry("val1", ValidatorLeave),
        world.entry("w3", Void),
    ):
        paid = len(fees(world))
        world.block(entry)
        assert fees(world)[paid:] == [FEE], entry
    assert {type(entry.body) for entry in world.entries} == set(PAYING)


def test_without_a_fee_nothing_is_paid() -> None:
    world = make_world()
    world.block(transfer(world, 5))
    assert fees(world) == []


# what is free is said once


def repeated(world: World, entry: Entry) -> Entry:
    """Return an entry that says the same again, signed anew."""
    fields = {name: getattr(entry.body, name) for name in entry.body.__struct_fields__}
    for name in ("author", "nonce", "expires_ms"):
        fields.pop(name)
    (author,) = [name for name in (*world.actors, "owner") if key_of(name).account == entry.body.author]
    return world.entry(author, type(entry.body), **fields)


def test_every_free_entry_of_a_job_is_taken_once() -> None:
    world = make_staking_world(5, entry_fee=FEE, epoch_blocks=1_000)
    job = start(world, "w1", "w2", "w3", audit_floor_ppm=1_000_000)
    cast_all(world, lottery=True)
    # so that there is a dispute, and states to offer; only the worker's own step differs
    world.cast(Actor("w1", flavour="cheat@1", lottery=True))
    block, said = world.block, set()

    def block_and_repeat(*entries: Entry, **when: int) -> object:
        result = block(*entries, **when)
        again = [repeated(world, entry) for entry in entries]
        selected, refused = select_entries(world.state, again, world.context(1))
        assert selected == []
        assert all("fee" not in str(error) for _, error in refused)
        said.update(type(entry.body) for entry in entries)
        return result

    world.block = block_and_repeat  # type: ignore[assignment, method-assign]
    paid = len(fees(world))
    play_to_end(world)
    assert said == FREE - {Evidence}  # whose test is that a validator is punished once
    assert len(fees(world)) == paid
    assert world.state.dispute(job, 0, 0) is not None


def test_what_the_rounds_put_on_the_ledger_is_near_what_the_post_pays_for() -> None:
    world = make_staking_world(5, entry_fee=FEE, epoch_blocks=1_000)
    start(world, "w1", "w2", "w3", rounds=2)
    cast_all(world, lottery=True)
    play_to_end(world)
    free = sum(len(entry.raw) for entry in world.entries if type(entry.body) in FREE)
    assert free < 2 * (2 * 3 * ROUND_KIB_PER_UNIT * 1_024)


# who may found a network without fees


@pytest.mark.parametrize(("fee", "bond", "fits"), [(0, 0, False), (FEE, 0, False), (0, CREDIT, False), (1, 1, True)])
def test_only_test_networks_are_free(fee: int, bond: int, fits: bool) -> None:
    genesis = make_genesis({"val": CREDIT}, ("val",), entry_fee=fee, staking=Staking(bond=bond))
    genesis_state(genesis)
    real = msgspec.structs.replace(genesis, test_network=False)
    if fits:
        assert genesis_state(real).network().entry_fee == fee
        return
    with pytest.raises(UsageError, match=f"entries cost {fee} micro-credits per KiB and a validator's seat {bond};"):
        genesis_state(real)


def test_the_price_of_a_post_is_known_before_it_is_signed() -> None:
    world, owner = make_world(), key_of("owner")
    for length in range(1, 80, 13):
        fields = {"kind": "job_post", "author": owner.account, "nonce": 2**52, "expires_ms": 2**41}
        spec = msgspec.convert(world.job_fields() | fields | {"title": "x" * length}, JobPost)
        paid = compute_fee(7, seal(owner, world.network, spec))
        known = compute_post_fee(7, msgspec.structs.replace(spec, nonce=0, expires_ms=0))
        assert paid <= known <= paid + 7
