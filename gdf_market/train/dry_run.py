"""Runs a program on the ``meta`` device: shapes without data, so that a hostile program costs nothing.

``Cost.memory_bytes`` is an upper bound, with every value of the forward pass counted as if it were kept for the
backward pass; ``Cost.expected_bytes`` counts what autograd keeps, and is what a machine should have free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from gdf_market.errors import MalformedError, OversizedError, PeerError, ensure
from gdf_market.train.graph import DTYPES, MAX_RANK
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program
from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES

# float32 copies of all trained values: weights, gradients, the checkpoint (values and outer momentum), and the state
# of the inner optimizer.  SGD is counted with momentum.
BASE_COPIES = 4
OPTIMIZER_COPIES = {"adamw": 2, "muon": 2, "sgd": 1}
BACKWARD_FLOPS = 2  # gradients by inputs and by weights, each as dear as the forward pass


@dataclass(frozen=True)
class Cost:
    """What one step takes: at most, and by estimate.  ``flops`` are those of matrix products and attention."""

    memory_bytes: int
    expected_bytes: int
    flops: int


@dataclass
class _Meter:
    limit_bytes: int
    used_bytes: int
    largest_bytes: int = 0

    def __call__(self, value: Any) -> None:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            ensure(tensor.ndim <= MAX_RANK, OversizedError(f"a tensor of {tensor.ndim} dimensions"))
            ensure(tensor.dtype in DTYPES.values(), MalformedError(f"a value of dtype {tensor.dtype}"))
            size = tensor.numel() * tensor.element_size()
            self.used_bytes += size
            self.largest_bytes = max(self.largest_bytes, size)
        ensure(
            self.used_bytes <= self.limit_bytes,
            OversizedError(f"the program takes {self.used_bytes:,} bytes; at most {self.limit_bytes:,} are given"),
        )


class _Inside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks into operators that are made of others: what they hold in between has to fit as well."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._limit_bytes = limit_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                size = tensor.numel() * tensor.element_size()
                limit = self._limit_bytes
                ensure(size <= limit, OversizedError(f"an operator takes {size:,} bytes; at most {limit:,} are given"))
        return result


@dataclass
class _Kept:
    """Storages that autograd keeps for the backward pass, each counted once; weights and samples are not among them."""

    ignored: set[int]
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # alive, so that no address comes twice

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.ignored:
            self.storages[storage._cdata] = storage
        return tensor

    @property
    def total_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def dry_run(
    program: Program,
    batch: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    *,
    inner: str = "adamw",
    micro_batch: int = 0,
    precision: str = "fp32",
) -> Cost:
    """Return what one step of ``batch`` samples costs, ``micro_batch`` (0: all) of them computed at once.

    With ``precision`` bf16 the values that are kept are counted at half their size.  Raises OversizedError beyond
    ``memory_bytes``, MalformedError when the program does not take such a batch or its result is not a loss that
    depends on a trained parameter.
    """
    graph = program.graph
    rows = min(batch, micro_batch) if micro_batch and graph.separable else batch
    ensure(graph.batch in (0, rows), MalformedError(f"the program takes batches of {graph.batch}, not {rows}"))
    copies = BASE_COPIES + OPTIMIZER_COPIES[inner]
    state_bytes = copies * 4 * program.size + sum(t.numel() * t.element_size() for t in program.constants.values())
    meter = _Meter(memory_bytes, state_bytes)
    try:
        return _measure(program, rows, meter, state_bytes, -(-batch // rows), 2 if precision == "bf16" else 4)
    except PeerError:
        raise
    # operators raise many kinds of errors for arguments that do not fit; all mean the same here
    except Exception as error:
        raise MalformedError(f"the program does not run: {_first_line(error)}") from None


def _measure(program: Program, rows: int, meter: _Meter, state_bytes: int, parts: int, width: int) -> Cost:
    graph = program.graph
    weights = [torch.empty(parameter.shape, device="meta") for parameter in graph.parameters]
    samples = [torch.empty((rows, *s.shape), dtype=DTYPES[s.dtype], device="meta") for s in graph.samples]
    meter(samples)
    module = ProgramModule(program, weights, "meta")
    with _Inside(meter.limit_bytes):  # first: nodes that no loss needs are looked at as well
        module.run_all(graph.train, *samples, watch=meter)
        if graph.evaluate is not None:
            module.run_all(graph.evaluate, *samples, watch=_Meter(meter.limit_bytes, 0))
    if graph.evaluate is not None:
        _check_loss(module.evaluate(*samples))
    given = [*module.weights, *samples]
    kept = _Kept({tensor.untyped_storage()._cdata for tensor in given})
    with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(kept.pack, _unpack):
        loss = module(*samples)
    _check_loss(loss)
    ensure(loss.requires_grad, MalformedError("the loss does not depend on any trained parameter"))
    _check_statistics(program, module, samples)
    expected = state_bytes + (kept.total_bytes + 2 * meter.largest_bytes) * width // 4
    return Cost(meter.used_bytes, expected, flops.get_total_flops() * (1 + BACKWARD_FLOPS) * parts)


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check_loss(loss: Any) -> None:
    scalar = isinstance(loss, torch.Tensor) and loss.shape == () and loss.is_floating_point()
    ensure(scalar, MalformedError("the program's result is not a scalar loss"))


def _check_statistics(program: Program, module: ProgramModule, samples: list[torch.Tensor]) -> None:
    """Refuse statistics whose shape or dtype is not that of the constant which they replace."""
    for name, new in module.new_statistics(*samples).items():
        old = program.constants[name]
        fits = isinstance(new, torch.Tensor) and (new.shape, new.dtype) == (old.shape, old.dtype)
        ensure(fits, MalformedError(f"statistics that do not fit the constant {name[:60]!r}"))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
