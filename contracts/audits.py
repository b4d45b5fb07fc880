"""Audits: who re-executes a unit, what both sides open, and what the comparison means.

Rules kept here:
1. An auditor commits before anything is opened; the beacon of a later block chooses the steps.
2. Verdicts are made in the advance of a block, from what earlier blocks hold.
3. Being silent costs a bond; it is never called fraud.
"""

from __future__ import annotations

import msgspec

from contracts.accounts import Where, audit_bond, balance, check_balance, emit, move, where_audit, where_unit
from contracts.bisecting import REFUTED
from contracts.disputes import is_open_to_audits, process_accusation, process_committee_called
from contracts.draws import (
    compute_opened_steps,
    get_auditor_draw,
    get_eligible_auditors,
    is_able,
    is_barred,
    is_convicted,
)
from contracts.evidence import check_openings, compute_sketch_distance_ppb
from contracts.judges import get_audits, get_challenges
from contracts.parameters import (
    DEVICE_CLASSES,
    MAX_AUDITS_PER_UNIT,
    MAX_CHALLENGES,
    MAX_OPEN_CHALLENGES,
    MAX_REDRAWS,
    MAX_TARGETS,
    OPENED_STEPS,
    verdict,
)
from contracts.records import Audit, Auditor, Network, Round, Target, Unit
from contracts.settle import get_pending_audits, is_pending, process_audit_closed, process_worker_silent
from contracts.state import Draft, View, audit_key_of, auditor_key, present, require, round_key, unit_key_of
from gdf_market import identity, vrf
from gdf_market.codec import digest, encode
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import (
    AuditClasses,
    AuditCommit,
    AuditOpen,
    JobPost,
    Outcome,
    SketchOpen,
    audit_alpha,
    audit_commitment,
    lottery_wins,
)

TWIN_FLAGS = ("twin-differs", "duplicate")


def process_audit_classes(draft: Draft, body: AuditClasses) -> None:
    """Note which device classes an account can audit."""
    unknown = sorted(set(body.classes) - set(DEVICE_CLASSES))
    ensure(not unknown, RuleError(f"classes {unknown} have no thresholds; known are {', '.join(DEVICE_CLASSES)}"))
    ensure(
        list(body.classes) == sorted(set(body.classes)),
        RuleError(f"classes {list(body.classes)} are not distinct and ascending"),
    )
    draft.put(auditor_key(body.author), Auditor(classes=body.classes))
    emit(draft, "auditor", Where(account=body.author), reason=", ".join(body.classes) or "none")


def process_audit_commit(draft: Draft, body: AuditCommit) -> None:
    """Take an auditor's commitment and lock its bond."""
    unit = _require_unit(draft, body)
    round_ = present(draft.round(body.job, body.round))
    # pay that went out cannot be taken back
    ensure(unit.status == "accepted", RuleError(f"slot {unit.slot} of round {unit.round} is {unit.status}"))
    ensure(body.author not in unit.auditors, RuleError(f"{body.author} audits this unit already"))
    _check_role(draft, body, unit, round_)
    bond = compute_challenge_bond(draft, unit) if body.role == "challenge" else draft.network().audit_bond
    check_balance(draft, body.author, bond, "the audit's bond")
    audit = Audit(
        job=unit.job,
        round=unit.round,
        slot=unit.slot,
        auditor=body.author,
        role=body.role,
        digest=body.digest,
        bond=0,
        committed_ms=draft.now,
        status="committed",
    )
    draft.put(audit_key_of(audit), audit)
    draft.update(unit_key_of(unit), auditors=(*unit.auditors, body.author))
    emit(draft, "auditing", where_audit(audit), reason=body.role)
    move(draft, "audit", balance(body.author), audit_bond(audit), bond, reason=f"{body.role} bond")


def compute_challenge_bond(view: View, unit: Unit) -> int:
    """Return what a challenger of a unit locks."""
    round_ = present(view.round(unit.job, unit.round))
    return challenge_bond(view.network(), present(view.job(unit.job)).spec, round_)


