"""The questions of init, each with its flag; a back-up that opens; a GPU that is no GPU."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gdf_market import keystore
from gdf_market.commands import cli, wizard
from gdf_market.errors import UsageError
from gdf_market.node.datadir import DataDir
from gdf_market.train.kernel import Speed, measure


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name in [name for name in os.environ if name.startswith("GDF_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str, said: str = "", folder: str = "node") -> Result:
        return CliRunner().invoke(cli, ["--data-dir", str(tmp_path / folder), "init", *arguments], input=said)

    return call


def answers(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_the_questions_lead_to_a_network_a_key_and_settings(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    saved = tmp_path / "key.json"
    said = answers("tulip 43", "tulip 43", str(saved), "home", "y", "4010", "late", "22:00-07:00", "0.5", "n")
    done = run("--ask", said=said)
    assert done.exit_code == 0, done.output
    data = DataDir(tmp_path / "node")
    assert data.genesis().name == "home"
    assert keystore.is_sealed(data.key)
    assert keystore.load(saved, "tulip 43").account == keystore.load(data.key, "tulip 43").account
    settings = tomllib.loads(data.config.read_text(encoding="utf-8"))
    assert settings["listen_host"] == "0.0.0.0"
    assert (settings["listen_port"], settings["bulk_port"]) == (4010, 4011)
    assert settings["work_hours"] == "22:00-07:00"
    assert settings["min_price"] == 500_000
    assert "work hours 'late'" in done.stderr  # asked again
    assert "4011" in done.output  # the firewall
    assert "tulip" not in done.output


def test_flags_answer_the_same_questions(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    saved = tmp_path / "key.json"
    flags = ["--new-network", "home", "--backup", str(saved), "--listen", "0.0.0.0:4010", "--hours", "22:00-07:00"]
    done = run("--defaults", *flags, "--min-price", "0.5", "--check-gpu")
    assert done.exit_code == 0, done.output
    assert saved.exists()
    assert "GFLOP/s" in done.output
    assert tomllib.loads(DataDir(tmp_path / "node").config.read_text(encoding="utf-8"))["min_price"] == 500_000


def test_without_a_terminal_nothing_is_asked(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = run()
    assert done.exit_code == 0, done.output
    assert DataDir(tmp_path / "node").key.exists()
    assert not DataDir(tmp_path / "node").config.exists()


def test_the_end_of_the_input_changes_nothing(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = run("--ask", said="")
    assert done.exit_code != 0
    assert not (tmp_path / "node").exists()


def test_a_bad_setting_is_refused_before_a_key_is_made(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = run("--defaults", "--hours", "never")
    assert isinstance(done.exception, UsageError)
    assert not DataDir(tmp_path / "node").key.exists()


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "freebsd14"])
def test_the_firewall_is_told_the_ports(platform: str) -> None:
    said = wizard.firewall_advice(wizard.Choices(listen="0.0.0.0:4001"), platform)
    assert "4001" in said
    assert "4002" in said
    assert wizard.firewall_advice(wizard.Choices(listen="127.0.0.1:4001"), platform) == ""
    assert wizard.firewall_advice(wizard.Choices(), platform) == ""


def test_a_gpu_that_is_no_faster_than_the_cpu_is_found_out() -> None:
    assert Speed(1e11, 1.2e11, "imaginary").gpu_is_slow
    assert not Speed(1e11, 1e13, "fast").gpu_is_slow
    assert not Speed(1e11).gpu_is_slow
    assert measure().cpu_flops > 1e8
