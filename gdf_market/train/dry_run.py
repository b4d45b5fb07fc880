"""Runs a program on the ``meta`` device: shapes without data, so that a hostile program costs nothing.

Memory is an upper bound: every value of the forward pass is counted as if it
were kept for the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gdf_market.errors import MalformedError, OversizedError, PeerError, ensure
from gdf_market.train.graph import DTYPES, MAX_RANK
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program
from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES

STATE_COPIES = 5  # parameters, gradients, two moments and the checkpoint


@dataclass(frozen=True)
class Cost:
    """What one step takes at most."""

    memory_bytes: int


@dataclass
class _Meter:
    limit_bytes: int
    used_bytes: int

    def __call__(self, value: Any) -> None:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            ensure(tensor.ndim <= MAX_RANK, OversizedError(f"a tensor of {tensor.ndim} dimensions"))
            ensure(tensor.dtype in DTYPES.values(), MalformedError(f"a value of dtype {tensor.dtype}"))
            self.used_bytes += tensor.numel() * tensor.element_size()
        ensure(
            self.used_bytes <= self.limit_bytes,
            OversizedError(f"the program takes {self.used_bytes:,} bytes; at most {self.limit_bytes:,} are given"),
        )


def dry_run(program: Program, batch: int, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Cost:
    """Return what one step of ``batch`` samples costs.

    Raises OversizedError beyond ``memory_bytes``, MalformedError when the
    program does not take such a batch or its result is not a loss that
    depends on a trained parameter.
    """
    graph = program.graph
    meter = _Meter(memory_bytes, STATE_COPIES * 4 * program.size)
    ensure(graph.batch in (0, batch), MalformedError(f"the program takes batches of {graph.batch}, not {batch}"))
    try:
        weights = [torch.empty(parameter.shape, device="meta") for parameter in graph.parameters]
        samples = [torch.empty((batch, *s.shape), dtype=DTYPES[s.dtype], device="meta") for s in graph.samples]
        meter([*weights, *samples])
        module = ProgramModule(program, weights, "meta")
        loss = module(*samples, watch=meter)
        losses = [loss] if graph.evaluate is None else [loss, module.evaluate(*samples, watch=_Meter(memory_bytes, 0))]
    except PeerError:
        raise
    # operators raise many kinds of errors for arguments that do not fit; all mean the same here
    except Exception as error:
        raise MalformedError(f"the program does not run: {_first_line(error)}") from None
    for each in losses:
        scalar = isinstance(each, torch.Tensor) and each.shape == () and each.is_floating_point()
        ensure(scalar, MalformedError("the program's result is not a scalar loss"))
    ensure(loss.requires_grad, MalformedError("the loss does not depend on any trained parameter"))
    return Cost(meter.used_bytes)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
