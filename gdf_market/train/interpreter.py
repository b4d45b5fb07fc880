"""Runs a program: an ordinary module whose forward pass is the graph, so that autograd differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gdf_market.train.graph import DEVICE, Forward, GraphInput, Value, read_argument, referenced
from gdf_market.train.noise import NO_NOISE
from gdf_market.train.operators import DROPOUT, ITEM, check_call, resolve
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


@dataclass(frozen=True)
class _Plan:
    """A forward pass, ready to run."""

    inputs: tuple[GraphInput, ...]
    steps: list[_Step]


class ProgramModule(nn.Module):
    """``module(*samples) -> loss``; ``weights`` are the trained tensors in the program's order.

    ``noise`` gives the masks of dropout; it is set before each training step of a program that has some.
    """

    def __init__(self, program: Program, weights: list[torch.Tensor], device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.program = program
        self.weights = nn.ParameterList([nn.Parameter(tensor.to(device)) for tensor in weights])
        self._constants = [program.constants[name].to(device, copy=True) for name in program.graph.constants]
        self.device = torch.device(device)
        self.noise = NO_NOISE
        graph = program.graph
        self._train = _compile(graph.train)
        self._evaluate = _compile(graph.evaluate) if graph.evaluate is not None else self._train

    def load(self, flat: Floats) -> None:
        """Set the weights from f32[n]."""
        with torch.no_grad():
            for weight, tensor in zip(self.weights, self.program.unflatten(flat), strict=True):
                weight.copy_(tensor)

    def flat(self) -> Floats:
        """Return the weights as f32[n], a copy."""
        return self.program.flatten(list(self.weights))

    def forward(self, *samples: torch.Tensor, watch: Watch | None = None) -> Any:
        """Return the loss of training, a scalar tensor."""
        return self._run(self._train, samples, watch)[self.program.graph.train.output]

    def evaluate(self, *samples: torch.Tensor, watch: Watch | None = None) -> Any:
        """Return the loss in evaluation mode, with the running statistics that this module holds now."""
        graph = self.program.graph
        return self._run(self._evaluate, samples, watch)[(graph.evaluate or graph.train).output]

    @torch.no_grad()
    def gather_statistics(self, *samples: torch.Tensor) -> None:
        """Move the running statistics of batch norm on by one batch, as a training step of torch does."""
        updates = self.program.graph.train.updates
        values = self._run(self._train, samples, None) if updates else []
        for name, value in updates.items():
            self._constants[self.program.graph.constants.index(name)].copy_(values[value])

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return the running statistics, by the name of the constant that they replace."""
        names = self.program.graph.constants
        return {name: self._constants[names.index(name)].cpu() for name in self.program.graph.train.updates}

    def _run(self, plan: _Plan, samples: tuple[torch.Tensor, ...], watch: Watch | None) -> list[Any]:
        sources = {"parameter": list(self.weights), "constant": self._constants, "sample": list(samples)}
        values: list[Any] = [sources[entry.kind][entry.index] for entry in plan.inputs]
        for step in plan.steps:
            args = [self._bind(argument, values) for argument in step.args]
            kwargs = {name: self._bind(argument, values) for name, argument in step.kwargs.items()}
            check_call(step.name, args, kwargs)
            drops = step.name == DROPOUT
            result = self.noise.drop(len(values), *args) if drops else step.function(*args, **kwargs)
            if watch is not None and step.name != ITEM:
                watch(result)
            values.append(result)
            for index in step.last_use:
                values[index] = None
        return values

    def _bind(self, argument: Any, values: list[Any]) -> Any:
        if isinstance(argument, Value):
            return values[argument.index]
        if argument is DEVICE:
            return self.device
        if isinstance(argument, list):
            return [self._bind(item, values) for item in argument]
        return argument


def _compile(forward: Forward) -> _Plan:
    """Return the calls in order, each with the values whose last use it is."""
    first = len(forward.inputs)
    readings = []
    last: dict[int, int] = {}
    for position, node in enumerate(forward.nodes):
        values = first + position
        args = [read_argument(argument, values) for argument in node.args]
        kwargs = {name: read_argument(argument, values) for name, argument in node.kwargs.items()}
        readings.append((node.op, args, kwargs))
        last[values] = position  # a value nobody uses goes at once
        last.update(dict.fromkeys(referenced(args) | referenced(kwargs), position))
    for kept in (forward.output, *forward.updates.values()):
        last.pop(kept, None)
    free: dict[int, list[int]] = {}
    for value, position in last.items():
        free.setdefault(position, []).append(value)
    steps = [
        _Step(op, resolve(op), args, kwargs, tuple(free.get(position, ())))
        for position, (op, args, kwargs) in enumerate(readings)
    ]
    return _Plan(forward.inputs, steps)
