"""What a machine measured of itself, and the device classes that follow: pure, but for reading and writing the file.

A class is usable here if this machine's reruns of one unit are as close to each other as the rules ask of strangers'
reruns.  A class that was measured is judged by the distances, under the thresholds that hold now; one that was not is
usable only if the rules take every machine to be able to run it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from contracts.parameters import DEVICE_CLASSES, EVERYBODYS_CLASSES, thresholds, verdict
from gdf_market.codec import Record, UInt, decode, encode
from gdf_market.errors import PeerError, StorageError
from gdf_market.messages import DeviceClass
from gdf_market.node.datadir import write_atomic

MAX_FILE_BYTES = 65_536
MAX_CASES = 64

Text = Annotated[str, msgspec.Meta(max_length=120)]


class Case(Record, frozen=True, kw_only=True):
    """One rerun of one unit: how it was run, and its distances from the first run."""

    way: Text
    inner: Text
    excess_ppb: UInt
    sketch_ppb: UInt  # the largest over all steps


class MeasuredClass(Record, frozen=True, kw_only=True):
    """All reruns of a device class; ``reference_ppb``: distance from another machine's run, where one is known."""

    device_class: DeviceClass
    cases: Annotated[tuple[Case, ...], msgspec.Meta(min_length=1, max_length=MAX_CASES)]
    reference_ppb: UInt | None
    excess_accept: UInt  # the thresholds of that time, for people
    sketch_accept: UInt

    @property
    def excess_ppb(self) -> int:
        return max(case.excess_ppb for case in self.cases)

    @property
    def sketch_ppb(self) -> int:
        return max(*(case.sketch_ppb for case in self.cases), self.reference_ppb or 0)


class Calibration(Record, frozen=True, kw_only=True):
    """The file ``calibration.json`` of a data folder."""

    version: Literal[1] = 1
    torch: Text
    system: Text
    device: Text
    measured_ms: UInt
    classes: Annotated[tuple[MeasuredClass, ...], msgspec.Meta(max_length=len(DEVICE_CLASSES))]


@dataclass(frozen=True)
class Machine:
    """What a calibration holds for: after a change of torch or of the machine it is out of date."""

    torch: str
    system: str

    @classmethod
    def here(cls) -> Machine:
        """Return this one, without importing torch."""
        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = "none"
        return cls(torch[:120], f"{platform.system()} {platform.machine()} {platform.processor()}".strip()[:120])


def is_within(measured: MeasuredClass) -> bool:
    """Say whether the largest distances of a class pass an audit under the rules of today."""
    if measured.device_class not in DEVICE_CLASSES:
        return False
    return verdict(measured.device_class, measured.excess_ppb, measured.sketch_ppb) == "pass"


def usable_classes(found: Calibration | None, machine: Machine) -> tuple[str, ...]:
    """Return the device classes that a node works in, declares and audits, in the order of the rules."""
    measured: dict[str, MeasuredClass] = {}
    if found is not None and is_current(found, machine):
        measured = {each.device_class: each for each in found.classes}
    return tuple(
        name
        for name in DEVICE_CLASSES
        if (is_within(measured[name]) if name in measured else name in EVERYBODYS_CLASSES)
    )


def is_current(found: Calibration, machine: Machine) -> bool:
    """Say whether a calibration was made with this torch on this kind of machine."""
    return (found.torch, found.system) == (machine.torch, machine.system)


def classes_to_declare(found: Calibration | None, machine: Machine) -> tuple[str, ...] | None:
    """Return what to declare on the ledger, sorted; None where the rules assume just that without a declaration."""
    usable = usable_classes(found, machine)
    return None if set(usable) == set(EVERYBODYS_CLASSES) else tuple(sorted(usable))


def measured_class(device_class: str, cases: tuple[Case, ...], reference_ppb: int | None) -> MeasuredClass:
    """Return the record of a class, with today's thresholds."""
    limits = thresholds(device_class)
    return MeasuredClass(
        device_class=device_class,
        cases=cases,
        reference_ppb=reference_ppb,
        excess_accept=limits.excess_accept,
        sketch_accept=limits.sketch_accept,
    )


def read_calibration(path: Path) -> Calibration | None:
    """Return the calibration in a file; None if there is none, or one that this version cannot read.

    Raises StorageError when the disk refuses.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check its owner") from None
    try:
        return decode(data, Calibration, max_bytes=MAX_FILE_BYTES)
    except PeerError:
        return None  # of another version, or damaged: as good as none, and the next calibration replaces it


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Replace the file.  Raises StorageError."""
    write_atomic(path, encode(calibration))
