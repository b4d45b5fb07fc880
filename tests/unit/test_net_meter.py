"""The pace of bytes in one direction, on a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from gdf_market.node import limits
from gdf_market.node.meter import Meter


def _run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("rate", [64_000, 500_000, 20_000_000])
def test_what_many_spend_together_keeps_the_rate(rate: int) -> None:
    async def main() -> None:
        meter = Meter()
        meter.limit(rate)

        async def spend() -> None:
            for _ in range(50):
                await meter.spend(65_524)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(spend)
        seconds = trio.current_time() - began
        assert meter.total_bytes == 4 * 50 * 65_524
        saved = limits.RATE_BURST_S * rate  # what was free at the start
        assert 0.99 * rate < (meter.total_bytes - max(saved, 65_524)) / seconds < 1.01 * rate

    _run(main)


def test_without_a_limit_nothing_waits_and_a_limit_can_be_taken_away() -> None:
    async def main() -> None:
        meter = Meter()
        await meter.spend(1 << 40)
        meter.limit(100_000)
        assert meter.rate_bytes_per_s == 100_000
        meter.limit(0)
        await meter.spend(1 << 40)
        assert trio.current_time() == began
        assert meter.total_bytes == 2 << 40

    began = 0.0

    async def timed() -> None:
        nonlocal began
        began = trio.current_time()
        await main()

    _run(timed)


def test_a_rate_is_shared_by_so_many_that_each_still_moves() -> None:
    meter = Meter()
    assert meter.at_once(50_000, 16) == 16
    meter.limit(64_000)
    assert meter.at_once(50_000, 16) == 1
    meter.limit(200_000)
    assert meter.at_once(50_000, 16) == 4
    meter.limit(10**9)
    assert meter.at_once(50_000, 16) == 16
