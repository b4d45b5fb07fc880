"""Jobs from post to end: the escrow, what each block moves on, and what the owner gets back.

Rules kept here:
1. The escrow covers every round at the reserve price from the start; nobody works on credit.
2. A job always ends: its deadline stops rounds, and everything that holds pay has a deadline of its own.
3. What was not paid returns to the owner in the block in which the job ends.
"""

from __future__ import annotations

from contracts.accounts import Where, audit_escrow, balance, check_balance, emit, escrow, move
from contracts.auction import process_auction, process_bid_closed
from contracts.audits import process_audit, process_target, process_targets_named
from contracts.disputes import process_dispute
from contracts.parameters import (
    BF16_BITS,
    BF16_STEPS,
    DEVICE_CLASSES,
    MAX_ACTIVE_JOBS,
    MAX_ACTIVE_JOBS_PER_AUTHOR,
    MAX_JOB_MS,
    MAX_PHASE_MS,
    MIN_AUDIT_MS,
)
from contracts.phases import is_phase_complete, process_phase_end, process_void
from contracts.records import Job, Unit
from contracts.rounds import can_start_round, process_round_start
from contracts.settle import get_pending_audits, process_unit_released
from contracts.state import Draft, job_key, present, require
from contracts.wake import is_releasable
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import JobCancel, JobPost
from gdf_market.units import PPM

DURATIONS = ("bid_ms", "work_ms", "reveal_ms", "receipt_ms", "result_ms", "audit_ms", "hold_ms")


