"""Disputes: bisection finds one step that arbiters replay; else a committee re-executes the unit; a majority decides.

Rules kept here:
1. Members commit before anything is opened to them, so none can follow another.
2. One decision per unit; whoever accuses later is settled by it.  A refuted accusation is no decision about the unit.
3. Nobody is convicted by one verdict: an accusation only calls arbiters or the committee.
4. Accusers that are more than half of all convict where nobody is left to ask, and fewer judges do not overrule them.
"""

from __future__ import annotations

import msgspec

from contracts.accounts import Where, emit, where_audit, where_unit
from contracts.auction import process_bid_closed
from contracts.bisecting import COMMITTEE, REFUTED, End, process_bisection, process_bisection_start
from contracts.draws import CONVICTED, compute_opened_steps, get_auditor_draw
from contracts.evidence import compute_sketch_distance_ppb
from contracts.judges import get_accusers, get_confirmed, get_majority, process_barred, process_doubt
from contracts.parameters import MAX_REDRAWS, OPENED_STEPS, thresholds, verdict
from contracts.records import Audit, Dispute, Unit
from contracts.rounds import process_expulsion
from contracts.settle import (
    process_audit_closed,
    process_bond_slashed,
    process_target_again,
    process_unit_taken_back,
    set_reputation,
)
from contracts.state import Draft, View, audit_key_of, dispute_key, job_key, present

CLEARED, UNRESOLVED = "cleared", "unresolved"


def is_undecided(dispute: Dispute | None) -> bool:
    """Say whether a bisection is under way or a committee at work."""
    return dispute is not None and dispute.status in ("bisecting", "committing", "opening")


def is_open_to_audits(dispute: Dispute | None) -> bool:
    """Say whether others may audit a unit: always, until its committee has it (or had)."""
    return dispute is None or dispute.status in ("bisecting", REFUTED)


def process_accusation(draft: Draft, unit: Unit, audit: Audit) -> None:
    """Let an audit that did not pass open a dispute, join the one under way, or be settled by the one decided."""
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if dispute is None or dispute.status == REFUTED:
        _open_dispute(draft, unit, audit)
    elif not is_undecided(dispute):
        _settle_accuser(draft, audit, dispute.status)


def _open_dispute(draft: Draft, unit: Unit, audit: Audit) -> None:
    """Bisect what fails; what is grey is no case of one false step, and goes to the committee."""
    dispute = Dispute(
        job=unit.job,
        round=unit.round,
        slot=unit.slot,
        accuser=audit.auditor,
        committee=(),
        opened_ms=draft.now,
        phase_end_ms=draft.now,
        status="bisecting" if audit.verdict == "fail" else "committing",
    )
    draft.put(dispute_key(unit.job, unit.round, unit.slot), dispute)
    emit(draft, "dispute", where_audit(audit), reason=f"accuses {unit.worker}")
    if audit.verdict == "fail":
        _process_bisection_end(draft, unit, process_bisection_start(draft, unit, audit))
    else:
        _draw_committee(draft, unit, 0)


def _process_bisection_end(draft: Draft, unit: Unit, end: End | None) -> None:
    """Carry out how a bisection ended; None: it goes on."""
    if end is None:
        return
    accuser = present(draft.dispute(unit.job, unit.round, unit.slot)).accuser
    audit = present(draft.audit(unit.job, unit.round, unit.slot, accuser))
    match end.decision:
        case "convicted":
            _decide(draft, unit, CONVICTED, end.reason)
            _process_conviction(draft, unit, [accuser, *end.agreeing])
        case "refuted":
            _process_refutation(draft, unit, audit, end.reason)
        case _:
            if end.accuser_silent:
                process_audit_closed(draft, audit, "late", fee=False, forfeit=True)
            process_committee_called(draft, unit, end.reason)


def process_committee_called(draft: Draft, unit: Unit, reason: str) -> None:
    """End a bisection that decides nothing: the whole unit is re-executed."""
    emit(draft, "dispute", where_unit(unit), reason=f"{COMMITTEE}: {reason}")
    _draw_committee(draft, unit, 0)


def _process_refutation(draft: Draft, unit: Unit, audit: Audit, reason: str) -> None:
    """Punish the accuser alone; the next one begins its own dispute, and without one the unit is free again."""
    draft.update(dispute_key(unit.job, unit.round, unit.slot), status=REFUTED, reason=reason)
    emit(draft, "dispute", where_audit(audit), reason=f"{REFUTED}: {reason}")
    process_audit_closed(draft, audit, REFUTED, fee=False, forfeit=True)
    process_barred(draft, audit, "its accusation was refuted")
    process_target_again(draft, unit, audit.auditor)
    waiting = get_accusers(draft, unit)
    if waiting:
        _open_dispute(draft, unit, waiting[0])


