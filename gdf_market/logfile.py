"""The node's log on disk: JSON lines in a file that turns over, beside what goes to the terminal."""

from __future__ import annotations

import json
import logging
import logging.handlers
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import structlog

FILE_BYTES = 4 << 20
FILES = 3  # older files that stay
MAX_LINE_BYTES = 16_384
LEVELS = ("debug", "info", "warning", "error")

Event = MutableMapping[str, Any]


def level_number(name: object) -> int:
    """Return logging's number for a level's name; that of an error for a name that is none."""
    return logging.getLevelNamesMapping().get(str(name).upper(), logging.ERROR)


class Keep:
    """A structlog processor that writes events to ``path``, and drops those below ``shown`` for what follows it.

    Disk trouble costs lines of the log, nothing else.
    """

    def __init__(self, path: Path, kept: int, shown: int) -> None:
        self._kept, self._shown = kept, shown
        self._file = logging.handlers.RotatingFileHandler(
            path, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8", delay=True
        )
        self._file.handleError = lambda record: None  # type: ignore[method-assign]  # it would print a traceback
        self._render = structlog.processors.JSONRenderer(default=repr)

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        """Write one event.  Raises structlog.DropEvent for one that the terminal does not get."""
        number = level_number(event.get("level", method))
        if number >= self._kept:
            told = structlog.processors.format_exc_info(logger, method, dict(event))
            line = str(self._render(logger, method, told))
            if len(line) > MAX_LINE_BYTES:
                line = json.dumps({**{name: told.get(name) for name in ("timestamp", "level")}, "event": line[:1_000]})
            self._file.handle(logging.LogRecord("gdf", number, "", 0, line, None, None))
        if number < self._shown:
            raise structlog.DropEvent
        return event

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read(path: Path, *, level: str = "debug") -> Iterator[dict[str, Any]]:
    """Yield the events of the log from the oldest on; lines that a crash cut off are left out.  Raises OSError."""
    least = level_number(level)
    for file in [*(path.with_name(f"{path.name}.{number}") for number in range(FILES, 0, -1)), path]:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            continue
        for line in data.splitlines():
            event = parse(line)
            if event is not None and level_number(event.get("level")) >= least:
                yield event


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the event of one line, or None for a line that is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
