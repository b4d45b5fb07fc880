"""However a program's bytes are altered, reading it raises only PeerErrors, and quickly."""

from __future__ import annotations

import contextlib
import struct
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st

from gdf_market.errors import PeerError
from gdf_market.train.operators import ATEN
from gdf_market.train.program import Program

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from train_kit import program

DATA = program().to_bytes()
GRAPH_END = 12 + struct.unpack_from("<I", DATA, 8)[0]
QUICK_S = 5.0  # generous: machines that run tests are busy

quick = hypothesis.settings(max_examples=60, deadline=None)
sizes = st.integers(-2, 2**53) | st.sampled_from([2**31, 2**40, 2**53 - 1, -1, 0])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    sizes,
    st.builds(lambda i: {"value": i}, st.integers(-1, 14)),
    st.builds(lambda x: {"float": x.hex()}, st.floats()),
    st.builds(lambda name: {"dtype": name}, st.sampled_from(["float32", "int64", "bool", "object"])),
    st.just({"device": 0}),
)
arguments = st.lists(leaves | st.lists(leaves, max_size=4), max_size=5)
nodes = st.fixed_dictionaries({"op": st.sampled_from(sorted(ATEN)), "args": arguments, "kwargs": st.just({})})


def attempt(data: bytes) -> None:
    started = time.perf_counter()
    with contextlib.suppress(PeerError):
        assert Program.from_bytes(data).to_bytes() == data
    assert time.perf_counter() - started < QUICK_S


def packed(content: Any) -> bytes:
    graph = msgspec.json.encode(content, order="sorted")
    return struct.pack("<4sII", b"GDFP", 2, len(graph)) + graph + DATA[GRAPH_END:]


@quick
@hypothesis.given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(DATA)
    for position, value in changes:
        data[position] = value
    attempt(bytes(data))


@quick
@hypothesis.given(st.integers(0, len(DATA)), st.binary(max_size=40))
def test_cut_and_continued_bytes(length: int, rest: bytes) -> None:
    attempt(DATA[:length] + rest)


@quick
@hypothesis.given(st.lists(nodes, min_size=1, max_size=4), st.integers(0, 16))
def test_hostile_nodes(added: list[Any], output: int) -> None:
    """Every allowed operator with any arguments: nothing is computed, so sizes cannot hurt."""
    content = msgspec.json.decode(DATA[12:GRAPH_END])
    content["train"]["nodes"] += added
    content["train"]["output"] = output
    attempt(packed(content))


@quick
@hypothesis.given(st.data())
def test_one_field_replaced(data: st.DataObject) -> None:
    content = msgspec.json.decode(DATA[12:GRAPH_END])
    place: Any = content
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(leaves | arguments)
            break
        place = place[key]
    attempt(packed(content))
