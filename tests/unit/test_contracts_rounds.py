"""Rounds: commits, reveals, receipts, results, and how each phase ends."""

import pytest

from contracts.draws import compute_audit_chance_ppm, compute_counted_record
from contracts.jobs import escrow_of
from contracts.records import Round
from contracts.rounds import get_recipe
from contracts.settle import compute_merit
from contracts.views import Action
from gdf_market import vrf
from gdf_market.codec import digest
from gdf_market.messages import Commit, Flag, Outcome, Receipt, Rejected, Result, Reveal, commitment, draw, shard_alpha
from gdf_market.units import CREDIT, PPM
from tests.contracts_world import (
    Actor,
    World,
    act_commit,
    act_reveal,
    bid_entry,
    cast_all,
    key_of,
    make_world,
    outcome_of,
    play_to,
    play_to_end,
    post,
    reveal_fields,
    start,
    text_hash,
)


def action_of(job: str, slot: int, index: int = 0) -> Action:
    return Action("", job, index, slot, 0)


def result_entry(world: World, name: str, job: str, outcome: Outcome, loss_e6: int = -1):  # type: ignore[no-untyped-def]
    return world.entry(name, Result, job=job, round=0, outcome=outcome, loss_e6=loss_e6)


def receipt_entry(world: World, name: str, job: str, *holds: int):  # type: ignore[no-untyped-def]
    return world.entry(name, Receipt, job=job, round=0, holds=holds)


# start


def test_a_round_gives_every_filled_slot_a_unit() -> None:
    world = make_world()
    job = start(world, "w1", "w2", units_per_round=3)
    round_ = world.round(job, 0)
    assert (round_.phase, round_.units, round_.price) == ("work", (0, 1), 10 * CREDIT)
    assert round_.phase_end_ms == world.time_ms + 60_000
    assert round_.checkpoint == world.job(job).spec.checkpoint
    assert world.unit(job, 0, 0).worker == key_of("w1").account
    assert world.unit(job, 0, 1).status == "assigned"
    assert world.state.unit(job, 0, 2) is None
    beacon = bytes.fromhex(text_hash("beacon", world.height))
    assert round_.seed == digest("gdf/round-seed", beacon, bytes.fromhex(job), bytes(8)).hex()


# work


def test_a_commit_is_kept_until_the_reveal() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    commit = act_commit(world, Actor("w1"), action_of(job, 0))
    world.block(commit)
    unit = world.unit(job, 0, 0)
    assert unit.status == "committed"
    assert isinstance(commit.body, Commit)
    assert unit.commit == commit.body.digest
    assert world.round(job, 0).phase == "work"


def test_commit_refusals() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    fields = {"job": job, "round": 0, "slot": 0, "digest": text_hash("x")}
    world.refuse(world.entry("w2", Commit, **fields), "slot 0 is .*'s, not")
    world.refuse(world.entry("w1", Commit, **(fields | {"slot": 2})), "no unit in slot 2 of round 0")
    world.refuse(world.entry("w1", Commit, **(fields | {"round": 1})), "no round 1")
    world.refuse(world.entry("w1", Commit, **(fields | {"job": "00" * 32})), "no round 0 of job 0000")
    world.block(world.entry("w1", Commit, **fields))
    world.refuse(world.entry("w1", Commit, **fields), "is committed, not assigned")


def test_the_work_phase_ends_early_once_all_committed() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    world.block(act_commit(world, Actor("w1"), action_of(job, 0)), act_commit(world, Actor("w2"), action_of(job, 1)))
    assert world.round(job, 0).phase == "work"  # decided by the next block, with its beacon
    world.wake()
    round_ = world.round(job, 0)
    assert (round_.phase, round_.phase_end_ms) == ("reveal", world.time_ms + 10_000)
    beacon = bytes.fromhex(text_hash("beacon", world.height))
    commits = [bytes.fromhex(world.unit(job, 0, slot).commit) for slot in (0, 1)]
    assert round_.audit_seed == digest("gdf/audit-seed", beacon, *commits).hex()


def test_a_commit_after_the_deadline_is_refused_and_the_unit_missed() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    world.block(act_commit(world, Actor("w1"), action_of(job, 0)))
    world.block(dt=60_000)
    unit = world.unit(job, 0, 1)
    assert (unit.status, unit.reason) == ("missed", "no commit by the deadline")
    world.refuse(act_commit(world, Actor("w2"), action_of(job, 1)), "is in phase reveal; a commit needs work")


