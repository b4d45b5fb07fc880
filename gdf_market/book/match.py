"""Which open orders fit a worker, and the reason for each that does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdf_market.book.core import Order
from gdf_market.messages import JobPost
from gdf_market.units import SECOND_MS, format_credits


@dataclass(frozen=True)
class Capabilities:
    """What a worker can do and asks for; None means no limit."""

    account: str
    device_classes: tuple[str, ...]
    min_price: int = 0  # micro-credits per unit
    max_parameters: int | None = None  # trained values that fit its memory
    max_unit_bond: int | None = None  # micro-credits it can lock for one unit
    min_audit_ms: int = 0  # which it needs to open its sketches; who is late loses pay and a bond


@dataclass(frozen=True)
class Match:
    """An order and why this worker would not take it; no reasons: it fits."""

    order: Order
    reasons: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Say whether the worker would take the order."""
        return not self.reasons


def match(orders: Iterable[Order], worker: Capabilities) -> list[Match]:
    """Return every order with the reasons against it, in the given order."""
    return [Match(order, tuple(unfit(order.spec, worker))) for order in orders]


def unfit(spec: JobPost, worker: Capabilities) -> list[str]:
    """Return why ``worker`` would not take a job; empty if it fits."""
    reasons = []
    if spec.author == worker.account:
        reasons.append("posted by this account")
    if spec.device_class not in worker.device_classes:
        have = ", ".join(worker.device_classes) or "none"
        reasons.append(f"wants device class {spec.device_class}; this worker has {have}")
    if spec.reserve_price < worker.min_price:
        offered, asked = format_credits(spec.reserve_price), format_credits(worker.min_price)
        reasons.append(f"pays at most {offered} credits per unit; this worker asks {asked}")
    if worker.max_parameters is not None and spec.parameters > worker.max_parameters:
        reasons.append(f"trains {spec.parameters} parameters; {worker.max_parameters} fit this worker")
    if worker.max_unit_bond is not None and spec.unit_bond > worker.max_unit_bond:
        bond, most = format_credits(spec.unit_bond), format_credits(worker.max_unit_bond)
        reasons.append(f"locks a bond of {bond} credits per unit; this worker can lock {most}")
    if spec.audit_ms < worker.min_audit_ms:
        given, needed = spec.audit_ms / SECOND_MS, worker.min_audit_ms / SECOND_MS
        reasons.append(f"gives {given:g} s to answer an audit, on pain of pay and bond; this worker needs {needed:g} s")
    return reasons