def _draw_committee(draft: Draft, unit: Unit, attempt: int) -> None:
    unit = present(draft.unit(unit.job, unit.round, unit.slot))  # with the auditors of earlier committees
    drawn = get_auditor_draw(draft, unit, draft.context.beacon, "gdf/committee", attempt)[: draft.network().committee]
    accusers = get_majority(draft, unit)
    if not drawn and accusers:
        _decide(draft, unit, CONVICTED, f"nobody is left to ask, and {len(accusers)} accusers found the same")
        _process_conviction(draft, unit, accusers)
        return
    if not drawn or attempt > MAX_REDRAWS:
        _decide(draft, unit, UNRESOLVED, "nobody is left to ask" if not drawn else f"undecided {attempt} times")
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
    """Advance a dispute when everybody has acted or its deadline passed."""
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if dispute is None or not is_undecided(dispute):
        return
    if dispute.status == "bisecting":
        _process_bisection_end(draft, unit, process_bisection(draft, unit, dispute))
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
    agreeing = get_confirmed(judged, thresholds(device_class).sketch_accept)
    decision = compute_decision([_counted(audit, agreeing) for audit in judged], len(dispute.committee))
    reason = f"{len(agreeing)} of {len(judged)} members say fail"
    accusers = len(get_majority(draft, unit))
    if decision == CLEARED and len(judged) < accusers:
        decision, reason = UNRESOLVED, f"{accusers} accusers found the same, and only {len(judged)} were left to ask"
    opposite = {CONVICTED: "pass", CLEARED: "fail"}.get(decision, "")
    for audit in judged:
        process_audit_closed(draft, audit, "opened", fee=audit.verdict != opposite)
    if decision == "":
        _draw_committee(draft, unit, dispute.attempt + 1)
        return
    stands = [audit.auditor for audit in get_accusers(draft, unit) if audit.auditor == dispute.accuser]
    _decide(draft, unit, decision, reason)
    if decision == CONVICTED:
        _process_conviction(draft, unit, [*stands, *agreeing])


def _counted(audit: Audit, confirmed: list[str]) -> str:
    """Return a member's verdict as it counts: a fail that no other run confirms is only a doubt."""
    return "grey" if audit.verdict == "fail" and audit.auditor not in confirmed else audit.verdict


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
        return CLEARED
    return ""


def _decide(draft: Draft, unit: Unit, decision: str, reason: str) -> None:
    """Note the decision and settle with everybody who accused."""
    draft.update(dispute_key(unit.job, unit.round, unit.slot), status=decision, reason=reason)
    emit(draft, "dispute", Where(unit.job, unit.round, unit.slot, unit.worker), reason=f"{decision}: {reason}")
    if decision == CLEARED:
        _process_silence_overruled(draft, unit)
    for audit in get_accusers(draft, unit):
        _settle_accuser(draft, audit, decision)


def _process_silence_overruled(draft: Draft, unit: Unit) -> None:
    """Bar an accuser that was silent in its bisection, and so lost its bond already, but called the committee."""
    accuser = present(draft.dispute(unit.job, unit.round, unit.slot)).accuser
    audit = present(draft.audit(unit.job, unit.round, unit.slot, accuser))
    if audit.status == "late":
        process_barred(draft, audit, "its accusation was overruled")


def _settle_accuser(draft: Draft, audit: Audit, decision: str) -> None:
    """Close the audit of an accuser: right or in doubt, wrong, or never decided.

    A challenger, whom nobody asked, answers for its doubts too: else strangers could call committees for nothing.
    """
    wrong = decision == CLEARED and (audit.verdict == "fail" or audit.role == "challenge")
    fee = not wrong and decision != UNRESOLVED
    process_audit_closed(draft, audit, "opened", fee=fee, forfeit=wrong)
    if wrong:
        process_barred(draft, audit, "its accusation was overruled")
    elif decision == CLEARED:
        process_doubt(draft, audit)


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
    draft.update(job_key(job.id), alert_round=job.round + 1)
    record = draft.reputation(worker, job.spec.device_class)
    set_reputation(draft, worker, job.spec.device_class, consecutive=0, invalid=record.invalid + 1)
    process_expulsion(draft, job.id, worker, reason)