def challenge_bond(network: Network, spec: JobPost, round_: Round) -> int:
    """Return the micro-credits a challenge locks: at least the fees of the committee that it may call for nothing."""
    return max(network.audit_bond, network.committee * min(spec.audit_fee, round_.price))


def count_tickets(view: View, unit: Unit) -> int:
    """Return the auditors of a unit that were asked for; challengers, whom nobody asked, crowd no ticket out."""
    return sum(audit.role != "challenge" for audit in get_audits(view, unit))


def _require_unit(draft: Draft, body: AuditCommit | SketchOpen | AuditOpen) -> Unit:
    unit = draft.unit(body.job, body.round, body.slot)
    return require(unit, f"no unit in slot {body.slot} of round {body.round} of job {body.job}")


def _check_role(draft: Draft, body: AuditCommit, unit: Unit, round_: Round) -> None:
    if body.role != "lottery":
        ensure(body.proof == "", RuleError(f"a {body.role} audit carries no lottery proof; leave it empty"))
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if body.role == "committee":
        ensure(
            dispute is not None and dispute.status == "committing" and body.author in dispute.committee,
            RuleError(f"{body.author} sits on no committee that takes commits for this unit"),
        )
        return
    # drawn for a committee before it was found wrong, it was drawn fairly; for anything new it is out
    ensure(
        not is_barred(draft, unit.job, body.author),
        RuleError(f"{body.author} accused somebody wrongly in this job, and judges nothing in it any more"),
    )
    # the committee decides now; another accusation would add nothing
    ensure(is_open_to_audits(dispute), RuleError("the unit is in dispute, or was; only its committee audits it"))
    if body.role == "challenge":
        _check_challenge(draft, body, unit, round_)
        return
    if body.role == "targeted":
        named = {(t.slot, t.auditor) for t in round_.targets if t.status == "pending"}
        ensure((unit.slot, body.author) in named, RuleError(f"{body.author} was not named to audit this unit"))
        return
    # whoever was named was eligible then, and stays named when it leaves the validator set; a ticket counts today
    ensure(
        body.author in get_eligible_auditors(draft, round_, unit.worker),
        RuleError(f"{body.author} may not audit this unit: only validators and the round's other workers may"),
    )
    count = count_tickets(draft, unit)
    ensure(
        count < MAX_AUDITS_PER_UNIT,
        RuleError(f"the unit has {count} auditors; no more than {MAX_AUDITS_PER_UNIT} tickets are taken"),
    )
    ensure(body.proof != "", RuleError("a lottery audit carries the proof of its ticket"))
    # the most expensive check comes last
    alpha = audit_alpha(unit.job, unit.round, unit.slot, round_.audit_seed)
    beta = vrf.verify(identity.public_key(body.author), alpha, bytes.fromhex(body.proof))
    ensure(
        lottery_wins(beta, unit.audit_chance_ppm),
        RuleError(f"the ticket does not win: the chance is {unit.audit_chance_ppm} ppm"),
    )


def _check_challenge(draft: Draft, body: AuditCommit, unit: Unit, round_: Round) -> None:
    """Refuse a challenge of the worker itself, of a convict, of the wrong device class, or one too many."""
    ensure(body.author != unit.worker, RuleError(f"{body.author} cannot challenge its own unit"))
    ensure(not is_convicted(draft, unit.job, body.author), RuleError(f"{body.author} was convicted in this job"))
    device_class = present(draft.job(unit.job)).spec.device_class
    ensure(
        is_able(draft, round_, body.author),
        RuleError(f"{body.author} did not declare that it can audit units of {device_class}"),
    )
    challenges = get_challenges(draft, unit)
    ensure(
        len(challenges) < MAX_CHALLENGES,
        RuleError(f"the unit was challenged {len(challenges)} times; no more are taken"),
    )
    waiting = sum(is_pending(audit) for audit in challenges)
    ensure(
        waiting < MAX_OPEN_CHALLENGES,
        RuleError(f"{waiting} challenges of the unit are not judged yet; try again when one of them is"),
    )


