"""What a machine has: the memory that a unit may take, with and without GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pynvml
import pytest

from gdf_market.node import machine
from gdf_market.node.machine import LEFT_FREE_BYTES, Gpu, gpus, unit_memory_bytes
from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES

GIB = 1 << 30


def test_no_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert gpus() == []


@pytest.mark.parametrize(
    ("total", "devices", "expected"),
    [
        (8 * GIB, ("cpu",), 4 * GIB),
        (8 * GIB, ("cpu", "cpu"), 2 * GIB),
        (256 * GIB, ("cpu",), DEFAULT_MEMORY_BYTES),
        (1, ("cpu",), 1),
    ],
)
def test_a_cpu_unit_takes_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, total: int, devices: tuple[str, ...], expected: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    assert unit_memory_bytes(devices) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("cuda",), 10 * GIB - LEFT_FREE_BYTES),
        (("cuda:1",), 4 * GIB - LEFT_FREE_BYTES),
        (("cuda:0", "cuda:1"), 4 * GIB - LEFT_FREE_BYTES),
        (("cuda:7",), 4 * GIB),  # NVML does not know it: as on a CPU
    ],
)
def test_a_gpu_unit_takes_what_is_free(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], expected: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 * GIB))
    found = [Gpu("one", 12 * GIB, 10 * GIB, 50, 0), Gpu("two", 8 * GIB, 4 * GIB, 50, 0)]
    monkeypatch.setattr(machine, "gpus", lambda: found)
    assert unit_memory_bytes(devices) == expected
