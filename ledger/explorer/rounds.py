"""Rounds of a job: phases, units by slot, votes, loss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import Job, Round, Target, Unit
from contracts.state import job_key, round_key, unit_key
from gdf_market.messages import Outcome
from ledger.explorer.queries import Reader

PHASES = ("work", "reveal", "receipt", "result", "settled")
CHART_POINTS = 400  # rounds on the loss chart; longer jobs are sampled evenly


@dataclass(frozen=True)
class UnitCell:
    """One unit in a round's row of slots."""

    slot: int
    worker: str
    status: str
    reason: str
    shard: int
    merit_ppm: int  # -1 if the unit is not in the outcome
    cosine_ppm: int
    audits: int
    held: int
    paid: int


@dataclass(frozen=True)
class RoundView:
    """A round as a line of the job page; ``loss_e6`` is the median of what attesters measured, -1 if none did."""

    index: int
    phase: str
    reason: str
    started_ms: int
    phase_end_ms: int
    ended_ms: int
    price: int
    checkpoint: str
    next_checkpoint: str
    included: tuple[int, ...]
    loss_e6: int
    units: list[UnitCell]


@dataclass(frozen=True)
class RoundPage:
    """Everything the ledger holds of one round."""

    job: str
    title: str
    view: RoundView
    seed: str
    audit_seed: str
    attesters: tuple[str, ...]
    holds: dict[str, tuple[int, ...]]  # attester -> slots it holds
    votes: dict[str, str]  # attester -> hash of the outcome it voted for
    losses: dict[str, int]  # attester -> micro-nats
    outcome: Outcome | None
    targets: tuple[Target, ...]
    last: int  # index of the job's newest round


def median_loss(entry: Round) -> int:
    """Return the median of the losses that attesters measured in micro-nats, -1 if none did."""
    measured = [loss for _, loss in entry.losses if loss >= 0]
    return int(statistics.median_low(measured)) if measured else -1


def _cell(slot: int, unit: Unit, outcome: Outcome | None) -> UnitCell:
    place = outcome.included.index(slot) if outcome and slot in outcome.included else -1
    return UnitCell(
        slot=slot,
        worker=unit.worker,
        status=unit.status,
        reason=unit.reason,
        shard=unit.shard,
        merit_ppm=outcome.merit_ppm[place] if outcome and place >= 0 else -1,
        cosine_ppm=outcome.cosine_ppm[place] if outcome and place >= 0 else 0,
        audits=len(unit.auditors),
        held=unit.held_pay + unit.held_merit,
        paid=unit.paid,
    )


def round_views(reader: Reader, rounds: Sequence[Round]) -> list[RoundView]:
    """Return rounds with their units."""
    keys = [unit_key(entry.job, entry.index, slot) for entry in rounds for slot in entry.units]
    units = reader.records(keys, Unit)
    return [
        RoundView(
            index=entry.index,
            phase=entry.phase,
            reason=entry.reason,
            started_ms=entry.started_ms,
            phase_end_ms=entry.phase_end_ms,
            ended_ms=entry.ended_ms,
            price=entry.price,
            checkpoint=entry.checkpoint,
            next_checkpoint=entry.outcome.checkpoint if entry.outcome else "",
            included=entry.outcome.included if entry.outcome else (),
            loss_e6=median_loss(entry),
            units=[
                _cell(slot, units[key], entry.outcome)
                for slot in entry.units
                if (key := unit_key(entry.job, entry.index, slot)) in units
            ],
        )
        for entry in rounds
    ]


def latest_rounds(reader: Reader, job: Job, limit: int, before: int | None = None) -> list[Round]:
    """Return rounds below index ``before``, newest first."""
    start = job.round if before is None else min(job.round, before - 1)
    keys = [round_key(job.id, index) for index in range(start, max(start - limit, -1), -1)]
    return list(reader.records(keys, Round).values())


def losses(reader: Reader, job: Job) -> list[tuple[int, int]]:
    """Return (round, loss in micro-nats) of at most ``CHART_POINTS`` rounds, in order."""
    count = job.round + 1
    step = max(1, -(-count // CHART_POINTS))
    keys = [round_key(job.id, index) for index in range(0, count, step)]
    pairs = [(entry.index, median_loss(entry)) for entry in reader.records(keys, Round).values()]
    return [(index, loss) for index, loss in pairs if loss >= 0]


def load_page(reader: Reader, job_id: str, index: int) -> RoundPage | None:
    """Return one round's page, None when there is no such job or round."""
    job = reader.record(job_key(job_id), Job)
    entry = reader.record(round_key(job_id, index), Round)
    if job is None or entry is None:
        return None
    return RoundPage(
        job=job.id,
        title=job.spec.title,
        view=round_views(reader, [entry])[0],
        seed=entry.seed,
        audit_seed=entry.audit_seed,
        attesters=entry.attesters,
        holds=dict(entry.receipts),
        votes=dict(entry.results),
        losses=dict(entry.losses),
        outcome=entry.outcome,
        targets=entry.targets,
        last=job.round if reader.record(round_key(job_id, job.round), Round) else job.round - 1,
    )
