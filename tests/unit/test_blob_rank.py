"""Which source of a blob is asked first and how much at once: by what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdf_market.blobs.manifest import CHUNK_BYTES
from gdf_market.node import limits
from gdf_market.node.blob_plan import Plan
from gdf_market.node.blob_rank import STALE_S, Pace, lanes, order, spare


def measured(chunk_s: float, *, rtt_s: float | None = 0.01, now: float = 100.0) -> Pace:
    """Return the pace of a source that delivered a chunk in ``chunk_s``, just now."""
    pace = Pace(rtt_s)
    pace.asked(now - chunk_s)
    pace.arrived(CHUNK_BYTES, now)
    return pace


def test_the_fastest_comes_first_then_the_nearest_then_by_id() -> None:
    paces = {
        "slow": measured(2.0),
        "b-near": measured(1.0, rtt_s=0.01),
        "a-near": measured(1.0, rtt_s=0.01),
        "far": measured(1.0, rtt_s=0.2),
        "fast": measured(0.1, rtt_s=0.3),
    }
    assert order(paces, 100.0) == ["fast", "a-near", "b-near", "far", "slow"]
    assert order(dict(reversed(paces.items())), 100.0) == order(paces, 100.0)


def test_new_sources_are_tried_beside_the_best_one_nearest_first() -> None:
    paces = {"known": measured(1.0), "slower": measured(3.0), "b": Pace(), "a": Pace(), "near": Pace(0.01)}
    assert order(paces, 100.0) == ["known", "near", "slower", "a", "b"]
    assert lanes(paces["a"], 100.0) == 1, "a source of unknown rate gets one chunk"


def test_a_source_that_turned_slow_drops_back() -> None:
    turned, steady = measured(0.1), measured(0.5)
    assert order({"turned": turned, "steady": steady}, 100.0)[0] == "turned"
    for second in (102.0, 104.0):
        turned.asked(second - 2)
        turned.arrived(CHUNK_BYTES, second)
    assert order({"turned": turned, "steady": steady}, 104.0)[0] == "steady"


def test_a_source_that_stalls_drops_back_before_it_fails() -> None:
    stalls = measured(0.1)
    stalls.asked(100.0)
    assert stalls.chunk_s(100.1) == measured(0.1).chunk_s(100.0)
    late = stalls.chunk_s(103.0)
    assert late is not None
    assert 2.9 < late < 3.1
    assert order({"stalls": stalls, "steady": measured(0.5)}, 103.0) == ["steady", "stalls"]


def test_one_that_delivers_nothing_is_last_and_forgotten_after_a_while() -> None:
    dead = Pace()
    dead.unreachable(100.0, 8.0)
    assert dead.chunk_s(100.0) == math.inf
    assert dead.rate(100.0) == 0
    assert order({"dead": dead, "slow": measured(9.0)}, 100.0) == ["slow", "dead"]
    assert lanes(dead, 100.0) == 1
    assert dead.chunk_s(100.0 + STALE_S + 1) is None, "its line may have recovered"


def test_chunks_that_share_a_line_are_measured_together() -> None:
    """Three chunks asked at once that arrive in the same moment took a third of the time each."""
    pace = Pace()
    for _ in range(3):
        pace.asked(0.0)
    for _ in range(3):
        pace.arrived(CHUNK_BYTES, 3.0)
    found = pace.chunk_s(3.0)
    assert found is not None
    assert 0.7 < found < 1.3
    assert pace.flying == 0


def test_idle_time_between_chunks_does_not_count() -> None:
    pace = measured(1.0)
    pace.asked(150.0)
    pace.arrived(CHUNK_BYTES, 151.0)
    assert pace.chunk_s(151.0) == 1.0


def test_a_chunk_that_nobody_waits_for_any_more_is_no_fault() -> None:
    pace = measured(1.0)
    pace.asked(100.0)
    pace.abandoned(0, 109.0)
    assert pace.chunk_s(109.0) == 1.0
    pace.asked(109.0)
    pace.failed(129.0)
    slower = pace.chunk_s(129.0)
    assert slower is not None
    assert slower > 20


def test_a_source_that_was_overtaken_is_known_by_what_it_had_sent() -> None:
    pace = Pace()
    pace.asked(100.0)
    pace.abandoned(CHUNK_BYTES // 4, 103.0)
    assert pace.chunk_s(103.0) == 12.0


def test_more_is_under_way_the_faster_and_the_farther_a_source_is() -> None:
    assert lanes(measured(4.0), 100.0) == 1
    assert lanes(measured(0.9, rtt_s=None), 100.0) == 2
    assert lanes(measured(0.1), 100.0) == limits.LANES
    assert lanes(measured(4.0, rtt_s=0.3), 100.0) == 2, "the line would be idle while the next request travels"


def test_the_last_chunks_are_left_to_those_who_deliver_them_sooner() -> None:
    slow, fast = measured(10.0), measured(1.0)
    assert spare(slow, [fast], 100.0) == 10
    fast.asked(100.0)
    assert spare(slow, [fast, Pace()], 100.0) == 9
    assert spare(fast, [slow], 100.0) == 0
    assert spare(slow, [measured(9.0)], 100.0) == 0, "a little faster is not enough"
    assert spare(Pace(), [fast], 100.0) == 0, "what is not known is tried"
    dead = Pace()
    dead.unreachable(100.0, 8.0)
    assert spare(dead, [slow], 100.0) >= limits.MAX_SOURCES


@given(st.lists(st.tuples(st.floats(0.001, 100.0), st.integers(0, 5)), min_size=1, max_size=8), st.integers(1, 50))
def test_somebody_always_takes_the_next_chunk(sources: list[tuple[float, int]], todo: int) -> None:
    paces = []
    for chunk_s, flying in sources:
        pace = measured(chunk_s)
        for _ in range(flying):
            pace.asked(100.0)
        paces.append(pace)
    left = [spare(mine, [other for other in paces if other is not mine], 100.0) for mine in paces]
    assert any(todo > count for count in left)


@dataclass
class Line:
    """A source in a simulated download: its line is shared by what it sends at a moment."""

    name: str
    bytes_per_s: float
    pace: Pace = field(default_factory=lambda: Pace(0.01))
    sending: dict[int, float] = field(default_factory=dict)  # chunk -> bytes left


def simulate(lines: list[Line], chunks: int, *, ranked: bool = True, now: float = 0.0) -> tuple[float, int]:
    """Return the seconds of a download, and how many chunks were sent in all: plan and pace as in `blob_download`."""
    plan, began, sent = Plan(range(chunks), now), now, 0
    while not plan.complete:
        for line in lines:
            others = [other.pace for other in lines if other is not line]
            while len(line.sending) < (lanes(line.pace, now) if ranked else limits.LANES):
                chunk_s = line.pace.chunk_s(now)
                takes_s = None if chunk_s is None else chunk_s * (line.pace.flying + 1)
                choice = {"takes_s": takes_s, "spare": spare(line.pace, others, now)} if ranked else {}
                index = plan.take(line.name, now, **choice)  # type: ignore[arg-type]
                if index is None:
                    break
                line.pace.asked(now)
                line.sending[index] = float(CHUNK_BYTES)
                sent += 1
        busy = [line for line in lines if line.sending]
        step = min([0.05, *(min(line.sending.values()) * len(line.sending) / line.bytes_per_s for line in busy)])
        now += step
        for line in busy:
            share = line.bytes_per_s * step / len(line.sending)
            for index in list(line.sending):
                line.sending[index] -= share
                if line.sending[index] <= 0.5:
                    del line.sending[index]
                    line.pace.arrived(CHUNK_BYTES, now)
                    plan.done(index, now)
    for line in lines:
        for left in line.sending.values():
            line.pace.abandoned(CHUNK_BYTES - round(left), now)
        line.sending.clear()
    return now - began, sent


@pytest.mark.parametrize("count", [2, 3, 4])
def test_several_equal_lines_are_nearly_as_fast_as_their_sum(count: int) -> None:
    one, _ = simulate([Line("a", 1e6)], 24)
    many, sent = simulate([Line(str(number), 1e6) for number in range(count)], 24)
    assert one / many > 0.95 * count
    assert sent == 24, "nothing is sent twice"


def test_slow_lines_beside_a_fast_one_cost_nothing_once_they_are_measured() -> None:
    def lines() -> list[Line]:
        return [Line("a", 125e3), Line("b", 125e3), Line("fast", 4e6), Line("c", 125e3)]

    alone, _ = simulate([Line("fast", 4e6)], 18)
    plain, plain_sent = simulate(lines(), 18, ranked=False)
    mine = lines()
    first, first_sent = simulate(mine, 18)
    again, again_sent = simulate(mine, 18, now=100.0)
    assert again <= 1.02 * alone, "not one chunk is waited for that a slow line has"
    assert again_sent == 18
    assert first < 1.25 * alone, "nor much longer while they are tried"
    assert first_sent <= 18 + 3, "a chunk each"
    assert plain > 1.1 * alone
    assert plain_sent > first_sent
