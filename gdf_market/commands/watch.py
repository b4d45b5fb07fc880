"""Following a job until it ends: a live view on a terminal, plain lines or JSON lines elsewhere.

Only the ledger file of the data folder is read, so it works whether the node runs or not, and ending the view ends
nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from gdf_market.commands.common import App, printable
from gdf_market.commands.metrics import Sinks
from gdf_market.commands.plot import ASCII, UNICODE, Marks, bar, curve
from gdf_market.commands.progress import Progress, as_json, progress_of
from gdf_market.commands.reading import open_ledger
from gdf_market.units import SECOND_MS, format_credits

POLL_S = 1.0
BUSY_SHARE = 10  # reading a long job's records takes at most about a tenth of the time
STILL_HEARTBEATS = 4  # heartbeats without a block after which the ledger is said to stand still
MAX_CURVE_ROWS = 16
CLOCKED = ("height", "head_ms", "eta_seconds")  # what changes with every block


@dataclass(frozen=True)
class Sight:
    """What is shown at one moment; ``still_s`` is how long the ledger has not moved, 0 while it does."""

    progress: Progress
    now_ms: int
    still_s: int
    node_runs: bool

    @property
    def stillness(self) -> str:
        """The sentence about a ledger that does not move, or ""."""
        if not self.still_s or self.progress.ended:
            return ""
        # short enough for 80 columns
        why = "the node here gets no block" if self.node_runs else "no node here (`gdf-market node run`)"
        return f"the ledger has not moved for {duration(self.still_s)}: {why}"

    def changes(self) -> dict[str, object]:
        """Return what counts as a change."""
        shown = as_json(self.progress)
        return {name: value for name, value in shown.items() if name not in CLOCKED} | {"still": bool(self.still_s)}


def watch(app: App, job_id: str, sinks: Sinks) -> None:
    """Show a job until it ends; KeyboardInterrupt passes through."""
    follow(app, look(app, job_id, sinks))


def look(
    app: App,
    job_id: str,
    sinks: Sinks,
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Iterator[Sight]:
    """Yield what there is to see, about once a second, until the job ended; settled rounds go to ``sinks``."""
    clock, sleep = clock or time.time, sleep or time.sleep
    still_ms = STILL_HEARTBEATS * app.data.genesis().heartbeat_ms
    found: Progress | None = None
    while True:
        began = time.perf_counter()
        with open_ledger(app) as store:
            head = store.head()
            if found is None or head is None or head.height != found.height:
                found, settled = progress_of(store, job_id)
                sinks.write(settled)
        now_ms = int(clock() * SECOND_MS)
        age_ms = now_ms - found.head_ms
        yield Sight(found, now_ms, age_ms // SECOND_MS if age_ms > still_ms else 0, app.data.running() is not None)
        if found.ended:
            return
        sleep(max(POLL_S, BUSY_SHARE * (time.perf_counter() - began)))


def follow(app: App, sights: Iterator[Sight]) -> None:
    """Show every sight in the form that the output asks for."""
    if app.json:
        for sight in _changed(sights):
            stalled = {"still_seconds": sight.still_s}
            sys.stdout.write(json.dumps(as_json(sight.progress) | stalled, sort_keys=True) + "\n")
            sys.stdout.flush()
    elif app.out.is_terminal:
        with Live(console=app.out, auto_refresh=False, vertical_overflow="crop") as live:
            for sight in sights:
                live.update(View(sight), refresh=True)
    else:
        for sight in _changed(sights):
            app.out.print(printable(sentence(sight)))
            sys.stdout.flush()


def _changed(sights: Iterator[Sight]) -> Iterator[Sight]:
    last: dict[str, object] = {}
    for sight in sights:
        now = sight.changes()
        if now != last:
            last = now
            yield sight


class View:
    """The live view, as large as the terminal."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = ASCII if options.ascii_only else UNICODE
        lines = view(self.sight, options.max_width, console.size.height - 1, marks)
        yield Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines))


def view(sight: Sight, width: int, height: int, marks: Marks = ASCII) -> list[str]:
    """Return the lines of the live view, at most ``height`` of at most ``width`` characters."""
    job = sight.progress
    lines = [
        f"{job.title}  ({job.job[:12]})",
        _bar_line(job, width, marks),
        f"{'phase':<9}{_phase(sight)}",
        f"{'workers':<9}{job.workers} on {job.slots} slots",
        f"{'units':<9}{job.units_in} in now; {_units(job)}",
        f"{'credits':<9}{_credits(job)}",
        f"{'loss':<9}{'; '.join(filter(None, (_loss(job), _left(job))))}",
    ]
    for extra in (sight.stillness, job.reason):
        if extra:
            lines.append(extra)
    room = min(MAX_CURVE_ROWS, height - len(lines))
    lines += curve(job.losses, width, room, x_label="settled rounds", y_label="validation loss (nats)", marks=marks)
    return [printable(line)[:width] for line in lines[:height]]


def sentence(sight: Sight) -> str:
    """Return one line about a job, for output that is no terminal."""
    job = sight.progress
    parts = [
        f"round {job.completed}/{job.rounds}",
        _phase(sight, clock=False),
        f"{job.workers} workers",
        f"{job.units_in} units in",
        _units(job),
        _credits(job),
        f"loss {_loss(job)}",
        _left(job),
        sight.stillness,
        job.reason,
    ]
    return "; ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: ``1 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600:02} h"


def _bar_line(job: Progress, width: int, marks: Marks) -> str:
    counted = f" {job.completed}/{job.rounds} rounds" + (f" ({job.void} void)" if job.void else "")
    return bar(job.completed, job.rounds, max(8, width - len(counted)), marks) + counted


def _phase(sight: Sight, *, clock: bool = True) -> str:
    job = sight.progress
    if job.ended or job.phase == job.status:
        name = {"draining": "all rounds are over; held pay waits for its audits"}.get(job.status, job.status)
    else:
        name = f"{job.phase} of round {job.round}"
    if not clock or not job.phase_end_ms:
        return name
    left_ms = job.phase_end_ms - sight.now_ms
    return f"{name}, " + (f"{duration(left_ms / SECOND_MS)} left" if left_ms > 0 else "its time is over")


def _units(job: Progress) -> str:
    return f"{job.accepted} accepted, {job.missed} missed, {job.rejected} rejected, {job.convicted} convicted"


def _credits(job: Progress) -> str:
    fees = f", {format_credits(job.audit_fees)} for audits" if job.audit_fees else ""
    return f"{format_credits(job.paid)} paid, {format_credits(job.held)} held{fees}, {format_credits(job.escrow)} left"


def _loss(job: Progress) -> str:
    if job.loss is None:
        return "not measured yet"
    first = job.losses[0][1]
    return f"{job.loss:.4f}" + (f" (first {first:.4f})" if len(job.losses) > 1 else "")


def _left(job: Progress) -> str:
    if job.ended:
        return ""
    if job.eta_seconds is None:
        return "time left unknown until a round is over"
    each = f" ({duration(job.round_seconds)} a round)" if job.round_seconds is not None else ""
    return f"about {duration(job.eta_seconds)} left{each}"
