"""Notes of units and audits: they survive, damaged ones count as lost, and ended jobs leave none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gdf_market.codec import encode
from gdf_market.errors import LocalError, StorageError
from gdf_market.node import journal as module
from gdf_market.node.journal import AuditNote, Journal, UnitNote

JOB, OTHER = "ab" * 32, "cd" * 32
UNIT = UnitNote(
    job=JOB,
    round=3,
    slot=1,
    update="11" * 32,
    proof="22" * 80,
    salt="33" * 32,
    sketch_root="44" * 32,
    sketches=((1, -2), (3, 4)),
)
AUDIT = AuditNote(
    job=JOB,
    round=3,
    slot=1,
    excess_ppb=5,
    distance_ppb=6,
    salt="55" * 32,
    sketch_root="66" * 32,
    sketches=((7, 8),),
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_notes_come_back_in_another_process_of_the_node(journal: Journal, tmp_path: Path) -> None:
    journal.save(UNIT)
    journal.save(AUDIT)
    again = Journal(tmp_path)
    assert again.unit(JOB, 3, 1) == UNIT
    assert again.audit(JOB, 3, 1) == AUDIT
    assert again.unit(JOB, 3, 2) is None
    assert again.unit(JOB, 4, 1) is None
    assert again.audit(OTHER, 3, 1) is None


def test_a_job_whose_id_begins_alike_has_other_notes(journal: Journal) -> None:
    journal.save(UNIT)
    assert journal.unit(JOB[:32] + "0" * 32, 3, 1) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", encode(AUDIT), encode(UNIT)[:-1], encode(UNIT) + b" "])
def test_a_damaged_note_counts_as_lost_and_can_be_written_again(
    journal: Journal, tmp_path: Path, damage: bytes
) -> None:
    journal.save(UNIT)
    only_file(tmp_path).write_bytes(damage)
    assert journal.unit(JOB, 3, 1) is None
    journal.save(UNIT)
    assert journal.unit(JOB, 3, 1) == UNIT


def test_an_oversized_note_is_not_read(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.save(UNIT)
    size = only_file(tmp_path).stat().st_size
    monkeypatch.setattr(module, "MAX_NOTE_BYTES", size)
    assert journal.unit(JOB, 3, 1) == UNIT
    monkeypatch.setattr(module, "MAX_NOTE_BYTES", size - 1)
    assert journal.unit(JOB, 3, 1) is None


def test_a_note_that_could_not_be_read_again_is_refused_before_anything_is_committed(
    journal: Journal, tmp_path: Path
) -> None:
    with pytest.raises(LocalError, match="slot 1"):
        journal.save(msgspec.structs.replace(UNIT, sketches=((2**53,),)))
    assert list(tmp_path.iterdir()) == []


def test_the_largest_unit_fits(journal: Journal) -> None:
    sketch = (-(2**53 - 1),) * 32
    note = msgspec.structs.replace(UNIT, sketches=(sketch,) * 1_000)
    journal.save(note)
    assert journal.unit(JOB, 3, 1) == note


def test_ended_jobs_leave_no_notes(journal: Journal, tmp_path: Path) -> None:
    other = msgspec.structs.replace(UNIT, job=OTHER)
    for note in (UNIT, AUDIT, other):
        journal.save(note)
    (tmp_path / "README.txt").write_text("a person's", encoding="utf-8")
    journal.forget([])
    assert journal.unit(JOB, 3, 1) == UNIT
    journal.forget([JOB, "ef" * 32])
    assert journal.unit(JOB, 3, 1) is None
    assert journal.audit(JOB, 3, 1) is None
    assert journal.unit(OTHER, 3, 1) == other
    assert (tmp_path / "README.txt").exists()


def test_a_disk_that_does_not_read_is_no_lost_note(journal: Journal, tmp_path: Path) -> None:
    journal.save(UNIT)
    path = only_file(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        journal.unit(JOB, 3, 1)
    with pytest.raises(StorageError, match="cannot write"):
        journal.save(UNIT)
