"""Room on the disk: what the blobs of a folder take, and which of them go when another one does not fit.

Rules kept here:
1. What a job under way needs is never deleted; without a readable list of pins nothing is.
2. Unpinned blobs go first, the least recently used first; then pins of jobs that ended, the oldest first.
3. What was used a short while ago stays: somebody may be about to open it.
4. Nothing is deleted unless that makes enough room.
5. The name that makes a blob visible goes first, so that a kill in between leaves no half of one.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdf_market.blobs.disk import Disk, storing
from gdf_market.blobs.pins import Pins, load_pins
from gdf_market.errors import StorageError

GRACE_S = 900.0  # since the last use
SPARE_DISK_BYTES = 64 << 20  # left free for the ledger
MOST_BYTES = 20 << 30  # of the disk, unless somebody says otherwise


class QuotaError(StorageError):
    """The store would grow beyond the space it may use."""


@dataclass(frozen=True)
class Held:
    """A blob on the disk, complete or arriving; ``used_s`` is the Unix time of its last use."""

    root: str
    size: int
    used_s: float


@dataclass(frozen=True)
class Usage:
    """Bytes on the disk; ``quota`` None: no limit.  ``collectable`` is what nothing pins."""

    quota: int | None
    held: int
    active: int
    ended: int
    collectable: int
    blobs: int


def sensible_quota(held: int, free: int) -> int:
    """Return what blobs may take where nobody said: a half of what is free or theirs, at most MOST_BYTES."""
    return min(MOST_BYTES, (held + free) // 2)


def choose(held: Iterable[Held], pins: Pins | None, need: int, before_s: float) -> list[Held]:
    """Return what to delete, in order, to free at least ``need`` bytes; nothing if that is not possible.

    What was used after ``before_s`` stays.
    """
    if pins is None:
        return []
    idle = [one for one in held if one.used_s < before_s and one.root not in pins.active]
    idle.sort(key=lambda one: (pins.ended.get(one.root, 0), one.used_s, one.root))
    chosen: list[Held] = []
    for one in idle:
        if need <= 0:
            break
        chosen.append(one)
        need -= one.size
    return chosen if need <= 0 else []


class Room:
    """The space under ``path``, the folder of a BlobStore, for all processes of a node."""

    def __init__(
        self,
        path: Path,
        disk: Disk,
        quota_bytes: int | None,
        *,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._disk, self._grace_s, self._clock = path, disk, grace_s, clock
        self.quota_bytes = quota_bytes

    def pins(self) -> Pins | None:
        """Return what must be kept, None if nothing says so yet.  Raises StorageError."""
        return load_pins(self._path / "pins.json")

    def set_pins(self, pins: Pins) -> None:
        """Say what must be kept from now on, durably.  Raises StorageError."""
        target = self._path / "pins.json"
        staged = self._path / "staging" / secrets.token_hex(16)
        try:
            with storing(staged), staged.open("xb") as file:
                self._disk.write(file, pins.to_bytes())
                self._disk.sync(file)
            with storing(target):
                self._disk.replace(staged, target)
        finally:
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)

    def held(self) -> list[Held]:
        """Return everything that takes space, complete or arriving (at its full size)."""
        arriving = [path for path in self._files("partial") if path.suffix == ".data"]
        found = []
        for path in [*self._files("data"), *arriving]:
            with storing(path), contextlib.suppress(FileNotFoundError):  # published or deleted by another process
                facts = path.stat()
                found.append(Held(path.stem, facts.st_size, facts.st_mtime))
        return found

    def make(self, size: int) -> None:
        """See to it that ``size`` more bytes fit.  Raises QuotaError, or StorageError when the disk is full."""
        held = self.held()
        used = sum(one.size for one in held)
        over = 0 if self.quota_bytes is None else used + size - self.quota_bytes
        with storing(self._path):
            short = size + SPARE_DISK_BYTES - self._disk.free(self._path)
        need = max(over, short)
        if need <= 0:
            return
        chosen = choose(held, self.pins(), need, self._clock() - self._grace_s)
        if chosen:
            self._delete(chosen)
        elif over > 0:
            raise QuotaError(
                f"{self._path} holds {used} bytes and {size} more exceed its quota of {self.quota_bytes}; what is "
                "there is needed by jobs or was just used. Set a larger blob_quota, or wait until a job ends."
            )
        else:
            raise StorageError(f"The disk is full: {size} bytes for {self._path} do not fit; free some space.")

    def drop(self, roots: Collection[str]) -> int:
        """Delete those of ``roots`` that are neither pinned nor just used; return the bytes freed."""
        wanted, pins = set(roots), self.pins()
        if pins is None or not wanted:
            return 0
        return self._drop_loose([one for one in self.held() if one.root in wanted], pins, self._grace_s)

    def drop_unused(self, unused_s: float) -> int:
        """Delete what nothing pins and nobody used for so long; return the bytes freed."""
        pins = self.pins()
        return 0 if pins is None else self._drop_loose(self.held(), pins, max(unused_s, self._grace_s))

    def sweep(self, before_s: float) -> None:
        """Remove manifests without a blob, last written before Unix time ``before_s``: left by a kill."""
        for path in self._files("manifest"):
            with storing(path), contextlib.suppress(FileNotFoundError):
                if not (self._path / "data" / path.name).exists() and path.stat().st_mtime < before_s:
                    path.unlink()

    def usage(self) -> Usage:
        """Return what is on the disk, and why.  Raises StorageError."""
        held, pins = self.held(), self.pins() or Pins()
        total = sum(one.size for one in held)
        active = sum(one.size for one in held if one.root in pins.active)
        ended = sum(one.size for one in held if one.root in pins.ended and one.root not in pins.active)
        return Usage(self.quota_bytes, total, active, ended, total - active - ended, len(held))

    def remove(self, root: str) -> None:
        """Delete a blob, visible or arriving; nothing happens if there is none."""
        partial = self._path / "partial"
        visible = (self._path / "data" / root, self._path / "manifest" / root)
        for path in (*visible, *(partial / (root + suffix) for suffix in (".data", ".have", ".manifest"))):
            with storing(path):
                self._disk.remove(path)

    def _drop_loose(self, held: Sequence[Held], pins: Pins, unused_s: float) -> int:
        before_s = self._clock() - unused_s
        loose = [
            one for one in held if one.used_s < before_s and one.root not in pins.active and one.root not in pins.ended
        ]
        self._delete(loose)
        return sum(one.size for one in loose)

    def _delete(self, chosen: Iterable[Held]) -> None:
        for one in chosen:
            self.remove(one.root)

    def _files(self, folder: str) -> list[Path]:
        with storing(self._path / folder):
            return list((self._path / folder).iterdir())
