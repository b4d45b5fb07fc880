"""When a job needs the next block: what is pending, and by which time it changes without any entry.

Rules kept here:
1. ``get_wake_ms`` names the earliest block time at which advance changes something in a job; before it, nothing does.
2. It reads records only, so every node finds the same.
"""

from __future__ import annotations

from contracts.audits import get_target
from contracts.bisection import is_phase_complete as is_bisection_phase_complete
from contracts.disputes import get_committee_audits, is_answered, is_open_to_audits, is_undecided
from contracts.draws import is_barred
from contracts.phases import is_phase_complete
from contracts.records import Audit, Dispute, Job, Target, Unit
from contracts.rounds import can_start_round
from contracts.settle import get_pending_audits, is_pending
from contracts.state import View, present

NOW = 0  # wake at the next block, whatever its time


def is_releasable(view: View, unit: Unit) -> bool:
    """Say whether nothing but time keeps a unit's pay."""
    return not _get_pending_times(view, unit)


def get_wake_ms(view: View, job: Job) -> int:
    """Return the earliest block time at which advance changes something in a job that is not ended."""
    times = [_get_unit_wake_ms(view, view.unit_at(key)) for key in job.unsettled]
    if job.status == "draining":
        return min(times, default=NOW)
    times.append(job.spec.deadline_ms)
    round_ = view.round(job.id, job.round)
    if round_ is not None:
        times.append(NOW if is_phase_complete(view, round_) else round_.phase_end_ms)
    elif job.ending:
        times.append(NOW)
    elif job.status == "bidding":
        times.append(job.phase_end_ms)
    elif can_start_round(job):
        times.append(NOW)
    return min(times)


def _get_unit_wake_ms(view: View, unit: Unit) -> int:
    return min(_get_pending_times(view, unit), default=unit.release_ms)


def _get_pending_times(view: View, unit: Unit) -> list[int]:
    """Return the times of everything that keeps a unit from its release; empty if nothing does."""
    dispute = view.dispute(unit.job, unit.round, unit.slot)
    audits = [audit for audit in get_pending_audits(view, unit) if audit.role != "committee"]
    times = [_get_audit_wake_ms(audit) for audit in audits]
    target = get_target(present(view.round(unit.job, unit.round)), unit.slot)
    if target is not None:
        times.append(_get_target_wake_ms(view, unit, target, dispute))
    if dispute is not None and is_undecided(dispute):
        times.append(_get_dispute_wake_ms(view, dispute))
    return times


def _get_audit_wake_ms(audit: Audit) -> int:
    if not audit.steps or is_answered(audit):
        return NOW
    return audit.phase_end_ms


def _get_target_wake_ms(view: View, unit: Unit, target: Target, dispute: Dispute | None) -> int:
    audit = view.audit(unit.job, unit.round, unit.slot, target.auditor)
    if audit is None:
        waited_for = is_open_to_audits(dispute) and not is_barred(view, unit.job, target.auditor)
        return target.phase_end_ms if waited_for else NOW
    return _get_audit_wake_ms(audit) if is_pending(audit) else NOW


def _get_dispute_wake_ms(view: View, dispute: Dispute) -> int:
    if dispute.status == "bisecting":
        return NOW if is_bisection_phase_complete(present(dispute.bisection)) else dispute.phase_end_ms
    audits = get_committee_audits(view, dispute)
    if dispute.status == "committing":
        return NOW if len(audits) == len(dispute.committee) else dispute.phase_end_ms
    return NOW if all(is_answered(audit) for audit in audits) else dispute.phase_end_ms
