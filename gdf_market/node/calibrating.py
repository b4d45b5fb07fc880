"""Measures a machine: the built-in unit on other threads, parts of a batch and instruction sets, by runner processes.

The runners are those that train and audit for a node, started and asked in the same way.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from contracts.evidence import compute_distance_ppb
from gdf_market.errors import UsageError, ensure
from gdf_market.node.calibration import Calibration, Case, Machine, MeasuredClass, measured_class
from gdf_market.node.settings import torch_device
from gdf_market.node.trainer import Trainer, TrainResult, UnitRequest
from gdf_market.train import yardstick
from gdf_market.train.protocol import UnitParts

SILENCE_S = 180.0  # a step of the built-in unit takes milliseconds, also on a machine with other work
PARTS = (1, 4)  # rows of eight at a time
_X86 = ("x86_64", "AMD64", "i386", "i686")
_SETS = {  # what an older processor would compute with, by what the present one has
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no vectors in ATen": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """How a unit is run again; ways with the same threads and environment share a process."""

    name: str
    threads: int = 1
    rows: int = 0
    environment: dict[str, str] = field(default_factory=dict)


def ways(threads: int, device: str, machine: str) -> list[Way]:
    """Return the reruns for a torch device on a ``machine`` (as ``platform.machine`` calls it)."""
    found = [Way("again")]
    found += [Way(f"{rows} rows at a time" if rows > 1 else "one row at a time", rows=rows) for rows in PARTS]
    if device != "cpu":
        return [*found, Way("in another process", environment={"GDF_CALIBRATION": "2"})]
    if threads > 1:
        found.append(Way(f"{threads} threads", threads=threads))
    if machine in _X86:
        found += [Way(name, environment=environment) for name, environment in _SETS.items()]
    return found


async def calibrate(classes: tuple[str, ...], *, threads: int, say: Say) -> Calibration:
    """Measure ``classes`` and return what was found.  Raises TrainerError, and UsageError for no class."""
    ensure(bool(classes), UsageError("no device class to calibrate; this machine has none that the rules know"))
    with tempfile.TemporaryDirectory(prefix="gdf-market-", ignore_cleanup_errors=True) as folder:
        bench = _Bench(Path(folder), say)
        for device in sorted({torch_device(name) for name in classes}):
            await bench.measure(device, [name for name in classes if torch_device(name) == device], threads)
    here = Machine.here()
    return Calibration(
        torch=here.torch,
        system=here.system,
        device=", ".join(sorted({torch_device(name) for name in classes})),
        measured_ms=time.time_ns() // 1_000_000,
        classes=tuple(bench.result(name) for name in classes),
    )


class _Bench:
    """First runs by (class, inner optimizer), and the reruns of each class."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder, self._say = folder, say
        self._files = yardstick.write_files(folder)
        self._first: dict[tuple[str, str], TrainResult] = {}
        self._cases: dict[str, list[Case]] = {}

    async def measure(self, device: str, classes: list[str], threads: int) -> None:
        """Run the unit of each class of a device and optimizer once, and again in every way."""
        for group in _processes(ways(threads, device, platform.machine())):
            shared = group[0]
            async with Trainer(
                threads=shared.threads, device=device, environment=shared.environment, silence_timeout_s=SILENCE_S
            ) as trainer:
                for name in classes:
                    for inner in yardstick.INNERS:
                        await self._run(trainer, name, inner, group)

    async def _run(self, trainer: Trainer, device_class: str, inner: str, group: list[Way]) -> None:
        request, key = self._request(inner, device_class), (device_class, inner)
        if key not in self._first:
            self._say(f"{device_class}: {inner}, the first run")
            self._first[key] = await trainer.train(request, out=self._folder / "-".join(key))
        for way in group:
            self._say(f"{device_class}: {inner}, {way.name}")
            case = await _case(trainer, request, way, inner, self._first[key])
            self._cases.setdefault(device_class, []).append(case)

    def result(self, device_class: str) -> MeasuredClass:
        """Return what was measured of a class."""
        first = {inner: self._first[device_class, inner] for inner in yardstick.INNERS}
        return measured_class(device_class, tuple(self._cases[device_class]), _reference_ppb(device_class, first))

    def _request(self, inner: str, device_class: str) -> UnitRequest:
        return UnitRequest(
            program=self._files["program"],
            data=self._files["data"],
            content=self._files["content"],
            checkpoint=self._files["checkpoint"],
            recipe=yardstick.recipe(inner, device_class.rsplit("-", 1)[-1]),
            job=yardstick.JOB,
            round=0,
            done=0,
            shard=0,
            shards=1,
        )


async def _case(trainer: Trainer, request: UnitRequest, way: Way, inner: str, first: TrainResult) -> Case:
    given = replace(request, parts=UnitParts(rows=way.rows)) if way.rows else request
    found = await trainer.audit(given, claim=first.update)
    pairs = zip(first.sketches, found.sketches, strict=True)
    return Case(
        way=way.name,
        inner=inner,
        excess_ppb=found.excess_ppb,
        sketch_ppb=max(compute_distance_ppb(worker, auditor) for worker, auditor in pairs),
    )


def _processes(given: list[Way]) -> Iterator[list[Way]]:
    """Yield the ways that one runner can do, in order."""
    groups: dict[tuple[object, ...], list[Way]] = {}
    for way in given:
        groups.setdefault((way.threads, *sorted(way.environment.items())), []).append(way)
    yield from groups.values()


def _reference_ppb(device_class: str, first: dict[str, TrainResult]) -> int | None:
    """Return the distance of the last sketches from those of another machine; only float32 on CPUs has any."""
    if device_class != "cpu-fp32":
        return None
    return max(compute_distance_ppb(yardstick.REFERENCE[inner], run.sketches[-1]) for inner, run in first.items())


def default_threads(setting: int) -> int:
    """Return the threads to measure with beside one: those of the node, at most the machine's."""
    return min(setting or os.cpu_count() or 1, os.cpu_count() or 1)
