"""Bytes and rates as people write them."""

from __future__ import annotations

import pytest

from gdf_market.errors import UsageError
from gdf_market.sizes import format_bytes, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0", 0),
        ("123", 123),
        ("500k", 500_000),
        ("500 kB/s", 500_000),
        ("2M", 2_000_000),
        ("1.5MB/s", 1_500_000),
        ("2MiB", 2 << 20),
        ("8Mbit/s", 1_000_000),
        ("8mbps", 8_000_000),
        ("1.5g", 1_500_000_000),
    ],
)
def test_a_rate_is_read(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1e6", "2 M B", "2MM", "1,5M", "k", "99999999T", "2M/min"])
def test_what_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)


def test_a_size_has_no_bits_and_no_seconds() -> None:
    assert parse_bytes("20GiB") == 20 << 30
    for text in ("2M/s", "8Mbit"):
        with pytest.raises(UsageError, match="number of bytes"):
            parse_bytes(text)


def test_bytes_are_shown_in_thousands() -> None:
    assert [format_bytes(count) for count in (0, 999, 2_500_000, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "2.5 MB",
        "3.0 TB",
    ]
