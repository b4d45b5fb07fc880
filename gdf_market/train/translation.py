"""Translates a graph that ``torch.export`` made into one pass of a program.

What has no data form is refused with the operator's name and the owner's line.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from gdf_market.errors import UsageError, ensure
from gdf_market.train.expansions import expand
from gdf_market.train.graph import Forward, GraphInput, Node, Value, write_argument
from gdf_market.train.operators import ATEN, CREATES, DROPOUT, ITEM
from gdf_market.train.places import own_name, place_of_node
from gdf_market.train.tensors import Tensors
from gdf_market.units import MAX_INT

_INTEGER_OPERATORS = {
    operator.add: "int.add",
    operator.sub: "int.sub",
    operator.mul: "int.mul",
    operator.floordiv: "int.floordiv",
    operator.mod: "int.mod",
    operator.getitem: ITEM,
}
# Whether a view is possible depends on strides, which differ between devices; a reshape gives the same values.
_RENAMED = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    "aten.argsort.default": "aten.argsort.stable",
    "aten.sort.default": "aten.sort.stable",
}
_SAME = {"aten.alias.default", "aten.lift_fresh_copy.default"}
_ADVICE = {
    "aten.item.default": "a value of a tensor in Python; keep it a tensor (x.sum() instead of x.sum().item())",
    "aten._local_scalar_dense.default": "a value of a tensor in Python; keep it a tensor",
    "aten.nonzero.default": "sizes that depend on values; use torch.where with three arguments, or a mask",
    "aten.masked_select.default": "sizes that depend on values; multiply by the mask, or use torch.where",
    "aten.index.Tensor": "a boolean mask as an index; multiply by the mask, or use torch.where",
    "aten.unique_consecutive.default": "sizes that depend on values",
    "aten._unique2.default": "sizes that depend on values",
}


@dataclass
class Translation:
    """One exported graph on its way to a Forward; ``tensors`` are shared by the passes of a program."""

    exported: ExportedProgram
    tensors: Tensors
    values: dict[str, Any] = field(default_factory=dict)  # name in the exported graph -> Value, or list of Values
    inputs: list[GraphInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    updates: dict[str, Value] = field(default_factory=dict)
    samples: int = 0

    def forward(self) -> Forward:
        """Return the pass.  Raises UsageError for what a program cannot hold."""
        self._refuse_mutation()
        graph = self.exported.graph
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
        output = self._result(next(node for node in graph.nodes if node.op == "output"))
        return Forward(
            inputs=tuple(self.inputs),
            nodes=tuple(self.nodes),
            output=output.index,
            updates={name: value.index for name, value in self.updates.items()},
        )

    def emit(self, op: str, *args: Any, **kwargs: Any) -> Value:
        """Append a node; see expansions.Emitter.  Raises TypeError for an argument without a data form."""
        if op in CREATES:
            kwargs.setdefault("device", torch.device("cpu"))  # where the program runs, not where torch likes it
        written = {key: write_argument(value) for key, value in kwargs.items()}
        self.nodes.append(Node(op=op, args=[write_argument(argument) for argument in args], kwargs=written))
        return Value(len(self.inputs) + len(self.nodes) - 1)

    def read(self, argument: Any) -> Any:
        """Return an argument with values instead of nodes."""
        if isinstance(argument, torch.fx.Node):
            return self.values[argument.name]
        if isinstance(argument, list | tuple):
            return [self.read(item) for item in argument]
        if isinstance(argument, int) and argument > MAX_INT:
            return MAX_INT  # "to the end" of a slice
        return argument

    def statistic(self, node: torch.fx.Node) -> tuple[str, Value]:
        """Return the constant's name of a running statistic, and its value after the norms before this one."""
        value = self.values[node.name]
        known = isinstance(value, Value) and value.index < len(self.inputs)
        constant = known and self.inputs[value.index].kind == "constant"
        ensure(constant, UsageError(f"A norm keeps its statistics in {own_name(node.name)}, which is no buffer."))
        name = list(self.tensors.constants)[self.inputs[value.index].index]
        return name, self.updates.get(name, value)

    def update(self, name: str, value: Value) -> None:
        """Set what replaces a running statistic."""
        self.updates[name] = value

    def _refuse_mutation(self) -> None:
        signature = self.exported.graph_signature
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        ensure(
            not changed,
            UsageError(
                f"The model changes {', '.join(map(own_name, changed[:3]))} while it trains; a unit is computed from "
                "weights and samples alone. Batch norm may keep statistics, other modules may not: compute the value "
                "from the samples, or make it a parameter."
            ),
        )

    def _placeholder(self, node: torch.fx.Node) -> None:
        signature = self.exported.graph_signature
        target = (
            signature.inputs_to_parameters.get(node.name)
            or signature.inputs_to_buffers.get(node.name)
            or signature.inputs_to_lifted_tensor_constants.get(node.name)
        )
        if target is None:
            ensure(
                node.name in signature.user_inputs,
                UsageError(f"The model uses {node.name}, which is no tensor; keep only tensors in forward."),
            )
            entry = GraphInput(kind="sample", index=self.samples)
            self.samples += 1
        else:
            entry = self.tensors.entry(self.exported, target)
        self.values[node.name] = Value(len(self.inputs))
        self.inputs.append(entry)

    def _call(self, node: torch.fx.Node) -> None:
        name = operator_name(node.target)
        if name in _SAME:
            self.values[node.name] = self.read(node.args[0])
            return
        if not node.users or name.startswith(("aten.empty", "aten.new_empty")):
            # computes nothing that is used (assertions of export are such nodes), or memory without values, which
            # ``expand`` turns into a full tensor where it is filled
            # ``_refuse`` has more to say about random numbers that are put into it
            if node.users and not all(_is_random(user) or operator_name(user.target) == _FILL for user in node.users):
                raise _refused(name, node, "memory without values; use torch.zeros")
            return
        try:
            self.values[node.name] = self._value(name, node)
        except TypeError as error:
            raise UsageError(f"The model calls {name}{place_of_node(node)} with {error}: not supported.") from None

    def _value(self, name: str, node: torch.fx.Node) -> Any:
        if name == ITEM and isinstance(self.read(node.args[0]), list):
            return self.read(node.args[0])[node.args[1]]
        self._refuse(name, node)
        expanded = expand(self, name, node)
        if expanded is not None:
            return expanded
        given = {key: value for key, value in node.kwargs.items() if value is not None and key not in _DROPPED}
        args = node.args
        if name in ("aten.argsort.stable", "aten.sort.stable"):  # equal values in their order, on every device
            given, args = {"stable": True, **_sort_arguments(node)}, node.args[:1]
        return self.emit(name, *self.read(args), **{key: self.read(value) for key, value in given.items()})

    def _refuse(self, name: str, node: torch.fx.Node) -> None:
        if _is_random(node) and name not in ATEN and "dropout" not in name:
            raise UsageError(
                f"{name} draws random numbers{place_of_node(node)}; auditors could not repeat the unit. Dropout "
                "(nn.Dropout, F.dropout, attention's dropout_p) is the one kind of randomness that a program has: give "
                "other random numbers as a sample of the data."
            )
        if name == "aten.index.Tensor" and any(map(_is_mask, cast(list[Any], node.args[1]))):
            raise _refused(name, node, _ADVICE[name])
        if name in _ADVICE and name not in ATEN:
            raise _refused(name, node, _ADVICE[name])
        own = name.startswith("gdf_market.") or "alpha_dropout" in name
        if name not in ATEN and name not in _INTEGER_OPERATORS.values() and not own:
            raise UsageError(
                f"The model uses the operator {name}{place_of_node(node)}, which is not on the list of allowed "
                "operators; write that line with common operators (gdf_market/train/operators.py lists them)."
            )

    def _result(self, node: torch.fx.Node) -> Value:
        results = node.args[0]
        assert isinstance(results, tuple | list)
        loss = results[0] if len(results) == 1 else None
        if not isinstance(loss, torch.fx.Node):
            raise UsageError("The model must return its loss alone, one scalar tensor; give Job a loss otherwise.")
        value = self.values[loss.name]
        assert isinstance(value, Value)
        return value


_FILL = "aten.fill.Scalar"
_DROPPED = {"layout", "pin_memory", "non_blocking"}  # how memory is laid out or copied changes no value


def operator_name(target: Any) -> str:
    """Return the name under which a program knows an exported operator."""
    name = _INTEGER_OPERATORS.get(target, str(target))
    return _RENAMED.get(name, name)


def drops(forward: Forward) -> bool:
    """Say whether a pass has dropout."""
    return any(node.op == DROPOUT for node in forward.nodes)


def _is_random(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.fx.Node) and index.meta["val"].dtype in (torch.bool, torch.uint8)


def _sort_arguments(node: torch.fx.Node) -> dict[str, Any]:
    named = dict(zip(("dim", "descending"), node.args[1:], strict=False))
    return named | {key: value for key, value in node.kwargs.items() if key != "stable"}


def _refused(name: str, node: torch.fx.Node, advice: str) -> UsageError:
    return UsageError(f"The model uses the operator {name}{place_of_node(node)}: {advice}.")
