"""One heavy computation at a time, in a process of its own (``ledger.explorer.replay``): started, watched, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

AUDIT_LIMIT_S = 3_600
MAX_LINE = 4 << 20  # of what it prints
IDLE, RUNNING, DONE, FAILED = "idle", "running", "done", "failed"


@dataclass(frozen=True)
class Progress:
    """``status``: idle | running | done | failed; ``result`` is what it found, ``error`` why it found nothing."""

    status: str = IDLE
    done: int = 0
    of: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    result: dict[str, Any] | None = None


class Worker:
    """Runs the replay of one ledger file."""

    def __init__(self, db: Path, clock: Callable[[], int], limit_s: float = AUDIT_LIMIT_S) -> None:
        self._db, self._clock, self._limit_s = db, clock, limit_s
        self._lock = threading.Lock()
        self._progress = Progress()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def progress(self) -> Progress:
        """How far the last run is."""
        return self._progress

    def start(self, *, entry: str = "") -> bool:
        """Begin a run and watch it in a thread; False if one is under way."""
        with self._lock:
            if self._progress.status == RUNNING:
                return False
            self._progress = Progress(RUNNING, started_ms=self._clock())
            self._process = process = self._spawn(entry)
        threading.Thread(target=self._watch, args=(process,), name="explorer-replay", daemon=True).start()
        return True

    def run(self, entry: str) -> Progress:
        """Do a run and wait for its end."""
        process = self._spawn(entry)
        self._watch(process)
        return self._progress

    def _spawn(self, entry: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ledger.explorer.replay", "--db", str(self._db.resolve())]
        if entry:
            command += ["--entry", entry]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_root()
        )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        timer = threading.Timer(self._limit_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            self._follow(process.stdout)
        finally:
            process.kill()
            process.wait()
            timer.cancel()
            with self._lock:
                if self._progress.status == RUNNING or not self._progress.ended_ms:
                    self._end(FAILED, f"the replay ended early or took longer than {self._limit_s:.0f} s")

    def _follow(self, lines: IO[bytes]) -> None:
        self._progress = Progress(RUNNING, started_ms=self._progress.started_ms or self._clock())
        with lines:
            while line := lines.readline(MAX_LINE):
                value = json.loads(line)
                if "result" in value:
                    self._end(DONE, "", value["result"])
                elif "error" in value:
                    self._end(FAILED, value["error"])
                else:
                    self._progress = replace(self._progress, done=int(value["done"]), of=int(value["of"]))

    def _end(self, status: str, error: str, result: dict[str, Any] | None = None) -> None:
        self._progress = replace(
            self._progress, status=status, error=error, result=result, ended_ms=max(1, self._clock())
        )

    def close(self) -> None:
        """End a run that is under way."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()


def _root() -> str | None:
    """Return the folder of a checkout, where the packages are found without being installed."""
    root = Path(__file__).parents[2]
    return str(root) if (root / "pyproject.toml").is_file() else None
