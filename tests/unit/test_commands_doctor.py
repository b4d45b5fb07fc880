"""The doctor says what is, what is needed and how to mend it; a calibration is shown, stored and judged."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gdf_market import keystore
from gdf_market.commands import checks, cli
from gdf_market.commands.checks import CHECKS, FIRST_DAY_MS, LATEST_BLOCK_AHEAD_MS, Check
from gdf_market.commands.common import App
from gdf_market.node import calibrating
from gdf_market.node.calibration import Calibration, Case, Machine, measured_class, read_calibration, write_calibration
from gdf_market.node.datadir import DataDir


def doctor(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["--data-dir", str(folder), "doctor", *options])


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(doctor(folder, "--json").stdout)["checks"]}


def measured(excess_ppb: int) -> Calibration:
    here = Machine.here()
    case = Case(way="again", inner="adamw", excess_ppb=excess_ppb, sketch_ppb=5)
    classes = (measured_class("cpu-fp32", (case,), None),)
    return Calibration(torch=here.torch, system=here.system, device="cpu", measured_ms=7, classes=classes)


def test_an_empty_folder_has_a_problem_with_its_fix(tmp_path: Path) -> None:
    result = doctor(tmp_path / "new")
    assert result.exit_code == 1
    assert "gdf-market init" in result.stdout
    found = lines(tmp_path / "new")
    assert {name for name, line in found.items() if not line["ok"]} == {"key", "ledger"}
    assert all(line["fix"] for line in found.values() if not line["ok"])
    assert not (tmp_path / "new").exists(), "looking changes nothing"


def test_a_new_network_is_well(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "init", "--new-network", "test"])
    assert made.exit_code == 0, made.output
    result = doctor(tmp_path)
    assert result.exit_code == 0, result.output
    found = lines(tmp_path)
    assert list(found) == [
        "Python",
        "torch",
        "packages",
        "folder",
        "disk",
        "clock",
        "settings",
        "key",
        "ledger",
        "node",
        "network",
        "calibration",
    ]
    assert found["calibration"]["actual"] == "never measured"
    assert "without a passphrase" in found["key"]["actual"]


def app_of(folder: Path) -> App:
    return App(DataDir(folder))


def only(name: str, folder: Path) -> Check:
    """Run the check called ``name`` alone."""
    (found,) = [made for made in (check(app_of(folder)) for check in CHECKS) if made.name == name]
    return found


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    found = only("disk", tmp_path)
    assert not found.ok
    assert (found.actual, found.needed) == ("5 MiB free", "1,024 MiB")
    assert "--data-dir" in found.fix


@pytest.mark.parametrize(
    ("newest_ms", "now_ms", "ok"),
    [
        (None, FIRST_DAY_MS, True),
        (None, FIRST_DAY_MS - 1, False),
        (FIRST_DAY_MS + 10**9, FIRST_DAY_MS + 10**9 - LATEST_BLOCK_AHEAD_MS, True),
        (FIRST_DAY_MS + 10**9, FIRST_DAY_MS + 10**9 - LATEST_BLOCK_AHEAD_MS - 1, False),
    ],
)
def test_a_clock_that_is_behind_what_is_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest_ms: int | None, now_ms: int, ok: bool
) -> None:
    monkeypatch.setattr(checks, "_newest_block_ms", lambda _: newest_ms)
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    found = only("clock", tmp_path)
    assert found.ok == ok
    assert bool(found.fix) != ok


def test_a_damaged_key_and_ledger(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "init", "--new-network", "test"])
    (tmp_path / "key.json").write_text("{}", encoding="utf-8")
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 100)
    found = lines(tmp_path)
    assert not found["key"]["ok"]
    assert not found["ledger"]["ok"]


def test_a_sealed_key_is_read_without_its_passphrase(tmp_path: Path) -> None:
    keystore.create(tmp_path / "key.json", "words", cost=keystore.Cost(1, 8_192))
    assert only("key", tmp_path).actual.endswith("sealed with a passphrase")


@pytest.mark.parametrize(("excess_ppb", "ok"), [(1_000, True), (10**7, False)])
def test_calibrating_stores_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excess_ppb: int, ok: bool
) -> None:
    asked: list[tuple[str, ...]] = []

    async def calibrate(classes: tuple[str, ...], *, threads: int, say: Callable[[str], None]) -> Calibration:
        asked.append(classes)
        say("half way")
        assert threads >= 1
        return measured(excess_ppb)

    monkeypatch.setattr(calibrating, "calibrate", calibrate)
    result = doctor(tmp_path, "--calibrate", "--json")
    shown = json.loads(result.stdout)
    assert {"cpu-fp32", "cpu-bf16"} <= set(asked[0])
    assert read_calibration(tmp_path / "calibration.json") == measured(excess_ppb)
    (line,) = [check for check in shown["checks"] if check["name"] == "class cpu-fp32"]
    assert line["ok"] == ok
    assert line["needed"] == "at most 1.0e-04 and 3.0e-04"
    assert ("cpu-fp32" in shown["classes"]) == ok
    assert shown["calibration"]["classes"][0]["within"] == ok
    assert "half way" in doctor(tmp_path, "--calibrate").stderr


def test_a_calibration_of_another_torch_is_named(tmp_path: Path) -> None:
    import msgspec

    write_calibration(tmp_path / "calibration.json", msgspec.structs.replace(measured(10**7), torch="1.0"))
    shown = json.loads(doctor(tmp_path, "--json").stdout)
    (line,) = [check for check in shown["checks"] if check["name"] == "calibration"]
    assert line["ok"]
    assert "torch 1.0" in line["actual"]
    assert "--calibrate" in line["fix"]
    assert "cpu-fp32" in shown["classes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("units = 2\nlisten_port = = 3\n", ("line 2",)),
        ("units = 2\nunitz = 3\n", ("line 2", "unitz")),
        ("\n\nunits = 99\n", ("line 3", "units=99")),
    ],
)
def test_a_bad_setting_is_a_problem_that_names_its_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    found = only("settings", tmp_path)
    assert not found.ok
    assert all(word in found.actual for word in (*words, "config.toml")), found.actual
    assert found.fix
    (tmp_path / "config.toml").write_text("units = 2\n", encoding="utf-8")
    assert only("settings", tmp_path).ok
