"""Programs that arrive whole but wrong: graphs, nodes and constants damaged inside a container that fits."""

from __future__ import annotations

import functools
import importlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gdf_market.errors import PeerError
from gdf_market.train.graph import Forward, Node
from gdf_market.train.operators import ATEN, DROPOUT, INTEGER, ITEM
from gdf_market.train.program import Program
from gdf_market.train.unit_state import UnitState, pack_state, unpack_state
from tests.fuzz.draw import Draw, Run, Target, canonical

_OPERATORS = sorted((*ATEN, *INTEGER, ITEM, DROPOUT))
_SIZES = (0, 1, 2, 3, -1, 8, 64, 4_096, 4_097, 65_536, 2**31, 2**40, 2**53 - 1)
_LONG = 4_096


def _node(op: str, *args: Any) -> Node:
    return Node(op=op, args=list(args), kwargs={})


def _value(index: int) -> dict[str, int]:
    return {"value": index}


@functools.cache
def _sample() -> tuple[Any, bytes]:
    """The graph, as JSON, and the constants of a program with two passes, dropout and statistics."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    kit = importlib.import_module("train_kit")
    plain = kit.graph(kit.dataset().vocab).train
    embed, scale, *rest = plain.nodes
    drop = _node(DROPOUT, _value(6), {"float": (0.25).hex()})
    shifted = [
        Node(op=node.op, args=json.loads(json.dumps(node.args).replace('"value": 6', '"value": 7')), kwargs=node.kwargs)
        for node in rest[:1]
    ]
    head = [
        *(embed, scale, drop, *shifted),
        _node("aten.reshape.default", _value(8), [-1, kit.dataset().vocab]),
        _node("aten.reshape.default", _value(3), [-1]),
        _node("aten.cross_entropy_loss.default", _value(9), _value(10)),
        _node("aten.mean.default", _value(6)),
    ]
    made = kit.program(
        nodes=tuple(head),
        output=11,
        updates={"scale": 12},
        evaluate=Forward(inputs=plain.inputs, nodes=plain.nodes, output=plain.output, updates={}),
    )
    data = made.to_bytes()
    assert Program.from_bytes(data).to_bytes() == data
    length = struct.unpack_from("<I", data, 8)[0]
    return json.loads(data[12 : 12 + length]), data[12 + length :]


def _read(graph: Any, constants: bytes) -> None:
    encoded = canonical(graph)
    data = struct.pack("<4sII", b"GDFP", 2, len(encoded)) + encoded + constants
    assert Program.from_bytes(data).to_bytes() == data


def prepare_graphs() -> Run:
    graph, constants = _sample()

    def run(draw: Draw) -> None:
        altered = graph
        for _ in range(draw.choice((1, 1, 2, 4))):
            altered = draw.altered(altered)
        _read(altered, constants)

    return run


def prepare_nodes() -> Run:
    """Nodes of any operator with any arguments, put before, into or after a pass; long and deep ones among them."""
    graph, constants = _sample()

    def run(draw: Draw) -> None:
        passed = draw.choice(("train", "evaluate"))
        nodes = list(graph[passed]["nodes"])
        for _ in range(draw.choice((1, 1, 3, 200))):
            op = draw.choice(_OPERATORS)
            args = [_argument(draw, len(nodes) + 5, 0) for _ in range(draw.randrange(6))]
            nodes.insert(len(nodes) - draw.choice((0, 0, 1)), {"op": op, "args": args, "kwargs": {}})
        output = draw.choice((graph[passed]["output"], len(nodes) + 4))
        _read(graph | {passed: graph[passed] | {"nodes": nodes, "output": output}}, constants)

    return run


def _argument(draw: Draw, values: int, depth: int) -> Any:
    style = draw.randrange(12)
    if style < 5:
        return _value(draw.randrange(values))
    if style < 8:
        return draw.choice(_SIZES)
    if style == 8 and depth < 5:
        length = draw.choice((0, 1, 2, 3, _LONG, _LONG + 1)) if depth == 0 else draw.randrange(4)
        return [_argument(draw, values, depth + 1)] * length
    return draw.choice(
        (
            *(None, True, "mean", "bh,hd->bd", {"float": "0x1.8000000000000p+0"}, {"float": "nan"}, {"float": "inf"}),
            *({"dtype": "float64"}, {"dtype": "int64"}, {"device": 0}, {"format": "channels_last"}),
        )
    )


def prepare_constants() -> Run:
    """The safetensors part: its header of JSON altered, its length and its data."""
    graph, constants = _sample()
    length = struct.unpack_from("<Q", constants)[0]
    header, data = json.loads(constants[8 : 8 + length]), constants[8 + length :]

    def run(draw: Draw) -> None:
        altered = canonical(draw.altered(header)) if draw.random() < 0.7 else draw.bytes_like([canonical(header)])
        size = len(altered) if draw.random() < 0.8 else draw.choice((0, 7, 2**31, 2**63, 2**64 - 1))
        _read(graph, struct.pack("<Q", size) + altered + draw.choice((data, data, b"", data * 2, draw.randbytes(4))))

    return run


def prepare_states() -> Run:
    """States of a unit between two steps: bytes damaged anywhere, and headers of JSON altered."""
    layout = {"adam.first": 3, "adam.second": 3, "muon.momentum": 4}
    kept = {name: np.full(size, 0.5, np.float32) for name, size in layout.items()}
    states = [pack_state(UnitState(step, np.ones(7, np.float32), kept)) for step in (3, 12)]
    length = struct.unpack_from("<Q", states[0])[0]
    header, data = json.loads(states[0][8 : 8 + length]), states[0][8 + length :]

    def run(draw: Draw) -> None:
        given = draw.bytes_like(states)
        if draw.random() < 0.3:
            altered = canonical(draw.altered(header))
            given = struct.pack("<Q", draw.choice((len(altered), 2**63))) + altered + data
        assert pack_state(unpack_state(given, layout, 7, 3)) == given

    return run


TARGETS = (
    Target("unit state", prepare_states, (PeerError,), 0.05),
    Target("program graph", prepare_graphs, (PeerError,), 0.01),
    Target("program nodes", prepare_nodes, (PeerError,), 0.01),
    Target("program constants", prepare_constants, (PeerError,), 0.01),
)
