"""Posting, cancelling and ending jobs, and the escrow."""

import msgspec
import pytest

from contracts.jobs import DURATIONS, escrow_of
from contracts.parameters import (
    MAX_ACTIVE_JOBS,
    MAX_ACTIVE_JOBS_PER_AUTHOR,
    MAX_JOB_MS,
    MAX_PHASE_MS,
    MIN_AUDIT_MS,
)
from gdf_market.messages import JobCancel, JobPost
from gdf_market.units import CREDIT
from tests.contracts_world import (
    WORKERS,
    World,
    assert_nothing_locked,
    bid_entry,
    cast_all,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
)


def spec_of(world: World, **changes: object) -> JobPost:
    body = world.job_entry(**changes).body
    assert isinstance(body, JobPost)
    return body


@pytest.mark.parametrize(
    ("rounds", "units", "price", "merit_ppm", "expected"),
    [
        (2, 3, 10, 0, 60),
        (2, 3, 10, 500_000, 90),
        (1, 1, 1, 1, 2),  # a merit share of a millionth of one micro-credit is rounded up
        (10_000, 64, CREDIT, 1_000_000, 2 * 640_000 * CREDIT),
    ],
)
def test_escrow_is_all_rounds_at_the_reserve_price_and_the_merit_share(
    rounds: int, units: int, price: int, merit_ppm: int, expected: int
) -> None:
    spec = spec_of(make_world(), rounds=rounds, units_per_round=units, reserve_price=price, merit_ppm=merit_ppm)
    assert escrow_of(spec) == (expected, spec.audit_budget)


def test_post_locks_the_escrow_and_opens_bidding() -> None:
    world = make_world()
    job = world.job(post(world))
    assert job.status == "bidding"
    assert (job.escrow, job.audit_escrow) == (44 * CREDIT, 20 * CREDIT)
    assert world.balance("owner") == (1_000 - 64) * CREDIT
    assert job.phase_end_ms == world.time_ms + job.spec.bid_ms
    assert job.id == world.entries[-1].id
    assert world.state.active().jobs == (job.id,)
    assert job.checkpoint == job.spec.checkpoint


def test_post_takes_exactly_the_balance_but_not_more() -> None:
    world = make_world()
    spare = world.balance("owner") - 44 * CREDIT
    world.refuse(world.job_entry(audit_budget=spare + 1), "the job's escrow takes")
    post(world, audit_budget=spare)
    assert world.balance("owner") == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device_class": "cuda-bf16"}, "no verdict thresholds; known are cpu-fp32, cuda-fp32, cpu-bf16"),
        ({"min_workers": 3, "units_per_round": 2}, "3 workers cannot share 2 units"),
        ({"rounds": 10_000, "units_per_round": 64}, "the job's escrow takes"),
        ({"name": "nobody"}, "has 0"),
    ],
)
def test_post_refuses(changes: dict[str, object], reason: str) -> None:
    world = make_world()
    world.refuse(world.job_entry(**changes), reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device_class", "changes", "reason"),
    [
        ("cpu-fp32", {"precision": "bf16", "codec_bits": 8}, "a recipe of bf16 is not for device class cpu-fp32"),
        ("cpu-bf16", {"codec_bits": 8}, "a recipe of fp32 is not for device class cpu-bf16"),
        ("cpu-bf16", {"precision": "bf16", "codec_bits": 7}, "need all values at 8 bits, not 7"),
        ("cpu-bf16", {"precision": "bf16", "codec_bits": 8, "codec_density_ppm": 1}, "need all values"),
        ("cpu-bf16", {"precision": "bf16", "codec_bits": 8, "steps": 101}, "at most 100 steps, not 101"),
    ],
)
def test_a_recipes_precision_is_that_of_its_device_class(
    device_class: str, changes: dict[str, object], reason: str
) -> None:
    world = make_world()
    recipe = world.job_fields()["recipe"]
    refused = msgspec.structs.replace(recipe, **changes)  # type: ignore[type-var]
    world.refuse(world.job_entry(device_class=device_class, recipe=refused), reason)
    taken = msgspec.structs.replace(recipe, precision="bf16", codec_bits=8, steps=100)  # type: ignore[type-var]
    post(world, device_class="cpu-bf16", recipe=taken)


@pytest.mark.parametrize("name", DURATIONS)
def test_post_refuses_a_duration_without_end(name: str) -> None:
    world = make_world()
    world.refuse(world.job_entry(**{name: MAX_PHASE_MS + 1}), f"{name} is")
    post(world, **{name: MAX_PHASE_MS})


