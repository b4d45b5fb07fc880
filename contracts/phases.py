"""How the phases of a round end: by their deadline, or early once everybody has acted.

Rules kept here:
1. Every draw uses the beacon of a block made after what it draws from was fixed.
2. A round ends settled or void; only a settled one pays and changes the checkpoint.
3. Two thirds always means more than two thirds.
"""

from __future__ import annotations

from collections import Counter

from contracts.accounts import Where, emit, where_unit
from contracts.auction import process_bid_closed
from contracts.draws import (
    compute_audit_chance_ppm,
    compute_counted_record,
    compute_draw_order,
    get_eligible_auditors,
    get_round_workers,
)
from contracts.parameters import ATTESTING_VALIDATORS, MISSES_TO_CLOSE
from contracts.records import Round, Unit
from contracts.rounds import get_slots, get_units
from contracts.settle import compute_merit, process_unit_accepted
from contracts.state import Draft, View, bid_key, job_key, present, round_key, unit_key
from gdf_market.codec import digest
from gdf_market.messages import Outcome


def is_phase_complete(view: View, round_: Round) -> bool:
    """Say whether everybody has acted, or enough agree."""
    match round_.phase:
        case "work":
            return not get_slots(view, round_, "assigned")
        case "reveal":
            return not get_slots(view, round_, "committed")
        case "receipt":
            return len(round_.receipts) == len(round_.attesters)
        case _:
            voted = len(round_.results) == len(round_.attesters)
            return voted or get_winner(round_, len(round_.attesters)) is not None


def get_winner(round_: Round, voters: int) -> Outcome | None:
    """Return the outcome that more than two thirds of ``voters`` voted for."""
    votes = Counter(name for _, name in round_.results)
    return next((outcome for name, outcome in round_.outcomes if 3 * votes[name] > 2 * voters), None)


def process_phase_end(draft: Draft, round_: Round) -> Outcome | None:
    """End the phase of a round; return the outcome if that settles the round."""
    match round_.phase:
        case "work":
            _process_work_end(draft, round_)
        case "reveal":
            _process_reveal_end(draft, round_)
        case "receipt":
            _process_receipt_end(draft, round_)
        case _:
            return _process_result_end(draft, round_)
    return None


def _next_phase(draft: Draft, round_: Round, phase: str, phase_ms: int, **changes: object) -> None:
    key = round_key(round_.job, round_.index)
    draft.update(key, phase=phase, phase_end_ms=draft.now + phase_ms, **changes)
    emit(draft, "phase", Where(round_.job, round_.index), reason=phase)


def _mark_missed(draft: Draft, round_: Round, status: str, reason: str) -> None:
    for unit in get_units(draft, round_):
        if unit.status == status:
            draft.update(unit_key(unit.job, unit.round, unit.slot), status="missed", reason=reason)
            emit(draft, "missed", where_unit(unit), reason=reason)


def _process_work_end(draft: Draft, round_: Round) -> None:
    _mark_missed(draft, round_, "assigned", "no commit by the deadline")
    units = [unit for unit in get_units(draft, round_) if unit.status == "committed"]
    if not units:
        process_void(draft, round_, "nobody committed")
        return
    commits = (bytes.fromhex(unit.commit) for unit in units)
    audit_seed = digest("gdf/audit-seed", bytes.fromhex(draft.context.beacon), *commits)
    job = present(draft.job(round_.job))
    for unit in units:
        consecutive = draft.reputation(unit.worker, job.spec.device_class).consecutive
        record = compute_counted_record(consecutive, job.alert_round, round_.index)
        eligible = len(get_eligible_auditors(draft, round_, unit.worker))
        chance = compute_audit_chance_ppm(job.spec.audit_floor_ppm, record, eligible)
        draft.update(unit_key(unit.job, unit.round, unit.slot), audit_chance_ppm=chance)
    _next_phase(draft, round_, "reveal", job.spec.reveal_ms, audit_seed=audit_seed.hex())


def _process_reveal_end(draft: Draft, round_: Round) -> None:
    _mark_missed(draft, round_, "committed", "no reveal by the deadline")
    units = [unit for unit in get_units(draft, round_) if unit.status == "revealed"]
    if not units:
        process_void(draft, round_, "nobody revealed")
        return
    beacon, validators = draft.context.beacon, draft.network().validators
    drawn = compute_draw_order(validators, "gdf/attesters", beacon, round_.job, round_.index)
    workers = dict.fromkeys(unit.worker for unit in units)
    others = [account for account in drawn if account not in workers][:ATTESTING_VALIDATORS]
    spec = present(draft.job(round_.job)).spec
    _next_phase(draft, round_, "receipt", spec.receipt_ms, attesters=(*workers, *others))


