"""Translates a graph that ``torch.export`` made into a program's records.

What has no data form is refused with the operator's name and the owner's line.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from gdf_market.errors import UsageError, ensure
from gdf_market.train.graph import (
    DTYPES,
    MAX_RANK,
    Forward,
    Graph,
    GraphInput,
    Group,
    Node,
    Parameter,
    Sample,
    Value,
    write_argument,
)
from gdf_market.train.operators import ATEN, ITEM
from gdf_market.train.program import Program

_INTEGER_OPERATORS = {
    operator.add: "int.add",
    operator.sub: "int.sub",
    operator.mul: "int.mul",
    operator.floordiv: "int.floordiv",
    operator.getitem: ITEM,
}
# Whether a view is possible depends on strides, which differ between devices; a reshape gives the same values.
_RENAMED = {"aten.view.default": "aten.reshape.default"}
GROUPS = (Group(), Group(decay_ppm=0))  # only tensors of two and more dimensions decay
IDENTITIES = {"aten.dropout.default", "aten.feature_dropout.default", "aten.dropout_.default"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+')
_HERE = Path(__file__).parent
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass
class Translation:
    """One exported graph on its way to a Graph; ``wrapped`` holds the owner's module as ``model``."""

    exported: ExportedProgram
    wrapped: nn.Module
    values: dict[str, int] = field(default_factory=dict)  # name in the exported graph -> value
    inputs: list[GraphInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    owners: dict[tuple[Any, ...], str] = field(default_factory=dict)  # storage -> its one name (tied weights)
    samples: int = 0
    output: int = 0

    def program(self, samples: Sequence[torch.Tensor], batch: int) -> Program:
        """Return the program.  Raises UsageError for what a program cannot hold."""
        self._refuse_mutation()
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._result(node)
        train = Forward(inputs=tuple(self.inputs), nodes=tuple(self.nodes), output=self.output, updates={})
        graph = Graph(
            version=2,
            batch=batch,
            separable=False,
            samples=tuple(Sample(dtype=dtype_name(s), shape=tuple(s.shape[1:])) for s in samples),
            parameters=tuple(self.parameters),
            groups=GROUPS,
            constants=tuple(self.constants),
            state=self._state(),
            train=train,
            evaluate=None,
        )
        return Program(graph, self.constants)

    def _refuse_mutation(self) -> None:
        signature = self.exported.graph_signature
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        ensure(
            not changed,
            UsageError(
                f"The model changes {', '.join(map(own_name, changed[:3]))} while it trains, as batch norm does, which "
                "is not supported: use layer or group norm, or call model.eval() before the job is made."
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
            stored = self.exported.state_dict.get(target)
            entry = self._tensor(target, self.exported.constants[target] if stored is None else stored)
        self.values[node.name] = len(self.inputs)
        self.inputs.append(entry)

    def _tensor(self, target: str, tensor: torch.Tensor) -> GraphInput:
        name = self.owners.setdefault(_storage(tensor), own_name(target))
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            names = [parameter.name for parameter in self.parameters]
            if name not in names:
                self.parameters.append(Parameter(name=name, shape=tuple(tensor.shape), group=int(tensor.ndim < 2)))
                names.append(name)
            return GraphInput(kind="parameter", index=names.index(name))
        usable = tensor.dtype in DTYPES.values() and tensor.ndim <= MAX_RANK
        ensure(usable, UsageError(f"Tensor {name} is {tensor.dtype}, which a program cannot hold."))
        self.constants.setdefault(name, tensor.detach().clone().contiguous())
        return GraphInput(kind="constant", index=list(self.constants).index(name))

    def _state(self) -> dict[str, str]:
        """Return state_dict key -> name of the tensor, for all that the program holds."""
        held = set(self.constants) | {parameter.name for parameter in self.parameters}
        keys = {own_name(key): self._owner(key) for key in self.wrapped.state_dict()}
        return {key: name for key, name in keys.items() if name in held}

    def _owner(self, target: str) -> str:
        stored = self.exported.state_dict.get(target)
        tensor = self.exported.constants[target] if stored is None else stored
        return self.owners.get(_storage(tensor), own_name(target))

    def _call(self, node: torch.fx.Node) -> None:
        name = _operator_name(node.target)
        if name in IDENTITIES:
            assert isinstance(node.args[0], torch.fx.Node)
            self.values[node.name] = self.values[node.args[0].name]
            return
        if not node.users:
            return  # computes nothing that is used; assertions of export are such nodes
        known = name in ATEN or name in _INTEGER_OPERATORS.values()
        ensure(
            known,
            UsageError(
                f"The model uses the operator {name}{place(node)}, which is not on the list of allowed operators; "
                "write that line with common operators (gdf_market/train/operators.py lists them)."
            ),
        )
        try:
            args = [write_argument(self._read(argument)) for argument in node.args]
            given = {key: value for key, value in node.kwargs.items() if value is not None and key != "layout"}
            kwargs = {key: write_argument(self._read(value)) for key, value in given.items()}
        except TypeError as error:
            raise UsageError(f"The model calls {name}{place(node)} with {error}, which is not supported.") from None
        self.values[node.name] = len(self.inputs) + len(self.nodes)
        self.nodes.append(Node(op=name, args=args, kwargs=kwargs))

    def _read(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return Value(self.values[argument.name])
        if isinstance(argument, list | tuple):
            return [self._read(item) for item in argument]
        return argument

    def _result(self, node: torch.fx.Node) -> None:
        results = node.args[0]
        assert isinstance(results, tuple | list)
        loss = results[0] if len(results) == 1 else None
        if not isinstance(loss, torch.fx.Node):
            raise UsageError("The model must return its loss alone, one scalar tensor; give Job a loss otherwise.")
        self.output = self.values[loss.name]


def _operator_name(target: Any) -> str:
    name = _INTEGER_OPERATORS.get(target, str(target))
    return _RENAMED.get(name, name)


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def own_name(name: str) -> str:
    """Return a name as the owner's module knows it."""
    return name.removeprefix("model.")


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def place(node: torch.fx.Node) -> str:
    """Return " in file:line (source)" of the owner's innermost frame, or an empty text."""
    trace = (node.meta.get("stack_trace") or "").splitlines()
    for position in range(len(trace) - 1, -1, -1):
        found = _FRAME.search(trace[position])
        if found and not any(library in found[1] for library in _LIBRARIES) and Path(found[1]).parent != _HERE:
            source = trace[position + 1].strip() if position + 1 < len(trace) else ""
            return f" at {found[1]}:{found[2]} ({source})"
    return ""
