"""Where the settled rounds of a job are written for other programs: a file of JSON lines, TensorBoard's event files.

Both are opened on what an earlier run left and append only what is not there yet.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gdf_market.commands.progress import RoundMetrics, as_json
from gdf_market.errors import StorageError, UsageError
from gdf_market.units import CREDIT, SECOND_MS

_BEGINNING = b'{"job":'  # of every line
MAX_EVENT_BYTES = 64 * 2**20
_RECORD_HEAD = struct.Struct("<QI")  # of a TFRecord: length, and a checksum of it; the data's own checksum follows
_CHECKSUM_BYTES = 4


class Sink(Protocol):
    """Takes settled rounds, in order; those that it has already are skipped."""

    def write(self, lines: Sequence[RoundMetrics]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """Appends one JSON object per settled round to a file.

    Raises UsageError for a file that holds something else, StorageError when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"--metrics {path}: give a file in a folder that exists")
        try:
            self._known = self._read()
            self._file = path.open("a", encoding="utf-8", newline="\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--metrics {path} cannot be used: {getattr(error, 'strerror', None) or error}") from None

    def _read(self) -> set[tuple[str, int]]:
        if not self.path.exists():
            return set()
        text = self.path.read_bytes()
        whole, _, rest = text.rpartition(b"\n")
        known = {self._key(line) for line in whole.splitlines() if line.strip()}
        if rest and rest[: len(_BEGINNING)] != _BEGINNING[: len(rest)]:
            raise UsageError(f"--metrics {self.path} ends in something else than metrics; give another file")
        if rest:  # a run that was killed while it wrote
            with self.path.open("r+b") as file:
                file.truncate(len(text) - len(rest))
        return known

    def _key(self, line: bytes) -> tuple[str, int]:
        try:
            value = json.loads(line)
            return str(value["job"]), int(value["round"])
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"--metrics {self.path} holds a line that is no metrics ({line[:40]!r}); give another file"
            ) from None

    def write(self, lines: Sequence[RoundMetrics]) -> None:
        """Append the rounds that the file does not hold yet."""
        try:
            for line in lines:
                if (line.job, line.round) not in self._known:
                    self._file.write(json.dumps(as_json(line)) + "\n")
                    self._known.add((line.job, line.round))
            self._file.flush()
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes a run named after the job, one step per settled round, into event files below a folder."""

    def __init__(self, folder: Path, job: str) -> None:
        writer = _summary_writer()
        run = folder / job[:12]
        try:
            run.mkdir(parents=True, exist_ok=True)
            self._last = max((step for step, _, _ in scalars_of(run)), default=0)
            self._writer = writer(logdir=str(run))
        except OSError as error:
            raise UsageError(f"--tensorboard {folder} cannot be used: {error.strerror}") from None

    def write(self, lines: Sequence[RoundMetrics]) -> None:
        """Add the rounds that the run does not hold yet."""
        for line in lines:
            if line.step <= self._last:
                continue
            for tag, value in scalars(line).items():
                self._writer.add_scalar(tag, value, line.step, walltime=line.time_ms / SECOND_MS)
            self._last = line.step
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


def scalars(line: RoundMetrics) -> dict[str, float]:
    """Return what a round shows in TensorBoard, by tag; credits as credits."""
    found: dict[str, float | None] = {
        "loss": line.loss,
        "units/included": line.units,
        "units/rejected": line.rejected,
        "round/seconds": line.seconds,
        "round/credits": line.credits / CREDIT,
        "round/bytes": line.bytes,
        "round/tokens": line.tokens,
    }
    return {tag: float(value) for tag, value in found.items() if value is not None}


def scalars_of(run: Path) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) of the event files in a folder, up to a half-written end."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(run.glob("events.out.tfevents.*")):
        for record in _records(path.read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                yield event.step, value.tag, value.simple_value


def _records(data: bytes) -> Iterator[bytes]:
    place = 0
    while place + _RECORD_HEAD.size <= len(data):
        length, _ = _RECORD_HEAD.unpack_from(data, place)
        start, end = place + _RECORD_HEAD.size, place + _RECORD_HEAD.size + length
        if length > MAX_EVENT_BYTES or end + _CHECKSUM_BYTES > len(data):
            return
        yield data[start:end]
        place = end + _CHECKSUM_BYTES


def _summary_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard needs the package tensorboardX: pip install gdf-market[tensorboard]") from None
    return SummaryWriter


class Sinks:
    """The files that a command was asked to write; a context manager."""

    def __init__(self, job: str, metrics: Path | None = None, tensorboard: Path | None = None) -> None:
        self._sinks: list[Sink] = []
        self._stack = ExitStack()
        with ExitStack() as opened:
            for sink in _open(job, metrics, tensorboard):
                opened.callback(sink.close)
                self._sinks.append(sink)
            self._stack = opened.pop_all()

    def __enter__(self) -> Sinks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(self, lines: Sequence[RoundMetrics]) -> None:
        """Hand the settled rounds to every file."""
        for sink in self._sinks:
            sink.write(lines)


def _open(job: str, metrics: Path | None, tensorboard: Path | None) -> Iterator[Sink]:
    if metrics is not None:
        yield JsonLines(metrics)
    if tensorboard is not None:
        yield TensorBoard(tensorboard, job)
