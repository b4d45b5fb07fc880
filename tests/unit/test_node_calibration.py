"""Which device classes follow from what a machine measured of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contracts.parameters import DEVICE_CLASSES, EVERYBODYS_CLASSES, thresholds
from gdf_market.codec import encode
from gdf_market.errors import StorageError, UsageError
from gdf_market.node.calibrating import calibrate, default_threads, ways
from gdf_market.node.calibration import (
    MAX_CASES,
    MAX_FILE_BYTES,
    Calibration,
    Case,
    Machine,
    MeasuredClass,
    classes_to_declare,
    is_within,
    measured_class,
    read_calibration,
    usable_classes,
    write_calibration,
)
from gdf_market.train import yardstick
from gdf_market.train.program import Program
from gdf_market.train.unit import run_unit
from verifier.sketch import sketch

HERE = Machine("2.13.0", "Linux x86_64")


def measured(name: str, excess_ppb: int = 10, sketch_ppb: int = 10, reference_ppb: int | None = None) -> MeasuredClass:
    quiet = Case(way="again", inner="adamw", excess_ppb=0, sketch_ppb=0)
    loud = Case(way="two threads", inner="muon", excess_ppb=excess_ppb, sketch_ppb=sketch_ppb)
    return measured_class(name, (quiet, loud), reference_ppb)


def calibration(*classes: MeasuredClass, torch: str = HERE.torch) -> Calibration:
    return Calibration(torch=torch, system=HERE.system, device="cpu", measured_ms=1, classes=classes)


@pytest.mark.parametrize("name", DEVICE_CLASSES)
def test_a_class_is_within_up_to_what_passes_an_audit(name: str) -> None:
    limits = thresholds(name)
    assert is_within(measured(name, limits.excess_accept, limits.sketch_accept))
    assert not is_within(measured(name, limits.excess_accept + 1, 0))
    assert not is_within(measured(name, 0, limits.sketch_accept + 1))
    assert not is_within(measured(name, 0, 0, limits.sketch_accept + 1)), "agrees with itself and with nobody else"


def test_classes_that_every_machine_has_name_their_evidence() -> None:
    root = Path(__file__).parents[2]
    for name in DEVICE_CLASSES:
        evidence = thresholds(name).evidence
        assert (root / evidence).is_file() if evidence else name not in EVERYBODYS_CLASSES


def test_a_class_that_the_rules_do_not_know_is_not_within() -> None:
    assert not is_within(msgspec.structs.replace(measured("cpu-fp32"), device_class="cpu-int4"))


def test_without_a_calibration_a_node_has_what_every_machine_has() -> None:
    assert set(usable_classes(None, HERE)) == set(EVERYBODYS_CLASSES)
    assert classes_to_declare(None, HERE) is None


def test_a_calibrated_gpu_is_declared() -> None:
    found = calibration(measured("cpu-fp32"), measured("cuda-fp32"))
    assert set(usable_classes(found, HERE)) == {*EVERYBODYS_CLASSES, "cuda-fp32"}
    assert classes_to_declare(found, HERE) == tuple(sorted({*EVERYBODYS_CLASSES, "cuda-fp32"}))


def test_a_machine_that_disagrees_with_itself_declares_less() -> None:
    found = calibration(measured("cpu-fp32", excess_ppb=10**7), measured("cuda-fp32", sketch_ppb=10**9))
    assert usable_classes(found, HERE) == ("cpu-bf16",)
    assert classes_to_declare(found, HERE) == ("cpu-bf16",)
    everything = calibration(*(measured(name, excess_ppb=10**9) for name in DEVICE_CLASSES))
    assert classes_to_declare(everything, HERE) == ()


def test_another_torch_or_machine_makes_a_calibration_void() -> None:
    found = calibration(measured("cpu-fp32", excess_ppb=10**7), measured("cuda-fp32"))
    for other in (Machine("2.14.0", HERE.system), Machine(HERE.torch, "Linux aarch64")):
        assert set(usable_classes(found, other)) == set(EVERYBODYS_CLASSES)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    assert read_calibration(path) is None
    found = calibration(measured("cpu-fp32", reference_ppb=12))
    write_calibration(path, found)
    assert read_calibration(path) == found
    with pytest.raises(StorageError):
        read_calibration(tmp_path)


def test_files_of_other_versions_count_as_none(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    good: dict[str, Any] = json.loads(encode(calibration(measured("cpu-fp32"))))
    many = good["classes"][0] | {"cases": good["classes"][0]["cases"][:1] * (MAX_CASES + 1)}
    for bad in (good | {"version": 2}, good | {"more": 1}, good | {"classes": [many]}, good | {"torch": "x" * 121}):
        path.write_text(json.dumps(bad, sort_keys=True, separators=(",", ":")), encoding="utf-8")
        assert read_calibration(path) is None
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    assert read_calibration(path) is None


def test_ways_are_those_that_a_machine_has() -> None:
    assert [way.name for way in ways(4, "cpu", "aarch64")] == [
        *("again", "one row at a time", "4 rows at a time", "4 threads")
    ]
    older = [way for way in ways(1, "cpu", "x86_64") if way.environment]
    assert [way.environment["ATEN_CPU_CAPABILITY"] for way in older] == ["avx2", "default"]
    assert all(way.threads == 1 for way in ways(8, "cuda", "x86_64"))
    assert default_threads(1) == 1
    assert 1 <= default_threads(0) == default_threads(10_000)


def test_no_class_is_an_error_of_the_user() -> None:
    async def measure() -> None:
        await calibrate((), threads=1, say=str)

    with pytest.raises(UsageError, match="no device class"):
        trio.run(measure)


def test_the_built_in_unit_is_the_same_everywhere(tmp_path: Path) -> None:
    files = yardstick.write_files(tmp_path)
    made = Program.from_bytes(files["program"].read_bytes())
    assert made.graph == yardstick.program().graph
    start = yardstick.first_parameters(made.size)
    assert start[:3].tolist() == yardstick.first_parameters(3).tolist()
    assert -0.1 <= float(start.min()) < float(start.max()) < 0.1
    text = yardstick.dataset()
    assert text.vocab == len(yardstick.ALPHABET)
    from gdf_market.train.data import unit_batches

    manifest = text.manifest("0" * 64, yardstick.CONTEXT)
    for inner in yardstick.INNERS:
        recipe = yardstick.recipe(inner, "fp32")
        batches = unit_batches(
            manifest,
            text.content,
            job=yardstick.JOB,
            round_index=0,
            shard=0,
            shards=1,
            steps=recipe.steps,
            batch=recipe.batch,
        )
        run = run_unit(made, start, batches, recipe, sketch=sketch)
        assert run.loss_last < run.loss_first
        far = sum((a - b) ** 2 for a, b in zip(run.sketches[-1], yardstick.REFERENCE[inner], strict=True)) ** 0.5
        assert far < 1e-4 * sum(b**2 for b in yardstick.REFERENCE[inner]) ** 0.5


@pytest.mark.e2e
async def test_a_machine_measures_itself() -> None:
    said: list[str] = []
    found = await calibrate(("cpu-fp32",), threads=1, say=said.append)
    (only,) = found.classes
    again = [case for case in only.cases if case.way == "again"]
    assert [(case.excess_ppb, case.sketch_ppb) for case in again] == [(0, 0)] * len(yardstick.INNERS)
    assert any(case.sketch_ppb > 0 for case in only.cases), "another way that changes nothing measures nothing"
    assert only.reference_ppb is not None
    assert is_within(only)
    assert len(said) == len(only.cases) + len(yardstick.INNERS)
    assert "cpu-fp32" in usable_classes(found, Machine.here())
