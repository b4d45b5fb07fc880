"""Whether a program's loss of a batch is the mean over its rows: measured, not guessed.

A batch is computed whole and in parts, with the same masks of dropout.  Rows of very different content show what equal
rows hide: a mean over tokens that are no padding is no mean over rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from gdf_market.train.graph import Node
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.noise import Noise
from gdf_market.train.program import Floats, Program

TOLERANCE = 1e-5  # relative
ROWS = 4
MAX_ROWS = 64
_NOISE = 0.02  # added to weights: a layer that starts at zero would hide what it does later


def is_separable(program: Program, parameters: Floats, samples: Sequence[torch.Tensor]) -> bool:
    """Measure it at ``parameters`` f32[n] (and near them) on ``samples``, real ones where there are some."""
    if program.graph.batch or any(_mixes_rows(node) for node in program.graph.train.nodes):
        return False
    generator = np.random.Generator(np.random.PCG64(1))
    moved = parameters + _NOISE * generator.standard_normal(len(parameters)).astype(np.float32)
    module = ProgramModule(program, program.unflatten(moved))
    return all(_agrees(module, trial, given) for given, trial in enumerate(_trials(samples)))


def _mixes_rows(node: Node) -> bool:
    """Batch statistics: how much they matter depends on the weights, that they do is known."""
    return node.op == "aten.batch_norm.default" and node.args[5] is True


def _agrees(module: ProgramModule, samples: list[torch.Tensor], trial: int) -> bool:
    rows = len(samples[0])
    try:
        whole = _loss(module, samples, 0, rows)
    except Exception:  # content that the model does not take: says nothing, but for the owner's own samples
        return trial > 0
    if not math.isfinite(whole):
        return True
    try:
        for part in (rows // 2, 1):
            parts = [_loss(module, samples, start, part) for start in range(0, rows, part)]
            # one of the parts may have nothing to learn from, and be 0 / 0
            if not abs(math.fsum(parts) / len(parts) - whole) <= TOLERANCE * max(abs(whole), 1e-6):
                return False
    except Exception:  # torch raises many kinds of errors for a batch that is too small
        return False
    return True


def _loss(module: ProgramModule, samples: list[torch.Tensor], start: int, rows: int) -> float:
    module.noise = Noise(bytes(32), 0, rows, start)
    with torch.no_grad():
        return float(module(*(sample[start : start + rows] for sample in samples)).double())


def _trials(samples: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield batches of an even number of rows: as given, sorted by content, and of growing size."""
    times = -(-ROWS // len(samples[0]))
    rows = min(MAX_ROWS, len(samples[0]) * times) // 2 * 2
    given = [sample.repeat(times, *[1] * (sample.ndim - 1))[:rows] for sample in samples]
    yield given
    whole = [not sample.is_floating_point() for sample in samples]
    yield [_sorted(sample) if is_whole else sample for sample, is_whole in zip(given, whole, strict=True)]
    yield [sample if is_whole else _growing(sample) for sample, is_whole in zip(given, whole, strict=True)]


def _sorted(sample: torch.Tensor) -> torch.Tensor:
    """The same values, the smallest (padding, masks of 0, labels of -100) all in the first rows."""
    return sample.reshape(-1).sort()[0].reshape(sample.shape)


def _growing(sample: torch.Tensor) -> torch.Tensor:
    scale = torch.linspace(0.1, 1.0, len(sample)).reshape(-1, *[1] * (sample.ndim - 1))
    return (sample * scale).to(sample.dtype)
