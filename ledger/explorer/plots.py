"""Geometry of SVG charts with axes: lines, dots and bars over numbers; the templates draw it.  No script is needed.

Floats are for display only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledger.explorer.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Tick
from ledger.explorer.present import credits_text

MAX_DOTS = 300
TICKS = 4

Point = tuple[float, float]
Label = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One curve; ``points`` is the SVG points attribute, ``style`` a class of the style sheet (a, b, c, d)."""

    name: str
    points: str
    style: str


@dataclass(frozen=True)
class Dot:
    """One observation; ``text`` says what it is."""

    x: float
    y: float
    text: str
    style: str = "a"


@dataclass(frozen=True)
class Block:
    """One bar, from the x axis up."""

    x: float
    y: float
    width: float
    height: float
    text: str
    style: str


@dataclass(frozen=True)
class Plot:
    """A chart of 640 x 200 units; ``summary`` says in words what it shows."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    bars: tuple[Block, ...] = ()


class Frame:
    """The axes: from values to places."""

    def __init__(self, x: Point, y: Point) -> None:
        self._x, self._y = x, y

    def at_x(self, value: float) -> float:
        low, high = self._x
        return round(LEFT + (value - low) / ((high - low) or 1) * (WIDTH - RIGHT - LEFT), 1)

    def at_y(self, value: float) -> float:
        low, high = self._y
        return round(HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - BOTTOM - TOP), 1)

    def line(self, name: str, points: Sequence[Point], style: str) -> Line:
        """Return a curve through points, in their order."""
        return Line(name, " ".join(f"{self.at_x(x)},{self.at_y(y)}" for x, y in points), style)

    def steps(self, name: str, points: Sequence[Point], style: str) -> Line:
        """Return a curve that keeps each value until the next point."""
        held = [(x, before[1]) for before, (x, _) in itertools.pairwise(points)]
        path = [each for pair in zip(points, [*held, points[-1]], strict=True) for each in pair]
        return self.line(name, path, style)

    def dot(self, x: float, y: float, text: str, style: str = "a") -> Dot:
        return Dot(self.at_x(x), self.at_y(y), text, style)

    def bar(self, x: Point, y: Point, text: str, style: str) -> Block:
        """Return a bar between two x and two y values."""
        left, right = self.at_x(x[0]), self.at_x(x[1])
        top, bottom = self.at_y(y[1]), self.at_y(y[0])
        return Block(left, top, round(max(right - left - 0.6, 0.8), 1), round(bottom - top, 1), text, style)

    def ticks(self, x_label: Label, y_label: Label) -> tuple[tuple[Tick, ...], tuple[Tick, ...]]:
        """Return marks at equal distances on both axes."""

        def marks(span: Point, place: Callable[[float], float], label: Label) -> tuple[Tick, ...]:
            values = [span[0] + (span[1] - span[0]) * part / TICKS for part in range(TICKS + 1)]
            return tuple(Tick(place(value), label(value)) for value in values)

        return marks(self._x, self.at_x, x_label), marks(self._y, self.at_y, y_label)


def percent_label(value: float) -> str:
    """Return a share as per cent."""
    return f"{value * 100:.0f}%"


def credits_label(value: float) -> str:
    """Return micro-credits as credits, rounded for an axis."""
    step = 10_000 if value < 10_000_000 else 1_000_000
    return credits_text(round(value) // step * step)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most ``most`` of some points, evenly, with the first and the last."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(index * step)] for index in range(most)]
