"""Where held pay, bonds and fees go once a unit or an audit is decided.

Rules kept here:
1. A unit is paid, taken back or forfeited once: only an accepted unit holds pay, and each of these ends that.
2. An audit's bond is returned or forfeited once, when the audit ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from contracts.accounts import (
    audit_bond,
    audit_escrow,
    balance,
    bid_bond,
    emit,
    escrow,
    held_merit,
    held_pay,
    move,
    where_audit,
    where_unit,
)
from contracts.auction import process_bond
from contracts.parameters import MAX_TEXT
from contracts.records import Audit, Target, Unit
from contracts.state import Draft, View, audit_key_of, bid_key, job_key, present, reputation_key, round_key, unit_key_of
from gdf_market.units import PPM


def is_pending(audit: Audit | None) -> bool:
    """Say whether an audit still has to open or to be judged."""
    return audit is not None and audit.status in ("committed", "opened") and not audit.verdict


def get_pending_audits(view: View, unit: Unit) -> list[Audit]:
    """Return the unit's pending audits, in the order in which they were committed."""
    audits = (present(view.audit(unit.job, unit.round, unit.slot, auditor)) for auditor in unit.auditors)
    return [audit for audit in audits if is_pending(audit)]


def compute_merit(price: int, merit_ppm: int, shares_ppm: list[int]) -> list[int]:
    """Return the merit pay per unit: the pot price x units x merit_ppm, split by shares, rounded down."""
    pot = price * len(shares_ppm) * merit_ppm // PPM
    return [pot * share // PPM for share in shares_ppm]


def process_unit_accepted(draft: Draft, unit: Unit, pay: int, merit: int) -> None:
    """Hold a unit's pay until its release."""
    job = present(draft.job(unit.job))
    key = unit_key_of(unit)
    draft.update(key, status="accepted", release_ms=draft.now + job.spec.hold_ms)
    emit(draft, "accepted", where_unit(unit))
    move(draft, "held", escrow(unit.job), held_pay(unit), pay)
    move(draft, "merit", escrow(unit.job), held_merit(unit), merit)
    bid = present(draft.bid(unit.job, unit.worker))
    draft.update(bid_key(unit.job, unit.worker), unsettled=bid.unsettled + 1)
    draft.update(job_key(unit.job), unsettled=(*job.unsettled, key))


def process_unit_released(draft: Draft, unit: Unit) -> None:
    """Pay a unit whose time has come."""
    move(draft, "paid", held_pay(unit), balance(unit.worker), unit.held_pay)
    move(draft, "merit", held_merit(unit), balance(unit.worker), unit.held_merit)
    draft.update(unit_key_of(unit), paid=unit.held_pay + unit.held_merit)
    device_class = present(draft.job(unit.job)).spec.device_class
    record = draft.reputation(unit.worker, device_class)
    set_reputation(draft, unit.worker, device_class, consecutive=record.consecutive + 1, valid=record.valid + 1)
    _process_unit_settled(draft, unit, "paid", "")


def process_unit_taken_back(draft: Draft, unit: Unit, kind: str, status: str, reason: str) -> None:
    """Return a unit's held pay to the escrow; its audits under way end without a verdict."""
    move(draft, kind, held_pay(unit), escrow(unit.job), unit.held_pay, reason=reason)
    move(draft, kind, held_merit(unit), escrow(unit.job), unit.held_merit, reason=reason)
    emit(draft, status, where_unit(unit), reason=reason)
    for audit in get_pending_audits(draft, unit):
        process_audit_closed(draft, audit, "void", fee=False)
    _drop_target(draft, unit)
    _process_unit_settled(draft, unit, status, reason)


def _drop_target(draft: Draft, unit: Unit) -> None:
    _set_targets(draft, unit, lambda target: target.status == "pending", "dropped")


def process_target_again(draft: Draft, unit: Unit, auditor: str) -> None:
    """Take back that a unit's target is done: its auditor was refuted, so another one is to be named."""
    _set_targets(draft, unit, lambda target: target.auditor == auditor and target.status == "done", "pending")


def _set_targets(draft: Draft, unit: Unit, concerned: Callable[[Target], bool], status: str) -> None:
    targets = present(draft.round(unit.job, unit.round)).targets
    changed = tuple(
        msgspec.structs.replace(target, status=status) if target.slot == unit.slot and concerned(target) else target
        for target in targets
    )
    if changed != targets:
        draft.update(round_key(unit.job, unit.round), targets=changed)


def _process_unit_settled(draft: Draft, unit: Unit, status: str, reason: str) -> None:
    """Note the end of a unit; ``Job.unsettled`` is brought up to date once all units of a block are done."""
    draft.update(unit_key_of(unit), status=status, reason=reason[:MAX_TEXT])
    bid = present(draft.bid(unit.job, unit.worker))
    draft.update(bid_key(unit.job, unit.worker), unsettled=bid.unsettled - 1)
    process_bond(draft, unit.job, unit.worker)


def process_worker_silent(draft: Draft, unit: Unit) -> None:
    """Take the pay of a unit whose worker did not open it, one unit bond, and its run of valid units."""
    job = present(draft.job(unit.job))
    reason = f"round {unit.round}, slot {unit.slot}: the worker did not open its sketches"
    bond = present(draft.bid(unit.job, unit.worker)).bond
    lost = min(bond, job.spec.unit_bond)
    move(draft, "forfeited", bid_bond(unit.job, unit.worker), escrow(unit.job), lost, reason=reason)
    set_reputation(draft, unit.worker, job.spec.device_class, consecutive=0)
    process_unit_taken_back(draft, unit, "forfeited", "rejected", reason)


def set_reputation(draft: Draft, account: str, device_class: str, **changes: int) -> None:
    """Change fields of an account's reputation."""
    key = reputation_key(account, device_class)
    draft.put(key, draft.reputation(account, device_class))
    draft.update(key, **changes)


def process_audit_closed(draft: Draft, audit: Audit, status: str, *, fee: bool, forfeit: bool = False) -> None:
    """End an audit: its bond goes back, or to the audit escrow; its fee is paid as far as that escrow reaches."""
    draft.update(audit_key_of(audit), status=status)
    to = audit_escrow(audit.job) if forfeit else balance(audit.auditor)
    move(draft, "forfeited" if forfeit else "returned", audit_bond(audit), to, audit.bond, reason=audit.verdict)
    if not fee:
        return
    job = present(draft.job(audit.job))
    # an audit costs what a unit costs, so it never earns more than the price its round cleared at
    price = present(draft.round(audit.job, audit.round)).price
    amount = min(job.spec.audit_fee, price, job.audit_escrow)
    draft.update(audit_key_of(audit), fee=amount)
    source, target = audit_escrow(audit.job), balance(audit.auditor)
    move(draft, "audit", source, target, amount, where=where_audit(audit), reason=f"{audit.role} fee")


def process_bond_slashed(draft: Draft, job_id: str, worker: str, accusers: list[str], reason: str) -> None:
    """Take a worker's whole bond: half is shared by the accusers, the rest goes to the escrow."""
    pot = bid_bond(job_id, worker)
    bond = present(draft.bid(job_id, worker)).bond
    share = bond // 2 // len(accusers)
    for account in accusers:
        move(draft, "slashed", pot, balance(account), share, reason=reason)
    move(draft, "slashed", pot, escrow(job_id), bond - share * len(accusers), reason=reason)
