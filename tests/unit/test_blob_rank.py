"""Which source of a blob is asked first and how much at once: by what was measured."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gdf_market.blobs.manifest import CHUNK_BYTES
from gdf_market.node import limits
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
    pace.failed(109.0, fault=False)
    assert pace.chunk_s(109.0) == 1.0
    pace.asked(109.0)
    pace.failed(129.0)
    slower = pace.chunk_s(129.0)
    assert slower is not None
    assert slower > 20


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
