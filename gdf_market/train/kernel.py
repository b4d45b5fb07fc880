"""How fast this machine multiplies matrices: a GPU that in truth runs on the CPU shows itself by its time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

SIZE = 1_024  # rows and columns of square fp32 matrices
REPEATS = 8
LEAST_TIMES_FASTER = 1.5  # than the CPU: the slowest GPU worth using is far above


@dataclass(frozen=True)
class Speed:
    """Floating-point operations per second of fp32 products; a product of n x n matrices takes 2 n^3."""

    cpu_flops: float
    gpu_flops: float | None = None
    gpu_name: str = ""

    @property
    def gpu_is_slow(self) -> bool:
        """The GPU is hardly faster than the CPU beside it."""
        return self.gpu_flops is not None and self.gpu_flops < LEAST_TIMES_FASTER * self.cpu_flops


def measure() -> Speed:
    """Time products on the CPU and, where torch sees one, on the first GPU."""
    cpu = _flops(torch.device("cpu"))
    if not torch.cuda.is_available():
        return Speed(cpu)
    return Speed(cpu, _flops(torch.device("cuda", 0)), torch.cuda.get_device_name(0))


def _flops(device: torch.device) -> float:
    left = torch.rand(SIZE, SIZE, device=device)
    right = torch.rand(SIZE, SIZE, device=device)
    best = float("inf")
    for _ in range(REPEATS):
        _finish(device)
        began = time.perf_counter()
        left @ right
        _finish(device)
        best = min(best, time.perf_counter() - began)
    return 2.0 * SIZE**3 / max(best, 1e-9)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
