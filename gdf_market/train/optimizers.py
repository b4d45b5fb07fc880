"""Inner optimizers: AdamW, Muon and SGD over the groups of a program, with a state that starts fresh in each unit.

One rate fits all groups: where Muon applies, its steps are scaled to the root mean square of AdamW's
("match_rms_adamw"; Liu et al. 2025, arXiv:2502.16982), so a recipe's ``lr`` means the same under both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gdf_market.messages import Recipe
from gdf_market.train.graph import Graph, Group, Parameter
from gdf_market.train.unit_state import ADAM_FIRST, ADAM_SECOND, MUON_AVERAGE, SGD_AVERAGE
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

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Kind:
    """One kind of state: its name in a file, torch's name, and whether Muon keeps it."""

    name: str
    key: str
    of_muon: bool = False


@dataclass(frozen=True)
class _Kept:
    """Who keeps a kind of state, and for which weights, in the program's order."""

    kind: _Kind
    optimizer: torch.optim.Optimizer
    weights: list[torch.Tensor]


def _kinds(recipe: Recipe) -> list[_Kind]:
    """Return the kinds of state that a recipe's optimizers keep, in the order of a file."""
    if recipe.inner == "sgd":
        return [_Kind(SGD_AVERAGE, "momentum_buffer")] if recipe.beta1_ppm else []
    adam = [_Kind(ADAM_FIRST, "exp_avg"), _Kind(ADAM_SECOND, "exp_avg_sq")]
    return [*adam, _Kind(MUON_AVERAGE, "momentum", of_muon=True)] if recipe.inner == "muon" else adam


def state_layout(graph: Graph, recipe: Recipe) -> dict[str, int]:
    """Return how many values of each kind of state a unit has after any of its steps; kinds without any are left out.

    Each kind is flat, over the parameters that have it, in the program's order.
    """
    sizes = {False: 0, True: 0}
    for parameter in graph.parameters:
        count = int(np.prod(parameter.shape, dtype=np.int64))
        sizes[_takes_muon(parameter, graph.groups[parameter.group], recipe)] += count
    return {kind.name: sizes[kind.of_muon] for kind in _kinds(recipe) if sizes[kind.of_muon]}


class InnerOptimizer:
    """All groups of a program; ``step(rate)`` moves the weights along the gradients that they hold."""

    def __init__(self, weights: Sequence[torch.Tensor], graph: Graph, recipe: Recipe) -> None:
        adam: list[dict[str, Any]] = []
        muon: list[dict[str, Any]] = []
        for index, group in enumerate(graph.groups):
            members = [(w, p) for w, p in zip(weights, graph.parameters, strict=True) if p.group == index]
            matrices = [w for w, p in members if _takes_muon(p, group, recipe)]
            others = [w for w, p in members if not _takes_muon(p, group, recipe)]
            decay = recipe.weight_decay_ppm / PPM * (group.decay_ppm / PPM)
            for chosen, kind in ((matrices, muon), (others, adam)):
                if chosen:
                    kind.append({"params": chosen, "weight_decay": decay, "scale": group.lr_ppm / PPM, "lr": 0.0})
        built = {False: _elementwise(adam, recipe) if adam else None, True: Muon(muon) if muon else None}
        self._optimizers: list[torch.optim.Optimizer] = [each for each in built.values() if each is not None]
        taken = [_takes_muon(p, graph.groups[p.group], recipe) for p in graph.parameters]
        self._kept = [
            _Kept(kind, optimizer, [w for w, of_muon in zip(weights, taken, strict=True) if of_muon == kind.of_muon])
            for kind in _kinds(recipe)
            if (optimizer := built[kind.of_muon]) is not None
        ]

    def step(self, rate: float) -> None:
        """Take one step; ``rate`` is the recipe's at this step, before the groups' scales."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            optimizer.step()

    def state(self) -> dict[str, Floats]:
        """Return a copy of each kind of state, as ``state_layout`` says, after the first step or a later one."""
        return {
            kept.kind.name: np.concatenate(
                [kept.optimizer.state[weight][kept.kind.key].cpu().numpy().ravel() for weight in kept.weights]
            )
            for kept in self._kept
        }

    def restore(self, state: Mapping[str, Floats], steps: int) -> None:
        """Go on where an optimizer with ``state`` was after ``steps`` steps."""
        for kept in self._kept:
            start = 0
            for weight in kept.weights:
                part = torch.from_numpy(state[kept.kind.name][start : start + weight.numel()].copy())
                # Muon's are matrices, the others have the weight's shape
                shape = (weight.shape[0], -1) if kept.kind.of_muon else weight.shape
                own = kept.optimizer.state[weight]
                own[kept.kind.key] = part.reshape(shape).to(weight.device)
                if kept.kind.name == ADAM_FIRST:
                    own["step"] = torch.tensor(float(steps), device=weight.device)
                start += weight.numel()


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


def _takes_muon(parameter: Parameter, group: Group, recipe: Recipe) -> bool:
    return recipe.inner == "muon" and group.muon and len(parameter.shape) >= 2


def _elementwise(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW, or SGD whose momentum is beta1; fused: one pass over each tensor instead of ten."""
    beta1, beta2 = recipe.beta1_ppm / PPM, recipe.beta2_ppm / PPM
    if recipe.inner == "sgd":
        return torch.optim.SGD(groups, momentum=beta1, fused=True)
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=ADAM_EPSILON, fused=True)
