"""A curve drawn with characters, for terminals of any kind: no colour, and plain ASCII where nothing else is shown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[int, float]

MIN_WIDTH, MIN_HEIGHT = 24, 4
MOST = 1e100  # differences of larger values overflow
LABELLED_ROWS = 4  # rows from one label of the y axis to the next


@dataclass(frozen=True)
class Marks:
    """The characters of a drawing."""

    point: str
    line: str
    side: str
    tick: str
    corner: str
    floor: str
    full: str
    empty: str


ASCII = Marks(point="*", line=".", side="|", tick="+", corner="+", floor="-", full="#", empty=".")
UNICODE = Marks(point="●", line="·", side="│", tick="┤", corner="└", floor="─", full="█", empty="░")


def curve(
    points: Sequence[Point], width: int, height: int, *, x_label: str, y_label: str, marks: Marks = ASCII
) -> list[str]:
    """Return the lines of a plot of ``points`` (ascending x), each at most ``width`` characters, ``height`` in all.

    Points that are not finite, or beyond MOST, are left out.  Where several share a column, the last of them is drawn;
    between points, a line.  Returns no lines when there is nothing to draw, or no room.
    """
    usable = [(x, y) for x, y in points if abs(y) < MOST]  # no nan, either
    rows = height - 3  # the y label above, the axis and its labels below
    if not usable or width < MIN_WIDTH or rows < MIN_HEIGHT - 3:
        return []
    low, high = _range([y for _, y in usable])
    names = [_label(high - (high - low) * row / max(1, rows - 1), high - low) for row in range(rows)]
    margin = max(len(name) for name in names)
    columns = width - margin - 2
    if columns < 8:
        return []
    grid = _grid(usable, columns, rows, low, high, marks)
    lines = [y_label[:width]]
    for row in range(rows):
        shown = row % LABELLED_ROWS == 0 or row == rows - 1
        label = names[row] if shown else ""
        lines.append(f"{label:>{margin}} {marks.tick if shown else marks.side}{''.join(grid[row])}".rstrip())
    lines.append(" " * (margin + 1) + marks.corner + marks.floor * columns)
    lines.append(" " * (margin + 2) + _x_labels(usable[0][0], usable[-1][0], x_label, columns))
    return lines


def bar(done: int, total: int, width: int, marks: Marks = ASCII) -> str:
    """Return a progress bar of ``width`` characters; full only when everything is done."""
    filled = 0 if total <= 0 else min(done, total) * width // total
    return marks.full * filled + marks.empty * (width - filled)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    pad = abs(low) * 0.01 or 0.01  # a flat curve lies in the middle
    return low - pad, high + pad


def _label(value: float, span: float) -> str:
    """Return a number with as many decimals as tell neighbouring labels apart."""
    decimals = 0 if span >= 1_000 else max(0, min(6, 2 - math.floor(math.log10(span))))
    return f"{value:.{decimals}f}" if abs(value) < 1e7 else f"{value:.3g}"


def _grid(points: Sequence[Point], columns: int, rows: int, low: float, high: float, marks: Marks) -> list[list[str]]:
    grid = [[" "] * columns for _ in range(rows)]
    first, last = points[0][0], points[-1][0]

    def column(x: int) -> int:
        return 0 if last == first else round((x - first) * (columns - 1) / (last - first))

    def row(y: float) -> int:
        return rows - 1 - round((y - low) * (rows - 1) / (high - low))

    by_column = {column(x): y for x, y in points}
    places = sorted(by_column.items())
    for (start, before), (end, after) in itertools.pairwise(places):
        for between in range(start + 1, end):
            grid[row(before + (after - before) * (between - start) / (end - start))][between] = marks.line
    for place, y in places:
        grid[row(y)][place] = marks.point
    return grid


def _x_labels(first: int, last: int, name: str, columns: int) -> str:
    left, right = str(first), str(last) if last != first else ""
    room = columns - len(left) - len(right)
    return (left + (name[: max(0, room - 2)]).center(max(0, room)) + right).rstrip()