def test_the_last_millisecond_before_the_deadline_counts() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    world.block(dt=59_999)
    assert world.round(job, 0).phase == "work"
    world.block(act_commit(world, Actor("w1"), action_of(job, 0)), dt=0)
    assert world.unit(job, 0, 0).status == "committed"


@pytest.mark.parametrize(
    ("floor", "consecutive", "eligible", "chance"),
    [
        (50_000, 0, 1, 1_000_000),  # a beginner's unit is audited for sure
        (50_000, 0, 3, 333_334),
        (50_000, 1, 2, 250_000),
        (50_000, 2, 1, 333_334),
        (50_000, 99, 1, 50_000),
        (50_000, 99, 4, 12_500),
        (0, 10**9, 1, 1),
        (50_000, 0, 0, 0),
    ],
)
def test_audit_chance(floor: int, consecutive: int, eligible: int, chance: int) -> None:
    assert compute_audit_chance_ppm(floor, consecutive, eligible) == chance


def test_records_count_less_after_a_conviction() -> None:
    assert [compute_counted_record(50, 0, index) for index in (0, 7)] == [50, 50]  # nobody was convicted
    assert [compute_counted_record(50, 4, index) for index in (3, 4, 5, 6, 60)] == [0, 0, 1, 2, 50]
    assert compute_counted_record(1, 4, 9) == 1


def test_the_audit_chance_is_fixed_when_the_commits_are() -> None:
    world = make_world(validators=("val", "val2"))
    job = start(world, "w1", "w2")
    cast_all(world)
    play_to(world, job, "reveal")
    assert world.unit(job, 0, 0).audit_chance_ppm == 333_334  # two validators and the other worker


# reveal


def revealing(world: World) -> str:
    job = start(world, "w1", "w2")
    cast_all(world)
    play_to(world, job, "reveal")
    return job


def test_a_reveal_opens_the_commit_and_draws_the_shard() -> None:
    world = make_world()
    job = revealing(world)
    actor = Actor("w1")
    world.block(act_reveal(world, actor, action_of(job, 0)))
    unit = world.unit(job, 0, 0)
    fields = reveal_fields(world, actor, action_of(job, 0))
    assert (unit.status, unit.update, unit.sketch_root) == ("revealed", fields["update"], fields["sketch_root"])
    proof = vrf.prove(actor.key.seed, shard_alpha(job, 0, 0, world.round(job, 0).seed))
    assert unit.shard == draw(vrf.output(proof), 16)


def test_a_reveal_states_the_parts_of_a_batch() -> None:
    world = make_world()
    job = revealing(world)
    batch = world.job(job).spec.recipe.batch
    fields = reveal_fields(world, Actor("w1"), action_of(job, 0)) | {"processes": 2}
    world.refuse(world.entry("w1", Reveal, job=job, round=0, slot=0, **fields, rows=batch), "no part of a batch")
    world.block(world.entry("w1", Reveal, job=job, round=0, slot=0, **fields, rows=batch - 1))
    assert (world.unit(job, 0, 0).rows, world.unit(job, 0, 0).processes) == (batch - 1, 2)


@pytest.mark.parametrize("name", ["update", "sketch_root", "salt"])
def test_a_reveal_must_open_its_own_commit(name: str) -> None:
    world = make_world()
    job = revealing(world)
    fields = reveal_fields(world, Actor("w1"), action_of(job, 0)) | {name: text_hash("other")}
    world.refuse(world.entry("w1", Reveal, job=job, round=0, slot=0, **fields), "the reveal hashes to")


def test_a_reveal_with_the_proof_of_another_key_or_slot_is_refused() -> None:
    for prover, slot in (("w2", 0), ("w1", 1)):
        world = make_world()
        job = start(world, "w1", "w2")
        alpha = shard_alpha(job, 0, slot, world.round(job, 0).seed)
        fields = reveal_fields(world, Actor("w1"), action_of(job, 0))
        fields["proof"] = vrf.prove(key_of(prover).seed, alpha).hex()
        digest_ = commitment(key_of("w1").account, **fields)
        world.block(world.entry("w1", Commit, job=job, round=0, slot=0, digest=digest_))
        world.block(dt=60_000)
        world.refuse(world.entry("w1", Reveal, job=job, round=0, slot=0, **fields), "Reveal .* is refused")


