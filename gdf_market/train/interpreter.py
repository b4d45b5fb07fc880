"""Runs a program: an ordinary module whose forward pass is the graph, so that autograd differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gdf_market.train.graph import DEVICE, Value, read_argument, referenced
from gdf_market.train.operators import ITEM, check_call, resolve
from gdf_market.train.program import Floats, Program

Watch = Callable[[Any], None]  # sees the value of every node as it is computed


@dataclass(frozen=True)
class _Step:
    """One operator call with its arguments in Python form, and the values nobody needs after it."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    last_use: tuple[int, ...]


class ProgramModule(nn.Module):
    """``module(*samples) -> loss``; ``weights`` are the trained tensors in the program's order."""

    def __init__(self, program: Program, weights: list[torch.Tensor], device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.program = program
        self.weights = nn.ParameterList([nn.Parameter(tensor.to(device)) for tensor in weights])
        self._constants = [program.constants[name].to(device) for name in program.graph.constants]
        self.device = torch.device(device)
        self._steps = _compile(program)

    def load(self, flat: Floats) -> None:
        """Set the weights from f32[n]."""
        with torch.no_grad():
            for weight, tensor in zip(self.weights, self.program.unflatten(flat), strict=True):
                weight.copy_(tensor)

    def flat(self) -> Floats:
        """Return the weights as f32[n], a copy."""
        return self.program.flatten(list(self.weights))

    def forward(self, *samples: torch.Tensor, watch: Watch | None = None) -> Any:
        """Return the value of the graph's output: the loss, a scalar tensor."""
        sources = {"parameter": list(self.weights), "constant": self._constants, "sample": list(samples)}
        values: list[Any] = [sources[entry.kind][entry.index] for entry in self.program.graph.inputs]
        for step in self._steps:
            args = [self._bind(argument, values) for argument in step.args]
            kwargs = {name: self._bind(argument, values) for name, argument in step.kwargs.items()}
            check_call(step.name, args, kwargs)
            result = step.function(*args, **kwargs)
            if watch is not None and step.name != ITEM:
                watch(result)
            values.append(result)
            for index in step.last_use:
                values[index] = None
        return values[self.program.graph.output]

    def _bind(self, argument: Any, values: list[Any]) -> Any:
        if isinstance(argument, Value):
            return values[argument.index]
        if argument is DEVICE:
            return self.device
        if isinstance(argument, list):
            return [self._bind(item, values) for item in argument]
        return argument


def _compile(program: Program) -> list[_Step]:
    """Return the calls in order, each with the values whose last use it is."""
    graph, first = program.graph, len(program.graph.inputs)
    readings = []
    last: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        values = first + position
        args = [read_argument(argument, values) for argument in node.args]
        kwargs = {name: read_argument(argument, values) for name, argument in node.kwargs.items()}
        readings.append((node.op, args, kwargs))
        last[values] = position  # a value nobody uses goes at once
        last.update(dict.fromkeys(referenced(args) | referenced(kwargs), position))
    last.pop(graph.output, None)
    free: dict[int, list[int]] = {}
    for value, position in last.items():
        free.setdefault(position, []).append(value)
    return [
        _Step(op, resolve(op), args, kwargs, tuple(free.get(position, ())))
        for position, (op, args, kwargs) in enumerate(readings)
    ]
