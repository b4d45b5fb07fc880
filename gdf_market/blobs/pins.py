"""Which blobs a node must keep, and for how long: a small file beside them, read by every process that makes room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from gdf_market.blobs.disk import storing
from gdf_market.codec import Hash, Record, UInt, decode, encode
from gdf_market.errors import PeerError

MAX_PINS = 65_536
MAX_JOBS = 4_096
MAX_PIN_FILE_BYTES = 128 * (MAX_PINS + MAX_JOBS)


class Pin(Record, frozen=True, kw_only=True):
    """``ended_ms`` is when the last job that needs the blob ended; 0 while one is under way."""

    root: Hash
    ended_ms: UInt = 0


class PinFile(Record, frozen=True, kw_only=True):
    """``jobs``: those that this node takes part in, or keeps a copy for."""

    pins: Annotated[tuple[Pin, ...], msgspec.Meta(max_length=MAX_PINS)]
    jobs: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MAX_JOBS)] = ()


@dataclass(frozen=True)
class Pins:
    """``active`` roots are never deleted; ``ended`` ones (root -> when the job ended) when nothing else is left."""

    active: frozenset[str] = frozenset()
    ended: Mapping[str, int] = field(default_factory=dict)
    jobs: frozenset[str] = frozenset()

    def to_bytes(self) -> bytes:
        """Return the file's content; of more than MAX_PINS those of jobs that ended first are left out."""
        pins = [Pin(root=root) for root in sorted(self.active)]
        late = sorted(self.ended.items(), key=lambda pair: (-pair[1], pair[0]))
        pins += [Pin(root=root, ended_ms=ended) for root, ended in late if root not in self.active]
        return encode(PinFile(pins=tuple(pins[:MAX_PINS]), jobs=tuple(sorted(self.jobs)[:MAX_JOBS])))


def load_pins(path: Path) -> Pins | None:
    """Return the pins in a file; None if it does not exist or is damaged (then nothing may be deleted).

    Raises StorageError.
    """
    with storing(path):
        try:
            with path.open("rb") as file:
                found = decode(file.read(MAX_PIN_FILE_BYTES + 1), PinFile, max_bytes=MAX_PIN_FILE_BYTES)
        except (FileNotFoundError, PeerError):
            return None
    active = _roots(pin for pin in found.pins if not pin.ended_ms)
    return Pins(active, {pin.root: pin.ended_ms for pin in found.pins if pin.ended_ms}, frozenset(found.jobs))


def _roots(pins: Iterable[Pin]) -> frozenset[str]:
    return frozenset(pin.root for pin in pins)
