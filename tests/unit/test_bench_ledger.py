"""The ledger's benchmark on a tiny ledger: it runs, every figure is there, and the targets are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import ledger
from benchmarks.ledger_table import Clock, Figure, ratio, table

HERE = ("speed", "finality", "state")  # the fourth starts processes, which is for the slower tier


def test_a_tiny_run_gives_every_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ledger, "RESULTS", tmp_path / "ledger.md")
    (tmp_path / "ledger.md").write_text(f"an old table\n{ledger.NOTES}\nThe notes stay.\n", encoding="utf-8")
    ledger.main(["--entries", "200", "--quick", "--json", "--write", "--parts", *HERE])
    shown = capsys.readouterr()
    figures = json.loads(shown.out)
    assert "made 200 of 200 entries" in shown.err
    for name in ("verify + apply + store", "cold sync: replay", "cold sync: import", "cold sync: a node", "submit to"):
        found = [each for each in figures if each["name"].startswith(name)]
        assert found, name
        assert all(each["target"] and each["met"] in (True, False) for each in found)
    for name in ("Ed25519 in two threads", "messages per block", "state root update", "map of the state"):
        assert any(each["name"].startswith(name) for each in figures), name
    for each in figures:
        assert each["measured"]
        assert each["numbers"]
        assert all(math.isfinite(value) and value > 0 for value in each["numbers"].values()), each
    written = (tmp_path / "ledger.md").read_text(encoding="utf-8")
    assert written.endswith(f"{ledger.NOTES}\nThe notes stay.\n")
    assert "an old table" not in written
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert len(rows) == len(figures) + 2
    assert all(line.count("|") == 5 for line in rows)


def test_the_table_says_what_was_met() -> None:
    text = table([Figure("a", "1", "≤ 2", True), Figure("b", "3", "≤ 2", False), Figure("c", "4")])
    assert text.splitlines()[2:] == ["| a | 1 | ≤ 2 | yes |", "| b | 3 | ≤ 2 | **no** |", "| c | 4 |  |  |"]


def test_a_ratio_is_the_median_over_pairs_of_laps() -> None:
    ours = Clock(laps=[(2.0, 3.0), (40.0, 60.0), (6.0, 9.0)])
    floor = Clock(laps=[(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)])
    assert ratio(ours, floor) == (3.0, 4.5)


def test_no_entries_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ledger.main(["--entries", "0"])
    assert stopped.value.code == 2
    assert "--entries must be at least 1" in capsys.readouterr().err