def test_reveal_refusals() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    world.refuse(act_reveal(world, Actor("w1"), action_of(job, 0)), "is in phase work; a reveal needs reveal")
    world.block(act_commit(world, Actor("w1"), action_of(job, 0)))
    world.block(dt=60_000)
    world.refuse(act_reveal(world, Actor("w2"), action_of(job, 1)), "the unit in slot 1 is missed, not committed")
    fields = reveal_fields(world, Actor("w1"), action_of(job, 0))
    world.refuse(world.entry("w2", Reveal, job=job, round=0, slot=0, **fields), "slot 0 is .*'s, not")
    world.block(act_reveal(world, Actor("w1"), action_of(job, 0)))
    world.block()
    world.refuse(act_reveal(world, Actor("w1"), action_of(job, 0)), "is in phase receipt")


def test_a_commit_without_reveal_is_missed() -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    cast_all(world)
    world.cast(Actor("w2", skips=frozenset({"reveal"})))
    play_to(world, job, "receipt")
    unit = world.unit(job, 0, 1)
    assert (unit.status, unit.reason) == ("missed", "no reveal by the deadline")
    assert world.round(job, 0).attesters == (key_of("w1").account, key_of("val").account)


# receipts


def test_attesters_are_the_workers_and_four_drawn_validators() -> None:
    validators = tuple(f"val{number}" for number in range(6))
    world = make_world(validators=(*validators, "w1"))
    job = start(world, "w1", "w2")
    cast_all(world, "w1", "w2")
    round_ = play_to(world, job, "receipt")
    workers, others = round_.attesters[:2], round_.attesters[2:]
    assert workers == (key_of("w1").account, key_of("w2").account)
    assert len(set(others)) == 4
    assert set(others) <= {key_of(name).account for name in validators}


def receiving(world: World, *names: str) -> str:
    job = start(world, *(names or ("w1", "w2", "w3")))
    cast_all(world)
    play_to(world, job, "receipt")
    return job


def test_receipt_refusals() -> None:
    world = make_world()
    job = receiving(world, "w1", "w2")
    world.refuse(receipt_entry(world, "w3", job, 0), "is no attester of round 0")
    world.refuse(receipt_entry(world, "w1", job, 1, 0), "are not ascending")
    world.refuse(receipt_entry(world, "w1", job, 0, 0), "are not ascending")
    world.refuse(receipt_entry(world, "w1", job, 0, 2), r"slots \[2\] revealed nothing")
    world.block(receipt_entry(world, "w1", job, 0))
    world.refuse(receipt_entry(world, "w1", job, 0, 1), "attested to round 0 in this phase already")


def test_a_slot_is_in_when_more_than_two_thirds_hold_it() -> None:
    world = make_world(validators=("val", "val2", "val3"))
    job = receiving(world)
    # six attesters: slot 0 is held by five, slot 1 by four (exactly two thirds), slot 2 by all
    held = {"w1": (0, 1, 2), "w2": (0, 1, 2), "w3": (0, 1, 2), "val": (0, 1, 2), "val2": (0, 2), "val3": (2,)}
    world.block(*(receipt_entry(world, name, job, *slots) for name, slots in held.items()))
    world.wake()
    round_ = world.round(job, 0)
    assert (round_.phase, round_.included) == ("result", (0, 2))
    unit = world.unit(job, 0, 1)
    assert (unit.status, unit.reason) == ("rejected", "4 of 6 attesters hold the update")


def test_attesters_without_a_receipt_drop_out() -> None:
    world = make_world(validators=("val", "val2"))
    job = receiving(world)
    world.block(*(receipt_entry(world, name, job, 0, 1) for name in ("w1", "w2", "val")))
    world.block(dt=10_000)
    round_ = world.round(job, 0)
    assert round_.phase == "result"
    assert round_.attesters == tuple(key_of(name).account for name in ("w1", "w2", "val"))
    assert round_.included == (0, 1)  # all three that remain