def test_post_refuses_less_time_to_answer_an_audit_than_auditors_need() -> None:
    """They did not choose the job, as its workers did."""
    world = make_world()
    world.refuse(world.job_entry(audit_ms=MIN_AUDIT_MS - 1), "audit_ms is 9999; auditors need 10000 at least")
    world.block(world.job_entry(audit_ms=MIN_AUDIT_MS))


def test_post_needs_a_deadline_ahead() -> None:
    world = make_world()
    now = world.time_ms + 1_000
    world.refuse(world.job_entry(deadline_ms=now), "is not within")
    world.refuse(world.job_entry(deadline_ms=now + MAX_JOB_MS + 1), "is not within")
    post(world, deadline_ms=now + 1)


def test_active_jobs_per_author_are_limited() -> None:
    world = make_world()
    cheap = {"rounds": 1, "units_per_round": 1, "reserve_price": 1, "audit_budget": 0}
    jobs = [post(world, **cheap) for _ in range(MAX_ACTIVE_JOBS_PER_AUTHOR)]
    world.refuse(world.job_entry(**cheap), "has 16 active jobs")
    post(world, name="other", **cheap)
    world.block(world.entry("owner", JobCancel, job=jobs[0]))
    world.wake()
    post(world, **cheap)


def test_active_jobs_are_limited() -> None:
    names = [f"owner{number}" for number in range(17)]
    world = World({name: CREDIT for name in names} | {"val": CREDIT})
    world.check = False
    cheap = {"rounds": 1, "units_per_round": 1, "reserve_price": 1, "audit_budget": 0}
    for name in names[:16]:
        world.block(*(world.job_entry(name, **cheap) for _ in range(MAX_ACTIVE_JOBS_PER_AUTHOR)))
    assert len(world.state.active().jobs) == MAX_ACTIVE_JOBS
    world.refuse(world.job_entry("owner16", **cheap), "256 jobs are active")


# cancel


def test_cancel_while_bidding_returns_everything() -> None:
    world = make_world()
    job = post(world)
    world.block(world.entry("owner", JobCancel, job=job))
    assert world.job(job).status == "bidding"  # the next block carries it out
    world.wake()
    ended = world.job(job)
    assert (ended.status, ended.refunded, ended.ended_ms) == ("cancelled", 64 * CREDIT, world.time_ms)
    assert world.balance("owner") == 1_000 * CREDIT
    assert world.state.active().jobs == ()
    assert_nothing_locked(world)


def test_cancel_lets_the_round_under_way_settle() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=5)
    cast_all(world)
    play_to(world, job, "reveal")
    world.block(world.entry("owner", JobCancel, job=job))
    play_to(world, job, "settled")
    assert world.job(job).status == "draining"
    play_to_end(world)
    ended = world.job(job)
    assert (ended.status, ended.completed) == ("cancelled", 1)
    assert world.unit(job, 0, 0).status == world.unit(job, 0, 1).status == "paid"
    assert world.state.round(job, 1) is None


def test_cancel_refuses_strangers_ended_jobs_and_repetition() -> None:
    world = make_world()
    job = post(world)
    world.refuse(world.entry("w1", JobCancel, job=job), "is .*'s, not")
    world.refuse(world.entry("owner", JobCancel, job="00" * 32), "no job 0000")
    world.block(world.entry("owner", JobCancel, job=job))
    world.refuse(world.entry("owner", JobCancel, job=job), "the job is cancelled")
    world.block()
    world.refuse(world.entry("owner", JobCancel, job=job), "the job is cancelled")


def test_cancel_in_the_last_round_ends_as_done() -> None:
    world = make_world()
    job = start(world, "w1", rounds=1)
    cast_all(world)
    play_to(world, job, "result")
    world.block(world.entry("owner", JobCancel, job=job))
    play_to_end(world)
    assert world.job(job).status == "done"


# ends


def test_a_job_is_done_after_its_last_round() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=3)
    cast_all(world)
    play_to_end(world)
    ended = world.job(job)
    assert (ended.status, ended.completed, ended.round, ended.void_in_row) == ("done", 3, 3, 0)
    # six units at the reserve price (nobody was left over), each with half of the merit pot of 2; an audit per round
    paid, fees = 6 * 11 * CREDIT, 3 * CREDIT
    refund = sum(event.amount for event in world.events if event.kind == "refund")
    assert ended.refunded == refund == 20 * CREDIT - fees
    assert world.balance("owner") == 1_000 * CREDIT - paid - fees
    assert [event.reason for event in world.events if event.kind == "job"][-1] == "done"


