"""Runs a program: an ordinary module whose forward pass is the graph, so that autograd differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gdf_market.train.graph import Forward
from gdf_market.train.noise import IDENTITY, NO_NOISE, Source
from gdf_market.train.operator_rules import check_call
from gdf_market.train.operators import ITEM
from gdf_market.train.plan import Plan, compile_plan
from gdf_market.train.program import Floats, Program

Watch = Callable[[Any], None]  # sees the value of every node as it is computed


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
        self.noise: Source = NO_NOISE
        graph = program.graph
        self._train = compile_plan(graph.train, (graph.train.output,), self.device)
        self._evaluate = self._train
        if graph.evaluate is not None:
            self._evaluate = compile_plan(graph.evaluate, (graph.evaluate.output,), self.device)
        self._statistics = compile_plan(graph.train, tuple(graph.train.updates.values()), self.device)
        self._checked: set[tuple[Plan, tuple[torch.Size, ...]]] = set()

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
        return self._run(self._train, samples, watch, self.noise)[self._train.outputs[0]]

    def evaluate(self, *samples: torch.Tensor, watch: Watch | None = None) -> Any:
        """Return the loss in evaluation mode, with the running statistics that this module holds now."""
        return self._run(self._evaluate, samples, watch, IDENTITY)[self._evaluate.outputs[0]]

    def gather_statistics(self, *samples: torch.Tensor) -> None:
        """Move the running statistics of batch norm on by one batch, as a training step of torch does."""
        for name, value in self.new_statistics(*samples).items():
            self._constants[self.program.graph.constants.index(name)].copy_(value)

    @torch.no_grad()
    def new_statistics(self, *samples: torch.Tensor) -> dict[str, Any]:
        """Return the running statistics after one more batch, by the name of the constant that they replace.

        Dropout is left out: it would shift the variances that evaluation meets (Li et al. 2019, arXiv:1801.05134).
        """
        if not self._statistics.outputs:
            return {}
        values = self._run(self._statistics, samples, None, IDENTITY)
        return {name: values[value] for name, value in self.program.graph.train.updates.items()}

    def run_all(self, forward: Forward, *samples: torch.Tensor, watch: Watch) -> None:
        """Compute every node of a pass, also those that neither a loss nor the statistics need."""
        first = len(forward.inputs)
        plan = compile_plan(forward, tuple(range(first, first + len(forward.nodes))), self.device)
        self._run(plan, samples, watch, IDENTITY)

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return the running statistics, by the name of the constant that they replace."""
        names = self.program.graph.constants
        return {name: self._constants[names.index(name)].cpu() for name in self.program.graph.train.updates}

    def _run(self, plan: Plan, samples: tuple[torch.Tensor, ...], watch: Watch | None, noise: Source) -> list[Any]:
        # Arguments are those of the plan, and sizes follow from the shapes of the samples: once is often enough.
        shapes = (plan, tuple(sample.shape for sample in samples))
        checking = shapes not in self._checked
        sources = {"parameter": list(self.weights), "constant": self._constants, "sample": list(samples)}
        values: list[Any] = [sources[entry.kind][entry.index] for entry in plan.inputs]
        values += [None] * plan.nodes
        for step in plan.steps:
            args, kwargs = step.bind(values)
            if checking:
                check_call(step.name, args, kwargs)
            result = noise.drop(step.value, *args) if step.drops else step.function(*args, **kwargs)
            if watch is not None and step.name != ITEM:
                watch(result)
            values[step.value] = result
            for index in step.last_use:
                values[index] = None
        self._checked.add(shapes)
        return values
