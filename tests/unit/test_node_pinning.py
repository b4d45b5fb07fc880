"""Which blobs stay on a node: what its jobs need, for as long as they need it, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from contracts.records import Job
from gdf_market.messages import JobPost
from gdf_market.node import pinning
from gdf_market.node.pin_rules import LOOK_BACK, get_caretakers, get_checkpoints, get_evidence, is_part_of, rank
from gdf_market.node.pinning import BEHIND_MS, DAY_MS, Pinner
from gdf_market.node.roles import Roles
from tests.contracts_world import WORKERS, World, cast_all, key_of, make_world, play_to, play_to_end, post, start
from tests.node_kit import Kit, live, make_kit, turn

HOUR_S = 3_600.0


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def kit(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    return make_kit(tmp_path, monkeypatch, world, "w1")


def begin(kit: Kit, **changes: object) -> Job:
    """Start a job of one worker, w1, whose blobs are in the kit's store."""
    return kit.world.job(start(kit.world, "w1", **(kit.blobs_of_job() | changes)))


def files_of(kit: Kit, job: Job) -> set[str]:
    content = kit.blobs.put_bytes(b"\0\0" * 64)
    return {job.spec.program, job.spec.data, content}


async def pins_of(pinner: Pinner) -> tuple[frozenset[str], set[str]]:
    """Bring a list up to date; return the roots of jobs under way and of those that ended."""
    await pinner.turn()
    pins = pinner._room.pins()
    assert pins is not None
    return pins.active, set(pins.ended)


def age(kit: Kit) -> None:
    """Make every blob of the store unused for an hour."""
    at = time.time() - HOUR_S
    for root in kit.blobs.roots():
        os.utime(kit.blobs._path / "data" / root, (at, at))