def escrow_of(spec: JobPost) -> tuple[int, int]:
    """Return what a job locks at its post, in micro-credits: for pay and merit, and for audits."""
    pay = spec.most_units() * spec.reserve_price
    return pay + -(-pay * spec.merit_ppm // PPM), spec.audit_budget


def process_job_post(draft: Draft, body: JobPost) -> None:
    """Lock the escrow and open the bidding; the job's id is that of the entry being applied."""
    entry = draft.entry
    _check_terms(draft, body)
    active = draft.active()
    ensure(len(active.jobs) < MAX_ACTIVE_JOBS, RuleError(f"{len(active.jobs)} jobs are active; wait until one ends"))
    own = sum(present(draft.job(job)).spec.author == body.author for job in active.jobs)
    ensure(
        own < MAX_ACTIVE_JOBS_PER_AUTHOR,
        RuleError(f"{body.author} has {own} active jobs; wait until one ends or cancel one"),
    )
    pay, audits = escrow_of(body)
    check_balance(draft, body.author, pay + audits, "the job's escrow")
    draft.put(
        job_key(entry),
        Job(
            id=entry,
            spec=body,
            status="bidding",
            posted_ms=draft.now,
            phase_end_ms=draft.now + body.bid_ms,
            escrow=0,
            audit_escrow=0,
            checkpoint=body.checkpoint,
            slots=("",) * body.units_per_round,
        ),
    )
    draft.update("active", jobs=(*active.jobs, entry))
    emit(draft, "job", Where(entry, account=body.author), reason="bidding")
    move(draft, "escrow", balance(body.author), escrow(entry), pay)
    move(draft, "escrow", balance(body.author), audit_escrow(entry), audits)


def _check_terms(draft: Draft, spec: JobPost) -> None:
    # without thresholds no audit could be judged
    ensure(
        spec.device_class in DEVICE_CLASSES,
        RuleError(f"device class {spec.device_class} has no verdict thresholds; known are {', '.join(DEVICE_CLASSES)}"),
    )
    _check_precision(spec)
    ensure(
        spec.min_workers <= spec.units_per_round,
        RuleError(f"{spec.min_workers} workers cannot share {spec.units_per_round} units per round; lower min_workers"),
    )
    ensure(
        spec.warm_rounds <= spec.rounds,
        RuleError(f"{spec.warm_rounds} of {spec.rounds} rounds cannot be warm rounds; lower warm_rounds"),
    )
    ensure(
        draft.now < spec.deadline_ms <= draft.now + MAX_JOB_MS,
        RuleError(f"deadline {spec.deadline_ms} is not within {MAX_JOB_MS} ms after the block's time {draft.now}"),
    )
    for name in DURATIONS:
        duration = getattr(spec, name)
        ensure(duration <= MAX_PHASE_MS, RuleError(f"{name} is {duration}; at most {MAX_PHASE_MS} is allowed"))
    # whoever audits or judges did not choose the job, and loses a bond where it cannot answer in time
    ensure(
        spec.audit_ms >= MIN_AUDIT_MS,
        RuleError(f"audit_ms is {spec.audit_ms}; auditors need {MIN_AUDIT_MS} at least to answer"),
    )


def _check_precision(spec: JobPost) -> None:
    """Refuse recipes whose honest reruns could not be told from cheats in their device class (docs/adr/0004)."""
    recipe = spec.recipe
    ensure(
        spec.device_class.endswith(f"-{recipe.precision}"),
        RuleError(f"a recipe of {recipe.precision} is not for device class {spec.device_class}; name one of its own"),
    )
    if recipe.precision == "bf16":
        ensure(
            recipe.codec_bits >= BF16_BITS and recipe.codec_density_ppm == PPM,
            RuleError(f"updates of bf16 units need all values at {BF16_BITS} bits, not {recipe.codec_bits}"),
        )
        ensure(
            recipe.steps <= BF16_STEPS,
            RuleError(f"bf16 units have at most {BF16_STEPS} steps, not {recipe.steps}: longer ones drift apart"),
        )


def process_job_cancel(draft: Draft, body: JobCancel) -> None:
    """Let no more rounds start."""
    job = require(draft.job(body.job), f"no job {body.job}; check the id")
    ensure(job.spec.author == body.author, RuleError(f"job {job.id} is {job.spec.author}'s, not {body.author}'s"))
    ensure(job.status in ("bidding", "running") and not job.ending, RuleError(f"the job is {job.ending or job.status}"))
    draft.update(job_key(job.id), ending="cancelled", reason="cancelled by its owner")
    emit(draft, "job", Where(job.id, account=body.author), reason="cancelling")


def process_job(draft: Draft, job_id: str) -> None:
    """Advance a job: its units first, so that a conviction is known before the next round starts."""
    _process_units(draft, job_id)
    job = present(draft.job(job_id))
    if job.status != "draining":
        _process_deadline(draft, job)
        _process_round(draft, job_id)
        _process_bidding(draft, job_id)
        _process_between_rounds(draft, job_id)
    _process_end(draft, job_id)


def _process_units(draft: Draft, job_id: str) -> None:
    keys = present(draft.job(job_id)).unsettled
    for key in keys:
        _process_unit(draft, draft.unit_at(key))
    unsettled = tuple(key for key in keys if draft.unit_at(key).status == "accepted")
    if unsettled != keys:
        draft.update(job_key(job_id), unsettled=unsettled)


def _process_unit(draft: Draft, unit: Unit) -> None:
    """Advance what is pending about a unit; each step may be the one that settles it."""
    for audit in get_pending_audits(draft, unit):
        if audit.role != "committee" and _is_accepted(draft, unit):
            process_audit(draft, unit, audit)
    for step in (process_dispute, process_target, _release_if_due):
        if _is_accepted(draft, unit):
            step(draft, unit)


def _is_accepted(draft: Draft, unit: Unit) -> bool:
    return present(draft.unit(unit.job, unit.round, unit.slot)).status == "accepted"


def _release_if_due(draft: Draft, unit: Unit) -> None:
    if unit.release_ms <= draft.now and is_releasable(draft, unit):
        process_unit_released(draft, unit)


def _process_deadline(draft: Draft, job: Job) -> None:
    if draft.now < job.spec.deadline_ms:
        return
    round_ = draft.round(job.id, job.round)
    if round_ is not None:
        process_void(draft, round_, "the job's deadline passed")
    if not job.ending:
        draft.update(job_key(job.id), ending="expired", reason="its deadline passed")


def _process_round(draft: Draft, job_id: str) -> None:
    """End the phase under way if it is over."""
    job = present(draft.job(job_id))
    round_ = draft.round(job_id, job.round)
    if round_ is None or (round_.phase_end_ms > draft.now and not is_phase_complete(draft, round_)):
        return
    outcome = process_phase_end(draft, round_)
    if outcome is not None:
        process_targets_named(draft, present(draft.round(job_id, round_.index)), outcome)
    limit = draft.network().max_void_rounds
    void = present(draft.job(job_id)).void_in_row
    if void > limit and not job.ending:
        draft.update(job_key(job_id), ending="expired", reason=f"{void} rounds in a row had no result")


def _process_bidding(draft: Draft, job_id: str) -> None:
    job = present(draft.job(job_id))
    if job.status == "bidding" and not job.ending and job.phase_end_ms <= draft.now:
        process_auction(draft, job_id)


def _process_between_rounds(draft: Draft, job_id: str) -> None:
    """With no round under way: end the job, or start the next round."""
    job = present(draft.job(job_id))
    if draft.round(job_id, job.round) is not None:
        return
    if job.completed == job.spec.rounds:
        _process_drain(draft, job_id, "done", "all rounds are completed")
    elif job.ending:
        _process_drain(draft, job_id, job.ending, job.reason)
    elif job.status == "running" and can_start_round(job):
        process_round_start(draft, job_id)


def _process_drain(draft: Draft, job_id: str, ending: str, reason: str) -> None:
    """Let nobody join any more; units whose pay is held still settle."""
    draft.update(job_key(job_id), status="draining", ending=ending, reason=reason)
    emit(draft, "job", Where(job_id), reason=f"draining: {reason}")
    for worker in present(draft.job(job_id)).bidders:
        if present(draft.bid(job_id, worker)).status != "closed":
            process_bid_closed(draft, job_id, worker, f"the job ended: {reason}")


def _process_end(draft: Draft, job_id: str) -> None:
    """Return what is left to the owner once nothing is held any more."""
    job = present(draft.job(job_id))
    if job.status != "draining" or job.unsettled:
        return
    owner = balance(job.spec.author)
    move(draft, "refund", escrow(job_id), owner, job.escrow)
    move(draft, "refund", audit_escrow(job_id), owner, job.audit_escrow)
    refunded = job.escrow + job.audit_escrow
    draft.update(job_key(job_id), status=job.ending, ended_ms=draft.now, refunded=refunded, wake_ms=0)
    draft.update("active", jobs=tuple(other for other in draft.active().jobs if other != job_id))
    emit(draft, "job", Where(job_id, account=job.spec.author), reason=job.ending)
