"""Geometry of the inline SVG charts, in user units; the templates draw it.

Floats are for display only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 28  # room for the axis labels


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class LineChart:
    """``points`` is the SVG points attribute; ``dots`` are drawn only when there are few."""

    points: str
    dots: tuple[tuple[float, float, str], ...]  # x, y, what it says
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


@dataclass(frozen=True)
class Bar:
    """A bar of a horizontal waterfall, in thousandths of its width."""

    x: float
    width: float


def _scale(value: float, low: float, high: float, start: float, end: float) -> float:
    return start if high == low else start + (value - low) / (high - low) * (end - start)


def loss_chart(losses: Sequence[tuple[int, int]]) -> LineChart | None:
    """Return the chart of (round, loss in micro-nats) pairs in round order; None below two points."""
    if len(losses) < 2:
        return None
    values = [loss / 1_000_000 for _, loss in losses]
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or 0.05
    low, high = low - margin, high + margin
    first, last = losses[0][0], losses[-1][0]
    places = [
        (
            round(_scale(index, first, last, LEFT, WIDTH - RIGHT), 1),
            round(_scale(value, low, high, HEIGHT - BOTTOM, TOP), 1),
            f"round {index}: {value:.4f} nats",
        )
        for (index, _), value in zip(losses, values, strict=True)
    ]
    steps = [low + (high - low) * part / 3 for part in range(4)]
    marks = sorted({first, (first + last) // 2, last})
    return LineChart(
        points=" ".join(f"{x},{y}" for x, y, _ in places),
        dots=tuple(places) if len(places) <= 60 else (),
        x_ticks=tuple(Tick(round(_scale(mark, first, last, LEFT, WIDTH - RIGHT), 1), str(mark)) for mark in marks),
        y_ticks=tuple(Tick(round(_scale(at, low, high, HEIGHT - BOTTOM, TOP), 1), f"{at:.3f}") for at in steps),
        summary=f"Loss went from {values[0]:.4f} nats in round {first} to {values[-1]:.4f} in round {last}.",
    )


def waterfall_bar(start: int, amount: int, peak: int) -> Bar:
    """Return the bar from a running sum of ``start`` to ``start + amount``, where ``peak`` fills the width."""
    low, high = sorted((max(start, 0), max(start + amount, 0)))
    scale = 1000 / max(peak, 1)
    return Bar(round(low * scale, 1), round(max((high - low) * scale, 3), 1))
