"""The process that runs units: ``python -m gdf_market.train.runner``.

One JSON request per line on standard input, one JSON reply per line on
standard output, with progress lines before it.  A request that fails is
answered with an error line; the process ends when its input does.  As a
process entry it stands above the packages and brings ``verifier`` in.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

import msgspec
import psutil

from gdf_market.errors import GdfError
from gdf_market.train.operations import Operations, Verification
from gdf_market.train.protocol import MAX_LINE_BYTES, AnyRequest, Failure, Progress
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer requests from ``source`` on ``target`` until ``source`` ends."""
    decoder, encoder = msgspec.json.Decoder(AnyRequest), msgspec.json.Encoder()

    def send(message: object) -> None:
        target.write(encoder.encode(message) + b"\n")
        target.flush()

    operations = Operations(
        Verification(sketch, measure, compute_outcome), lambda done, of: send(Progress(progress=done, of=of))
    )
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            send(Failure(error=f"request beyond {MAX_LINE_BYTES} bytes", kind="OversizedError"))
            return  # what follows is the middle of a line
        send(_answer(operations, decoder.decode, line))


def _answer(operations: Operations, decode: Callable[[bytes], AnyRequest], line: bytes) -> object:
    try:
        return operations.perform(decode(line))
    except GdfError as error:
        return Failure(error=str(error), kind=type(error).__name__)
    except msgspec.MsgspecError as error:
        return Failure(error=f"not a request: {error}", kind="MalformedError")
    # whatever a strange program makes torch raise, the next request is served
    except Exception as error:
        return Failure(error=f"{type(error).__name__}: {error}"[:1_000], kind="TrainingError")


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
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
