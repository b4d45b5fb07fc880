"""Operators that stand for what a program treats in its own way, from the export of a module to its translation.

``torch.export`` writes dropout and batch norm as operators that change things in place or draw numbers, and taking the
changes out (functionalisation) would take them apart.  So they are first replaced by operators of this library, which
pass through untouched; they exist in the owner's process alone and never appear in a program.
"""

from __future__ import annotations

from typing import Any, cast

import torch

_LIBRARY: Any = torch.library.Library("gdf_market", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("dropout(Tensor x, float p) -> Tensor")
_LIBRARY.define("channel_dropout(Tensor x, float p) -> Tensor")
_NORM = "(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float momentum, float eps) -> Tensor"
_LIBRARY.define("batch_norm" + _NORM)
_LIBRARY.define("instance_norm" + _NORM)

DROPOUT, CHANNEL_DROPOUT = "gdf_market.dropout.default", "gdf_market.channel_dropout.default"
BATCH_NORM, INSTANCE_NORM = "gdf_market.batch_norm.default", "gdf_market.instance_norm.default"


def _same(x: torch.Tensor, *_rest: Any) -> torch.Tensor:
    return x.clone()


for _name in ("dropout", "channel_dropout", "batch_norm", "instance_norm"):
    _LIBRARY.impl(_name, _same, "CompositeExplicitAutograd")

_ATEN = torch.ops.aten
_OWN = torch.ops.gdf_market
_DROPS: dict[Any, Any] = {  # None: left for the translation to refuse
    _ATEN.dropout.default: _OWN.dropout.default,
    _ATEN.dropout_.default: _OWN.dropout.default,
    _ATEN.feature_dropout.default: _OWN.channel_dropout.default,
    _ATEN.feature_dropout_.default: _OWN.channel_dropout.default,
    _ATEN.alpha_dropout.default: None,
    _ATEN.alpha_dropout_.default: None,
    _ATEN.feature_alpha_dropout.default: None,
    _ATEN.feature_alpha_dropout_.default: None,
}
_IN_PLACE = {
    _ATEN.dropout_.default,
    _ATEN.feature_dropout_.default,
    _ATEN.alpha_dropout_.default,
    _ATEN.feature_alpha_dropout_.default,
}


def mark(module: torch.fx.GraphModule) -> None:
    """Replace dropout and norms that keep statistics in an exported graph, in place."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _DROPS:
            _mark_dropout(module.graph, node)
        elif node.target is _ATEN.batch_norm.default and node.args[5] and node.args[3] is not None:
            x, weight, bias, mean, var, _, momentum, eps = node.args[:8]
            _replace(module.graph, node, _OWN.batch_norm.default, (x, weight, bias, mean, var, momentum, eps))
        elif node.target is _ATEN.instance_norm.default and node.args[5] and node.args[3] is not None:
            x, weight, bias, mean, var, _, momentum, eps = node.args[:8]
            _replace(module.graph, node, _OWN.instance_norm.default, (x, weight, bias, mean, var, momentum, eps))
    _drop_counters(module.graph)
    module.graph.lint()
    module.recompile()


def _drop_counters(graph: torch.fx.Graph) -> None:
    """Batch norm counts its batches, which matters to nobody; a layer that is used twice counts twice."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target is _ATEN.add_.Tensor and not node.users:
            source = node.args[0]
            while isinstance(source, torch.fx.Node) and source.target is _ATEN.add_.Tensor:
                source = source.args[0]
            if isinstance(source, torch.fx.Node) and str(source.target).endswith("num_batches_tracked"):
                graph.erase_node(node)


def _mark_dropout(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, p, training = cast(tuple[torch.fx.Node, float, bool], node.args)
    if not training or p == 0:
        node.replace_all_uses_with(x)
        graph.erase_node(node)
        return
    marker = _DROPS[node.target]
    if marker is not None:
        _replace(graph, node, marker, (x, float(p)), writes=node.target in _IN_PLACE)


def _replace(
    graph: torch.fx.Graph, node: torch.fx.Node, target: Any, args: tuple[Any, ...], writes: bool = False
) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(target, args)
        made.meta = dict(node.meta)
        if writes:  # what else looks at the tensor sees the change
            made = graph.call_function(_ATEN.copy_.default, (args[0], made))
            made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