@pytest.mark.parametrize(("names", "phase"), [(("w1", "w2", "val"), "result"), (("w1", "w2"), "void")])
def test_half_plus_one_of_four_attesters_must_remain(names: tuple[str, ...], phase: str) -> None:
    world = make_world()
    job = receiving(world)
    assert len(world.round(job, 0).attesters) == 4
    world.block(*(receipt_entry(world, name, job, 0, 1, 2) for name in names))
    world.block(dt=10_000)
    assert world.round(job, 0).phase == phase
    if phase == "void":
        assert world.round(job, 0).reason == "2 of 4 attesters sent receipts; 3 are needed"
        assert world.unit(job, 0, 0).status == "rejected"


def test_a_round_whose_updates_nobody_holds_is_void() -> None:
    world = make_world()
    job = receiving(world)
    world.block(*(receipt_entry(world, name, job) for name in ("w1", "w2", "w3", "val")))
    world.wake()
    assert world.round(job, 0).phase == "void"
    assert world.unit(job, 0, 0).reason == "0 of 4 attesters hold the update"


# results


def voting(world: World) -> tuple[str, Round]:
    job = receiving(world)
    play_to(world, job, "result")
    return job, world.round(job, 0)


BAD_OUTCOMES: list[tuple[dict[str, object], str]] = [
    ({"included": (1, 0, 2)}, "distinct and ascending"),
    ({"included": (0, 0, 1, 2)}, "distinct and ascending"),
    ({"included": (0, 1)}, r"decides on slots \[0, 1\]; in are \[0, 1, 2\]"),
    ({"rejected": (Rejected(slot=2, reason="x"),)}, "decides on slots"),
    ({"rejected": (Rejected(slot=3, reason="x"),)}, "decides on slots"),
    ({"merit_ppm": (1, 1)}, "2 merit shares of 2 ppm for 3 slots"),
    ({"merit_ppm": (500_000, 500_000, 1)}, "3 merit shares of 1000001 ppm"),
    ({"cosine_ppm": (1, 1)}, "2 cosines for 3 slots"),
    ({"suspicion": (0, 0)}, "suspicion names slots"),
    ({"suspicion": (3,)}, "suspicion names slots"),
    ({"flags": (Flag(slot=0, other=3, reason="outlier", value_ppm=0),)}, "flags name slots"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD_OUTCOMES)
def test_an_outcome_accounts_for_every_slot_once(changes: dict[str, object], reason: str) -> None:
    world = make_world()
    job, round_ = voting(world)
    world.refuse(result_entry(world, "w1", job, outcome_of(round_, **changes)), reason)


def test_result_refusals() -> None:
    world = make_world()
    job = receiving(world)
    world.refuse(receipt_entry(world, "owner", job), "is no attester")
    early = Outcome(
        checkpoint=text_hash(1), included=(), rejected=(), merit_ppm=(), cosine_ppm=(), suspicion=(), flags=()
    )
    world.refuse(result_entry(world, "w1", job, early), "is in phase receipt; a result needs result")
    play_to(world, job, "result")
    round_ = world.round(job, 0)
    world.refuse(result_entry(world, "owner", job, outcome_of(round_)), "is no attester")
    world.block(result_entry(world, "w1", job, outcome_of(round_)))
    world.refuse(result_entry(world, "w1", job, outcome_of(round_, "second")), "in this phase already")


def test_more_than_two_thirds_settle_before_the_deadline() -> None:
    world = make_world(validators=("val", "val2", "val3"))
    job, round_ = voting(world)
    names = ("w1", "w2", "w3", "val")
    world.block(*(result_entry(world, name, job, outcome_of(round_), 7) for name in names))
    world.block()
    assert world.round(job, 0).phase == "result"  # four of six are exactly two thirds
    world.block(result_entry(world, "val2", job, outcome_of(round_)))
    world.wake()
    settled = world.round(job, 0)
    assert (settled.phase, settled.outcome, settled.outcomes) == ("settled", outcome_of(round_), ())
    assert dict(settled.losses)[key_of("w1").account] == 7
    assert settled.ended_ms == world.time_ms < round_.phase_end_ms
    assert world.job(job).checkpoint == outcome_of(round_).checkpoint
    assert (world.job(job).completed, world.job(job).round) == (1, 1)
    assert world.round(job, 1).checkpoint == outcome_of(round_).checkpoint


def test_at_the_deadline_two_thirds_of_the_voters_decide_if_they_are_more_than_half() -> None:
    world = make_world(validators=("val", "val2", "val3"))
    job, round_ = voting(world)
    world.block(*(result_entry(world, name, job, outcome_of(round_)) for name in ("w1", "w2", "w3", "val")))
    world.block(dt=10_000)
    assert world.round(job, 0).phase == "settled"


@pytest.mark.parametrize(
    "votes",
    [
        ("", "", ""),  # three of six voters are not more than half
        ("", "", "", "b", "b"),  # three of five are not more than two thirds
        ("", "", "", "", "b", "b"),  # four of six are not either
    ],
)
def test_without_agreement_the_round_is_void(votes: tuple[str, ...]) -> None:
    world = make_world(validators=("val", "val2", "val3"))
    job, round_ = voting(world)
    names = ("w1", "w2", "w3", "val", "val2", "val3")
    entries = [
        result_entry(world, name, job, outcome_of(round_, vote or "honest"))
        for name, vote in zip(names, votes, strict=False)
    ]
    world.block(*entries)
    world.block(dt=10_000)
    void = world.round(job, 0)
    assert (void.phase, void.outcome) == ("void", None)
    assert void.reason == f"{len(votes)} of 6 attesters voted, no outcome has more than two thirds"
    assert world.unit(job, 0, 0).status == "rejected"
    assert world.job(job).checkpoint == round_.checkpoint
    assert (world.job(job).completed, world.job(job).void_in_row) == (0, 1)


def settle(world: World, job: str, outcome: Outcome) -> None:
    names = [name for name in ("w1", "w2", "w3", "val") if key_of(name).account in world.round(job, 0).attesters]
    world.block(*(result_entry(world, name, job, outcome) for name in names))
    world.wake()


def test_included_units_are_held_and_rejected_ones_are_not() -> None:
    world = make_world()
    job, round_ = voting(world)
    outcome = outcome_of(
        round_,
        included=(0, 2),
        rejected=(Rejected(slot=1, reason="norm"),),
        merit_ppm=(700_000, 300_000),
        cosine_ppm=(1, 2),
        suspicion=(2,),
    )
    settle(world, job, outcome)
    accepted, rejected, last = (world.unit(job, 0, slot) for slot in (0, 1, 2))
    # the pot is a tenth of two units at 10
    assert (accepted.status, accepted.held_pay, accepted.held_merit) == ("accepted", 10 * CREDIT, 1_400_000)
    assert (last.held_pay, last.held_merit) == (10 * CREDIT, 600_000)
    assert (rejected.status, rejected.reason, rejected.held_pay) == ("rejected", "norm", 0)
    assert accepted.release_ms == world.time_ms + 60_000
    assert world.job(job).escrow == 66 * CREDIT - 22 * CREDIT
    assert world.job(job).unsettled == (f"unit/{job}/0/0", f"unit/{job}/0/2")


def test_an_outcome_that_includes_nothing_voids_the_round() -> None:
    world = make_world()
    job, round_ = voting(world)
    rejected = tuple(Rejected(slot=slot, reason="norm") for slot in round_.included)
    settle(world, job, outcome_of(round_, included=(), rejected=rejected, merit_ppm=(), cosine_ppm=(), suspicion=()))
    assert world.round(job, 0).phase == "void"
    assert world.job(job).completed == 0
    assert world.job(job).checkpoint == round_.checkpoint


@pytest.mark.parametrize(
    ("price", "merit_ppm", "shares", "expected"),
    [
        (10, 100_000, [500_000, 500_000], [1, 1]),
        (10, 100_000, [333_333, 333_333, 333_333], [0, 0, 0]),
        (7, 1_000_000, [1_000_000, 0], [14, 0]),
        (7, 0, [1_000_000], [0]),
        (7, 500_000, [], []),
    ],
)
def test_merit_is_the_pot_split_by_shares_rounded_down(
    price: int, merit_ppm: int, shares: list[int], expected: list[int]
) -> None:
    assert compute_merit(price, merit_ppm, shares) == expected


# misses


def test_two_rounds_missed_in_a_row_close_the_bid() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=5)
    cast_all(world)
    world.cast(Actor("w2", skips=frozenset({"commit"})))
    play_to(world, job, "settled")
    assert world.bid(job, "w2").misses == 1
    play_to(world, job, "settled", 1)
    bid = world.bid(job, "w2")
    assert (bid.status, bid.reason) == ("closed", "missed deadlines in 2 rounds in a row")
    assert world.job(job).slots == (key_of("w1").account, "")
    assert bid.bond == 0
    play_to_end(world)
    assert world.job(job).status == "done"


