"""The download plan and the replies of the bulk process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdf_market.blobs.manifest import ContentMismatchError
from gdf_market.blobs.room import QuotaError
from gdf_market.errors import (
    GdfError,
    LocalError,
    MalformedError,
    OversizedError,
    PeerError,
    StorageError,
    UnreachableError,
    UserError,
)
from gdf_market.node import limits
from gdf_market.node.blob_channel import AbsentError
from gdf_market.node.blob_plan import Plan
from gdf_market.node.bulk import _error_of
from gdf_market.node.bulk_process import failure


def test_a_plan_hands_out_each_chunk_once_in_order() -> None:
    plan = Plan([3, 5, 8], 0.0)
    assert [plan.take(source, 0.0) for source in ("a", "b", "a", "b")] == [3, 5, 8, None]


def test_a_failed_chunk_is_asked_again_at_once() -> None:
    plan = Plan([1, 2], 0.0)
    assert plan.take("a", 0.0) == 1
    plan.failed("a", 1)
    assert plan.take("b", 0.0) == 1


def test_in_the_end_game_a_slow_chunk_goes_to_a_second_source_only_after_a_while() -> None:
    plan = Plan([1], 0.0)
    assert plan.take("slow", 0.0) == 1
    assert plan.take("fast", limits.ENDGAME_S) is None
    assert plan.take("slow", limits.ENDGAME_S + 1) is None, "it was asked already"
    assert plan.take("fast", limits.ENDGAME_S + 1) == 1
    assert plan.take("third", limits.ENDGAME_S + 2) is None, "one more at a time"
    plan.failed("slow", 1)
    assert plan.take("third", limits.ENDGAME_S + 2) is None, "the second source is still at work"
    plan.done(1, 9.0)
    assert plan.complete
    plan.failed("fast", 1)
    assert plan.complete, "a late failure of a chunk that is there changes nothing"
    assert plan.progress_s == 9.0


def test_what_is_expected_of_a_source_decides_when_another_one_is_asked_too() -> None:
    plan = Plan([1], 0.0)
    assert plan.take("slow", 0.0, takes_s=10.0) == 1
    assert plan.take("slow as well", limits.ENDGAME_S + 1, takes_s=9.0) is None, "it is slow, but as expected"
    assert plan.take("fast", 6.0, takes_s=1.0) == 1, "in half of the time that is left"
    plan = Plan([1], 0.0)
    assert plan.take("new", 0.0) == 1
    assert plan.take("fast", 0.9, takes_s=0.5) is None
    assert plan.take("fast", 1.1, takes_s=0.5) == 1, "what is tried does not delay the rest"
    plan = Plan([1], 0.0)
    assert plan.take("slow", 0.0, takes_s=10.0) == 1
    assert plan.open_chunks(14.0) == 0
    assert plan.open_chunks(16.0) == 1, "half as long again"
    assert plan.take("slow as well", 16.0, takes_s=9.0) == 1


def test_a_slow_source_leaves_the_last_chunks_to_faster_ones() -> None:
    plan = Plan([1, 2, 3], 0.0)
    assert plan.take("slow", 0.0, takes_s=9.0, spare=3) is None
    assert plan.take("slow", 0.0, takes_s=9.0, spare=2) == 1
    assert plan.take("fast", 0.0, takes_s=1.0) == 2


@given(
    st.sets(st.integers(0, 60), max_size=30), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80)
)
def test_every_chunk_arrives_whatever_fails(missing: set[int], script: list[tuple[str, bool]]) -> None:
    plan = Plan(sorted(missing), 0.0)
    held: list[tuple[str, int]] = []
    arrived: set[int] = set()
    for now, (source, works) in enumerate([*script, *[("a", True)] * 200]):
        index = plan.take(source, float(now))
        if index is not None:
            assert index not in arrived
            held.append((source, index))
        if held:
            source, index = held.pop(0)
            if works:
                plan.done(index, float(now))
                arrived.add(index)
            else:
                plan.failed(source, index)
    assert plan.complete
    assert arrived == missing


@pytest.mark.parametrize(
    ("raised", "received"),
    [
        (UnreachableError("x"), UnreachableError),
        (QuotaError("x"), StorageError),
        (UserError("x"), UserError),
        (MalformedError("x"), MalformedError),
        (OversizedError("x"), OversizedError),
        (ContentMismatchError("x"), ContentMismatchError),
        (AbsentError("x"), PeerError),
        (LocalError("x"), LocalError),
    ],
)
def test_an_error_crosses_the_process_boundary_as_its_class(raised: GdfError, received: type[GdfError]) -> None:
    error = _error_of(failure(7, raised))
    assert type(error) is received
    assert str(error) == "x"


def test_a_bug_in_the_process_is_a_local_error_that_names_it() -> None:
    assert "KeyError" in str(_error_of(failure(7, KeyError("root"))))
