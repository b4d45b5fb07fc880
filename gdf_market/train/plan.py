"""A forward pass made ready to run: calls in order, with what each takes and which values end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gdf_market.train.graph import DEVICE, Forward, GraphInput, Value, read_argument, referenced
from gdf_market.train.operators import DROPOUT, resolve


@dataclass(frozen=True, slots=True)
class Step:
    """One operator call; ``value`` is the number of its result, ``last_use`` the values nobody needs after it.

    ``args`` holds every argument that is the same in each run.  ``direct`` says which places take a value, ``lists``
    which take a list with values in it; most calls have no others, so that binding them is a copy and few assignments.
    """

    name: str
    value: int
    function: Callable[..., Any]
    drops: bool
    args: list[Any]
    direct: tuple[tuple[int, int], ...]
    lists: tuple[tuple[int, list[Any]], ...]
    kwargs: dict[str, Any]
    open_kwargs: bool
    last_use: tuple[int, ...]

    def bind(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, with ``values`` in their places."""
        args = self.args.copy()
        for place, index in self.direct:
            args[place] = values[index]
        for place, items in self.lists:
            args[place] = _bound(items, values)
        if self.open_kwargs:
            return args, {name: _bound(argument, values) for name, argument in self.kwargs.items()}
        return args, self.kwargs


@dataclass(frozen=True, eq=False)
class Plan:
    """The calls that ``outputs`` depend on."""

    inputs: tuple[GraphInput, ...]
    nodes: int
    steps: list[Step]
    outputs: tuple[int, ...]


def compile_plan(forward: Forward, outputs: tuple[int, ...], device: torch.device) -> Plan:
    """Return the calls of a forward pass that ``outputs`` need, in order, on ``device``."""
    first = len(forward.inputs)
    calls = []
    for position, node in enumerate(forward.nodes):
        args = [read_argument(argument, first + position) for argument in node.args]
        kwargs = {name: read_argument(argument, first + position) for name, argument in node.kwargs.items()}
        calls.append((node.op, _placed(args, device), _placed(kwargs, device)))
    uses = [referenced(args) | referenced(kwargs) for _, args, kwargs in calls]
    last = _last_uses(uses, first, outputs)
    free: dict[int, list[int]] = {}
    for value, position in last.items():
        if value not in outputs:
            free.setdefault(position, []).append(value)
    steps = [
        _step(name, first + position, args, kwargs, free.get(position, ()))
        for position, (name, args, kwargs) in enumerate(calls)
        if first + position in last
    ]
    return Plan(forward.inputs, len(forward.nodes), steps, outputs)


def _last_uses(uses: list[set[int]], first: int, outputs: tuple[int, ...]) -> dict[int, int]:
    """Return value -> position of the last node that uses it, for those that ``outputs`` depend on."""
    last = dict.fromkeys(outputs, len(uses))
    for position in range(len(uses) - 1, -1, -1):
        if first + position in last:
            for value in uses[position]:
                last.setdefault(value, position)
    return last


def _step(name: str, value: int, args: list[Any], kwargs: dict[str, Any], last_use: Iterable[int]) -> Step:
    direct = tuple((place, each.index) for place, each in enumerate(args) if isinstance(each, Value))
    lists = tuple((place, each) for place, each in enumerate(args) if isinstance(each, list) and referenced(each))
    opened = bool(referenced(kwargs))
    ends = tuple(sorted(last_use))
    return Step(name, value, resolve(name), name == DROPOUT, args, direct, lists, kwargs, opened, ends)


def _placed(argument: Any, device: torch.device) -> Any:
    if argument is DEVICE:
        return device
    if isinstance(argument, list):
        return [_placed(item, device) for item in argument]
    if isinstance(argument, dict):
        return {name: _placed(item, device) for name, item in argument.items()}
    return argument


def _bound(argument: Any, values: list[Any]) -> Any:
    if isinstance(argument, Value):
        return values[argument.index]
    if isinstance(argument, list):
        return [_bound(item, values) for item in argument]
    return argument
