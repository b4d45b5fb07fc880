"""A node declares what it measured, when the ledger does not know it yet, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.parameters import thresholds
from gdf_market.node.calibration import Calibration, Case, Machine, MeasuredClass, write_calibration
from gdf_market.node.declaring import Declarer
from tests.contracts_world import World, make_world
from tests.node_kit import Kit, make_kit


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    world = make_world()
    world.block()
    return make_kit(tmp_path, monkeypatch, world, "val")


def measure(path: Path, device_class: str, excess_ppb: int) -> None:
    """Write a calibration of this machine with one class."""
    limits, machine = thresholds(device_class), Machine.here()
    measured = MeasuredClass(
        device_class=device_class,
        cases=(Case(way="two threads", inner="adamw", excess_ppb=excess_ppb, sketch_ppb=0),),
        reference_ppb=None,
        excess_accept=limits.excess_accept,
        sketch_accept=limits.sketch_accept,
    )
    found = Calibration(torch=machine.torch, system=machine.system, device="here", measured_ms=1, classes=(measured,))
    write_calibration(path, found)


def said(world: World, kit: Kit) -> tuple[str, ...] | None:
    auditor = world.state.auditor(kit.context.account)
    return None if auditor is None else auditor.classes


async def test_a_machine_that_measured_nothing_declares_nothing(kit: Kit, tmp_path: Path) -> None:
    await Declarer(kit.context, tmp_path / "none.json", lambda: True).declare()
    assert kit.ledger.entries == []


async def test_what_was_measured_is_declared_once(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    measure(path, "cuda-fp32", 5)
    declarer = Declarer(kit.context, path, lambda: True)
    await declarer.declare()
    assert said(kit.world, kit) == ("cpu-bf16", "cpu-fp32", "cuda-fp32")
    await declarer.declare()
    assert kit.ledger.kinds == ["AuditClasses"]


async def test_a_class_that_failed_is_taken_back_and_comes_again(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    declarer = Declarer(kit.context, path, lambda: True)
    measure(path, "cpu-fp32", 50_000_000)
    await declarer.declare()
    assert said(kit.world, kit) == ("cpu-bf16",)
    measure(path, "cpu-fp32", 5)
    await declarer.declare()
    assert said(kit.world, kit) == ("cpu-bf16", "cpu-fp32")


async def test_who_does_not_audit_pays_for_no_declaration(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    measure(path, "cuda-fp32", 5)
    await Declarer(kit.context, path, lambda: False).declare()
    assert kit.ledger.entries == []
