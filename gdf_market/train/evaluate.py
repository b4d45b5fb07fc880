"""The validation loss of a checkpoint, and the running statistics of batch norm that belong to it.

Running statistics never travel: they are gathered anew with the checkpoint's weights from batches of the training
part (as ``update_bn`` of stochastic weight averaging does: Izmailov et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from gdf_market.errors import ensure
from gdf_market.train.data import Batch
from gdf_market.train.determinism import deterministic
from gdf_market.train.errors import DivergedError
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program
from gdf_market.train.unit import tensors

Floats = npt.NDArray[np.float32]


def evaluate(
    program: Program,
    parameters: Floats,
    batches: Iterable[Batch],
    *,
    statistics: Iterable[Batch] = (),
    threads: int = 1,
    device: str = "cpu",
) -> float:
    """Return the mean loss over ``batches`` of equal size, in evaluation mode.

    ``statistics`` are the batches that running statistics are gathered from, for a program that has some.
    Raises DivergedError when the loss is not finite.
    """
    with deterministic(threads), torch.no_grad():
        module = _prepared(program, parameters, statistics, device)
        losses = [float(module.evaluate(*tensors(batch, device)).item()) for batch in batches]
    mean = math.fsum(losses) / len(losses)
    ensure(math.isfinite(mean), DivergedError("the validation loss is not finite"))
    return mean


def gather_statistics(
    program: Program, parameters: Floats, batches: Iterable[Batch], *, threads: int = 1, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Return the running statistics with these weights, by the name of the constant that they replace.

    Raises DivergedError when one is not finite.
    """
    with deterministic(threads), torch.no_grad():
        found = _prepared(program, parameters, batches, device).statistics()
    for name, tensor in found.items():
        finite = bool(torch.isfinite(tensor).all())
        ensure(finite, DivergedError(f"the running statistics {name} are not finite"))
    return found


def _prepared(program: Program, parameters: Floats, statistics: Iterable[Batch], device: str) -> ProgramModule:
    module = ProgramModule(program, program.unflatten(parameters), device)
    if program.graph.train.updates:
        for batch in statistics:
            module.gather_statistics(*tensors(batch, device))
    return module
