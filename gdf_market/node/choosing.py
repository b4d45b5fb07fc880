"""Which jobs a worker would rather do, and how much of its time is still free: pure arithmetic, no state of a node.

Rules kept here:
1. A worker promises no second twice: one round of every job that it bid for, one after another, fits into the usable
   share of the shortest of their work phases.  So it is in time even if all rounds begin at once.
2. Pay per second of this machine comes first.  Where pay is about the same, jobs that lack workers do, then the oldest:
   nobody waits for ever behind equals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from contracts.draws import get_held_workers
from contracts.records import Job
from gdf_market.train.sizing import WORK_SHARE, units_that_fit
from gdf_market.units import PPM, SECOND_MS

SAME_PAY = 1.1  # pay within about a tenth counts as the same


@dataclass(frozen=True)
class Promise:
    """What a live bid may ask of this machine in a round: seconds of work, and the phase in which they must fit."""

    seconds: float
    work_s: float


def get_price(job: Job) -> int:
    """Return what a unit of the job pays at most, in micro-credits: its price once it has one, else the reserve."""
    return job.clearing_price if get_held_workers(job) else job.spec.reserve_price


def compute_rate(job: Job, step_s: float) -> float:
    """Return micro-credits per second of this machine, with an equal share of merit."""
    pay = get_price(job) * (PPM + job.spec.merit_ppm) / PPM
    return pay / max(step_s * job.spec.recipe.steps, 1e-6)


def compute_rank(job: Job, step_s: float) -> tuple[int, bool, int, str]:
    """Return what jobs are sorted by, the best first."""
    level = math.floor(math.log(max(compute_rate(job, step_s), 1e-9), SAME_PAY))
    lacking = len(get_held_workers(job)) < job.spec.min_workers
    return (-level, not lacking, job.posted_ms, job.id)


def count_units(job: Job, step_s: float, promises: Iterable[Promise]) -> int:
    """Return how many units of a job fit in a round beside what was promised elsewhere."""
    others = list(promises)
    work_s = min([job.spec.work_ms / SECOND_MS, *(other.work_s for other in others)])
    return units_that_fit(step_s * job.spec.recipe.steps, work_s, sum(other.seconds for other in others))


def promise_of(job: Job, units: int, step_s: float | None) -> Promise:
    """Return what a bid of so many units promises; a job that was not measured here may take all the time there is."""
    work_s = job.spec.work_ms / SECOND_MS
    seconds = WORK_SHARE * work_s if step_s is None else units * job.spec.recipe.steps * step_s
    return Promise(seconds, work_s)
