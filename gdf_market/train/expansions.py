"""What one exported operator becomes when a program has to write it with several: dropout, norms, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch

from gdf_market.errors import UsageError
from gdf_market.train import markers
from gdf_market.train.graph import Value
from gdf_market.train.operators import DROPOUT, ITEM
from gdf_market.train.places import place_of_node


class Emitter(Protocol):
    """The program under construction."""

    def emit(self, op: str, *args: Any, **kwargs: Any) -> Value:
        """Append a node."""
        ...

    def read(self, argument: Any) -> Any:
        """Return an argument with values instead of nodes."""
        ...

    def statistic(self, node: torch.fx.Node) -> tuple[str, Value]:
        """Return the name of a running statistic, and its value after the norms before."""
        ...

    def update(self, name: str, value: Value) -> None:
        """Set what replaces a running statistic."""
        ...


def expand(emitter: Emitter, name: str, node: torch.fx.Node) -> Any:
    """Return the value, or the list of values, of ``node``; None if it is an operator like any other."""
    rule = _RULES.get(name)
    return None if rule is None else rule(emitter, node)


def _dropout(emitter: Emitter, node: torch.fx.Node) -> Any:
    x, p = emitter.read(node.args)
    return emitter.emit(DROPOUT, x, p)


def _channel_dropout(emitter: Emitter, node: torch.fx.Node) -> Any:
    """Dropout1d to 3d: one decision for each channel of each row."""
    x, p = emitter.read(node.args)
    first = x
    for dim in range(2, len(shape_of(node.args[0]))):
        first = emitter.emit("aten.slice.Tensor", first, dim, 0, 1)
    mask = emitter.emit(DROPOUT, emitter.emit("aten.ones_like.default", first), p)
    return emitter.emit("aten.mul.Tensor", x, mask)


def _batch_norm(emitter: Emitter, node: torch.fx.Node) -> Any:
    x, weight, bias, *_, eps = emitter.read(node.args)
    dims = [0, *range(2, len(shape_of(node.args[0])))]
    _move(emitter, node, 1, emitter.emit("aten.mean.dim", x, dims))
    _move(emitter, node, 2, emitter.emit("aten.var.correction", x, dims, correction=1))
    return emitter.emit("aten.batch_norm.default", x, weight, bias, None, None, True, 0.0, eps, False)


def _instance_norm(emitter: Emitter, node: torch.fx.Node) -> Any:
    x, weight, bias, *_, eps = emitter.read(node.args)
    dims = list(range(2, len(shape_of(node.args[0]))))
    for place, each in enumerate(("mean.dim", "var.correction"), start=1):
        settings = {"correction": 1} if place == 2 else {}
        of_rows = emitter.emit(f"aten.{each}", x, dims, **settings)
        _move(emitter, node, place, emitter.emit("aten.mean.dim", of_rows, [0]))
    return emitter.emit("aten.instance_norm.default", x, weight, bias, None, None, True, 0.0, eps, False)


def _move(emitter: Emitter, node: torch.fx.Node, place: int, found: Value) -> None:
    """Running statistic number ``place`` moves on: (1 - momentum) * old + momentum * found, as torch does."""
    source, momentum = node.args[2 + place], node.args[5]
    assert isinstance(source, torch.fx.Node)
    name, old = emitter.statistic(source)
    emitter.update(name, emitter.emit("aten.lerp.Scalar", old, found, momentum))


def _attention(emitter: Emitter, node: torch.fx.Node) -> Any:
    """Attention with dropout, as its definition says; None where there is no dropout.

    Source: the reference in the documentation of torch.nn.functional.scaled_dot_product_attention.
    """
    named = _named(node)
    if named["dropout_p"] == 0:
        return None
    query, key, value, mask = (emitter.read(named[each]) for each in ("query", "key", "value", "attn_mask"))
    q_shape, k_shape = shape_of(named["query"]), shape_of(named["key"])
    if named["enable_gqa"] and q_shape[-3] != k_shape[-3]:
        times = int(q_shape[-3]) // int(k_shape[-3])
        key, value = (emitter.emit("aten.repeat_interleave.self_int", each, times, -3) for each in (key, value))
    scale = named["scale"] if named["scale"] is not None else 1 / math.sqrt(int(q_shape[-1]))
    scaled = emitter.emit("aten.mul.Tensor", query, float(scale))
    scores = emitter.emit("aten.matmul.default", scaled, emitter.emit("aten.transpose.int", key, -2, -1))
    if named["is_causal"]:
        rows, columns = int(q_shape[-2]), int(k_shape[-2])
        ones = emitter.emit("aten.ones.default", [rows, columns], dtype=torch.bool, device=torch.device("cpu"))
        later = emitter.emit("aten.logical_not.default", emitter.emit("aten.tril.default", ones))
        scores = emitter.emit("aten.masked_fill.Scalar", scores, later, -math.inf)
    elif mask is not None and named["attn_mask"].meta["val"].dtype is torch.bool:
        hidden = emitter.emit("aten.logical_not.default", mask)
        scores = emitter.emit("aten.masked_fill.Scalar", scores, hidden, -math.inf)
    elif mask is not None:
        scores = emitter.emit("aten.add.Tensor", scores, mask)
    weights = emitter.emit("aten._safe_softmax.default", scores, -1)  # rows that see nothing are zero, not NaN
    weights = emitter.emit(DROPOUT, weights, float(named["dropout_p"]))
    return emitter.emit("aten.matmul.default", weights, value)


def _recurrent(emitter: Emitter, node: torch.fx.Node) -> Any:
    """LSTM, GRU and RNN; with dropout between layers, one operator for each layer."""
    name = str(node.target)
    x, states, weights, biases, layers, dropout, training, both, first = emitter.read(node.args)
    if not training or dropout == 0 or layers == 1:
        return emitter.emit(name, x, states, weights, biases, layers, 0.0, True, both, first)
    lstm = name == "aten.lstm.input"
    directions, each = 2 if both else 1, len(weights) // layers
    given = states if lstm else [states]
    ends: list[list[Value]] = [[] for _ in given]
    for layer in range(layers):
        own = [emitter.emit("aten.narrow.default", s, 0, layer * directions, directions) for s in given]
        part = weights[layer * each : (layer + 1) * each]
        result = emitter.emit(name, x, own if lstm else own[0], part, biases, 1, 0.0, True, both, first)
        x = emitter.emit(ITEM, result, 0)
        for place, end in enumerate(ends, start=1):
            end.append(emitter.emit(ITEM, result, place))
        if layer < layers - 1:
            x = emitter.emit(DROPOUT, x, float(dropout))
    return [x, *(emitter.emit("aten.cat.default", end, 0) for end in ends)]


def _matmul(emitter: Emitter, node: torch.fx.Node) -> Any:
    """A product over one element is a plain multiplication, which bf16 does not round: angles of rotary embeddings."""
    left, right = (shape_of(each) for each in node.args[:2])
    if len(left) < 2 or len(right) < 2 or not _is_one(left[-1]) or not _is_one(right[-2]):
        return None
    return emitter.emit("aten.mul.Tensor", *emitter.read(node.args[:2]))


def _fill(emitter: Emitter, node: torch.fx.Node) -> Any:
    """A new tensor without values that is filled at once is a full one."""
    source = node.args[0]
    if not isinstance(source, torch.fx.Node) or not str(source.target).removeprefix("aten.").startswith("empty"):
        return None
    val = source.meta["val"]
    size = emitter.read(list(source.args[0])) if isinstance(source.args[0], list | tuple) else None
    if size is None:
        return None
    return emitter.emit("aten.full.default", size, node.args[1], dtype=val.dtype, device=torch.device("cpu"))


def _random_norm(emitter: Emitter, node: torch.fx.Node) -> Any:
    raise UsageError(
        f"The model uses alpha dropout{place_of_node(node)}, which a program does not have; use nn.Dropout there."
    )


def shape_of(argument: Any) -> tuple[Any, ...]:
    """Return the shape of a node's value in the trace; the batch may be symbolic."""
    return tuple(argument.meta["val"].shape)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _named(node: torch.fx.Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    named = {each.name: each.default_value for each in arguments if each.has_default_value()}
    named.update(zip((each.name for each in arguments), node.args, strict=False))
    return named | dict(node.kwargs)


_RULES: dict[str, Callable[[Emitter, torch.fx.Node], Any]] = {
    markers.DROPOUT: _dropout,
    markers.CHANNEL_DROPOUT: _channel_dropout,
    markers.BATCH_NORM: _batch_norm,
    markers.INSTANCE_NORM: _instance_norm,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.matmul.default": _matmul,
    "aten.fill.Scalar": _fill,
    **{f"aten.{layer}.input": _recurrent for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"aten.{kind}.default": _random_norm for kind in ("alpha_dropout", "feature_alpha_dropout")},
    **{f"aten.{kind}_.default": _random_norm for kind in ("alpha_dropout", "feature_alpha_dropout")},
}