def process_sketch_open(draft: Draft, body: SketchOpen) -> None:
    """Take a worker's opened sketches for every audit whose steps they cover."""
    unit = _require_unit(draft, body)
    ensure(body.author == unit.worker, RuleError(f"the unit is {unit.worker}'s, not {body.author}'s"))
    waiting = [audit for audit in get_pending_audits(draft, unit) if audit.steps and not audit.worker_opened]
    ensure(unit.status == "accepted" and bool(waiting), RuleError("no audit of this unit waits for its worker"))
    opened = check_openings(body.openings, unit.sketch_root, _steps_of(draft, unit))
    # what is opened without need helps an auditor that did no work
    extra = set(opened) - {step for audit in waiting for step in audit.steps}
    ensure(not extra, RuleError(f"no audit asks for steps {sorted(extra)}; open only what is asked for"))
    answered = [audit for audit in waiting if opened.keys() >= set(audit.steps)]
    ensure(bool(answered), RuleError(f"steps {sorted(opened)} answer no audit; the first asks for {waiting[0].steps}"))
    for audit in answered:
        sketches = tuple(opened[step] for step in audit.steps)
        draft.update(audit_key_of(audit), worker_opened=True, worker_sketches=sketches)
    draft.update(unit_key_of(unit), openings_digest=digest("gdf/openings", encode(list(body.openings))).hex())
    emit(draft, "opened", where_unit(unit), reason="sketches of the worker")


def process_audit_open(draft: Draft, body: AuditOpen) -> None:
    """Take an auditor's opening of what it committed to."""
    unit = _require_unit(draft, body)
    audit = require(
        draft.audit(body.job, body.round, body.slot, body.author), f"{body.author} did not commit to an audit here"
    )
    ensure(audit.status == "committed", RuleError(f"the audit is {audit.status} already"))
    ensure(audit.steps != (), RuleError("the steps to open are not drawn yet; wait for the next block"))
    found = audit_commitment(body.author, body.excess_ppb, body.distance_ppb, body.sketch_root, body.salt)
    ensure(found == audit.digest, RuleError(f"the opening hashes to {found}, the commit was {audit.digest}"))
    opened = check_openings(body.openings, body.sketch_root, _steps_of(draft, unit))
    ensure(
        opened.keys() == set(audit.steps),
        RuleError(f"steps {sorted(opened)} are opened; the audit asks for {list(audit.steps)}"),
    )
    draft.update(
        audit_key_of(audit),
        status="opened",
        excess_ppb=body.excess_ppb,
        distance_ppb=body.distance_ppb,
        sketch_root=body.sketch_root,
        auditor_sketches=tuple(opened[step] for step in audit.steps),
    )
    emit(draft, "opened", where_audit(audit), reason=f"{audit.role} audit")


def _steps_of(draft: Draft, unit: Unit) -> int:
    return present(draft.job(unit.job)).spec.recipe.steps


def process_audit(draft: Draft, unit: Unit, audit: Audit) -> None:
    """Advance a lottery or targeted audit: draw its steps, judge it, or end it at its deadline."""
    if not audit.steps:
        spec = present(draft.job(unit.job)).spec
        steps = compute_opened_steps(draft.context.beacon, unit, audit.auditor, spec.recipe.steps, OPENED_STEPS)
        draft.update(audit_key_of(audit), steps=steps, phase_end_ms=draft.now + spec.audit_ms)
    elif audit.status == "opened" and audit.worker_opened:
        _process_verdict(draft, unit, audit)
    elif audit.phase_end_ms <= draft.now:
        _process_audit_late(draft, unit, audit)


def _process_verdict(draft: Draft, unit: Unit, audit: Audit) -> None:
    device_class = present(draft.job(unit.job)).spec.device_class
    distance = compute_sketch_distance_ppb(audit.auditor_sketches, audit.worker_sketches)
    found = verdict(device_class, audit.excess_ppb, distance)
    audit = msgspec.structs.replace(audit, verdict=found, sketch_distance_ppb=distance)
    draft.put(audit_key_of(audit), audit)
    emit(draft, "verdict", where_audit(audit), reason=found)
    if found == "pass":
        # nobody asked for a challenge: paid for what passes, strangers would farm fees
        process_audit_closed(draft, audit, "opened", fee=audit.role != "challenge")
    else:
        process_accusation(draft, unit, audit)


