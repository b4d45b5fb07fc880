"""``gdf-market service``: start the worker at log-on, by what each system has for it.

A user's own unit on all three systems: a Windows service sees no GPU of the session, a system-wide unit runs as root.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import rich_click as click

from gdf_market.commands.common import App, pass_app
from gdf_market.errors import LocalError, UsageError
from gdf_market.node.datadir import DataDir, write_atomic

NAME = "gdf-market"
LABEL = "org.gdf-market.work"
COMMANDS = ("work", "node run")


@dataclass(frozen=True)
class Unit:
    """What is installed: a file, and the commands that make the system read it, or forget it."""

    path: Path
    text: bytes
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]


def program() -> list[str]:
    """Return the command line of this very program: the interpreter that runs now, without a shell or PATH."""
    return [sys.executable, "-P", "-m", "gdf_market"]


def unit_for(platform: str, home: Path, data: DataDir, what: str) -> Unit:
    """Return the unit for ``sys.platform``: a systemd user unit, a launch agent, or a task at log-on."""
    arguments = [*program(), "--data-dir", str(data.root), *what.split()]
    if platform == "win32":
        return _windows(data, arguments)
    return _mac(home, arguments, data) if platform == "darwin" else _systemd(home, arguments)


def _systemd(home: Path, arguments: Sequence[str]) -> Unit:
    # systemd expands % and $ in ExecStart, and shlex's quotes are its own
    line = shlex.join(arguments).replace("%", "%%").replace("$", "$$")
    text = (
        "[Unit]\nDescription=gdf-market: lend this machine to training jobs\nAfter=network-online.target\n\n"
        f"[Service]\nExecStart={line}\nRestart=on-failure\nRestartSec=10\nKillSignal=SIGINT\nTimeoutStopSec=60\nNice=10\n\n"
        "[Install]\nWantedBy=default.target\n"
    )
    name = f"{NAME}.service"
    return Unit(
        home / ".config" / "systemd" / "user" / name,
        text.encode(),
        (("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", name)),
        (("systemctl", "--user", "disable", "--now", name),),
    )


def _mac(home: Path, arguments: Sequence[str], data: DataDir) -> Unit:
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    log = str(data.root / "service.log")
    made = {
        "Label": LABEL,
        "ProgramArguments": list(arguments),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Background",
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return Unit(
        path,
        plistlib.dumps(made),
        (("launchctl", "load", "-w", str(path)),),
        (("launchctl", "unload", "-w", str(path)),),
    )


def _windows(data: DataDir, arguments: Sequence[str]) -> Unit:
    path = data.root / "service.xml"
    interpreter, rest = escape(arguments[0]), escape(subprocess.list2cmdline(list(arguments[1:])))
    text = f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Settings>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
  </Settings>
  <Actions Context="Author">
    <Exec><Command>{interpreter}</Command><Arguments>{rest}</Arguments></Exec>
  </Actions>
</Task>
"""
    return Unit(
        path,
        text.encode("utf-16"),
        (("schtasks", "/Create", "/TN", NAME, "/XML", str(path), "/F"), ("schtasks", "/Run", "/TN", NAME)),
        (("schtasks", "/End", "/TN", NAME), ("schtasks", "/Delete", "/TN", NAME, "/F")),
    )


@click.group()
def service() -> None:
    """Start the worker by itself at log-on: systemd user unit, launch agent, or Windows task."""


@service.command()
@click.option("--run", "what", type=click.Choice(COMMANDS), default="work", show_default=True, help="What to start.")
@click.option("--dry-run", is_flag=True, help="Print the unit and the commands; change nothing.")
@pass_app
def install(app: App, what: str, dry_run: bool) -> None:
    """Install and start it for this user and this data folder.

    Settings come from config.toml (`gdf-market config set`); a key with a passphrase cannot be opened by a service.

    Example: gdf-market service install --dry-run
    """
    app.data.genesis()
    app.data.require_key()
    unit = unit_for(sys.platform, Path.home(), app.data, what)
    text = unit.text.decode("utf-16" if sys.platform == "win32" else "utf-8")
    value = {"path": str(unit.path), "unit": text, "commands": [list(one) for one in unit.start]}
    if dry_run:
        lines = "\n".join(_joined(one) for one in unit.start)
        app.emit(value | {"installed": False}, lambda: f"{unit.path}\n\n{text}\n{lines}")
        return
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot create {unit.path.parent}: {error.strerror}") from None
    write_atomic(unit.path, unit.text)
    _carry_out(unit.start)
    app.emit(value | {"installed": True}, lambda: f"installed {unit.path}; `gdf-market status` shows the node")


@service.command()
@pass_app
def uninstall(app: App) -> None:
    """Stop it, and start it no more; key, ledger and settings stay.

    Example: gdf-market service uninstall
    """
    unit = unit_for(sys.platform, Path.home(), app.data, "work")
    if not unit.path.exists():
        raise UsageError(f"{unit.path} is not there: nothing is installed for this user and data folder")
    _carry_out(unit.stop)
    try:
        os.unlink(unit.path)
    except OSError as error:
        raise LocalError(f"cannot delete {unit.path}: {error.strerror}") from None
    app.emit({"path": str(unit.path), "installed": False}, lambda: f"removed {unit.path}")


def _joined(command: Sequence[str]) -> str:
    return subprocess.list2cmdline(list(command)) if sys.platform == "win32" else shlex.join(command)


def _carry_out(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        try:
            done = subprocess.run(list(command), capture_output=True, text=True, timeout=60, check=False)
        except FileNotFoundError:
            raise LocalError(f"{command[0]} is not there; start `gdf-market work` by hand, or use --dry-run") from None
        except subprocess.TimeoutExpired:
            raise LocalError(f"`{_joined(command)}` did not end within a minute") from None
        if done.returncode:
            reason = " ".join((done.stderr or done.stdout).split())[:300]
            raise LocalError(f"`{_joined(command)}` failed with code {done.returncode}: {reason}")