async def test_a_worker_keeps_what_its_job_needs_through_its_life(
    world: World, kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begin(kit, rounds=3, audit_floor_ppm=1_000_000)
    pinner = Pinner(kit.context)
    active, _ = await pins_of(pinner)
    assert active == files_of(kit, job) | {job.spec.checkpoint}

    worker = Roles(kit.context)
    await turn(worker._start_due)  # trains and commits
    note = kit.journal.unit(job.id, 0, 0)
    assert note is not None
    active, _ = await pins_of(pinner)
    assert note.update in active, "nobody else has it before the reveal"

    validator = Roles(make_kit(tmp_path, monkeypatch, world, "val", near=kit).context)
    await live(world, worker, validator, until=lambda: world.job(job.id).completed == 2)
    middle = world.round(job.id, 1).checkpoint
    active, _ = await pins_of(pinner)
    assert {world.job(job.id).checkpoint, middle} <= active

    await live(world, worker, validator, until=lambda: world.job(job.id).status == "done")
    final = world.job(job.id).checkpoint
    last = world.round(job.id, 2).checkpoint
    active, ended = await pins_of(pinner)
    assert active == frozenset()
    assert ended == files_of(kit, job) | {final, last}
    age(kit)
    assert await pinner.collect() > 0
    left = set(kit.blobs.roots())
    assert ended <= left
    assert not left & {note.update, job.spec.checkpoint}, "old checkpoints and updates of settled rounds are gone"

    world.time_ms += 8 * DAY_MS
    for root in left - ended:  # came and went between two looks: gone after a day without use
        kit.blobs.delete(root)
    assert await pins_of(pinner) == (frozenset(), set())
    age(kit)
    await pinner.collect()
    assert kit.blobs.roots() == []


async def test_evidence_stays_until_its_audits_are_over(world: World, kit: Kit) -> None:
    job = begin(kit)
    cast_all(world, "w1")
    play_to(world, job.id, "work", 1)
    pinner = Pinner(kit.context)
    unit = world.unit(job.id, 0, 0)
    assert unit.status == "accepted"
    active, _ = await pins_of(pinner)
    assert {unit.update, world.round(job.id, 0).checkpoint} <= active
    play_to_end(world)
    active, _ = await pins_of(pinner)
    assert unit.update not in active


async def test_a_stranger_pins_nothing_but_what_it_computes_for_and_adopts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit(tmp_path, monkeypatch, world, "other")
    job, in_use = begin(kit), set[str]()
    pinner = Pinner(kit.context, in_use=lambda: in_use)
    assert await pins_of(pinner) == (frozenset(), set())
    in_use.add(job.id)
    active, _ = await pins_of(pinner)
    assert job.spec.program in active
    in_use.clear()
    assert await pins_of(pinner) == (frozenset(), set())
    pinner.adopt(job.id)
    active, _ = await pins_of(pinner)
    assert job.spec.program in active


async def test_what_a_node_keeps_is_known_after_a_restart(world: World, kit: Kit) -> None:
    job = begin(kit)
    cast_all(world, "w1")
    await Pinner(kit.context).turn()
    play_to_end(world)  # while the node is down; the ended job names its workers no more
    assert "" in world.job(job.id).slots
    _, ended = await pins_of(Pinner(kit.context))
    assert job.spec.program in ended


async def test_while_the_ledger_is_behind_the_list_of_before_holds(
    world: World, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(kit)
    before = await pins_of(Pinner(kit.context))
    monkeypatch.setattr(pinning, "now_ms", lambda: world.time_ms + BEHIND_MS + 1)
    fresh = make_world()  # knows no job: it is fetched anew
    kit.ledger.world = fresh
    restarted = Pinner(kit.context)
    assert await pins_of(restarted) == before
    assert restarted.usage is not None
    assert restarted.usage.active > 0
    monkeypatch.setattr(pinning, "now_ms", lambda: fresh.time_ms)
    assert await pins_of(restarted) == (frozenset(), set())


async def test_own_orders_are_kept_before_they_are_jobs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit(tmp_path, monkeypatch, world, "owner")
    order = world.job_entry(**kit.blobs_of_job()).body
    assert isinstance(order, JobPost)
    orders = [order]
    pinner = Pinner(kit.context, orders=lambda: orders)
    active, _ = await pins_of(pinner)
    assert active == set(kit.blobs.roots())
    orders.clear()
    assert await pins_of(pinner) == (frozenset(), set())


async def test_trouble_with_the_disk_is_told_and_the_next_turn_goes_on(
    world: World, kit: Kit, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0.01  # not 0: the loop would spin while a thread reads the disk
    begin(kit)
    pins = kit.blobs._path / "pins.json"
    pins.mkdir()
    pinner = Pinner(kit.context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pinner.run)
        while not pinner.problem:  # noqa: ASYNC110  # state of the part under test
            await trio.sleep(1)
        assert "pins.json" in kit.notes["storage"]
        pins.rmdir()
        while pinner.problem:  # noqa: ASYNC110
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    status = pinner.status()
    assert status["active_bytes"] > 0
    assert status["held_bytes"] == kit.blobs.total_bytes()
    assert (status["jobs"], status["quota_bytes"], status["problem"]) == (1, None, "")


def test_the_last_two_checkpoints_skip_void_rounds(world: World) -> None:
    job = start(world, *WORKERS, rounds=3)
    first = world.job(job).checkpoint
    assert get_checkpoints(world.state, world.job(job)) == (first,)
    cast_all(world)
    play_to(world, job, "work", 1)
    second = world.job(job).checkpoint
    assert get_checkpoints(world.state, world.job(job)) == (second, first)
    world.actors.clear()
    while world.round(job, 1).phase != "void":  # nobody does anything
        world.wake()
    assert get_checkpoints(world.state, world.job(job)) == (second, first)
    assert get_evidence(world.state, world.job(job)) >= {first, second}
    assert world.state.network().max_void_rounds < LOOK_BACK


def test_who_takes_part_and_who_takes_care(world: World) -> None:
    job = start(world, "w1", "w2")
    cast_all(world, "w1", "w2")
    play_to(world, job, "work", 1)
    part = {
        name
        for name in ("owner", "other", "val", *WORKERS)
        if is_part_of(world.state, world.job(job), key_of(name).account)
    }
    assert {"owner", "w1", "w2"} <= part
    assert not part & {"other", "w3"}
    caretakers = get_caretakers(world.state, world.job(job))
    assert set(caretakers) == {key_of(name).account for name in ("w1", "w2", "val")}
    play_to_end(world)
    assert set(get_caretakers(world.state, world.job(job))) == set(caretakers), "after the end too"


def test_the_order_of_caretakers_is_anothers_for_another_job() -> None:
    accounts = [f"account {number}" for number in range(8)]
    orders = {tuple(rank(f"{number:064x}", accounts)) for number in range(20)}
    assert len(orders) > 15
    assert rank("aa" * 32, reversed(accounts)) == rank("aa" * 32, accounts)


def test_a_posted_job_nobody_bid_on_is_the_owners(world: World) -> None:
    job = world.job(post(world))
    assert is_part_of(world.state, job, key_of("owner").account)
    assert not is_part_of(world.state, job, key_of("w1").account)
    assert get_caretakers(world.state, job) == [key_of("val").account]
