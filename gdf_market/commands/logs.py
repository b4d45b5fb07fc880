"""``gdf-market logs``: what the node of this folder noted, also while it ran as a service."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click

from gdf_market import logfile
from gdf_market.commands.common import App, pass_app, printable
from gdf_market.errors import StorageError, UsageError

POLL_S = 0.5


@click.command()
@click.option("-n", "--lines", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Newest lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--level", type=click.Choice(logfile.LEVELS), default="info", show_default=True, help="Least level.")
@pass_app
def logs(app: App, lines: int, follow: bool, level: str) -> None:
    """Show the node's log; with --json one JSON object per line.

    Example: gdf-market logs --follow --level warning
    """
    path = app.data.log
    if not path.exists() and not follow:
        raise UsageError(f"{path} is not there yet; a node on this folder writes it (`gdf-market work`)")
    follower = _Follower(path)
    try:
        for event in deque(logfile.read(path, level=level), maxlen=lines) if lines else ():
            _show(app, event)
        while follow:
            time.sleep(POLL_S)
            for event in follower.new():
                if logfile.level_number(event.get("level")) >= logfile.level_number(level):
                    _show(app, event)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


class _Follower:
    """Reads what is appended to a file that may turn over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events of whole lines that came since the last call."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._at:  # it turned over
            self._at = 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._at += len(whole) + len(newline)
        for line in whole.splitlines():
            event = logfile.parse(line)
            if event is not None:
                yield event


def _show(app: App, event: dict[str, Any]) -> None:
    if app.json:
        click.echo(json.dumps(event, sort_keys=True))
        return
    rest = {name: value for name, value in event.items() if name not in ("timestamp", "level", "event", "exception")}
    details = " ".join(f"{name}={value}" for name, value in rest.items())
    click.echo(printable(f"{event.get('timestamp', '')} {event.get('level', ''):7} {event.get('event', '')} {details}"))
    if "exception" in event:
        click.echo(printable(str(event["exception"])))