def _process_audit_late(draft: Draft, unit: Unit, audit: Audit) -> None:
    if audit.status == "committed":
        process_audit_closed(draft, audit, "late", fee=False, forfeit=True)
    if audit.worker_opened:
        return
    if audit.status == "opened":
        draft.update(audit_key_of(audit), verdict="silent")
        process_audit_closed(draft, audit, "opened", fee=True)
    # in a dispute, silence must not be cheaper than being convicted: its committee decides about the unit
    dispute = draft.dispute(unit.job, unit.round, unit.slot)
    if dispute is None or dispute.status == REFUTED:
        process_worker_silent(draft, unit)
    elif dispute.status == "bisecting":
        process_committee_called(draft, unit, f"the worker did not open to {audit.auditor}")


def compute_targets(outcome: Outcome) -> list[int]:
    """Return the slots that must be audited: the most suspicious one, then those with twin flags, ascending."""
    flagged = sorted({slot for flag in outcome.flags if flag.reason in TWIN_FLAGS for slot in (flag.slot, flag.other)})
    return list(dict.fromkeys((*outcome.suspicion[:1], *flagged)))


def process_targets_named(draft: Draft, round_: Round, outcome: Outcome) -> None:
    """Name an auditor for each unit that must be audited."""
    units = (present(draft.unit(round_.job, round_.index, slot)) for slot in compute_targets(outcome))
    accepted = [unit for unit in units if unit.status == "accepted"][:MAX_TARGETS]
    targets = [_draw_target(draft, unit, 0) for unit in accepted]
    draft.update(round_key(round_.job, round_.index), targets=tuple(targets))


def _draw_target(draft: Draft, unit: Unit, attempt: int) -> Target:
    drawn = get_auditor_draw(draft, unit, draft.context.beacon, "gdf/target", attempt)
    if not drawn or attempt > MAX_REDRAWS:
        emit(draft, "target", where_unit(unit), reason="no auditor is left to name")
        return Target(slot=unit.slot, auditor=unit.worker, attempt=attempt, phase_end_ms=draft.now, status="dropped")
    emit(draft, "target", where_unit(unit), reason=f"to be audited by {drawn[0]}")
    end = draft.now + present(draft.job(unit.job)).spec.audit_ms
    return Target(slot=unit.slot, auditor=drawn[0], attempt=attempt, phase_end_ms=end)


def get_target(round_: Round, slot: int) -> Target | None:
    """Return the pending target of a slot."""
    return next((t for t in round_.targets if t.slot == slot and t.status == "pending"), None)


def is_overdue(view: View, job: str, target: Target, now_ms: int) -> bool:
    """Say whether a named auditor that did not commit is waited for no more: it is late, or barred by now."""
    return target.phase_end_ms <= now_ms or is_barred(view, job, target.auditor)


def process_target(draft: Draft, unit: Unit) -> None:
    """Advance a unit's target: done once audited, redrawn when its auditor failed to act."""
    round_ = present(draft.round(unit.job, unit.round))
    target = get_target(round_, unit.slot)
    if target is None:
        return
    audit = draft.audit(unit.job, unit.round, unit.slot, target.auditor)
    changed = target
    if audit is None and not is_open_to_audits(draft.dispute(unit.job, unit.round, unit.slot)):
        changed = msgspec.structs.replace(target, status="dropped")  # its committee audits it
    elif is_overdue(draft, unit.job, target, draft.now) if audit is None else audit.status in ("late", REFUTED):
        changed = _draw_target(draft, unit, target.attempt + 1)
    elif audit is not None and not is_pending(audit):
        changed = msgspec.structs.replace(target, status="done")
    if changed is not target:
        targets = tuple(changed if each is target else each for each in round_.targets)
        draft.update(round_key(unit.job, unit.round), targets=targets)
