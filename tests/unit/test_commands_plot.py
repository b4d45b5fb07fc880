"""The curve in text: what is drawn where, in any size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdf_market.commands.plot import ASCII, UNICODE, bar, curve


def drawn(points: list[tuple[int, float]], width: int = 40, height: int = 12) -> list[str]:
    return curve(points, width, height, x_label="rounds", y_label="loss")


def test_a_falling_curve_falls_from_the_first_row_to_the_last() -> None:
    lines = drawn([(1, 4.0), (2, 3.0), (3, 2.0)])
    assert len(lines) == 12
    assert lines[0] == "loss"
    rows = lines[1:-2]
    assert rows[0].startswith("4.00 +*")
    assert rows[-1].startswith("2.00 +")
    assert rows[-1].endswith("*")
    middle = next(row for row in rows[1:-1] if "*" in row)
    assert rows.index(middle) in (4, 5)
    assert "." in "".join(row.split("|")[-1] for row in rows[1:4])  # the line between points
    assert lines[-1].split() == ["1", "rounds", "3"]


def test_many_points_share_columns_and_the_last_of_them_is_drawn() -> None:
    lines = drawn([(step, float(step)) for step in range(1_000)])
    columns = lines[-2].count("-")
    assert columns > 30
    assert sum(row.count("*") for row in lines[1:-2]) == columns
    assert not any("." in row.split("|")[-1] for row in lines[1:-2] if "|" in row)
    assert lines[1].endswith("*")


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(1, math.inf), (2, -math.inf)], [(1, 1e301)]])
def test_nothing_is_drawn_of_nothing(points: list[tuple[int, float]]) -> None:
    assert drawn(points) == []


def test_no_room_draws_nothing() -> None:
    assert drawn([(1, 1.0)], width=10) == []
    assert drawn([(1, 1.0)], height=3) == []


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
    st.integers(1, 130),
    st.integers(0, 40),
)
def test_any_values_stay_in_the_frame(values: list[float], width: int, height: int) -> None:
    points = list(enumerate(values))
    for marks in (ASCII, UNICODE):
        lines = curve(points, width, height, x_label="rounds", y_label="validation loss", marks=marks)
        assert len(lines) in (0, height)
        assert all(len(line) <= width for line in lines)
    assert all(line.isascii() for line in drawn(points))


@pytest.mark.parametrize(("done", "total", "shown"), [(0, 4, "...."), (1, 4, "#..."), (4, 4, "####"), (0, 0, "....")])
def test_a_bar(done: int, total: int, shown: str) -> None:
    assert bar(done, total, 4) == shown
    assert "." in bar(999, 1_000, 10)
