"""What a node must still know after a crash about units it trained, audits it ran and steps it replayed.

A note is written before the entry that commits to it is submitted: a worker
that loses power after its commit can still reveal and open its sketches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from gdf_market.codec import Hash, Int, Record, UInt, VrfProof, decode, encode
from gdf_market.errors import LocalError, PeerError, StorageError
from gdf_market.node.datadir import write_atomic
from gdf_market.train.protocol import UnitParts

MAX_NOTE_BYTES = 8 << 20  # 1,000 steps x 32 integers of at most 17 characters, with room


class UnitNote(Record, frozen=True, kw_only=True):
    """Secret half of a commit; ``sketches`` has one tuple of integers per inner step."""

    job: Hash
    round: UInt
    slot: UInt
    update: Hash
    proof: VrfProof
    salt: Hash
    sketch_root: Hash
    sketches: tuple[tuple[Int, ...], ...]
    parts: UnitParts = UnitParts()  # in which the batches were computed


class AuditNote(Record, frozen=True, kw_only=True):
    """Secret half of an audit commit."""

    job: Hash
    round: UInt
    slot: UInt
    excess_ppb: UInt
    distance_ppb: UInt
    salt: Hash
    sketch_root: Hash
    sketches: tuple[tuple[Int, ...], ...]
    parts: UnitParts = UnitParts()


class ArbiterNote(Record, frozen=True, kw_only=True):
    """Secret half of an arbiter's commit; ``seed`` is that of the bisection it is about."""

    job: Hash
    round: UInt
    slot: UInt
    seed: Hash
    state_distance_ppb: UInt
    excess_ppb: UInt
    sketch: tuple[Int, ...]
    seeded: tuple[Int, ...]
    salt: Hash


Note = UnitNote | AuditNote | ArbiterNote
NoteT = TypeVar("NoteT", UnitNote, AuditNote, ArbiterNote)
KINDS: dict[type[Note], str] = {UnitNote: "unit", AuditNote: "audit", ArbiterNote: "arbiter"}


class Journal:
    """Notes of one identity in one folder, one file per unit, audit or replay."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, kind: str, job: str, round_index: int, slot: int) -> Path:
        return self._folder / f"{kind}-{job[:32]}-{round_index}-{slot}.json"

    def save(self, note: Note) -> None:
        """Write a note durably.  Raises StorageError, or LocalError for one that could not be read again."""
        kind = KINDS[type(note)]
        data = encode(note)
        try:
            decode(data, type(note), max_bytes=MAX_NOTE_BYTES)
        except PeerError as error:  # better no commit than one that cannot be opened
            raise LocalError(f"the {kind} of slot {note.slot} cannot be noted: {error}") from None
        write_atomic(self._path(kind, note.job, note.round, note.slot), data, private=True)

    def unit(self, job: str, round_index: int, slot: int) -> UnitNote | None:
        """Return the note of an own unit, or None."""
        return self._load(self._path("unit", job, round_index, slot), UnitNote, job)

    def audit(self, job: str, round_index: int, slot: int) -> AuditNote | None:
        """Return the note of an own audit, or None."""
        return self._load(self._path("audit", job, round_index, slot), AuditNote, job)

    def arbiter(self, job: str, round_index: int, slot: int) -> ArbiterNote | None:
        """Return the note of the last own replay for a unit, or None."""
        return self._load(self._path("arbiter", job, round_index, slot), ArbiterNote, job)

    def _load(self, path: Path, kind: type[NoteT], job: str) -> NoteT | None:
        """Return the note in a file; None if there is none or it is damaged.  Raises StorageError."""
        try:
            with path.open("rb") as file:
                note = decode(file.read(MAX_NOTE_BYTES + 1), kind, max_bytes=MAX_NOTE_BYTES)
        except (FileNotFoundError, PeerError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}; check the disk and the file's owner") from None
        return note if note.job == job else None

    def forget(self, jobs: Collection[str]) -> None:
        """Delete the notes of jobs that ended."""
        ended = {job[:32] for job in jobs}
        for path in list(self._folder.glob("*-*-*-*.json")):
            if path.name.split("-")[1] in ended:
                with contextlib.suppress(OSError):
                    path.unlink()
