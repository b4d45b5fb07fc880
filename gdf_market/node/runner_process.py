"""One subprocess with torch in it, that answers one request at a time.

A crash, an out-of-memory or a hang costs the request at work and nothing else:
the process is killed and the next request starts a new one.  After ``stop`` no
process is left.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import trio

import gdf_market
from gdf_market.errors import LocalError
from gdf_market.train.protocol import MAX_LINE_BYTES, Failure, Progress

START_TIMEOUT_S = 120.0  # importing torch on a busy machine
SILENCE_TIMEOUT_S = 600.0  # between two lines of a reply; a unit reports every step
LOG_TAIL_BYTES = 600
_READ_BYTES = 65_536

R = TypeVar("R", bound=msgspec.Struct)


class TrainerError(LocalError):
    """The runner did not deliver."""


class RunnerCrashedError(TrainerError):
    """The runner ended, or wrote something that is no reply, while it worked."""


class RunnerTimeoutError(TrainerError):
    """The runner was silent for too long, and was killed."""


class RequestFailedError(TrainerError):
    """The runner answered with an error; ``kind`` is the class name of what it raised."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class RunnerProcess:
    """Starts the runner when it is needed, and again when it is gone."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str], silence_timeout_s: float) -> None:
        self.progress: tuple[int, int] | None = None
        self._command = command
        self._environment = environment
        self._silence_timeout_s = silence_timeout_s
        self._turn = trio.Lock()
        self._process: trio.Process | None = None
        self._log: IO[bytes] | None = None
        self._received = bytearray()

    @property
    def pid(self) -> int | None:
        """The process id, while the process runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    async def ask(self, request: msgspec.Struct, kind: type[R]) -> R:
        """Send a request and return its reply.  Raises a TrainerError; whatever ends it early kills the process."""
        async with self._turn:
            try:
                return await self._converse(request, kind)
            except RequestFailedError:
                raise
            except BaseException:  # also when cancelled: what is left of the reply is of no use to anybody
                await self.stop()
                raise
            finally:
                self.progress = None

    async def stop(self) -> None:
        """Kill the process, wait for its end, and close its pipes."""
        process, self._process = self._process, None
        log, self._log = self._log, None
        with trio.CancelScope(shield=True):
            if process is not None:
                process.kill()
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()
        if log is not None:
            log.close()

    async def _converse(self, request: msgspec.Struct, kind: type[R]) -> R:
        started = self._process is not None and self._process.poll() is None
        process = self._process if started and self._process is not None else await self._start()
        patience_s = self._silence_timeout_s + (0.0 if started else START_TIMEOUT_S)
        try:
            with trio.fail_after(patience_s):
                assert process.stdin is not None
                await process.stdin.send_all(msgspec.json.encode(request) + b"\n")
            while True:
                with trio.fail_after(patience_s):
                    line = await self._line(process)
                reply = self._read(line, kind)
                if reply is not None:
                    return reply
                patience_s = self._silence_timeout_s
        except trio.TooSlowError:
            raise RunnerTimeoutError(f"the runner was silent for {patience_s:.0f} s and was stopped") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise RunnerCrashedError(self._last_words()) from None

    async def _start(self) -> trio.Process:
        await self.stop()
        self._received.clear()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (stop closes it)
        root = str(Path(gdf_market.__file__).parent.parent)  # a checkout that is not installed is found, too
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | self._environment | {"PYTHONPATH": os.pathsep.join(paths)}
        try:
            self._process = await trio.lowlevel.open_process(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment
            )
        except OSError as error:
            raise TrainerError(f"the runner cannot be started: {error.strerror}") from error
        return self._process

    async def _line(self, process: trio.Process) -> bytes:
        assert process.stdout is not None
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_LINE_BYTES:
                raise RunnerCrashedError(f"the runner wrote a line beyond {MAX_LINE_BYTES} bytes")
            data = await process.stdout.receive_some(_READ_BYTES)
            if not data:
                raise RunnerCrashedError(self._last_words())
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _read(self, line: bytes, kind: type[R]) -> R | None:
        """Return the reply in a line, or None if the line is progress."""
        try:
            content: Any = msgspec.json.decode(line)
            if "progress" in content:
                step = msgspec.convert(content, Progress)
                self.progress = (step.progress, step.of)
                return None
            if "error" in content:
                failure = msgspec.convert(content, Failure)
                raise RequestFailedError(failure.error, failure.kind)
            return msgspec.convert(content, kind)
        except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
            raise RunnerCrashedError(f"the runner wrote {line[:80]!r}: {error}") from None

    def _last_words(self) -> str:
        """Return what is known of the process's end: its last lines on standard error."""
        text = ""
        if self._log is not None:
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - LOG_TAIL_BYTES))
            text = " ".join(self._log.read().decode(errors="replace").split())
        return f"the runner ended while it worked: {text or 'it left no message (out of memory?)'}"
