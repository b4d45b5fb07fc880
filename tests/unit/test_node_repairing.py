"""Copies of what jobs need: as many as are wanted, by those whose turn it is, whoever leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from gdf_market.blobs.room import Usage
from gdf_market.errors import StorageError, UnreachableError
from gdf_market.node.pin_rules import get_caretakers
from gdf_market.node.pinning import Pinner
from gdf_market.node.repairing import Repairer
from tests import contracts_world
from tests.contracts_world import World, cast_all, key_of, make_world, play_to_end, start
from tests.node_kit import Kit, make_kit

VALIDATORS = tuple(f"val{number}" for number in range(1, 6))
LOOK_S = 10.0


@dataclass
class TownBulk:
    """Blobs of the town's kits that are not gone; counts what is copied."""

    town: Town
    name: str

    def _others(self, root: str) -> list[str]:
        return [name for name in self.town.kits if name != self.name and self.town.has(name, root)]

    async def holders(self, root: str) -> int:
        await trio.lowlevel.checkpoint()
        return len(self._others(root))

    async def fetch(self, root: str, *, max_bytes: int) -> Path:
        await trio.lowlevel.checkpoint()
        blobs, others = self.town.kits[self.name].blobs, self._others(root)
        if not others:
            raise UnreachableError(f"nobody has {root[:8]}")
        data = self.town.kits[others[0]].blobs.path(root).read_bytes()
        assert len(data) <= max_bytes
        self.town.copied.append((self.name, root))
        return blobs.path(blobs.put_bytes(data))


@dataclass
class Town:
    """Several nodes in one world, each with a store of its own."""

    world: World
    kits: dict[str, Kit] = field(default_factory=dict)
    repairers: dict[str, Repairer] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    copied: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kit: Kit, name: str) -> None:
        kit.context.bulk = cast(Any, TownBulk(self, name))
        pinner = Pinner(kit.context)
        self.kits[name], self.repairers[name] = kit, Repairer(kit.context, pinner)

    def has(self, name: str, root: str) -> bool:
        return name not in self.gone and self.kits[name].blobs.has(root)

    def holders(self, root: str) -> list[str]:
        return [name for name in self.kits if self.has(name, root)]

    async def live(self, seconds: float) -> None:
        """Let all nodes look, in turns, for so long."""
        until = trio.current_time() + seconds
        here = [repairer for name, repairer in self.repairers.items() if name not in self.gone]
        for repairer in here:
            await repairer._pinner.turn()
        while trio.current_time() < until:
            for repairer in here:
                await repairer.turn()
            await trio.sleep(LOOK_S)
        for repairer in here:
            await repairer._pinner.turn()


@pytest.fixture
def jumping() -> MockClock:
    """Return a clock that jumps; not at once, or the loop would spin while a thread reads the disk."""
    return MockClock(autojump_threshold=0.01)


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    made = Town(make_world(validators=VALIDATORS))
    for name in ("owner", "w1", "other", *VALIDATORS):
        made.add(make_kit(tmp_path, monkeypatch, made.world, name), name)
    return made


def begin(town: Town) -> tuple[str, dict[str, str]]:
    """Start a job whose blobs only its owner holds; return its id and blobs by name."""
    fields = town.kits["owner"].blobs_of_job()
    content = town.kits["owner"].blobs.put_bytes(b"\0\0" * 64)
    return start(town.world, "w1", **fields), fields | {"content": content}


async def test_three_nodes_hold_all_of_a_job_and_no_more_are_bothered(town: Town, jumping: MockClock) -> None:
    job, blobs = begin(town)
    await town.live(200)
    counts = {name: len(town.holders(root)) for name, root in blobs.items()}
    assert all(count >= 3 for count in counts.values()), counts
    assert counts["program"] == counts["checkpoint"] == counts["content"] == 3
    caretakers = get_caretakers(town.world.state, town.world.job(job))
    makers = {key_of(name).account for name, _ in town.copied}
    assert makers <= set(caretakers[:4]), "those whose turn comes first"
    for name in {name for name, _ in town.copied}:
        pins = town.kits[name].blobs.room.pins()
        assert pins is not None
        assert {root for maker, root in town.copied if maker == name} <= pins.active


async def test_the_owner_leaves_for_good_and_its_final_checkpoint_stays(
    town: Town, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, blobs = begin(town)
    await town.live(150)
    final = town.kits["w1"].blobs.put_bytes(b"trained")
    honest = contracts_world.outcome_of
    monkeypatch.setattr(contracts_world, "outcome_of", lambda *given: honest(*given, checkpoint=final))
    cast_all(town.world, "w1")
    play_to_end(town.world)
    assert (town.world.job(job).status, town.world.job(job).checkpoint) == ("done", final)
    town.gone.add("owner")
    await town.live(200)
    wanted = (final, blobs["program"])
    assert [len(town.holders(root)) for root in wanted] == [3, 3]
    town.gone |= {"w1", town.holders(blobs["program"])[0]}
    await town.live(500)
    assert [len(town.holders(root)) for root in wanted] == [3, 3], "two more left, and others took over"


async def test_what_nobody_has_is_asked_for_less_and_less_often(town: Town, jumping: MockClock) -> None:
    start(town.world, "w1")  # names blobs that do not exist
    asked: list[float] = []
    first = town.repairers["val1"]

    async def fetch(root: str, *, max_bytes: int) -> Path:
        asked.append(trio.current_time())
        raise UnreachableError("nobody has it")

    first._context.bulk.fetch = fetch  # type: ignore[method-assign]
    town.gone |= set(town.kits) - {"val1"}
    await town.live(4_000)
    assert "nobody has it" in town.kits["val1"].notes["copies"]
    assert 3 < len(asked) / 3 < 8  # checkpoint, program, data
    assert first.short
    assert set(first.short.values()) == {0}


async def test_a_node_without_room_makes_no_copies_and_says_so(town: Town, jumping: MockClock) -> None:
    begin(town)
    for name in VALIDATORS:
        town.kits[name].blobs.room.quota_bytes = 100

    def full(repairer: Repairer) -> None:
        repairer._pinner.usage = Usage(quota=100, held=60, active=60, ended=0, collectable=0, blobs=1)

    for name in VALIDATORS:
        repairer = town.repairers[name]
        full(repairer)
        for _ in range(12):
            await repairer.turn()
            await trio.sleep(LOOK_S)
    assert town.copied == []
    assert any("blob_quota" in town.kits[name].notes.get("copies", "") for name in VALIDATORS)


async def test_a_full_disk_is_told(town: Town, jumping: MockClock) -> None:
    begin(town)

    async def fetch(root: str, *, max_bytes: int) -> Path:
        raise StorageError("The disk is full")

    for name in VALIDATORS:
        town.repairers[name]._context.bulk.fetch = fetch  # type: ignore[method-assign]
    await town.live(100)
    assert any("The disk is full" in town.kits[name].notes.get("copies", "") for name in VALIDATORS)
