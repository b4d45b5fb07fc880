"""Credits as text: exact both ways, and what is no amount is refused with a way out."""

from __future__ import annotations

import pytest

from gdf_market.errors import UsageError
from gdf_market.units import CREDIT, MAX_INT, format_credits, parse_credits


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1", CREDIT),
        ("2.5", 2_500_000),
        ("0.000001", 1),
        ("1e3", 1_000 * CREDIT),
        ("007", 7 * CREDIT),
        ("9007199254.740991", MAX_INT),
    ],
)
def test_amounts_are_read_exactly(text: str, amount: int) -> None:
    assert parse_credits(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", "one", "-1", "0.0000001", "NaN", "Infinity", "-Infinity", "9007199254.740992", "1e400", "1,5", "1" * 5_000],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="amount of credits; write a number"):
        parse_credits(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (2_500_000, "2.5"),
        (10 * CREDIT, "10"),
        (-1_500_000, "-1.5"),
        (MAX_INT, "9007199254.740991"),
    ],
)
def test_amounts_are_written_without_trailing_zeros(amount: int, text: str) -> None:
    assert format_credits(amount) == text
