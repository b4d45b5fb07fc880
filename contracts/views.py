"""What an account can or must do now, read from the state alone; used by the roles of a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contracts.audits import count_tickets, get_target
from contracts.bisection import get_middle
from contracts.disputes import is_open_to_audits
from contracts.draws import get_eligible_auditors, is_barred
from contracts.parameters import MAX_AUDITS_PER_UNIT
from contracts.records import Dispute, Job, Round, Unit
from contracts.rounds import get_units
from contracts.settle import get_pending_audits
from contracts.state import State, present
from gdf_market.messages import MAX_OPENINGS

_UNIT_ACTIONS = {"work": ("assigned", ("train", "commit")), "reveal": ("committed", ("reveal",))}


@dataclass(frozen=True)
class Action:
    """One thing to do before ``deadline_ms``; ``slot`` is -1 for receipts and results.

    ``kind``: train and commit (both while the unit is assigned: the caller knows
    whether it trained already), reveal, receipt, result, audit_lottery (if the
    caller's VRF wins), audit_targeted, audit_committee, sketch_open and
    audit_open (at ``steps``); in a bisection bisect_open (at the step in
    ``steps``), state_offer (after so many ``steps``), arbiter_commit (having
    replayed the step in ``steps``) and arbiter_open.
    """

    kind: str
    job: str
    round: int
    slot: int
    deadline_ms: int
    steps: tuple[int, ...] = ()


def eligible_auditors(state: State, job: str, round_index: int, slot: int) -> list[str]:
    """Return who may audit a unit: validators, then the round's workers, without the unit's own; none if no unit."""
    round_, unit = state.round(job, round_index), state.unit(job, round_index, slot)
    if round_ is None or unit is None:
        return []
    return get_eligible_auditors(state, round_, unit.worker)


def my_units(state: State, account: str) -> list[Unit]:
    """Return an account's units in rounds under way and those whose pay is held, by job in posting order."""
    units = []
    for job in _get_active_jobs(state):
        unsettled = [state.unit_at(key) for key in job.unsettled]
        round_ = state.round(job.id, job.round)
        running = get_units(state, round_) if round_ is not None else []
        units += [unit for unit in (*unsettled, *running) if unit.worker == account]
    return units


def pending_actions(state: State, account: str, time_ms: int) -> list[Action]:
    """Return what ``account`` can or must do at block time ``time_ms``; what is overdue is left out."""
    actions: list[Action] = []
    for job in _get_active_jobs(state):
        round_ = state.round(job.id, job.round)
        if round_ is not None:
            actions += _get_round_actions(state, round_, account)
        for key in job.unsettled:
            actions += _get_unit_actions(state, state.unit_at(key), account)
    return [action for action in actions if action.deadline_ms > time_ms]


def _get_active_jobs(state: State) -> Iterator[Job]:
    return (present(state.job(job)) for job in state.active().jobs)


def _get_round_actions(state: State, round_: Round, account: str) -> Iterator[Action]:
    end = round_.phase_end_ms
    if round_.phase in _UNIT_ACTIONS:
        status, kinds = _UNIT_ACTIONS[round_.phase]
        for unit in get_units(state, round_):
            if unit.worker == account and unit.status == status:
                yield from (Action(kind, round_.job, round_.index, unit.slot, end) for kind in kinds)
    elif account in round_.attesters:
        said = round_.receipts if round_.phase == "receipt" else round_.results
        if account not in (pair[0] for pair in said):
            yield Action(round_.phase, round_.job, round_.index, -1, end)


def _get_unit_actions(state: State, unit: Unit, account: str) -> Iterator[Action]:
    where = (unit.job, unit.round, unit.slot)
    dispute = state.dispute(*where)
    if dispute is not None and dispute.status == "bisecting":
        yield from _get_bisection_actions(unit, dispute, account)
    if unit.worker == account:
        yield from _get_sketch_actions(state, unit)
        return
    if account not in unit.auditors:
        if state.account(account).balance >= state.network().audit_bond:
            yield from _get_audit_actions(state, unit, account)
        return
    audit = present(state.audit(*where, account))
    if audit.status == "committed" and audit.steps:
        yield Action("audit_open", *where, audit.phase_end_ms, audit.steps)


def _get_audit_actions(state: State, unit: Unit, account: str) -> Iterator[Action]:
    where = (unit.job, unit.round, unit.slot)
    dispute = state.dispute(*where)
    if dispute is not None and not is_open_to_audits(dispute):
        if dispute.status == "committing" and account in dispute.committee:
            yield Action("audit_committee", *where, dispute.phase_end_ms)
        return
    if is_barred(state, unit.job, account):
        return
    round_ = present(state.round(unit.job, unit.round))
    target = get_target(round_, unit.slot)
    if target is not None and target.auditor == account:
        yield Action("audit_targeted", *where, target.phase_end_ms)
        return
    open_to_tickets = count_tickets(state, unit) < MAX_AUDITS_PER_UNIT
    if open_to_tickets and account in get_eligible_auditors(state, round_, unit.worker):
        yield Action("audit_lottery", *where, unit.release_ms)


def _get_bisection_actions(unit: Unit, dispute: Dispute, account: str) -> Iterator[Action]:
    where, end = (unit.job, unit.round, unit.slot), dispute.phase_end_ms
    bisection = present(dispute.bisection)
    side = {unit.worker: bisection.worker, dispute.accuser: bisection.accuser}.get(account)
    arbiter = next((each for each in bisection.arbiters if each.account == account), None)
    if bisection.phase == "halving" and side is not None and not side.middle:
        yield Action("bisect_open", *where, end, (get_middle(bisection),))
    elif bisection.phase == "offering" and side is not None and not side.state:
        yield Action("state_offer", *where, end, (bisection.low + 1,))
    elif bisection.phase == "replaying" and arbiter is not None and not arbiter.digest:
        yield Action("arbiter_commit", *where, end, (bisection.high,))
    elif bisection.phase == "opening" and arbiter is not None and arbiter.digest and not arbiter.opened:
        yield Action("arbiter_open", *where, end)


def _get_sketch_actions(state: State, unit: Unit) -> Iterator[Action]:
    """Yield one opening for as many waiting audits as one entry can answer, in the order of their commits."""
    waiting = [audit for audit in get_pending_audits(state, unit) if audit.steps and not audit.worker_opened]
    if not waiting:
        return
    steps: set[int] = set()
    for audit in waiting:
        if len(steps | set(audit.steps)) > MAX_OPENINGS:
            break
        steps |= set(audit.steps)
    end = min(audit.phase_end_ms for audit in waiting)
    yield Action("sketch_open", unit.job, unit.round, unit.slot, end, tuple(sorted(steps)))
