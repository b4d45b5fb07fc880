"""The JavaScript client as a child process: a line of JSON asks, a line of JSON answers."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ANSWER_S = 300.0
DEMANDED = "GDF_INTEROP"  # set by `make test-interop`: what is missing is a failure then, and no reason to skip


def node_path() -> str:
    """Return the node executable; skip, or fail if the test was asked for, where the client is not installed."""
    found = shutil.which("node")
    if found and (HERE / "node_modules").is_dir():
        return found
    reason = "the JavaScript client is not installed; `make test-interop` does it (Node.js 20 or newer, and npm)"
    if os.environ.get(DEMANDED):
        pytest.fail(reason)
    pytest.skip(reason)


class ClientError(AssertionError):
    """The client could not do what it was asked."""


class JsClient:
    """One peer on js-libp2p, with a key of its own."""

    def __init__(self, invite: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [node_path(), str(HERE / "client.mjs")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        started = self.ask("start", invite=invite)
        self.account, self.network = str(started["account"]), str(started["network"])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, op: str, **given: Any) -> dict[str, Any]:
        """Return what an operation of the client answers; ClientError with its reason if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **given}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise ClientError(f"no answer to {op} within {ANSWER_S:.0f} s; see {self._log}") from None
        if not line:
            raise ClientError(f"the client ended at {op}: {self._log.read_text(encoding='utf-8')}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientError(f"{op}: {answer['error']}; see {self._log}")
        result: dict[str, Any] = answer["ok"]
        return result

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