def test_an_accepted_unit_forgives_a_miss() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=3)
    cast_all(world)
    world.cast(Actor("w2", skips=frozenset({"commit"})))
    play_to(world, job, "settled")
    world.cast(Actor("w2"))
    play_to(world, job, "settled", 1)
    assert world.bid(job, "w2").misses == 0
    assert world.bid(job, "w2").status == "matched"


def test_several_units_missed_in_one_round_are_one_miss() -> None:
    world = make_world()
    job = post(world, units_per_round=3)
    world.block(bid_entry(world, "w1", job, 1), bid_entry(world, "w2", job, 2, units=2))
    world.wake()
    cast_all(world)
    world.cast(Actor("w2", skips=frozenset({"commit"})))
    play_to(world, job, "settled")
    assert [world.unit(job, 0, slot).status for slot in (1, 2)] == ["missed", "missed"]
    assert world.bid(job, "w2").misses == 1


def test_a_round_without_any_commit_or_reveal_is_void() -> None:
    for skipped, reason in (("commit", "nobody committed"), ("reveal", "nobody revealed")):
        world = make_world()
        job = start(world, "w1", "w2")
        cast_all(world, skips=frozenset({skipped}))
        round_ = play_to(world, job, "void")
        assert round_.reason == reason
        assert world.unit(job, 0, 0).status == "missed"
        assert world.bid(job, "w1").misses == 1


