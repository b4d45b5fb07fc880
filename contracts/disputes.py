"""Disputes: a committee drawn by the beacon re-executes an accused unit and decides by majority.

Rules kept here:
1. Members commit before anything is opened to them, so none can follow another.
2. One decision per unit; whoever accuses later is settled by it.
3. Nobody is convicted by one verdict: an accusation only calls the committee.
"""

from __future__ import annotations

import msgspec

from contracts.accounts import Where, emit, where_audit
from contracts.auction import process_bid_closed
from contracts.draws import CONVICTED, compute_opened_steps, get_auditor_draw
from contracts.evidence import compute_sketch_distance_ppb
from contracts.parameters import COMMITTEE_SIZE, MAX_REDRAWS, OPENED_STEPS, verdict
from contracts.records import Audit, Dispute, Unit
from contracts.rounds import process_expulsion
from contracts.settle import (
    process_audit_closed,
    process_bond_slashed,
    process_unit_taken_back,
    set_reputation,
)
from contracts.state import Draft, View, audit_key_of, dispute_key, present


def is_undecided(dispute: Dispute | None) -> bool:
    """Say whether a committee is at work."""
    return dispute is not None and dispute.status in ("committing", "opening")


def process_accusation(draft: Draft, unit: Unit, audit: Audit) -> None:
    """Let an audit that did not pass open a dispute, join the one under way, or be settled by the one decided."""
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if dispute is None:
        _open_dispute(draft, unit, audit.auditor)
    elif not is_undecided(dispute):
        _settle_accuser(draft, audit, dispute.status)


def _open_dispute(draft: Draft, unit: Unit, accuser: str) -> None:
    dispute = Dispute(
        job=unit.job,
        round=unit.round,
        slot=unit.slot,
        accuser=accuser,
        committee=(),
        opened_ms=draft.now,
        phase_end_ms=draft.now,
        status="committing",
    )
    draft.put(dispute_key(unit.job, unit.round, unit.slot), dispute)
    emit(draft, "dispute", Where(unit.job, unit.round, unit.slot, accuser), reason=f"accuses {unit.worker}")
    _draw_committee(draft, unit, 0)


def _draw_committee(draft: Draft, unit: Unit, attempt: int) -> None:
    unit = present(draft.unit(unit.job, unit.round, unit.slot))  # with the auditors of earlier committees
    drawn = get_auditor_draw(draft, unit, draft.context.beacon, "gdf/committee", attempt)[:COMMITTEE_SIZE]
    if not drawn or attempt > MAX_REDRAWS:
        _decide(draft, unit, "unresolved", "nobody is left to ask" if not drawn else f"undecided {attempt} times")
        return
    draft.update(
        dispute_key(unit.job, unit.round, unit.slot),
        committee=tuple(drawn),
        attempt=attempt,
        status="committing",
        phase_end_ms=draft.now + present(draft.job(unit.job)).spec.audit_ms,
    )


def get_committee_audits(view: View, dispute: Dispute) -> list[Audit]:
    """Return the audits of the members that committed."""
    audits = (view.audit(dispute.job, dispute.round, dispute.slot, member) for member in dispute.committee)
    return [audit for audit in audits if audit is not None]


def process_dispute(draft: Draft, unit: Unit) -> None:
    """Advance a dispute when its members have acted or its deadline passed."""
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if dispute is None or not is_undecided(dispute):
        return
    audits = get_committee_audits(draft, dispute)
    over = dispute.phase_end_ms <= draft.now
    if dispute.status == "committing":
        if over or len(audits) == len(dispute.committee):
            _process_commits_over(draft, unit, dispute, audits)
    elif over or all(is_answered(audit) for audit in audits):
        _process_openings_over(draft, unit, dispute, audits)


def is_answered(audit: Audit) -> bool:
    """Say whether both sides of an audit are open."""
    return audit.status == "opened" and audit.worker_opened


def _process_commits_over(draft: Draft, unit: Unit, dispute: Dispute, audits: list[Audit]) -> None:
    """Draw the steps that members and worker open; with too few members, ask others."""
    if 2 * len(audits) < len(dispute.committee):
        for audit in audits:
            process_audit_closed(draft, audit, "void", fee=False)
        _draw_committee(draft, unit, dispute.attempt + 1)
        return
    spec = present(draft.job(unit.job)).spec
    end = draft.now + spec.audit_ms
    for audit in audits:
        steps = compute_opened_steps(draft.context.beacon, unit, audit.auditor, spec.recipe.steps, OPENED_STEPS)
        draft.update(audit_key_of(audit), steps=steps, phase_end_ms=end)
    draft.update(dispute_key(unit.job, unit.round, unit.slot), status="opening", phase_end_ms=end)


