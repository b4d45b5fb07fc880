"""Inner optimizers: AdamW, Muon and SGD over the groups of a program, with a state that starts fresh in each unit.

One rate fits all groups: where Muon applies, its steps are scaled to the root mean square of AdamW's
("match_rms_adamw"; Liu et al. 2025, arXiv:2502.16982), so a recipe's ``lr`` means the same under both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gdf_market.messages import Recipe
from gdf_market.train.graph import Graph, Group
from gdf_market.units import PPM

# Larger than torch's 1e-8: where the true gradient is zero (a key bias of attention), Adam would turn rounding noise
# into full steps, and honest reruns on other thread counts would differ by 5e-4 (docs/adr/0004).
ADAM_EPSILON = 1e-6

# Of Muon, as in torch.optim.Muon and in its author's post, https://kellerjordan.github.io/posts/muon/
MUON_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_RMS = 0.2  # root mean square of AdamW's steps
_LEAST_NORM = 1e-7


class InnerOptimizer:
    """All groups of a program; ``step(rate)`` moves the weights along the gradients that they hold."""

    def __init__(self, weights: Sequence[torch.Tensor], graph: Graph, recipe: Recipe) -> None:
        adam: list[dict[str, Any]] = []
        muon: list[dict[str, Any]] = []
        for index, group in enumerate(graph.groups):
            members = [w for w, p in zip(weights, graph.parameters, strict=True) if p.group == index]
            matrices = [w for w in members if _takes_muon(w, group, recipe)]
            others = [w for w in members if not _takes_muon(w, group, recipe)]
            decay = recipe.weight_decay_ppm / PPM * (group.decay_ppm / PPM)
            for chosen, kind in ((matrices, muon), (others, adam)):
                if chosen:
                    kind.append({"params": chosen, "weight_decay": decay, "scale": group.lr_ppm / PPM, "lr": 0.0})
        self._optimizers: list[torch.optim.Optimizer] = []
        if adam:
            self._optimizers.append(_elementwise(adam, recipe))
        if muon:
            self._optimizers.append(Muon(muon))

    def step(self, rate: float) -> None:
        """Take one step; ``rate`` is the recipe's at this step, before the groups' scales."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            optimizer.step()


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` (nesterov, match_rms_adamw), but for two things.

    Newton-Schulz runs in float32: in bfloat16 honest reruns on other thread counts would differ by far more than a
    verdict in float32 allows (docs/adr/0004).  Kernels of convolutions are taken as matrices of output channels by
    all the rest.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float = MUON_MOMENTUM) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                self._move(weight, group)

    def _move(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        assert weight.grad is not None
        gradient = weight.grad.flatten(1)  # [rows, columns]
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(gradient.lerp(average, group["momentum"]))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        scale = _RMS * max(gradient.shape) ** 0.5
        weight.add_(direction.reshape(weight.shape), alpha=-group["lr"] * scale)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Return f32[rows, columns]: ``matrix`` with its singular values moved close to 1, by Newton-Schulz."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=_LEAST_NORM)  # no singular value is beyond 1
    for _ in range(_ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found


def _takes_muon(weight: torch.Tensor, group: Group, recipe: Recipe) -> bool:
    return recipe.inner == "muon" and group.muon and weight.ndim >= 2


def _elementwise(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW, or SGD whose momentum is beta1; fused: one pass over each tensor instead of ten."""
    beta1, beta2 = recipe.beta1_ppm / PPM, recipe.beta2_ppm / PPM
    if recipe.inner == "sgd":
        return torch.optim.SGD(groups, momentum=beta1, fused=True)
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=ADAM_EPSILON, fused=True)
