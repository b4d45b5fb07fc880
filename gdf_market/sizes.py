"""Bytes and bytes a second as people write them: ``500k``, ``1.5MB/s``, ``20GiB``, ``8Mbit/s``."""

from __future__ import annotations

import re
from decimal import Decimal

from gdf_market.errors import UsageError
from gdf_market.units import MAX_INT

_FORM = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?(?:([kmgt])(i?))?(b|bit)?(/s|ps)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as ``500k`` (thousands) or ``20GiB`` (1,024s).  Raises UsageError."""
    return _parse(text, "a number of bytes; write for example 500k, 2M or 20GiB", rate=False)


def parse_rate(text: str) -> int:
    """Return the bytes a second of a text such as ``500k``, ``1.5MB/s`` or ``8Mbit/s``; 0 is no limit.

    Raises UsageError.
    """
    return _parse(text, "a number of bytes a second; write for example 500k, 1.5MB/s or 8Mbit/s", rate=True)


def _parse(text: str, what: str, *, rate: bool) -> int:
    found = _FORM.fullmatch(text.strip())
    if found is None or (not rate and (found[5] or (found[4] or "").lower() == "bit")):
        raise UsageError(f"{text!r} is not {what}")
    number, prefix, binary, unit, _ = found.groups()
    amount = Decimal(number) * (1024 if binary else 1000) ** _POWERS[(prefix or "").lower()]
    if (unit or "").lower() == "bit":
        amount /= 8
    if amount > MAX_INT:
        raise UsageError(f"{text!r} is more than {MAX_INT} bytes")
    return int(amount)


def format_bytes(count: int) -> str:
    """Return bytes for people, in thousands: ``2500000`` -> ``"2.5 MB"``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
