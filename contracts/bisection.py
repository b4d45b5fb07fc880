"""Bisection: which step worker and accuser differ on first, and what replays of that step say; pure functions.

Sketches are linear: the sketch after a step minus the one before it is the sketch of the step alone.  So a replay is
compared by its step, and the honest drift of the steps before it does not count.

Rules kept here:
1. Neither side can choose the step: both opened their sketches from roots that they committed to before.
2. The replay starts from the worker's state.  An honest worker's own sketch comes out whatever the accuser says.
3. What is not clear beyond doubt is no finding; then the committee re-executes the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from contracts.evidence import Sketch, compute_distance_ppb
from contracts.parameters import Thresholds
from contracts.records import Arbiter, Audit, Bisection, Side
from gdf_market.messages import SKETCH_DIM
from gdf_market.units import PPB

WORKER, ACCUSER, NOBODY = "worker", "accuser", ""  # findings: whose claim the replay supports

_NO_CHANGE: Sketch = (0,) * SKETCH_DIM  # of the checkpoint


@dataclass(frozen=True)
class Ruling:
    """What the arbiters found (``NOBODY``: no majority), and which of them say so."""

    finding: str
    agreeing: tuple[str, ...]


def compute_bounds(audit: Audit, steps: int, sketch_accept: int) -> Bisection:
    """Return the bisection that begins with an audit's opened steps, ascending, of a unit of ``steps`` steps.

    If they all agree, only the excess failed: then the encoding of the final state is in question.
    """
    low, low_at, opened = -1, -1, list(zip(audit.steps, audit.worker_sketches, audit.auditor_sketches, strict=True))
    for at, (step, worker, accuser) in enumerate(opened):
        if compute_distance_ppb(accuser, worker) > sketch_accept:
            break
        low, low_at = step, at
    worker_low, accuser_low = opened[low_at][1:] if low >= 0 else ((), ())
    high, worker_high, accuser_high = (steps, (), ()) if low_at + 1 == len(opened) else opened[low_at + 1]
    return Bisection(
        phase="halving",
        low=low,
        high=high,
        worker=Side(low=worker_low, high=worker_high),
        accuser=Side(low=accuser_low, high=accuser_high),
    )


def get_middle(bisection: Bisection) -> int:
    """Return the step at which both sides open next."""
    return (bisection.low + bisection.high) // 2


def is_found(bisection: Bisection) -> bool:
    """Say whether one step (or the encoding) is left in question."""
    return bisection.high == bisection.low + 1


def is_phase_complete(bisection: Bisection) -> bool:
    """Say whether everybody that a phase waits for has acted."""
    sides = (bisection.worker, bisection.accuser)
    match bisection.phase:
        case "halving":
            return all(side.middle for side in sides)
        case "offering":
            return all(side.state for side in sides)
        case "replaying":
            return all(arbiter.digest for arbiter in bisection.arbiters)
        case _:
            return all(arbiter.opened for arbiter in bisection.arbiters if arbiter.digest)


def compute_half(bisection: Bisection, sketch_accept: int) -> Bisection:
    """Return the bisection after a turn: where both agree at the middle they agree up to it, else they differ by it."""
    worker, accuser = bisection.worker, bisection.accuser
    agree = compute_distance_ppb(accuser.middle, worker.middle) <= sketch_accept
    return msgspec.structs.replace(
        bisection,
        low=get_middle(bisection) if agree else bisection.low,
        high=bisection.high if agree else get_middle(bisection),
        turns=bisection.turns + 1,
        worker=_halve(worker, agree),
        accuser=_halve(accuser, agree),
    )


def _halve(side: Side, agree: bool) -> Side:
    return Side(low=side.middle, high=side.high) if agree else Side(low=side.low, high=side.middle)


def compute_finding(bisection: Bisection, steps: int, shown: Arbiter, limits: Thresholds) -> str:
    """Return whose claim an arbiter's numbers support, in a unit of ``steps`` steps."""
    # the states may differ only by what is small beside one step: the steps before it are at least as many
    if shown.state_distance_ppb * (bisection.low + 1) > limits.state_accept:
        return NOBODY
    if bisection.high == steps:
        if shown.excess_ppb > limits.excess_fail:
            return ACCUSER
        return WORKER if shown.excess_ppb <= limits.excess_accept else NOBODY
    replayed = _get_step(bisection, shown)
    to_worker, to_accuser = (
        compute_distance_ppb(replayed, _minus(side.high, side.low)) for side in (bisection.worker, bisection.accuser)
    )
    if to_worker > limits.step_fail and to_accuser <= limits.step_accept:
        return ACCUSER
    if to_accuser > limits.step_fail and to_worker <= limits.step_accept:
        return WORKER
    return NOBODY


def compute_ruling(bisection: Bisection, steps: int, limits: Thresholds) -> Ruling:
    """Return what more than half of the arbiters found, having seen the same."""
    opened = [arbiter for arbiter in bisection.arbiters if arbiter.opened]
    for first in opened:
        same = [
            arbiter.account
            for arbiter in opened
            if arbiter.finding == first.finding and _saw_the_same(bisection, steps, first, arbiter, limits)
        ]
        if 2 * len(same) > len(bisection.arbiters):
            return Ruling(first.finding, tuple(same))
    return Ruling(NOBODY, ())


def _saw_the_same(bisection: Bisection, steps: int, first: Arbiter, other: Arbiter, limits: Thresholds) -> bool:
    """Say whether two arbiters measured one thing: under a projection that nobody knew before, no guess comes close."""
    if bisection.high == steps:
        return compute_distance_ppb(first.seeded, other.seeded) <= limits.sketch_accept
    # the size of a step is about the same under every projection
    size = _square(_get_step(bisection, first))
    return _square(_minus(first.seeded, other.seeded)) * PPB**2 <= size * limits.step_accept**2


def _get_step(bisection: Bisection, shown: Arbiter) -> Sketch:
    """Return the sketch of the step that an arbiter replayed, alone."""
    return _minus(shown.sketch, bisection.worker.low)


def _minus(after: Sketch, before: Sketch) -> Sketch:
    return tuple(a - b for a, b in zip(after, before or _NO_CHANGE, strict=True))


def _square(sketch: Sequence[int]) -> int:
    return sum(value**2 for value in sketch)
