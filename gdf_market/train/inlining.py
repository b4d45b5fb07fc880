"""Regions of an exported graph (``torch.no_grad``, ``torch.autocast``) put back into the graph around them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from gdf_market.errors import UsageError, ensure
from gdf_market.train.places import place_of_node

_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = "wrap_with_autocast"


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Put the regions of a graph into it, in place.  What comes out of ``no_grad`` is detached.

    Raises UsageError for autocast that is enabled, and for ``enable_grad`` within ``no_grad``.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is _GRADIENTS:
            enabled, submodule, *given = node.args
            _inline(module, node, submodule, given, detached=not enabled)
        elif str(node.target) == _AUTOCAST:
            _, _, enabled, _, submodule, *given = node.args
            ensure(
                not enabled,
                UsageError(
                    f"The model turns autocast on{place_of_node(node)}; leave it out and choose the job's precision."
                ),
            )
            _inline(module, node, submodule, given, detached=False)
    module.graph.lint()
    module.recompile()


def _inline(
    module: torch.fx.GraphModule, node: torch.fx.Node, submodule: torch.fx.Node, given: list[Any], detached: bool
) -> None:
    assert isinstance(submodule.target, str)
    inner = module.get_submodule(submodule.target)
    assert isinstance(inner, torch.fx.GraphModule)
    if detached:
        nested = [n for n in inner.graph.nodes if n.target is _GRADIENTS and n.args[0]]
        ensure(not nested, UsageError(f"The model uses enable_grad within no_grad{place_of_node(node)}; leave it out."))
    inline_regions(inner)
    values = dict(zip((n for n in inner.graph.nodes if n.op == "placeholder"), given, strict=True))
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(inner.graph, values)
        results = list(results) if isinstance(results, list | tuple) else [results]
        if detached:
            results = [_detached(module.graph, result) for result in results]
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[arg-type,index]
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not submodule.users:
        module.graph.erase_node(submodule)


def _detached(graph: torch.fx.Graph, result: Any) -> Any:
    if not isinstance(result, torch.fx.Node) or not isinstance(result.meta.get("val"), torch.Tensor):
        return result
    made = graph.call_function(torch.ops.aten.detach.default, (result,))
    made.meta = dict(result.meta)
    return made
