"""Which blobs a job needs, who keeps them, and who makes a copy when too few do: read from the ledger's state alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contracts.records import Job, Round
from contracts.state import State
from gdf_market.codec import sha256

ENDED = ("done", "cancelled", "expired")
LOOK_BACK = 256  # rounds searched for the last one that settled


def get_checkpoints(state: State, job: Job) -> tuple[str, ...]:
    """Return the job's last two checkpoints, the newest first; one before a round has settled."""
    last = _get_last_settled(state, job)
    if last is None or last.checkpoint == job.checkpoint:
        return (job.checkpoint,)
    return (job.checkpoint, last.checkpoint)


def _get_last_settled(state: State, job: Job) -> Round | None:
    for index in range(job.round, max(-1, job.round - LOOK_BACK), -1):
        round_ = state.round(job.id, index)
        if round_ is not None and round_.phase == "settled":
            return round_
    return None


def get_evidence(state: State, job: Job) -> set[str]:
    """Return what audits and disputes of a job may still need: updates, the checkpoints they began with, states."""
    roots = set(_get_unsettled(state, job))
    round_ = state.round(job.id, job.round)
    if round_ is not None:
        roots.add(round_.checkpoint)
        units = (state.unit(job.id, round_.index, slot) for slot in round_.units)
        roots |= {unit.update for unit in units if unit is not None}
    return roots - {""}


def _get_unsettled(state: State, job: Job) -> Iterator[str]:
    for key in job.unsettled:
        unit = state.unit_at(key)
        yield unit.update
        round_ = state.round(job.id, unit.round)
        if round_ is not None:
            yield round_.checkpoint
        dispute = state.dispute(job.id, unit.round, unit.slot)
        if dispute is not None and dispute.bisection is not None:
            yield dispute.bisection.worker.state
            yield dispute.bisection.accuser.state


def is_part_of(state: State, job: Job, account: str) -> bool:
    """Say whether an account owns the job, works on it, or attests, audits or judges in it now or did at its end."""
    if account == job.spec.author or account in job.slots:
        return True
    for round_ in (state.round(job.id, job.round), _get_last_settled(state, job)):
        if round_ is not None and account in round_.attesters:
            return True
    return any(_judges(state, key, account) for key in job.unsettled)


def _judges(state: State, key: str, account: str) -> bool:
    unit = state.unit_at(key)
    if account in (unit.worker, *unit.auditors):
        return True
    dispute = state.dispute(unit.job, unit.round, unit.slot)
    if dispute is None:
        return False
    arbiters = dispute.bisection.arbiters if dispute.bisection is not None else ()
    return account in dispute.committee or any(arbiter.account == account for arbiter in arbiters)


def get_caretakers(state: State, job: Job) -> list[str]:
    """Return who sees to it that there are copies, in order: validators and those who worked on the job.

    The order is that of SHA-256(job id, account): another one for each job, the same everywhere, and nobody's choice.
    """
    accounts = {*state.network().validators, *job.slots} - {""}
    last = _get_last_settled(state, job)
    if last is not None:
        accounts.update(last.attesters)
    return rank(job.id, accounts)


def rank(job: str, accounts: Iterable[str]) -> list[str]:
    """Return accounts in the order in which they are asked to keep a job's blobs."""
    return sorted(accounts, key=lambda account: sha256(f"{job}{account}".encode()))


def get_kept_jobs(state: State, known: Iterable[Job], now_ms: int, keep_ms: int) -> list[Job]:
    """Return jobs under way, and those of ``known`` that ended less than ``keep_ms`` ago."""
    active = [job for job in map(state.job, state.active().jobs) if job is not None]
    under_way = {job.id for job in active}
    return active + [job for job in known if job.id not in under_way and now_ms < job.ended_ms + keep_ms]


def get_ended_jobs(state: State) -> list[Job]:
    """Return all jobs that ended (walks all records)."""
    return [one for one in state.records.values() if isinstance(one, Job) and one.status in ENDED]
