"""What the benchmark of blobs shows: ratios of downloads, as a table."""

from __future__ import annotations

from benchmarks.network import line_row, table
from benchmarks.network_world import Fetched


def test_a_download_is_shown_against_one_source_and_against_the_lines() -> None:
    single = Fetched(seconds=10.0, size=10_000_000, received=10_000_000, peak_rss=1)
    found = Fetched(seconds=4.0, size=10_000_000, received=10_500_000, peak_rss=1)
    assert line_row("three", found, single, 3_000_000) == ("three", "4.0", "2.50", "2.50 ×", "83%", "5.0%")


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("1", "2")]).splitlines() == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
