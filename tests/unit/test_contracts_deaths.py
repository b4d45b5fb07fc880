"""Who dies in the middle of a round: what it costs, and that it costs nobody else.  The owner has left after its post.

Nobody audits here; what silence costs an audited worker is in test_contracts_audits.py.
"""

import pytest

from gdf_market.units import CREDIT
from tests.contracts_world import (
    ACTS,
    WORKERS,
    Actor,
    World,
    bid_entry,
    cast_all,
    make_world,
    play_to,
    play_to_end,
    post,
    start,
)

ROUNDS = 4
# What the others wait for; of four results three are enough.
WAITS_MS = {"work": 60_000, "reveal": 10_000, "receipt": 10_000, "result": 0, "settled": 0}
STEPS = {"work": {"train", "commit"}, "reveal": {"reveal"}, "receipt": {"receipt"}, "result": {"result"}}
AUDITS = frozenset(name for name in ACTS if name.startswith("audit_") or name == "sketch_open")


def undone(phase: str) -> frozenset[str]:
    """Return what somebody does not do any more that dies in a phase."""
    names = list(WAITS_MS)
    done = set().union(*(STEPS[name] for name in names[: names.index(phase)]))
    return frozenset(ACTS) - done


def die(phase: str) -> tuple[World, str]:
    """Let w1 die in a phase of round 1, before it acts in it; return when that round is settled."""
    world = make_world()
    world.check = False  # what holds after every block is checked by the other tests of contracts
    job = start(world, *WORKERS, rounds=ROUNDS, hold_ms=1_000)
    cast_all(world, skips=AUDITS)
    play_to(world, job, "work", 1)
    world.cast(Actor("w1", skips=undone(phase)))
    play_to(world, job, "settled", 1)
    world.cast(Actor("w1", skips=frozenset(ACTS)))
    return world, job


@pytest.mark.parametrize("phase", WAITS_MS)
def test_who_dies_loses_the_units_it_did_not_reveal_and_nothing_else(phase: str) -> None:
    world, job = die(phase)
    round_ = world.round(job, 1)
    spent_ms = round_.ended_ms - round_.started_ms
    assert WAITS_MS[phase] <= spent_ms < WAITS_MS[phase] + 10_000
    play_to_end(world)
    assert (world.job(job).status, world.job(job).completed) == ("done", ROUNDS)

    units = [world.state.unit(job, index, 0) for index in range(ROUNDS)]
    missed = [unit is not None and unit.status == "missed" for unit in units]
    if phase in ("work", "reveal"):
        assert missed == [False, True, True, False]
        assert units[3] is None  # two misses in a row freed its slot
    else:
        assert missed == [False, False, True, True]
    assert world.balance("w1") == 1_000 * CREDIT + sum(unit.paid for unit in units if unit is not None)  # bond and all
    for name, slot in (("w2", 1), ("w3", 2)):
        others = [world.unit(job, index, slot) for index in range(ROUNDS)]
        assert {unit.status for unit in others} == {"paid"}
        assert world.balance(name) == 1_000 * CREDIT + sum(unit.paid for unit in others)
    paid = sum(world.balance(name) - 1_000 * CREDIT for name in WORKERS)
    assert world.balance("owner") == 1_000 * CREDIT - paid  # the rest came back by itself


@pytest.mark.parametrize("phase", WAITS_MS)
def test_who_comes_back_in_the_next_round_goes_on(phase: str) -> None:
    world, job = die(phase)
    world.cast(Actor("w1", skips=AUDITS))
    play_to_end(world)
    statuses = [world.unit(job, index, 0).status for index in range(ROUNDS)]
    assert statuses == ["paid", "missed" if phase in ("work", "reveal") else "paid", "paid", "paid"]


def test_a_job_with_too_few_workers_ends_by_its_deadline_and_the_owner_gets_all_back() -> None:
    world = make_world()
    job = start_in_vain(world)
    assert world.job(job).reason == "waits for 1 more workers"
    play_to_end(world)
    ended = world.job(job)
    assert (ended.status, ended.completed) == ("expired", 0)
    assert world.balance("owner") == 1_000 * CREDIT
    assert world.balance("w1") == 1_000 * CREDIT


def start_in_vain(world: World) -> str:
    """Post a job that wants two workers, and let one bid."""
    job = post(world, min_workers=2, deadline_ms=world.time_ms + 60_000)
    world.block(bid_entry(world, "w1", job))
    world.wake()
    return job
