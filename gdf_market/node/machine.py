"""What this machine has: GPUs as NVML tells it, and how much memory a unit may take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pynvml

from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES

RAM_PART = 2  # one part of so many of the main memory is left to a unit: the rest is the node's and the user's
LEFT_FREE_BYTES = 1 << 30  # of a GPU, for its context and the screen


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, in the order of NVML; sizes in bytes, ``temperature_c`` in degrees Celsius."""

    name: str
    total_bytes: int
    free_bytes: int
    temperature_c: int
    busy_percent: int


@contextlib.contextmanager
def _nvml() -> Iterator[bool]:
    """Open NVML, and say whether it is there: no driver, no GPU and no library all mean that it is not."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def gpus() -> list[Gpu]:
    """Return the GPUs that NVML knows; none where there is no NVIDIA driver."""
    with _nvml() as found:
        if not found:
            return []
        try:
            return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return []


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return Gpu(
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        temperature_c=int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        busy_percent=int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    )


def unit_memory_bytes(devices: tuple[str, ...]) -> int:
    """Return what a unit may take on each of ``devices`` (as torch names them), as long as nobody says it.

    On a CPU: half of the main memory, shared by the processes that compute there, and at most what a runner takes by
    default.  On GPUs: the free memory of the one with the least, but for a reserve.
    """
    found = gpus() if any(device.startswith("cuda") for device in devices) else []
    named = [_number(device) for device in devices if device.startswith("cuda")]
    free = [found[number].free_bytes - LEFT_FREE_BYTES for number in named if number < len(found)]
    if free:
        return max(1, min(free))
    shared = int(psutil.virtual_memory().total) // RAM_PART // max(1, len(devices))
    return max(1, min(DEFAULT_MEMORY_BYTES, shared))


def _number(device: str) -> int:
    """Return 1 for cuda:1, and 0 for cuda."""
    return int(device.partition(":")[2] or 0)
