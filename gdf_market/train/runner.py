"""The process that runs units: ``python -m gdf_market.train.runner``.

One JSON request per line on standard input, one JSON reply per line on
standard output, with progress lines before it.  A request that fails is
answered with an error line; the process ends when its input does.  As a
process entry it stands above the packages and brings ``verifier`` in.

With ``--rank`` it is one of the processes that a runner starts for a unit on
several devices (see parallel.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import psutil

from gdf_market.errors import GdfError
from gdf_market.train.operations import Operations, Verification, threads_of
from gdf_market.train.parallel import Ranks
from gdf_market.train.protocol import (
    MAX_LINE_BYTES,
    AnyRequest,
    AuditRequest,
    Failure,
    ProbeRequest,
    Progress,
    TrainRequest,
)
from gdf_market.train.team import ProcessTeam, WatchedInput
from gdf_market.train.unit import ALONE, Team
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure


class Input(Protocol):
    def readline(self, limit: int, /) -> bytes: ...


def serve(source: Input, target: BinaryIO, team: Team = ALONE) -> None:
    """Answer requests from ``source`` on ``target`` until ``source`` ends."""
    encoder = msgspec.json.Encoder()

    def send(message: object) -> None:
        target.write(encoder.encode(message) + b"\n")
        target.flush()

    def report(done: int, of: int) -> None:
        if team.rank == 0:
            send(Progress(progress=done, of=of))

    ranks = Ranks(report)
    desk = _Desk(Operations(Verification(sketch, measure, compute_outcome), report, team), ranks)
    try:
        while line := source.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                send(Failure(error=f"request beyond {MAX_LINE_BYTES} bytes", kind="OversizedError"))
                return  # what follows is the middle of a line
            send(desk.answer(line))
    finally:
        ranks.stop()


class _Desk:
    """Decides who performs a request, and answers whatever happens."""

    def __init__(self, operations: Operations, ranks: Ranks) -> None:
        self._operations, self._ranks = operations, ranks
        self._decoder = msgspec.json.Decoder(AnyRequest)

    def answer(self, line: bytes) -> object:
        try:
            return self._perform(self._decoder.decode(line))
        except GdfError as error:
            return Failure(error=str(error), kind=type(error).__name__)
        except msgspec.MsgspecError as error:
            return Failure(error=f"not a request: {error}", kind="MalformedError")
        # whatever a strange program makes torch raise, the next request is served
        except Exception as error:
            return Failure(error=f"{type(error).__name__}: {error}"[:1_000], kind="TrainingError")

    def _perform(self, request: AnyRequest) -> object:
        several = len(request.devices) > 1
        # given parts are computed here one after another, however many processes they were first computed in
        if isinstance(request, TrainRequest | AuditRequest) and several and request.parts is None:
            return self._ranks.perform(request, threads_of(request))
        if isinstance(request, ProbeRequest) and several:
            return self._ranks.perform(request, threads_of(request))
        if request.devices:
            request = msgspec.structs.replace(request, device=request.devices[0], devices=())
        return self._operations.perform(request)


def _step_back() -> None:
    """Let interactive programs go first, where the system allows it."""
    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if os.name == "nt" else 10)


def main() -> None:
    """Serve standard input; what libraries print goes to standard error."""
    _step_back()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the node's to handle; it ends this process
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    arguments = _parse()
    if arguments.ranks == 1:
        serve(sys.stdin.buffer, replies)
        return
    source = WatchedInput(sys.stdin.buffer)
    team = ProcessTeam.meet(arguments.rank, arguments.ranks, arguments.meeting, arguments.device)
    serve(source, replies, team)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--meeting", type=Path)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
