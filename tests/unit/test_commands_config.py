"""Settings with their origin, completion scripts, and what a log-on service would run."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gdf_market.commands.service import LABEL, unit_for
from gdf_market.node.datadir import DataDir
from tests.command_kit import call


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name in [name for name in os.environ if name.startswith("GDF_")]:
        monkeypatch.delenv(name)

    def command(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, "--data-dir", str(tmp_path / "node"), *arguments)

    return command


def test_a_setting_is_written_checked_and_told_with_its_origin(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "node" / "config.toml"
    file.parent.mkdir()
    file.write_text("# mine\nthreads = 2\n", encoding="utf-8")
    assert run("config", "set", "work_hours", "22:00-07:00")[0] == 0
    assert run("config", "set", "devices", "cpu")[0] == 0
    assert file.read_text(encoding="utf-8").startswith("# mine\n")  # an owner's comments stay
    monkeypatch.setenv("GDF_UNITS", "3")
    settings = json.loads(run("config", "show", "--json")[1])["settings"]
    assert settings["work_hours"] == {"value": "22:00-07:00", "origin": "config.toml"}
    assert settings["devices"] == {"value": ["cpu"], "origin": "config.toml"}
    assert settings["units"] == {"value": 3, "origin": "GDF_UNITS"}
    assert settings["listen_port"]["origin"] == "default"
    assert "GDF_UNITS" in run("config", "show", "--origin")[1]
    assert run("config", "unset", "work_hours")[0] == 0
    assert "work_hours" not in tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("units", "99", "units"),
        ("work_hours", "late", "work hours"),
        ("no_such", "1", "no setting"),
        ("device_class", "tpu", "tpu"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    run, tmp_path: Path, name: str, value: str, said: str
) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("config", "set", name, value)
    assert code == 2
    assert said in err
    assert not (tmp_path / "node" / "config.toml").exists()


def test_a_damaged_file_is_named(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "config.toml").write_text("units = = 3\n", encoding="utf-8")
    for arguments in (("config", "show"), ("config", "set", "units", "2"), ("config", "unset", "units")):
        code, _, err = run(*arguments)
        assert code == 2
        assert "config.toml" in err
    assert run("config", "unset", "nothing")[0] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_scripts_name_the_program(run, shell: str) -> None:  # type: ignore[no-untyped-def]
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash on this machine: click asks it for its version")
    code, out, err = run("completion", shell)
    assert code == 0, err
    assert "gdf-market" in out
    assert "_GDF_MARKET_COMPLETE" in out


def test_the_program_completes_commands() -> None:
    asked = {"COMP_WORDS": "gdf-market comp", "COMP_CWORD": "1", "_GDF_MARKET_COMPLETE": "bash_complete"}
    answer = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['gdf-market']; from gdf_market.commands import main; main()"],
        env={**os.environ, **asked}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "completion" in answer.stdout, answer.stderr


AWKWARD = "50% of $HOME's <data>"


def test_the_systemd_unit_runs_this_interpreter(tmp_path: Path) -> None:
    unit = unit_for("linux", tmp_path, DataDir(tmp_path / AWKWARD), "work")
    line = next(one for one in unit.text.decode().splitlines() if one.startswith("ExecStart="))
    assert sys.executable in line
    assert "50%% of $$HOME" in line  # systemd expands both
    assert line.endswith(" work")
    assert unit.start[-1][:3] == ("systemctl", "--user", "enable")


def test_the_launch_agent_is_a_property_list(tmp_path: Path) -> None:
    unit = unit_for("darwin", tmp_path, DataDir(tmp_path / AWKWARD), "node run")
    made = plistlib.loads(unit.text)
    assert made["Label"] == LABEL
    assert made["ProgramArguments"][0] == sys.executable
    assert made["ProgramArguments"][-2:] == ["node", "run"]
    assert str(tmp_path / AWKWARD) in made["ProgramArguments"]


def test_the_windows_task_starts_at_log_on(tmp_path: Path) -> None:
    unit = unit_for("win32", tmp_path, DataDir(tmp_path / AWKWARD), "work")
    tree = ElementTree.fromstring(unit.text.decode("utf-16").partition("?>")[2])
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert tree.find("t:Triggers/t:LogonTrigger", space) is not None
    command, arguments = (tree.find(f"t:Actions/t:Exec/t:{name}", space) for name in ("Command", "Arguments"))
    assert command is not None
    assert command.text == sys.executable
    assert arguments is not None
    assert f'"{tmp_path / AWKWARD}"' in (arguments.text or "")
    assert unit.start[0][0] == "schtasks"


def test_a_dry_run_changes_nothing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert run("service", "install", "--dry-run")[0] == 2  # no network yet
    assert run("init", "--new-network", "x")[0] == 0
    code, out, _ = run("service", "install", "--dry-run", "--json")
    value = json.loads(out)
    assert code == 0
    assert value["installed"] is False
    assert value["commands"]
    assert not (tmp_path / "home").exists()
    code, _, err = run("service", "uninstall")
    assert code == 2
    assert "nothing is installed" in err
