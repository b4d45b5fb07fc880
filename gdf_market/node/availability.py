"""When a machine is lent: hours, battery, temperature and memory left to its owner.  Pure, but for ``read_sensors``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psutil

from gdf_market.errors import UsageError
from gdf_market.node import machine

COOLED_BY_C = 8  # a machine that was too hot works again when it is cooler by this much: else it stops every minute
DAY_MINUTES = 24 * 60
_SPAN = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)")


@dataclass(frozen=True)
class Span:
    """Minutes of the day from ``start`` (included) to ``end`` (not included); over midnight if end <= start."""

    start: int
    end: int

    def holds(self, minute: int) -> bool:
        """Say whether a minute of the day, from 0 to 1439, lies inside."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return f"{self.start // 60:02}:{self.start % 60:02}-{self.end // 60:02}:{self.end % 60:02}"


@dataclass(frozen=True)
class Limits:
    """What the owner of a machine allows; 0 and nothing mean: no limit."""

    hours: tuple[Span, ...] = ()
    on_battery: bool = False
    max_temperature_c: int = 0
    leave_free_bytes: int = 0


@dataclass(frozen=True)
class Sensors:
    """What the machine says now; None where it cannot tell.  Temperature and memory are those of the worst GPU."""

    minute: int
    battery: bool | None = None
    temperature_c: int | None = None
    free_bytes: int | None = None


def parse_hours(text: str) -> tuple[Span, ...]:
    """Return the spans of ``22:00-07:00,12:30-13:30`` (local time); nothing for an empty text.  Raises UsageError."""
    spans = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _SPAN.fullmatch(part)
        if found is None:
            raise UsageError(f"work hours {part!r} are not HH:MM-HH:MM; write for example 22:00-07:00")
        first, last = (60 * int(found[i]) + int(found[i + 1]) for i in (1, 3))
        if first > DAY_MINUTES or last > DAY_MINUTES or first % DAY_MINUTES == last % DAY_MINUTES:
            raise UsageError(f"work hours {part!r} are empty or past 24:00; leave them out to work at any time")
        spans.append(Span(first % DAY_MINUTES, last))
    return tuple(spans)


def why_not(limits: Limits, sensors: Sensors, *, hot: bool) -> str:
    """Return why this machine should not work now, or "".

    ``hot``: it was too hot when it was asked last, so it must first cool down by ``COOLED_BY_C``.
    """
    if limits.hours and not any(span.holds(sensors.minute) for span in limits.hours):
        return f"outside the work hours {', '.join(map(str, limits.hours))}"
    if sensors.battery and not limits.on_battery:
        return "on battery"
    too_hot = why_hot(limits, sensors, hot=hot)
    if too_hot:
        return too_hot
    if limits.leave_free_bytes and sensors.free_bytes is not None and sensors.free_bytes < limits.leave_free_bytes:
        gib = 2**30
        return (
            f"{sensors.free_bytes / gib:.1f} GiB of the GPU are free, {limits.leave_free_bytes / gib:.1f} are to stay"
        )
    return ""


def why_hot(limits: Limits, sensors: Sensors, *, hot: bool) -> str:
    """Return the sentence about a GPU that is too hot, or ""."""
    if not limits.max_temperature_c or sensors.temperature_c is None:
        return ""
    most = limits.max_temperature_c - (COOLED_BY_C if hot else 0)
    if sensors.temperature_c <= most:
        return ""
    return f"the GPU has {sensors.temperature_c} °C; it works again at {limits.max_temperature_c - COOLED_BY_C} °C"


def read_sensors(devices: Sequence[str]) -> Sensors:
    """Ask the system and NVML; takes some milliseconds, so call it in a thread."""
    now = datetime.now().astimezone()
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    gpus = machine.gpus() if any(device.startswith("cuda") for device in devices) else []
    return Sensors(
        minute=60 * now.hour + now.minute,
        battery=None if battery is None else not battery.power_plugged,
        temperature_c=max((gpu.temperature_c for gpu in gpus), default=None),
        free_bytes=min((gpu.free_bytes for gpu in gpus), default=None),
    )
