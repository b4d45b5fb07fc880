"""What `work` says while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contracts.records import Audit, Bid
from gdf_market.commands import shift
from gdf_market.commands.shift import my_bonds, read_shift
from gdf_market.units import CREDIT
from tests.contracts_world import cast_all, key_of, make_world, start

JOB = "ab" * 32


def node(**status: Any) -> Any:
    given = {
        "balance": 3 * CREDIT,
        "trained": 2,
        "audited": 1,
        "peers": ["one"],
        "step": None,
        "idle_reasons": {},
        "bids": {},
    }
    return SimpleNamespace(status=lambda: given | status, context=SimpleNamespace(state=None, account="me"))


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(shift, "my_units", lambda _state, _account: found)
    monkeypatch.setattr(shift, "my_bonds", lambda _state, _account: 2 * CREDIT)
    return found


def test_settled_and_pending_are_apart(units: list[Any]) -> None:
    units.append(SimpleNamespace(held_pay=CREDIT, held_merit=CREDIT // 2, status="accepted", round=1))
    said = read_shift(node(), steps=True).sentence()
    assert "settled 3, pending 1.5, bonds locked 2 credits" in said
    assert "2 trained, 1 audited · 1 peer" in said
    assert said.startswith("waiting for jobs")


def test_a_bid_that_waits_is_no_idleness(units: list[Any]) -> None:
    waiting = node(bids={JOB: "holds 2 slots at 1"}, idle_reasons={"cd" * 32: "too dear"})
    assert read_shift(waiting, steps=True).activity == "waiting on abababababab: holds 2 slots at 1"
    assert not units


def test_locked_are_the_bonds_of_bids_and_of_audits() -> None:
    world = make_world()
    job = start(world, "w1", "w2", **{"audit_floor_ppm": 1_000_000})
    assert my_bonds(world.state, key_of("w1").account) == world.bid(job, "w1").bond == 20 * CREDIT
    assert my_bonds(world.state, key_of("val").account) == 0
    cast_all(world, skips=frozenset({"audit_open"}), lottery=True)
    world.play(lambda: "auditing" in world.kinds())
    locked = sum(my_bonds(world.state, key_of(name).account) for name in ("w1", "w2", "w3", "val"))
    assert locked == sum(record.bond for record in world.state.records.values() if isinstance(record, Audit | Bid))
    assert any(isinstance(record, Audit) and record.bond for record in world.state.records.values())


def test_the_step_at_hand(units: list[Any]) -> None:
    units.append(SimpleNamespace(held_pay=0, held_merit=0, status="assigned", round=4))
    busy = node(step=[7, 20])
    assert read_shift(busy, steps=True).activity == "round 4: step 7 of 20"
    assert read_shift(busy, steps=False) == read_shift(node(step=[8, 20]), steps=False)  # no new line for each step


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ({"*": "no peer is connected"}, ("idle: no peer is connected",)),
        ({JOB: "needs a bond of 2"}, ("no bid on abababababab", "needs a bond of 2")),
        ({JOB: "one", "cd" * 32: "two"}, ("one", "1 more job")),
    ],
)
def test_it_says_why_it_is_idle(units: list[Any], reasons: dict[str, str], words: tuple[str, ...]) -> None:
    said = read_shift(node(idle_reasons=reasons), steps=True).sentence()
    assert not units
    assert all(word in said for word in words), said
