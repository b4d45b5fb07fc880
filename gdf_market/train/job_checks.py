"""Checks of what an owner gives to ``Job``: each refusal names the value and what it has to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gdf_market.errors import UsageError, ensure

_KEYS = {"params", "lr", "weight_decay", "muon"}
_MAX_SCALE = 1_000


def check(good: bool, name: str, value: object, expected: str) -> None:
    """Raise UsageError unless ``good``."""
    shown = repr(value if isinstance(value, int | float | str) else str(value))[:62]
    ensure(good, UsageError(f"{name}={shown} is not usable; it has to be {expected}"))


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise UsageError unless ``value`` is an integer within [low, high]."""
    good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    check(good, name, value, f"a whole number from {low} to {high}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raise UsageError unless ``value`` is a finite number within [low, high]."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    check(good and low <= float(value) <= high, name, value, f"a number from {low} to {high}")  # type: ignore[arg-type]


def group_scales(groups: Sequence[dict[str, Any]], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups with ``lr_scale`` and ``weight_decay_scale`` relative to the job's values.

    Each group has ``params`` (a list of parameters, or of their names), and may have ``lr``, ``weight_decay`` and
    ``muon``.  Raises UsageError for anything else, and for a weight decay where the job's own is 0.
    """
    return [_group(number, group, lr, weight_decay) for number, group in enumerate(groups)]


def _group(number: int, group: dict[str, Any], lr: float, weight_decay: float) -> dict[str, Any]:
    name = f"param_groups[{number}]"
    known = isinstance(group, dict) and "params" in group and set(group) <= _KEYS
    check(known, name, group, f"a dict with params, and none but {', '.join(sorted(_KEYS))}")
    params = group["params"]
    params = [params] if isinstance(params, torch.Tensor | str) else list(params)
    named = all(isinstance(parameter, torch.Tensor | str) for parameter in params)
    check(named, f"{name}['params']", params, "parameters of the model, or their names")
    made: dict[str, Any] = {"params": params, "lr_scale": 1.0, "weight_decay_scale": 1.0}
    if "lr" in group:
        check_number(f"{name}['lr']", group["lr"], 0, _MAX_SCALE * lr)
        made["lr_scale"] = group["lr"] / lr
    if "weight_decay" in group:
        check_number(f"{name}['weight_decay']", group["weight_decay"], 0, 1)
        ensure(
            group["weight_decay"] == 0 or weight_decay > 0,
            UsageError(f"{name} has a weight decay and the job has none; give the job's own: weight_decay=..."),
        )
        made["weight_decay_scale"] = group["weight_decay"] / weight_decay if weight_decay else 0.0
    if "muon" in group:
        made["muon"] = bool(group["muon"])
    return made