def test_unused_escrow_returns_when_the_price_was_lower() -> None:
    world = make_world()
    job = post(world, rounds=1, units_per_round=1, merit_ppm=0, audit_budget=0)
    world.block(bid_entry(world, "w1", job, 3), bid_entry(world, "w2", job, 4))
    cast_all(world)
    play_to_end(world)
    assert world.job(job).clearing_price == 4 * CREDIT
    assert world.job(job).refunded == 6 * CREDIT


def test_the_deadline_ends_a_job_that_nobody_bids_for() -> None:
    world = make_world()
    job = post(world, deadline_ms=world.time_ms + 12_000)
    while world.state.active().jobs:
        world.wake()
    ended = world.job(job)
    assert (ended.status, ended.ended_ms) == ("expired", ended.spec.deadline_ms)
    assert world.balance("owner") == 1_000 * CREDIT


def test_the_deadline_voids_a_round_under_way() -> None:
    world = make_world()
    job = start(world, "w1", "w2", deadline_ms=world.time_ms + 30_000)
    cast_all(world)
    play_to(world, job, "receipt")
    world.block(dt=world.job(job).spec.deadline_ms - world.time_ms)
    assert world.round(job, 0).phase == "void"
    assert world.unit(job, 0, 0).status == "rejected"
    assert "deadline" in world.unit(job, 0, 0).reason
    assert world.job(job).status == "expired"
    assert world.bid(job, "w1").misses == 0
    assert_nothing_locked(world)


def test_the_deadline_does_not_take_pay_that_is_held() -> None:
    world = make_world()
    job = start(world, "w1", "w2", rounds=20, hold_ms=100_000, deadline_ms=world.time_ms + 40_000)
    cast_all(world)
    play_to(world, job, "settled")
    play_to_end(world)
    assert world.job(job).status == "expired"
    assert world.unit(job, 0, 0).status == "paid"
    assert world.job(job).ended_ms > world.job(job).spec.deadline_ms


def test_too_many_void_rounds_end_a_job() -> None:
    world = make_world(max_void_rounds=2)
    job = start(world, "w1", "w2", "w3", rounds=9)
    # they commit and never reveal: each round is void, and two misses close the bids
    cast_all(world, skips=frozenset({"reveal"}))
    for _ in range(3):
        play_until_idle(world, job)
    ended = world.job(job)
    assert ended.status == "expired"
    assert ended.reason == "3 rounds in a row had no result"
    assert_nothing_locked(world)


def play_until_idle(world: World, job: str) -> None:
    """Play until the job ends or asks for bids, and then bid again with everybody."""
    world.play(lambda: world.job(job).status != "running")
    if world.job(job).status == "bidding":
        world.block(*(bid_entry(world, name, job) for name in WORKERS))
        world.play(lambda: world.job(job).status != "bidding")


def test_a_settled_round_forgives_void_ones() -> None:
    world = make_world(max_void_rounds=1)
    job = start(world, "w1", "w2", rounds=2)
    cast_all(world, skips=frozenset({"receipt"}))
    play_to(world, job, "void")
    assert world.job(job).void_in_row == 1
    cast_all(world)
    play_to(world, job, "settled", 1)
    assert world.job(job).void_in_row == 0
    assert world.job(job).completed == 1


def test_no_more_rounds_start_while_too_much_pay_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contracts.rounds.MAX_UNSETTLED", 5)
    world = make_world()
    job = start(world, "w1", "w2", rounds=4, hold_ms=600_000)
    cast_all(world)
    play_to(world, job, "settled", 1)
    assert len(world.job(job).unsettled) == 4
    assert world.state.round(job, 2) is None
    assert world.job(job).status == "running"
    play_to(world, job, "work", 2)
    assert world.time_ms >= world.unit(job, 0, 0).release_ms
    play_to_end(world)
    assert world.job(job).status == "done"


def test_owner_and_worker_may_be_one_account_and_gain_nothing() -> None:
    world = make_world()
    job = start(world, "owner", rounds=2, audit_fee=0)
    cast_all(world, "owner")
    play_to_end(world)
    assert world.job(job).status == "done"
    assert world.balance("owner") == 1_000 * CREDIT


def test_two_jobs_do_not_touch_each_other() -> None:
    world = make_world()
    first, second = start(world, "w1"), start(world, "w1", "w2", name="other")
    cast_all(world)
    play_to_end(world)
    assert world.job(first).status == world.job(second).status == "done"
    spent = {
        account: sum(e.amount for e in world.events if e.job == job and e.kind in ("held", "paid"))
        for job, account in ((first, "owner"), (second, "other"))
    }
    assert spent == {"owner": 2 * 2 * 10 * CREDIT, "other": 2 * 4 * 10 * CREDIT}