def _process_openings_over(draft: Draft, unit: Unit, dispute: Dispute, audits: list[Audit]) -> None:
    """Judge what the members opened, and decide."""
    device_class = present(draft.job(unit.job)).spec.device_class
    judged = []
    for audit in audits:
        if audit.status == "opened":
            judged.append(_judge(draft, audit, device_class))
        else:
            process_audit_closed(draft, audit, "late", fee=False, forfeit=True)
    decision = compute_decision([audit.verdict for audit in judged], len(dispute.committee))
    opposite = {CONVICTED: "pass", "cleared": "fail"}.get(decision, "")
    for audit in judged:
        process_audit_closed(draft, audit, "opened", fee=audit.verdict != opposite)
    if decision == "":
        _draw_committee(draft, unit, dispute.attempt + 1)
        return
    agreeing = [audit.auditor for audit in judged if audit.verdict == "fail"]
    _decide(draft, unit, decision, f"{len(agreeing)} of {len(judged)} members say fail")
    if decision == CONVICTED:
        _process_conviction(draft, unit, [dispute.accuser, *agreeing])


def _judge(draft: Draft, audit: Audit, device_class: str) -> Audit:
    """Return the audit with its verdict; what the worker did not open is judged by the excess alone."""
    distance = 0
    if audit.worker_opened:
        distance = compute_sketch_distance_ppb(audit.auditor_sketches, audit.worker_sketches)
    found = verdict(device_class, audit.excess_ppb, distance)
    audit = msgspec.structs.replace(audit, verdict=found, sketch_distance_ppb=distance)
    draft.put(audit_key_of(audit), audit)
    emit(draft, "verdict", where_audit(audit), reason=found)
    return audit


def compute_decision(verdicts: list[str], committee: int) -> str:
    """Return convicted or cleared when more than half of the verdicts say so, "" when another committee must decide."""
    if 2 * len(verdicts) < committee:
        return ""
    if 2 * verdicts.count("fail") > len(verdicts):
        return CONVICTED
    if 2 * verdicts.count("pass") > len(verdicts):
        return "cleared"
    return ""


def _decide(draft: Draft, unit: Unit, decision: str, reason: str) -> None:
    """Note the decision and settle with everybody who accused."""
    draft.update(dispute_key(unit.job, unit.round, unit.slot), status=decision, reason=reason)
    emit(draft, "dispute", Where(unit.job, unit.round, unit.slot, unit.worker), reason=f"{decision}: {reason}")
    for auditor in unit.auditors:
        audit = present(draft.audit(unit.job, unit.round, unit.slot, auditor))
        if audit.role != "committee" and audit.verdict in ("grey", "fail"):
            _settle_accuser(draft, audit, decision)


def _settle_accuser(draft: Draft, audit: Audit, decision: str) -> None:
    """Close the audit of an accuser: right or in doubt, wrong, or never decided."""
    wrong = decision == "cleared" and audit.verdict == "fail"
    fee = not wrong and decision != "unresolved"
    process_audit_closed(draft, audit, "opened", fee=fee, forfeit=wrong)


def _process_conviction(draft: Draft, unit: Unit, accusers: list[str]) -> None:
    """Take everything the worker has at stake in this job, and the worker out of it."""
    job, worker = present(draft.job(unit.job)), unit.worker
    reason = f"{CONVICTED}: round {unit.round}, slot {unit.slot}"
    emit(draft, CONVICTED, Where(job.id, unit.round, unit.slot, worker))
    # before the units: a bond without units would be returned
    process_bond_slashed(draft, job.id, worker, accusers, reason)
    for key in job.unsettled:
        other = draft.unit_at(key)
        if other.worker == worker and other.status == "accepted":
            if is_undecided(draft.dispute(other.job, other.round, other.slot)):
                _decide(draft, other, CONVICTED, reason)
            process_unit_taken_back(draft, other, CONVICTED, CONVICTED, reason)
    process_bid_closed(draft, job.id, worker, reason)
    record = draft.reputation(worker, job.spec.device_class)
    set_reputation(draft, worker, job.spec.device_class, consecutive=0, invalid=record.invalid + 1)
    process_expulsion(draft, job.id, worker, reason)
