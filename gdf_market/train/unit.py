"""One unit of work: H steps of the inner optimizer from the agreed checkpoint, a pure function of its arguments.

The optimizer state is fresh in each unit, with a linear re-warm-up of the
learning rate, so that anyone can run the unit again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdf_market.errors import ensure
from gdf_market.messages import Recipe
from gdf_market.train.data import Batch
from gdf_market.train.errors import DivergedError
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program
from gdf_market.units import PPM

# Larger than torch's 1e-8: where the true gradient is zero (a key bias of attention), Adam would turn rounding noise
# into full steps, and honest reruns on other thread counts would differ by 5e-4 (docs/adr/0004).
ADAM_EPSILON = 1e-6

Floats = npt.NDArray[np.float32]
Sketch = Callable[[Floats], tuple[int, ...]]
Report = Callable[[int, int], None]  # (steps done, steps)


@dataclass(frozen=True)
class UnitRun:
    """``delta`` f32[n] is the pseudo-gradient: checkpoint minus trained parameters, so that the outer step
    is a descent.  ``sketches[i]`` is the sketch of the pseudo-gradient after step i."""

    delta: Floats
    sketches: tuple[tuple[int, ...], ...]
    loss_first: float
    loss_last: float


def run_unit(
    program: Program,
    parameters: Floats,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    sketch: Sketch,
    threads: int = 1,
    device: str = "cpu",
    report: Report | None = None,
) -> UnitRun:
    """Train from ``parameters`` f32[n] on one batch per step; see UnitRun.

    Raises DivergedError when a loss is not finite, and what ``sketch`` raises.
    """
    sketches: list[tuple[int, ...]] = []
    losses: list[float] = []
    with deterministic(threads):
        module = ProgramModule(program, program.unflatten(parameters), device)
        optimizer = _optimizer(list(module.weights), recipe)
        for step, batch in enumerate(batches):
            losses.append(_train_step(module, optimizer, batch, recipe, step))
            sketches.append(sketch(parameters - module.flat()))
            if report is not None:
                report(step + 1, recipe.steps)
    assert losses
    return UnitRun(parameters - module.flat(), tuple(sketches), losses[0], losses[-1])


def evaluate(
    program: Program, parameters: Floats, batches: Iterable[Batch], *, threads: int = 1, device: str = "cpu"
) -> float:
    """Return the mean loss over ``batches`` of equal size.  Raises DivergedError when it is not finite."""
    with deterministic(threads), torch.no_grad():
        module = ProgramModule(program, program.unflatten(parameters), device)
        losses = [module(*_tensors(batch, device)).item() for batch in batches]
    mean = math.fsum(losses) / len(losses)
    ensure(math.isfinite(mean), DivergedError("the validation loss is not finite"))
    return mean


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate of a step: linear from 1/rewarm_steps of the full rate, then constant."""
    full = recipe.lr_e9 / 1e9
    return full * min(1.0, (step + 1) / recipe.rewarm_steps) if recipe.rewarm_steps else full


@contextlib.contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Run on ``threads`` threads with deterministic kernels in full float32 (no TF32); restores on leaving."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(max(1, threads))
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(before[1])
        torch.set_num_threads(before[0])


def _train_step(
    module: ProgramModule, optimizer: torch.optim.Optimizer, batch: Batch, recipe: Recipe, step: int
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, step)
    optimizer.zero_grad(set_to_none=True)
    loss = module(*_tensors(batch, module.device))
    loss.backward()
    if recipe.clip_ppm:
        nn.utils.clip_grad_norm_(module.weights, recipe.clip_ppm / PPM, foreach=False)
    optimizer.step()
    value = float(loss.item())
    ensure(math.isfinite(value), DivergedError(f"the loss of step {step} is {value}; lower the learning rate"))
    return value


def _optimizer(weights: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW, or SGD whose momentum is beta1; only tensors of two and more dimensions decay."""
    decay = recipe.weight_decay_ppm / PPM
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    rate, beta1, beta2 = recipe.lr_e9 / 1e9, recipe.beta1_ppm / PPM, recipe.beta2_ppm / PPM
    if recipe.inner == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=beta1, foreach=False, fused=False)
    # one plain loop over tensors: the fused and the foreach form round differently
    return torch.optim.AdamW(groups, lr=rate, betas=(beta1, beta2), eps=ADAM_EPSILON, foreach=False, fused=False)


def _tensors(batch: Batch, device: torch.device | str) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(device) for array in batch]
