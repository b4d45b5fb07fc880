"""Accusers and judges: whose accusations stand, who lost the right to judge, and when accusers decide themselves.

Rules kept here:
1. Whoever loses its bond for an accusation judges nothing in that job any more; it may go on working.
2. Nobody is convicted by runs that differ among themselves.
3. Where nobody is left to judge, accusers convict only if they are more than half of all that ever could judge.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.accounts import emit, where_audit
from contracts.draws import get_candidates
from contracts.evidence import compute_distance_ppb
from contracts.parameters import MAX_DOUBTS, MIN_ACCUSERS, thresholds
from contracts.records import Audit, Judge, Unit
from contracts.state import Draft, View, judge_key, present


def get_audits(view: View, unit: Unit) -> list[Audit]:
    """Return all audits of a unit, in the order of their commits."""
    return [present(view.audit(unit.job, unit.round, unit.slot, auditor)) for auditor in unit.auditors]


def get_challenges(view: View, unit: Unit) -> list[Audit]:
    """Return the challenges of a unit, in the order of their commits."""
    return [audit for audit in get_audits(view, unit) if audit.role == "challenge"]


def get_accusers(view: View, unit: Unit) -> list[Audit]:
    """Return the audits that accuse a unit and are not settled, in the order of their commits."""
    return [
        audit
        for audit in get_audits(view, unit)
        if audit.role != "committee" and audit.status == "opened" and audit.verdict in ("grey", "fail")
    ]


def get_confirmed(audits: Sequence[Audit], sketch_accept: int) -> list[str]:
    """Return the auditors that say fail and whose own runs ended alike, if those are most of the ones that say fail.

    Runs that differ among themselves say something about the program, and nothing about the worker.
    """
    failing = [audit for audit in audits if audit.verdict == "fail"]
    for first in failing:
        last = first.auditor_sketches[-1]
        alike = [
            audit.auditor
            for audit in failing
            if compute_distance_ppb(last, audit.auditor_sketches[-1]) <= sketch_accept
        ]
        if 2 * len(alike) > len(failing):
            return alike
    return []


def get_majority(view: View, unit: Unit) -> list[str]:
    """Return the accusers that may decide where nobody else can; [] if there are no such ones.

    They say fail, their own runs ended alike, they are at least MIN_ACCUSERS and more than half of all accounts that
    the rules ever let judge this unit.  Whoever is barred or convicted counts among all, and strangers do not count.
    """
    round_ = present(view.round(unit.job, unit.round))
    candidates = set(get_candidates(view, round_, unit.worker))
    accusers = [audit for audit in get_accusers(view, unit) if audit.auditor in candidates]
    limit = thresholds(present(view.job(unit.job)).spec.device_class).sketch_accept
    agreeing = get_confirmed(accusers, limit)
    return agreeing if len(agreeing) >= MIN_ACCUSERS and 2 * len(agreeing) > len(candidates) else []


def process_barred(draft: Draft, audit: Audit, reason: str) -> None:
    """Let an account whose accusation was found wrong judge nothing in the job any more."""
    judge = _get_judge(draft, audit)
    if judge.barred:
        return
    draft.put(
        judge_key(audit.job, audit.auditor),
        msgspec.structs.replace(judge, barred=True, reason=f"round {audit.round}, slot {audit.slot}: {reason}"),
    )
    emit(draft, "barred", where_audit(audit), reason=reason)


def process_doubt(draft: Draft, audit: Audit) -> None:
    """Count a grey accusation that a committee cleared: one may be honest, many are a way to call committees."""
    judge = _get_judge(draft, audit)
    draft.put(judge_key(audit.job, audit.auditor), msgspec.structs.replace(judge, doubts=judge.doubts + 1))
    if judge.doubts + 1 >= MAX_DOUBTS:
        process_barred(draft, audit, f"{judge.doubts + 1} doubts were cleared")


def _get_judge(view: View, audit: Audit) -> Judge:
    return view.judge(audit.job, audit.auditor) or Judge(job=audit.job, account=audit.auditor)
