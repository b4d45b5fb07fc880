"""Which parameters decay, which Muon takes, and what the owner says about it."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from torch import nn

from gdf_market.errors import UsageError, ensure
from gdf_market.train.graph import MAX_GROUPS, Forward, Graph, Group, Node, Value, read_argument, referenced
from gdf_market.units import PPM

_KEYS = {"params", "lr_scale", "weight_decay_scale", "muon"}
_LINEAR = {"aten.linear.default": 1, "aten.addmm.default": 2, "aten.mm.default": 1, "aten.matmul.default": 1}
_CONVOLUTIONS = {
    f"aten.{name}"
    for name in ("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding")
} | {"aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.convolution.default"}
_VIEWS = {
    "aten.transpose.int",
    "aten.t.default",
    "aten.permute.default",
    "aten.reshape.default",
    "aten.numpy_T.default",
}
# A result passes through these on its way from the last linear layer to the loss.
_STOPS = {"aten.bmm.default", "aten.embedding.default", "aten.scaled_dot_product_attention.default"} | {
    f"aten.{layer}.input" for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}


def with_groups(graph: Graph, model: nn.Module, param_groups: Sequence[Mapping[str, Any]] | None) -> Graph:
    """Return the graph with its parameters in groups.

    Unless the owner says otherwise, tensors of two and more dimensions decay, and Muon (where the recipe's inner
    optimizer is Muon) takes hidden matrices and kernels: no embeddings, no first convolution and no output layer
    (Jordan et al. 2024).  Raises UsageError for groups that do not fit the model.
    """
    muon = hidden_matrices(graph)
    chosen = [Group(decay_ppm=PPM if len(p.shape) >= 2 else 0, muon=p.name in muon) for p in graph.parameters]
    places = {parameter.name: place for place, parameter in enumerate(graph.parameters)}
    named: set[str] = set()
    for number, given in enumerate(param_groups or ()):
        for name in _names(given, number, model, places):
            ensure(name not in named, UsageError(f"param_groups[{number}]: parameter {name} is in two groups."))
            named.add(name)
            chosen[places[name]] = _changed(chosen[places[name]], given, number, graph.parameters[places[name]].shape)
    groups = tuple(dict.fromkeys(chosen))
    ensure(len(groups) <= MAX_GROUPS, UsageError(f"param_groups make {len(groups)} kinds of parameters; use fewer."))
    parameters = tuple(
        msgspec.structs.replace(parameter, group=groups.index(group))
        for parameter, group in zip(graph.parameters, chosen, strict=True)
    )
    return msgspec.structs.replace(graph, parameters=parameters, groups=groups)


def _names(given: Mapping[str, Any], number: int, model: nn.Module, places: Mapping[str, int]) -> Iterator[str]:
    """Yield the program's names of the parameters that one of the owner's groups names."""
    unknown = sorted(set(given) - _KEYS)
    ensure(not unknown, UsageError(f"param_groups[{number}] has {unknown}; it takes {', '.join(sorted(_KEYS))}."))
    entries = given.get("params", ())
    entries = [entries] if isinstance(entries, str | nn.Parameter) else list(entries)
    ensure(bool(entries), UsageError(f"param_groups[{number}] has no params; list parameters, names or patterns."))
    own = dict(model.named_parameters(remove_duplicate=False))
    aliases = {id(parameter): name for name, parameter in own.items() if name in places}
    seen: set[str] = set()
    for entry in entries:
        if isinstance(entry, str):
            found = [own[name] for name in own if fnmatch.fnmatchcase(name, entry)]
        else:
            found = [parameter for parameter in own.values() if parameter is entry]
        trained = [aliases[id(parameter)] for parameter in found if id(parameter) in aliases]
        what = repr(entry)[:60] if isinstance(entry, str) else f"a parameter of shape {_shape(entry)}"
        ensure(bool(trained), UsageError(f"param_groups[{number}]: {what} is no trained parameter of the model."))
        for name in trained:
            if name not in seen:
                seen.add(name)
                yield name


def _shape(entry: Any) -> object:
    return list(entry.shape) if hasattr(entry, "shape") else type(entry).__name__


def _changed(group: Group, given: Mapping[str, Any], number: int, shape: tuple[int, ...]) -> Group:
    values = {"lr_scale": ("lr_ppm", PPM), "weight_decay_scale": ("decay_ppm", PPM)}
    changes: dict[str, Any] = {}
    for key, (name, unit) in values.items():
        if key in given:
            scale = given[key]
            real = isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale)
            fits = real and 0 <= scale <= 1_000
            ensure(fits, UsageError(f"param_groups[{number}]: {key}={str(scale)[:40]} has to be from 0 to 1000."))
            changes[name] = round(scale * unit)
    if "muon" in given:
        takes = given["muon"] is False or (given["muon"] is True and len(shape) >= 2)
        ensure(
            takes,
            UsageError(
                f"param_groups[{number}]: muon has to be true or false, and true for matrices and kernels only."
            ),
        )
        changes["muon"] = given["muon"]
    return msgspec.structs.replace(group, **changes)


def hidden_matrices(graph: Graph) -> set[str]:
    """Return the names of the parameters that Muon is for."""
    walk = _Walk(graph.train)
    matrices = {p.name for p in graph.parameters if len(p.shape) >= 2}
    names = [parameter.name for parameter in graph.parameters]
    found = {value: names[entry.index] for value, entry in enumerate(graph.train.inputs) if entry.kind == "parameter"}
    hidden: set[str] = set()
    kept: set[str] = set()
    first_kernel = True
    for value, node in walk.nodes.items():
        weight = walk.weight(value)
        name = found.get(-1 if weight is None else weight, "")
        if node.op == "aten.embedding.default":
            kept.add(name)
        elif node.op in _CONVOLUTIONS:
            (kept if first_kernel else hidden).add(name)
            first_kernel = False
        elif node.op in _LINEAR:
            hidden.add(name)
        elif node.op.endswith(".input"):  # recurrent layers
            hidden |= {found[index] for index in walk.uses[value] if index in found}
    for value in walk.last_layers(graph.train.output):
        weight = walk.weight(value)
        kept.add(found.get(-1 if weight is None else weight, ""))
    return (hidden - kept) & matrices


class _Walk:
    """The nodes of a pass by the number of their value, and what each uses."""

    def __init__(self, forward: Forward) -> None:
        first = len(forward.inputs)
        self.nodes: dict[int, Node] = {first + place: node for place, node in enumerate(forward.nodes)}
        self.args = {
            value: [read_argument(argument, value) for argument in node.args] for value, node in self.nodes.items()
        }
        self.uses = {value: referenced(self.args[value]) for value in self.nodes}

    def weight(self, value: int) -> int | None:
        """Return the input that is the weight of a layer, through transpositions; None for other operators."""
        op = self.nodes[value].op
        place = _LINEAR.get(op, 1 if op in _CONVOLUTIONS else 0 if op == "aten.embedding.default" else None)
        if place is None or place >= len(self.args[value]):
            return None
        found = self.args[value][place]
        while isinstance(found, Value) and found.index in self.nodes and self.nodes[found.index].op in _VIEWS:
            found = self.args[found.index][0]
        return found.index if isinstance(found, Value) and found.index not in self.nodes else None

    def last_layers(self, output: int) -> set[int]:
        """Return the layers whose result reaches the loss without another matrix in between."""
        found: set[int] = set()
        seen: set[int] = set()
        queue = [output]
        while queue:
            value = queue.pop()
            if value in seen or value not in self.nodes:
                continue
            seen.add(value)
            layer = self.weight(value) is not None
            if layer:
                found.add(value)
            if not layer and self.nodes[value].op not in _STOPS:
                queue += self.uses[value]
        return found