def test_the_price_is_paid_whatever_the_bid_was() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=1, merit_ppm=0, audit_fee=0)
    cast_all(world)
    play_to_end(world)
    assert world.unit(job, 0, 0).paid == world.unit(job, 0, 1).paid == 10 * CREDIT
    assert world.balance("w1") == world.balance("w2") == 1_010 * CREDIT


def test_every_outcome_that_attesters_name_is_bounded() -> None:
    world = make_world(validators=("val", "val2", "val3"))
    job, round_ = voting(world)
    for name in ("w1", "w2", "w3", "val", "val2", "val3"):
        world.block(result_entry(world, name, job, outcome_of(round_, name)), dt=1)
    assert len(world.round(job, 0).outcomes) == len(world.round(job, 0).attesters) == 6
    world.wake()
    assert world.round(job, 0).outcomes == ()


def test_a_worker_that_is_a_validator_attests_once() -> None:
    world = make_world(validators=("w1",))
    job = start(world, "w1", "w2")
    world.cast(Actor("w1"), Actor("w2"))
    round_ = play_to(world, job, "receipt")
    assert round_.attesters == (key_of("w1").account, key_of("w2").account)


# warm rounds


def test_warm_rounds_have_one_unit_whose_update_counts_in_full() -> None:
    world = make_world()
    job = start(world, "w1", "w2", "w3", units_per_round=3, rounds=3, warm_rounds=2)
    cast_all(world, "w1", "w2", "w3")
    spec = world.job(job).spec
    assert spec.most_units() == 2 + 3
    assert escrow_of(spec)[0] == (2 + 3) * spec.reserve_price * (PPM + spec.merit_ppm) // PPM
    play_to_end(world)
    rounds = [world.round(job, index) for index in range(3)]
    assert [len(round_.units) for round_ in rounds] == [1, 1, 3]
    assert [round_.done for round_ in rounds] == [0, 1, 2]
    warm = get_recipe(spec, rounds[1])
    assert (warm.outer_lr_ppm, warm.outer_momentum_ppm) == (PPM, 0)
    assert get_recipe(spec, rounds[2]) == spec.recipe
    assert world.job(job).status == "done"


def test_a_void_round_does_not_use_a_warm_round_up() -> None:
    world = make_world()
    job = start(world, "w1", "w2", units_per_round=2, rounds=2, warm_rounds=1)
    world.wake()  # nobody commits
    cast_all(world, "w1", "w2")
    play_to_end(world)
    rounds = [world.round(job, index) for index in range(3)]
    assert [round_.phase for round_ in rounds] == ["void", "settled", "settled"]
    assert [(len(round_.units), round_.done) for round_ in rounds] == [(1, 0), (1, 0), (2, 1)]


def test_there_are_no_more_warm_rounds_than_rounds() -> None:
    world = make_world()
    world.refuse(world.job_entry(rounds=2, warm_rounds=3), "warm_rounds")
