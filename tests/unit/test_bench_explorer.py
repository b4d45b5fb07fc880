"""The explorer's benchmark asks for pages that exist, reads rows that are there, and adds up what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import explorer, explorer_world


def test_p95_is_the_least_value_that_95_percent_do_not_exceed() -> None:
    assert explorer.p95([3.0]) == 3
    assert explorer.p95(list(range(1, 101))) == 95
    assert explorer.p95(list(range(1, 22))) == 20


async def test_every_page_of_a_small_ledger_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (explorer, explorer_world):
        monkeypatch.setattr(module, "ROUNDS", 3)
    said: list[str] = []
    world = explorer_world.make_world(tmp_path / "ledger.sqlite", 60, said.append)
    assert (len(world.jobs), world.entries >= 60) == (1, True)
    lines = await explorer.measure(world, 2, said.append)
    assert {line.page for line in lines} >= {
        "overview",
        "job",
        "unit",
        "account",
        "block",
        "entry",
        "fairness",
        "search",
    }
    assert all(line.rows > 0 and 0 < line.median <= line.p95 for line in lines)
    text = explorer.report(world, lines, 2)
    assert f"| {lines[0].page} | {lines[0].median:.1f} |" in text
    assert "2 requests of each kind" in text
