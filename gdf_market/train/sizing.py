"""How large a unit should be and how many a round should have: pure rules for owners and bidders.

A round lasts as long as its slowest worker.  With one unit for each worker the fast ones wait for the slow ones; with
several smaller ones each worker takes as many as it does in the same time, and what is lost is about half a unit a
worker: 6% with eight units for a machine of average speed.  ``benchmarks/train_split.py`` shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gdf_market.messages import MAX_STEPS, MAX_UNITS_PER_ROUND

WORK_SHARE = 0.8  # units must fit in this share of the work phase
UNITS_PER_WORKER = 8  # of average speed, where a round may have so many
HEADROOM = 1.25  # slots beyond those expected: a vacant one costs nothing, a worker without one is lost
LEAST_STEPS = 20  # fewer make rounds of communication with little work between
BF16_STEPS = 100  # beyond it honest reruns in bfloat16 drift apart (docs/adr/0004)
_LEAST_S = 1e-3


@dataclass(frozen=True)
class Sizing:
    """Inner steps of a unit, units of a round, seconds of a unit here, and of the work phase."""

    steps: int
    units_per_round: int
    unit_s: float
    work_s: float


def suggest(
    step_s: float, workers: int, round_s: float, *, relative_speed: float = 1.0, precision: str = "fp32"
) -> Sizing:
    """Return the sizes for ``workers`` machines and rounds of ``round_s``, where a step takes ``step_s`` here.

    ``relative_speed``: how fast those machines are on average beside this one.  Units are as small as the number of
    units that a round may have allows, down to UNITS_PER_WORKER for a machine of average speed, and never of fewer
    than LEAST_STEPS steps: where steps take long there are fewer of them, or the round takes longer.
    """
    step_s, workers = max(step_s, _LEAST_S), max(1, workers)
    # half a unit a worker stays free, because a worker takes whole units
    most = min(UNITS_PER_WORKER, MAX_UNITS_PER_ROUND / (HEADROOM * workers) + 0.5) / relative_speed
    per_machine = max(1.0, min(most, round_s / (LEAST_STEPS * step_s)))
    highest = BF16_STEPS if precision == "bf16" else MAX_STEPS
    steps = max(LEAST_STEPS, min(highest, round(round_s / (per_machine * step_s))))
    unit_s = steps * step_s
    units = min(MAX_UNITS_PER_ROUND, math.ceil(HEADROOM * per_machine * relative_speed * workers))
    return Sizing(steps, units, unit_s, max(round_s, unit_s) / WORK_SHARE)


def units_that_fit(unit_s: float, work_s: float, promised_s: float = 0.0) -> int:
    """Return how many units of ``unit_s`` fit into a work phase beside ``promised_s`` of other work."""
    free_s = WORK_SHARE * work_s - promised_s
    # a hair more, so that a phase made for n units holds n of them
    return max(0, int(free_s / max(unit_s, _LEAST_S) + 1e-9))
