"""What a benchmark of the ledger hands back, and how a run looks as text."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One line of the table; ``numbers`` are its values for machines, ``met`` is None where nothing is aimed at."""

    name: str
    measured: str
    target: str = ""
    met: bool | None = None
    numbers: dict[str, float] = field(default_factory=dict)


def table(figures: Sequence[Figure]) -> str:
    """Return a Markdown table."""
    lines = ["| figure | measured | target | met |", "|---|---|---|---|"]
    verdict = {None: "", True: "yes", False: "**no**"}
    lines += [f"| {each.name} | {each.measured} | {each.target} | {verdict[each.met]} |" for each in figures]
    return "\n".join(lines)


@dataclass
class Clock:
    """Seconds of this process's processor time and of wall time, added up over any number of laps."""

    cpu: float = 0.0
    wall: float = 0.0
    laps: list[tuple[float, float]] = field(default_factory=list)
    _since: tuple[float, float] | None = None

    def start(self) -> None:
        self._since = (time.process_time(), time.perf_counter())

    def stop(self) -> None:
        """End a lap."""
        assert self._since is not None
        cpu, wall = time.process_time() - self._since[0], time.perf_counter() - self._since[1]
        self.laps.append((cpu, wall))
        self.cpu += cpu
        self.wall += wall
        self._since = None


def ratio(ours: Clock, floor: Clock) -> tuple[float, float]:
    """Return our time over the floor's: the median over pairs of laps, of processor and of wall time.

    The laps alternate, so whatever else the machine does slows both down.
    """
    pairs = list(zip(ours.laps, floor.laps, strict=True))
    return (
        statistics.median(mine[0] / bare[0] for mine, bare in pairs),
        statistics.median(mine[1] / bare[1] for mine, bare in pairs),
    )
