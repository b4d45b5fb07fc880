"""Numbers of the rules that no job chooses: limits, and what counts as the same result on a device class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gdf_market.units import MAX_INT, MINUTE_MS, SECOND_MS

Verdict = Literal["pass", "grey", "fail"]

MAX_TTL_MS = 60 * MINUTE_MS  # an entry expires at most this long after the block that takes it
MAX_TEXT = 200  # characters of a reason in a record or an event
MAX_LIVE_NONCES = 4_096  # per author and MAX_TTL_MS: somewhat more than one entry a second
MAX_PRUNED_BLOCKS = 64  # blocks whose nonces one block prunes

MAX_ACTIVE_JOBS = 256
MAX_ACTIVE_JOBS_PER_AUTHOR = 16
MAX_BIDDERS = 256  # per job
MAX_UNSETTLED = 1_024  # units of a job with held pay; no round starts beyond it
MAX_PHASE_MS = 30 * 24 * 60 * MINUTE_MS  # of every duration a job chooses
# Of audit_ms: some blocks.  Whoever is late with an answer loses a bond, and in a job that gives less honest ones are.
MIN_AUDIT_MS = 10 * SECOND_MS
MAX_JOB_MS = 366 * 24 * 60 * MINUTE_MS  # from the post to the deadline
MISSES_TO_CLOSE = 2  # rounds in a row with a missed deadline that end a bid

ATTESTING_VALIDATORS = 4  # drawn per round, besides the workers that revealed
MAX_TARGETS = 4  # units of a round that must be audited
MAX_AUDITS_PER_UNIT = 8  # that somebody was asked for; beyond it no lottery ticket is taken
MAX_CHALLENGES = 16  # per unit, by accounts that nobody asked
MAX_OPEN_CHALLENGES = 2  # of those, that are not judged yet
MAX_DOUBTS = 2  # grey accusations in a job that committees clear; whoever made so many judges nothing in it any more
MIN_ACCUSERS = 3  # that convict where nobody is left to judge
MAX_REDRAWS = 3  # of a target's auditor, of a dispute's committee
# Of 24 accounts with 40% bad, most of a panel of 3 are bad in 29% of all cases, of one of 11 in 9%, of one of 15 in 2%,
# and of one of 17 never (benchmarks/results/defence.md, docs/adr/0016).
COMMITTEE_SIZE = 17  # usual: members that re-execute a unit in dispute, if so many can be drawn
ARBITERS = 17  # usual: who replay the one step that a bisection found
MAX_PANEL = 32
OPENED_STEPS = 3  # the last one and two that the beacon chooses
DISTANCE_CAP_PPB = MAX_INT


MAX_VALIDATORS = 100  # a certificate lists two thirds of them and must fit into a message with its block
MAX_CANDIDATES = 256  # waiting for a seat
EVIDENCE_REWARD_PART = 10  # one part of so many of a slashed bond goes to whoever brought the evidence

ROUND_KIB_PER_UNIT = 8  # of free entries per unit and round, which the job's post pays for


@dataclass(frozen=True)
class Thresholds:
    """At most ``accept`` passes, above ``fail`` fails, between is grey; all in ppb.

    ``step``: of one replayed step, relative to the size of that step; what lies between is not decided by a replay, but
    by the committee.  ``state_accept``: of two states of a unit, times the steps done; far below ``step_fail``, or a
    worker could refute an honest accuser by a state that is a little off.  ``evidence``: the file of measurements; ""
    for a class that nobody has measured, whose machines calibrate themselves first.
    """

    excess_accept: int
    excess_fail: int
    sketch_accept: int
    sketch_fail: int
    step_accept: int
    step_fail: int
    state_accept: int
    evidence: str


_VERDICTS = "benchmarks/results/verdicts.md"
# Honest fp32 reruns stay below 1.1e-5, the smallest measured cheat is above 4e-2 (relative L2 of the update).  Sketches
# (benchmarks/results/sketches.md): honest ones stay below 1.7e-5, one altered step of 100 is above 4.1e-4; single steps
# 2.8e-5 and 9.7e-3; states times steps below 8.2e-4.  Units that are computed in one product for twenty workers and
# audited one by one are up to 1.5e-4 apart (benchmarks/results/defence.md).
_FP32 = Thresholds(
    excess_accept=100_000,
    excess_fail=1_000_000,
    sketch_accept=300_000,
    sketch_fail=1_000_000,
    step_accept=1_000_000,
    step_fail=20_000_000,
    state_accept=2_000_000,
    evidence=_VERDICTS,
)
# bfloat16 (autocast), another thread count or other parts of a batch: honest reruns stay below 2.1e-2 at 8 bits and
# H = 20, a skipped step is above 4.2e-2; at 4 bits the two overlap (1.8e-2 and 1.3e-2).  Drift grows with H.
_BF16 = Thresholds(
    excess_accept=30_000_000,
    excess_fail=40_000_000,
    sketch_accept=40_000_000,
    sketch_fail=80_000_000,
    step_accept=200_000_000,
    step_fail=500_000_000,
    state_accept=200_000_000,
    evidence=_VERDICTS,
)
BF16_BITS = 8
BF16_STEPS = 100
_BY_DEVICE_CLASS = {"cpu-fp32": _FP32, "cuda-fp32": replace(_FP32, evidence=""), "cpu-bf16": _BF16}
DEVICE_CLASSES = tuple(_BY_DEVICE_CLASS)
EVERYBODYS_CLASSES = ("cpu-bf16", "cpu-fp32")  # which every machine can run: of accounts that declared nothing


def thresholds(device_class: str) -> Thresholds:
    """Return a device class's thresholds; KeyError for a class that no job can be posted for."""
    return _BY_DEVICE_CLASS[device_class]


def verdict(device_class: str, excess_ppb: int, sketch_distance_ppb: int) -> Verdict:
    """Return what an audit's two distances say; the worse of the two decides.

    Raises KeyError for a device class without thresholds.
    """
    limits = thresholds(device_class)
    if excess_ppb > limits.excess_fail or sketch_distance_ppb > limits.sketch_fail:
        return "fail"
    if excess_ppb > limits.excess_accept or sketch_distance_ppb > limits.sketch_accept:
        return "grey"
    return "pass"
