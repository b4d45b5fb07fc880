"""A unit on several devices: the runner starts a process for each and passes their answers on.

Each process is a runner of its own (see team.py) that gets the same request; the first one's progress and reply are
the answer.  When one of them ends or fails, all are stopped, and the next request starts new ones.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

import gdf_market
from gdf_market.errors import UsageError, ensure
from gdf_market.train.errors import TrainingError
from gdf_market.train.protocol import (
    MAX_LINE_BYTES,
    AuditReply,
    AuditRequest,
    Failure,
    Helped,
    ProbeReply,
    ProbeRequest,
    Progress,
    TrainReply,
    TrainRequest,
)
from gdf_market.train.unit import Report

SharedRequest = TrainRequest | AuditRequest | ProbeRequest
Reply = TrainReply | AuditReply | ProbeReply | Failure

_REPLIES: dict[type, type[Reply]] = {TrainRequest: TrainReply, AuditRequest: AuditReply, ProbeRequest: ProbeReply}
_LOG_TAIL_BYTES = 600
_GRACE_S = 2.0  # in which the end of a process is seen after its neighbours have noticed


class RankLostError(TrainingError):
    """A process of a unit ended before the unit did."""


@dataclass(frozen=True)
class _Rank:
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def last_words(self) -> str:
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - _LOG_TAIL_BYTES))
        return " ".join(self.log.read().decode(errors="replace").split()) or "it left no message (out of memory?)"


class Ranks:
    """The processes, started when they are needed; ``report`` hears of the first one's steps."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._devices: tuple[str, ...] = ()
        self._ranks: list[_Rank] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lines: queue.Queue[tuple[int, bytes]] = queue.Queue()

    def perform(self, request: SharedRequest, threads: int) -> Reply:
        """Return the reply to a request; the processes share ``threads``.

        Raises RankLostError when a process ends early, UsageError for devices that cannot work together.
        """
        try:
            if self._devices != request.devices:
                self._start(request.devices, max(1, threads // len(request.devices)))
            return self._converse(request, max(1, threads // len(request.devices)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the processes, wait for their end and close what they were connected with."""
        ranks, self._ranks, self._devices = self._ranks, [], ()
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.wait()
            assert rank.process.stdin is not None
            with contextlib.suppress(OSError):
                rank.process.stdin.close()
            rank.log.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self, devices: tuple[str, ...], threads: int) -> None:
        self.stop()
        check_devices(devices)
        self._folder = tempfile.TemporaryDirectory(prefix="gdf-market-", ignore_cleanup_errors=True)
        self._lines = queue.Queue()
        for number, device in enumerate(devices):
            place = ["--rank", str(number), "--ranks", str(len(devices)), "--device", device]
            meeting = str(Path(self._folder.name) / "meeting")
            command = [sys.executable, "-P", "-m", "gdf_market.train.runner", *place, "--meeting", meeting]
            self._ranks.append(self._spawn(command, threads))
            threading.Thread(target=self._read, args=(number, self._ranks[-1], self._lines), daemon=True).start()
        self._devices = devices

    def _spawn(self, command: list[str], threads: int) -> _Rank:
        root = str(Path(gdf_market.__file__).parent.parent)
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths}
        log = tempfile.TemporaryFile()  # noqa: SIM115  (stop closes it)
        try:
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment)
        except OSError as error:
            log.close()
            raise RankLostError(f"a process for the unit cannot be started: {error.strerror}") from error
        return _Rank(process, log)

    @staticmethod
    def _read(number: int, rank: _Rank, lines: queue.Queue[tuple[int, bytes]]) -> None:
        """Pass on what a process writes; an empty line is its end."""
        assert rank.process.stdout is not None
        with rank.process.stdout as source:
            while line := source.readline(MAX_LINE_BYTES + 1):
                lines.put((number, line))
        lines.put((number, b""))

    def _converse(self, request: SharedRequest, threads: int) -> Reply:
        for number, device in enumerate(request.devices):
            own = msgspec.structs.replace(request, device=device, devices=(), threads=threads)
            self._send(number, msgspec.json.encode(own) + b"\n")
        answers: dict[int, msgspec.Struct] = {}
        while len(answers) < len(request.devices):
            number, line = self._lines.get()
            if not line:
                raise self._lost(number)
            message = self._decode(number, line, _REPLIES[type(request)])
            if isinstance(message, Failure):
                if message.kind == TrainingError.__name__ and (gone := self._gone()) is not None:
                    raise self._lost(gone)  # what a process says whose neighbour ended
                self.stop()  # the others wait for this one
                return message
            if isinstance(message, Progress):
                self._report(message.progress, message.of)
            else:
                answers[number] = message
        reply = answers[0]
        assert isinstance(reply, TrainReply | AuditReply | ProbeReply)
        return reply

    def _gone(self) -> int | None:
        """Return a process that ended, or ends soon."""
        with contextlib.suppress(queue.Empty):
            while True:
                number, line = self._lines.get(timeout=_GRACE_S)
                if not line:
                    return number
        return None

    def _send(self, number: int, line: bytes) -> None:
        stream = self._ranks[number].process.stdin
        assert stream is not None
        try:
            stream.write(line)
            stream.flush()
        except OSError:
            raise self._lost(number) from None

    def _decode(self, number: int, line: bytes, reply: type[Reply]) -> msgspec.Struct:
        content = msgspec.json.decode(line)
        kind: type[msgspec.Struct] = reply if number == 0 else Helped
        if "progress" in content:
            kind = Progress
        elif "error" in content:
            kind = Failure
        return msgspec.convert(content, kind)

    def _lost(self, number: int) -> RankLostError:
        rank = self._ranks[number]
        rank.process.wait()
        where = f"process {number} of {len(self._ranks)} of the unit ({self._devices[number]})"
        return RankLostError(f"{where} ended while it worked: {rank.last_words()}")


def check_devices(devices: tuple[str, ...]) -> None:
    """Raise UsageError unless the devices can compute one unit together."""
    kinds = {device.split(":")[0] for device in devices}
    ensure(len(kinds) == 1, UsageError(f"devices {', '.join(devices)} are of several kinds; a unit takes one kind"))
    twice = len(set(devices)) < len(devices) and kinds != {"cpu"}
    ensure(not twice, UsageError(f"devices {', '.join(devices)} name one GPU twice; name each once"))
