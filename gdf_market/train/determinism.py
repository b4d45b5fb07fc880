"""Settings of torch under which a unit is computed: the same result each time on one machine, in full float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Run on ``threads`` threads with deterministic kernels in full float32 (no TF32); restores on leaving."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    reduced = matmul.allow_bf16_reduced_precision_reduction
    torch.set_num_threads(max(1, threads))
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = reduced
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(before[1])
        torch.set_num_threads(before[0])
