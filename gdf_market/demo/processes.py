"""Child processes of the demonstration: started by command line, stopped without leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gdf_market.errors import GdfError, LocalError
from gdf_market.node.client import NodeClient
from gdf_market.node.datadir import DataDir

STOP_S = 15.0
COMMAND_S = 240.0
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # Windows: Ctrl-Break goes to one group only


class Interrupts:
    """Remembers that the demonstration was told to end.

    Python loses a KeyboardInterrupt that strikes inside a destructor or a weak reference's callback; whatever waits
    therefore asks here as well.
    """

    came = False

    @classmethod
    def note(cls, _number: int, _frame: FrameType | None) -> None:
        """Signal handler."""
        cls.came = True
        raise KeyboardInterrupt

    @classmethod
    def pause(cls, seconds: float) -> None:
        """Sleep; KeyboardInterrupt if a signal came, even earlier."""
        if cls.came:
            raise KeyboardInterrupt
        time.sleep(seconds)


class DemoError(LocalError):
    """A step of the demonstration failed; the message names the step and the log to read."""


class Member:
    """One participant: a data folder, a log file, and perhaps a long-running process."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.data = DataDir(root / name)
        self.log = root / f"{name}.log"
        self.account = ""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "gdf_market", "--data-dir", str(self.data.root), *arguments]

    def start(self, *arguments: str) -> None:
        """Start a long-running command of this member; its output goes to its log."""
        assert self._process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                creationflags=NEW_GROUP,
            )

    def spawn(self, *arguments: str) -> Call:
        """Start a command that ends by itself and answers in JSON."""
        return Call(self.name, self.command("--json", *arguments), self.log)

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command to its end and return its JSON answer."""
        return self.spawn(*arguments).answer()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the process as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self, number: int) -> None:
        """Send the process a signal and wait until it is gone."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(number)
        self.join()

    def ask_to_stop(self) -> None:
        if self.alive:
            assert self._process is not None
            _ask_to_stop(self._process)

    def join(self, until: float | None = None) -> None:
        """Wait for the process to end, until a time of the monotonic clock; kill it when it does not."""
        if self._process is not None:
            _join(self._process, max(0.0, until - time.monotonic()) if until is not None else STOP_S)
            self._process = None

    def status(self) -> dict[str, Any] | None:
        """Return the node's status, or None while it does not answer."""
        with contextlib.suppress(GdfError), NodeClient.of(self.data) as client:
            return client.status()
        return None


class Call:
    """A command under way."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self._name, self._command, self._log = name, command, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                creationflags=NEW_GROUP,
            )

    def answer(self) -> dict[str, Any]:
        """Wait for the end and return the JSON on stdout.  Raises DemoError."""
        try:
            out = self._wait()
        except BaseException:  # it may run a node of its own, which has something to clean up
            _ask_to_stop(self._process)
            _join(self._process, STOP_S)
            raise
        shown = " ".join(self._command[5:])
        if self._process.returncode != 0:
            raise DemoError(
                f"{self._name}: `gdf-market {shown}` exited with {self._process.returncode}; see {self._log}"
            )
        try:
            value = json.loads(out)
        except ValueError:
            raise DemoError(f"{self._name}: `gdf-market {shown}` printed no JSON; see {self._log}") from None
        assert isinstance(value, dict)
        return value

    def _wait(self) -> bytes:
        end = time.monotonic() + COMMAND_S
        while True:
            Interrupts.pause(0)
            try:
                return self._process.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    shown = " ".join(self._command[5:])
                    raise DemoError(
                        f"{self._name}: `gdf-market {shown}` did not end in {COMMAND_S:.0f} s; see {self._log}"
                    ) from None


def stop_all(members: Sequence[Member]) -> None:
    """Stop every process, all at once, and wait for them; kill them all if somebody does not want to wait."""
    try:
        for member in members:
            member.ask_to_stop()
        until = time.monotonic() + STOP_S
        for member in members:
            member.join(until)
    except BaseException:
        for member in members:
            member.kill()
        raise


def wait_until(what: str, condition: Callable[[], bool], *, timeout_s: float, members: Sequence[Member] = ()) -> None:
    """Poll ``condition`` until it holds.  Raises DemoError when time is up or a member died."""
    end = time.monotonic() + timeout_s
    while not condition():
        for member in members:
            if not member.alive:
                raise DemoError(f"{member.name} ended while waiting until {what}; see {member.log}")
        if time.monotonic() > end:
            raise DemoError(f"waited {timeout_s:.0f} s until {what}; see the logs beside the data folders")
        Interrupts.pause(0.25)


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end cleanly; ``terminate`` would kill it on Windows, where nodes listen to Ctrl-Break."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            process.terminate()


def _join(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a process; kill it when time is up."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of children: settings of the person's own node must not leak into the demonstration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GDF_")}
    return kept | {"PYTHONUNBUFFERED": "1", "GDF_LOG_LEVEL": "info", "OMP_NUM_THREADS": "1"}
