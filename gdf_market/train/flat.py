"""A program's module whose weights, and whose gradients, are views of one flat vector each.

So the pseudo-gradient, its sketch, the norm of the gradient and the sum over several devices need no copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gdf_market.train.graph import Parameter
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program

Floats = npt.NDArray[np.float32]


class FlatModule:
    """``module`` trains ``values`` f32[n] in place; backward passes add to ``gradient`` f32[n]."""

    def __init__(self, program: Program, parameters: Floats, device: str) -> None:
        assert parameters.shape == (program.size,)
        self._start = parameters
        self.values = torch.from_numpy(np.array(parameters, np.float32)).to(device)
        self.gradient = torch.zeros_like(self.values)
        self.module = ProgramModule(program, _views(self.values, program.graph.parameters), device)
        for weight, part in zip(self.module.weights, _views(self.gradient, program.graph.parameters), strict=True):
            assert weight.untyped_storage().data_ptr() == self.values.untyped_storage().data_ptr()
            weight.grad = part

    def change(self) -> Floats:
        """Return the pseudo-gradient f32[n]: first minus present weights."""
        change: Floats = self._start - self.values.cpu().numpy()
        return change

    def move_to(self, parameters: Floats) -> None:
        """Set the weights, f32[n]; the change still counts from the first ones."""
        self.values.copy_(torch.from_numpy(np.array(parameters, np.float32)))

    def clip(self, limit: float) -> None:
        """Scale the gradient down to norm ``limit``, as ``torch.nn.utils.clip_grad_norm_`` does."""
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))


def _views(flat: torch.Tensor, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    views, start = [], 0
    for parameter in parameters:
        count = int(np.prod(parameter.shape, dtype=np.int64))
        views.append(flat[start : start + count].view(parameter.shape))
        start += count
    return views
