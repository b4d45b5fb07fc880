"""``gdf-market doctor``: is this machine fit, and what to do where it is not."""

from __future__ import annotations

import sys
from dataclasses import asdict

import rich_click as click

from contracts.parameters import DEVICE_CLASSES, thresholds
from gdf_market.commands.checks import CHECKS, Check
from gdf_market.commands.common import App, pass_app, table
from gdf_market.commands.reach_checks import reach_checks
from gdf_market.commands.session import run_async
from gdf_market.node.calibration import (
    Calibration,
    Machine,
    MeasuredClass,
    is_current,
    is_within,
    read_calibration,
    usable_classes,
    write_calibration,
)
from gdf_market.units import PPB


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure how far this machine's reruns of a unit are apart (a minute).")
@pass_app
def doctor(app: App, calibrate: bool) -> None:
    """Check this machine and folder, line by line: what is, what is needed, how to mend it.

    With --calibrate a small unit is trained and audited on other threads, parts of a batch and instruction sets, by the
    same processes that work for a node. The result decides which device classes this machine audits.

    Example: gdf-market doctor --calibrate
    """
    checks = [check(app) for check in CHECKS] + reach_checks(app)
    if calibrate:
        _calibrate(app)
    found, machine = read_calibration(app.data.calibration), Machine.here()
    checks += calibration_checks(found, machine)
    value = {
        "checks": [asdict(check) for check in checks],
        "calibration": _shown(found, machine),
        "classes": list(usable_classes(found, machine)),
    }
    app.emit(value, lambda: _text(checks))
    if not all(check.ok for check in checks):
        sys.exit(1)


def _text(checks: list[Check]) -> object:
    shown = table("doctor", "check", "", "actual", "needed", "fix")
    for check in checks:
        shown.add_row(check.name, "ok" if check.ok else "problem", check.actual, check.needed, check.fix)
    return shown


def _calibrate(app: App) -> None:
    from gdf_market.node.calibrating import calibrate, default_threads  # brings torch, for the built-in unit

    app.data.create()
    threads = default_threads(app.settings().threads)
    with app.progress("measuring this machine") as say:

        async def measure() -> Calibration:
            return await calibrate(classes_here(), threads=threads, say=say)

        write_calibration(app.data.calibration, run_async(measure))


def classes_here() -> tuple[str, ...]:
    """Return the device classes that this machine has a device for, in the order of the rules."""
    import torch

    gpu = torch.cuda.is_available()
    return tuple(name for name in DEVICE_CLASSES if name.startswith("cpu") or (gpu and name.startswith("cuda")))


def calibration_checks(found: Calibration | None, machine: Machine) -> list[Check]:
    """Return a line for each measured class, or one that says that there is none."""
    again = "run `gdf-market doctor --calibrate`"
    if found is None or not is_current(found, machine):
        actual = "never measured" if found is None else f"measured with torch {found.torch} on {found.system}"
        classes = ", ".join(usable_classes(found, machine))
        needed = f"nothing for the classes that every machine can run ({classes})"
        return [Check("calibration", True, actual, needed, f"{again} to audit others")]
    return [_class_check(each) for each in found.classes]


def _class_check(measured: MeasuredClass) -> Check:
    ok = is_within(measured)
    return Check(
        f"class {measured.device_class}",
        ok,
        f"reruns differ by {_e(measured.excess_ppb)} (update) and {_e(measured.sketch_ppb)} (steps)",
        f"at most {_e(measured.excess_accept)} and {_e(measured.sketch_accept)}{_evidence(measured.device_class)}",
        "" if ok else "this machine neither works nor audits in this class; update torch and its libraries, then again",
    )


def _evidence(device_class: str) -> str:
    """Say where nobody has measured whether the thresholds of a class hold between machines."""
    known = device_class not in DEVICE_CLASSES or thresholds(device_class).evidence
    return "" if known else " (taken over from cpu-fp32; not measured between machines)"


def _e(ppb: int) -> str:
    return f"{ppb / PPB:.1e}"


def _shown(found: Calibration | None, machine: Machine) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "torch": found.torch,
        "system": found.system,
        "device": found.device,
        "measured_ms": found.measured_ms,
        "current": is_current(found, machine),
        "classes": [
            {
                "device_class": each.device_class,
                "within": is_within(each),
                "excess_ppb": each.excess_ppb,
                "sketch_ppb": each.sketch_ppb,
                "reference_ppb": each.reference_ppb,
                "excess_accept": each.excess_accept,
                "sketch_accept": each.sketch_accept,
                "cases": [
                    {"way": c.way, "inner": c.inner, "excess_ppb": c.excess_ppb, "sketch_ppb": c.sketch_ppb}
                    for c in each.cases
                ],
            }
            for each in found.classes
        ],
    }