def _process_receipt_end(draft: Draft, round_: Round) -> None:
    count = len(round_.receipts)
    needed = len(round_.attesters) // 2 + 1
    if count < needed:
        process_void(draft, round_, f"{count} of {len(round_.attesters)} attesters sent receipts; {needed} are needed")
        return
    held = Counter(slot for _, holds in round_.receipts for slot in holds)
    included = []
    for unit in get_units(draft, round_):
        if unit.status != "revealed":
            continue
        if 3 * held[unit.slot] > 2 * count:
            included.append(unit.slot)
        else:
            _reject(draft, unit, f"{held[unit.slot]} of {count} attesters hold the update")
    if not included:
        process_void(draft, round_, "no update is held by more than two thirds of the attesters")
        return
    spec = present(draft.job(round_.job)).spec
    attesters = tuple(account for account in round_.attesters if account in dict(round_.receipts))
    _next_phase(draft, round_, "result", spec.result_ms, attesters=attesters, included=tuple(included))


def _reject(draft: Draft, unit: Unit, reason: str) -> None:
    draft.update(unit_key(unit.job, unit.round, unit.slot), status="rejected", reason=reason)
    emit(draft, "rejected", where_unit(unit), reason=reason)


def _process_result_end(draft: Draft, round_: Round) -> Outcome | None:
    outcome = get_winner(round_, len(round_.attesters))
    voters = len(round_.results)
    if outcome is None and 2 * voters > len(round_.attesters):
        outcome = get_winner(round_, voters)
    if outcome is None:
        reason = f"{voters} of {len(round_.attesters)} attesters voted, no outcome has more than two thirds"
        process_void(draft, round_, reason)
        return None
    if not any(present(draft.unit(round_.job, round_.index, s)).status == "revealed" for s in outcome.included):
        process_void(draft, round_, "the outcome includes no unit that could be paid")
        return None
    _process_settled(draft, round_, outcome)
    return outcome


def _process_settled(draft: Draft, round_: Round, outcome: Outcome) -> None:
    """Hold the pay of included units and take over the new checkpoint."""
    job = present(draft.job(round_.job))
    for rejected in outcome.rejected:
        unit = present(draft.unit(round_.job, round_.index, rejected.slot))
        if unit.status == "revealed":
            _reject(draft, unit, rejected.reason)
    shares = dict(zip(outcome.included, outcome.merit_ppm, strict=True))
    units = [unit for unit in get_units(draft, round_) if unit.slot in shares and unit.status == "revealed"]
    merits = compute_merit(round_.price, job.spec.merit_ppm, [shares[unit.slot] for unit in units])
    for unit, merit in zip(units, merits, strict=True):
        process_unit_accepted(draft, unit, round_.price, merit)
    draft.update(
        job_key(job.id), round=job.round + 1, completed=job.completed + 1, void_in_row=0, checkpoint=outcome.checkpoint
    )
    _end_round(draft, round_, "settled", "", outcome=outcome)


def process_void(draft: Draft, round_: Round, reason: str) -> None:
    """End a round that pays nothing."""
    for unit in get_units(draft, round_):
        if unit.status in ("assigned", "committed", "revealed"):
            _reject(draft, unit, f"round void: {reason}")
    job = present(draft.job(round_.job))
    draft.update(job_key(job.id), round=job.round + 1, void_in_row=job.void_in_row + 1)
    _end_round(draft, round_, "void", reason)


def _end_round(draft: Draft, round_: Round, phase: str, reason: str, *, outcome: Outcome | None = None) -> None:
    key = round_key(round_.job, round_.index)
    # losing outcomes are known by their hashes in the results
    draft.update(key, phase=phase, ended_ms=draft.now, reason=reason, outcome=outcome, outcomes=())
    emit(draft, "phase", Where(round_.job, round_.index), reason=f"{phase}: {reason}" if reason else phase)
    for worker in get_round_workers(draft, round_):
        _count_misses(draft, round_, worker)


def _count_misses(draft: Draft, round_: Round, worker: str) -> None:
    """Count a round in which a worker missed a deadline; close its bid when that happened too often in a row."""
    statuses = {unit.status for unit in get_units(draft, round_) if unit.worker == worker}
    bid = present(draft.bid(round_.job, worker))
    misses = bid.misses + 1 if "missed" in statuses else 0 if "accepted" in statuses else bid.misses
    if bid.status != "matched" or misses == bid.misses:
        return
    draft.update(bid_key(round_.job, worker), misses=misses)
    if misses >= MISSES_TO_CLOSE:
        process_bid_closed(draft, round_.job, worker, f"missed deadlines in {misses} rounds in a row")
