"""What `work` says while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdf_market.commands import shift
from gdf_market.commands.shift import read_shift
from gdf_market.units import CREDIT

JOB = "ab" * 32


def node(**status: Any) -> Any:
    given = {"balance": 3 * CREDIT, "trained": 2, "audited": 1, "peers": ["one"], "step": None, "idle_reasons": {}}
    return SimpleNamespace(status=lambda: given | status, context=SimpleNamespace(state=None, account="me"))


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(shift, "my_units", lambda _state, _account: found)
    return found


def test_settled_and_pending_are_apart(units: list[Any]) -> None:
    units.append(SimpleNamespace(held_pay=CREDIT, held_merit=CREDIT // 2, status="accepted", round=1))
    said = read_shift(node(), steps=True).sentence()
    assert "settled 3, pending 1.5 credits" in said
    assert "2 trained, 1 audited · 1 peer" in said
    assert said.startswith("waiting for the round")


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
