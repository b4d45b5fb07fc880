"""Hours, battery, temperature: when a machine is lent; and pause, resume, finish."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gdf_market.commands.controls import parse_duration
from gdf_market.errors import RuleError, UsageError
from gdf_market.messages import BidWithdraw
from gdf_market.node import availability, controls
from gdf_market.node.availability import Limits, Sensors, parse_hours, why_not
from gdf_market.node.context import NodeContext
from gdf_market.node.controls import Controls

NIGHT = parse_hours("22:00-07:00")


@pytest.mark.parametrize(
    ("text", "minute", "inside"),
    [
        ("22:00-07:00", 22 * 60, True),
        ("22:00-07:00", 6 * 60 + 59, True),
        ("22:00-07:00", 7 * 60, False),
        ("09:00-12:00,13:00-17:30", 12 * 60 + 30, False),
        ("09:00-12:00,13:00-17:30", 17 * 60 + 29, True),
        ("20:00-24:00", 23 * 60 + 59, True),
        ("20:00-24:00", 0, False),
        ("00:00-24:00", 0, False),
    ],
)
def test_hours(text: str, minute: int, inside: bool) -> None:
    if text == "00:00-24:00":
        with pytest.raises(UsageError, match="leave them out"):
            parse_hours(text)
        return
    assert any(span.holds(minute) for span in parse_hours(text)) is inside


@pytest.mark.parametrize("text", ["22-7", "25:00-26:00", "24:30-07:00", "07:00-07:00", "night", "1:2-3:4"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="work hours"):
        parse_hours(text)


def test_reasons_name_what_is_wrong() -> None:
    assert why_not(Limits(), Sensors(minute=0, temperature_c=99, free_bytes=0), hot=False) == ""
    assert "22:00-07:00" in why_not(Limits(hours=NIGHT), Sensors(minute=600), hot=False)
    assert why_not(Limits(), Sensors(minute=0, battery=True), hot=False) == "on battery"
    assert why_not(Limits(on_battery=True), Sensors(minute=0, battery=True), hot=False) == ""
    assert "stay" in why_not(Limits(leave_free_bytes=2**31), Sensors(minute=0, free_bytes=2**30), hot=False)
    assert why_not(Limits(leave_free_bytes=2**31, max_temperature_c=80), Sensors(minute=0), hot=False) == ""


def test_a_hot_gpu_rests_until_it_is_cooler_by_some_degrees() -> None:
    limits, hot, story = Limits(max_temperature_c=80), False, []
    for degrees in (80, 81, 79, 73, 72, 80):
        hot = bool(why_not(limits, Sensors(minute=0, temperature_c=degrees), hot=hot))
        story.append(hot)
    assert story == [False, True, True, True, False, False]


def test_the_sensors_of_this_machine_can_be_read() -> None:
    assert 0 <= availability.read_sensors(("cpu",)).minute < availability.DAY_MINUTES


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1_800), ("1h30m", 5_400), ("1d 2h", 93_600)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == 1_000 * seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 weeks", "1.5h"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="length of time"):
        parse_duration(text)


@dataclass
class World:
    """A state with bids of one account, and what is submitted against it."""

    bids: dict[str, Any] = field(default_factory=dict)
    units: list[Any] = field(default_factory=list)
    submitted: list[tuple[type, str]] = field(default_factory=list)
    refuse: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    account = "me"

    @property
    def state(self) -> Any:
        return self

    def active(self) -> Any:
        return SimpleNamespace(jobs=tuple(self.bids))

    def bid(self, job: str, account: str) -> Any:
        assert account == self.account
        return self.bids[job]

    async def submit(self, kind: type, *, job: str) -> None:
        self.submitted.append((kind, job))
        if self.refuse:
            raise RuleError("no such bid")
        self.bids[job].leaving = True

    def note(self, topic: str, sentence: str) -> None:
        self.notes[topic] = sentence


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(controls, "my_units", lambda state, account: made.units)
    return made


def make(world: World, path: Path, stop: Any = lambda: None, sensors: Sensors | None = None) -> Controls:
    return Controls(
        cast(NodeContext, world), path, Limits(hours=NIGHT), stop, sensors=lambda: sensors or Sensors(minute=0)
    )


def bid(status: str = "matched") -> SimpleNamespace:
    return SimpleNamespace(status=status, leaving=False)


async def test_a_pause_takes_bids_back_once_and_survives_a_restart(world: World, tmp_path: Path) -> None:
    world.bids = {"a": bid(), "b": bid("open"), "c": bid("closed")}
    made = make(world, tmp_path / "controls.json")
    await made._look()
    assert made.get_hold() == ""
    assert world.submitted == []
    made.pause(None)
    await made._look()
    await made._look()
    assert world.submitted == [(BidWithdraw, "a"), (BidWithdraw, "b")]
    again = make(world, tmp_path / "controls.json")
    assert "resume" in again.get_hold()
    again.resume()
    assert make(world, tmp_path / "controls.json").get_hold() == ""


async def test_a_pause_with_an_end_ends(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000]
    monkeypatch.setattr(controls, "_now_ms", lambda: now[0])
    made = make(world, tmp_path / "controls.json")
    made.pause(60_000)
    assert "60 s" in made.get_hold() or "61 s" in made.get_hold()
    now[0] += 60_000
    assert made.get_hold() == ""
    with pytest.raises(UsageError, match="pause"):
        made.pause(0)


async def test_outside_its_hours_a_machine_offers_nothing(world: World, tmp_path: Path) -> None:
    world.bids = {"a": bid()}
    made = make(world, tmp_path / "controls.json", sensors=Sensors(minute=12 * 60))
    await made._look()
    assert "22:00-07:00" in made.get_hold()
    assert world.submitted == [(BidWithdraw, "a")]


async def test_a_refused_withdrawal_is_told_and_tried_again_later(
    world: World, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world.bids, world.refuse = {"a": bid()}, True
    made = make(world, tmp_path / "controls.json")
    made.pause(None)
    await made._look()
    await made._look()
    assert len(world.submitted) == 1
    assert world.notes["withdraw"] == "no such bid"
    await trio.sleep(controls.RETRY_S + 1)
    await made._look()
    assert len(world.submitted) == 2


async def test_finish_ends_the_node_when_the_last_unit_is_settled(world: World, tmp_path: Path) -> None:
    stopped: list[bool] = []
    world.bids, world.units = {"a": bid()}, [object()]
    made = make(world, tmp_path / "controls.json", lambda: stopped.append(True))
    made.finish()
    await made._look()
    assert "1 unit not settled" in made.get_hold()
    world.bids["a"].status = "closed"
    await made._look()
    assert not stopped
    world.units = []
    await made._look()
    assert stopped == [True]
    assert make(world, tmp_path / "controls.json").get_hold() == ""  # the next start works


def test_a_damaged_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "controls.json"
    path.write_bytes(b"\x00" * 40)
    assert controls.load(path) == controls.Said()
