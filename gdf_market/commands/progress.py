"""How far a job is, from the ledger alone: what its owner watches, and one line per settled round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from contracts.records import Audit, Job, Round, Unit
from contracts.settle import compute_merit
from gdf_market.errors import UsageError
from gdf_market.messages import Recipe
from gdf_market.units import PPM, SECOND_MS
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore

ENDED = ("done", "cancelled", "expired")
RECENT_ROUNDS = 5  # rounds whose median duration tells how long the next ones take
CURVE_POINTS = 400  # losses that a snapshot carries; longer jobs are sampled evenly


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """One settled round; the same numbers whenever it is read.

    ``step`` counts settled rounds from 1 (void rounds have an index, but no step).  ``credits`` is what the included
    units earned, in micro-credits, before any conviction.  ``bytes`` are the included updates' before compression: the
    ledger does not know what was sent.
    """

    job: str
    round: int
    step: int
    time_ms: int
    loss: float | None
    units: int
    rejected: int
    credits: int
    bytes: int
    seconds: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A job at one height of the ledger; credits are micro-credits, ``losses`` are (step, nats)."""

    job: str
    title: str
    status: str
    reason: str
    rounds: int
    completed: int
    void: int
    round: int
    phase: str
    phase_end_ms: int
    deadline_ms: int
    workers: int
    slots: int
    units_in: int  # of the round under way: committed or further
    accepted: int  # of the whole job, as are the next three
    missed: int
    rejected: int
    convicted: int
    paid: int
    held: int
    audit_fees: int
    escrow: int
    refunded: int
    loss: float | None
    losses: tuple[tuple[int, float], ...]
    round_seconds: float | None  # median of the last rounds
    eta_seconds: float | None
    height: int
    head_ms: int

    @property
    def ended(self) -> bool:
        """Say whether the job will change no more."""
        return self.status in ENDED


def require_job(store: LedgerStore, job_id: str) -> Job:
    """Return a job's record.  Raises UsageError."""
    job = record_of(store, Job, f"job/{job_id}")
    if job is None:
        raise UsageError(f"job {job_id[:16]} is not on this ledger (yet)")
    return job


def rounds_of(store: LedgerStore, job_id: str) -> list[Round]:
    """Return a job's rounds in order."""
    return sorted(records_of(store, Round, f"round/{job_id}/"), key=lambda record: record.index)


def units_of(store: LedgerStore, job_id: str) -> list[Unit]:
    """Return a job's units by round and slot."""
    return sorted(records_of(store, Unit, f"unit/{job_id}/"), key=lambda unit: (unit.round, unit.slot))


def median_loss(round_: Round) -> int | None:
    """Return the median of the attesters' own loss measurements in micro-nats, or None."""
    losses = sorted(loss for _, loss in round_.losses if loss >= 0)
    return losses[len(losses) // 2] if losses else None


def metrics_of(job: Job, rounds: Sequence[Round]) -> list[RoundMetrics]:
    """Return the settled rounds of a job, in order."""
    from gdf_market.train.codec import Codec

    update_bytes = Codec.of(job.spec.recipe).expected_bytes(job.spec.parameters)
    found: list[RoundMetrics] = []
    for round_ in rounds:
        if round_.phase != "settled" or round_.outcome is None:
            continue
        outcome, loss = round_.outcome, median_loss(round_)
        merits = compute_merit(round_.price, job.spec.merit_ppm, list(outcome.merit_ppm))
        found.append(
            RoundMetrics(
                job=job.id,
                round=round_.index,
                step=len(found) + 1,
                time_ms=round_.ended_ms,
                loss=None if loss is None else loss / PPM,
                units=len(outcome.included),
                rejected=len(outcome.rejected),
                credits=len(outcome.included) * round_.price + sum(merits),
                bytes=len(outcome.included) * update_bytes,
                seconds=(round_.ended_ms - round_.started_ms) / SECOND_MS,
                tokens=len(outcome.included) * job.spec.tokens_per_unit,
            )
        )
    return found


def progress_of(store: LedgerStore, job_id: str) -> tuple[Progress, list[RoundMetrics]]:
    """Return a job's progress and its settled rounds.  Raises UsageError when the ledger has no such job."""
    job, head = require_job(store, job_id), store.head()
    rounds, units = rounds_of(store, job_id), units_of(store, job_id)
    audits: list[Audit] = records_of(store, Audit, f"audit/{job_id}/")
    settled = metrics_of(job, rounds)
    current = rounds[-1] if rounds and rounds[-1].phase not in ("settled", "void") else None
    now_ms = head.time_ms if head is not None else 0
    counts = {status: sum(unit.status == status for unit in units) for status in ("missed", "rejected", "convicted")}
    losses = [(line.step, line.loss) for line in settled if line.loss is not None]
    made = Progress(
        job=job.id,
        title=job.spec.title,
        status=job.status,
        reason=job.reason,
        rounds=job.spec.rounds,
        completed=job.completed,
        void=sum(round_.phase == "void" for round_ in rounds),
        round=current.index if current else job.round,
        phase=current.phase if current else job.status,
        phase_end_ms=_phase_end_ms(job, current),
        deadline_ms=job.spec.deadline_ms,
        workers=len({worker for worker in job.slots if worker}) if job.status not in ("draining", *ENDED) else 0,
        slots=job.spec.units_per_round,
        units_in=_units_in(units, current),
        accepted=sum(unit.status in ("accepted", "paid") for unit in units),
        **counts,
        paid=sum(unit.paid for unit in units),
        held=sum(unit.held_pay + unit.held_merit for unit in units),
        audit_fees=sum(audit.fee for audit in audits),
        escrow=job.escrow + job.audit_escrow,
        refunded=job.refunded,
        loss=losses[-1][1] if losses else None,
        losses=sampled(losses),
        round_seconds=_round_seconds(settled),
        eta_seconds=_eta_seconds(job, units, settled, current, now_ms),
        height=head.height if head is not None else 0,
        head_ms=now_ms,
    )
    return made, settled


def sampled(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return at most CURVE_POINTS of the points, the first and the last among them."""
    if len(points) <= CURVE_POINTS:
        return tuple(points)
    last = len(points) - 1
    return tuple(points[index * last // (CURVE_POINTS - 1)] for index in range(CURVE_POINTS))


def status_text(status: str, ending: str) -> str:
    """Return a job's status for people."""
    return f"{ending} (held pay waits for its audits)" if status == "draining" else status


def recipe_line(recipe: Recipe) -> str:
    """Return a recipe in one line."""
    schedule = recipe.schedule
    if recipe.schedule != "constant":
        schedule += f" over {recipe.schedule_steps:,} steps to {recipe.final_lr_ppm / PPM:g} of it"
    if recipe.warmup_steps:
        schedule += f", {recipe.warmup_steps:,} steps of warm-up"
    share = "" if recipe.codec_density_ppm == PPM else f" of the largest {recipe.codec_density_ppm / 10_000:g}%"
    return (
        f"{recipe.inner}, {recipe.steps} steps of {recipe.batch} samples, rate {recipe.lr_e9 / 1e9:g} {schedule}; "
        f"{recipe.precision}; updates of {recipe.codec_bits} bits in blocks of {recipe.codec_block}{share}; "
        f"outer rate {recipe.outer_lr_ppm / PPM:g}, momentum {recipe.outer_momentum_ppm / PPM:g}"
    )


def _phase_end_ms(job: Job, current: Round | None) -> int:
    if current is not None:
        return current.phase_end_ms
    return job.phase_end_ms if job.status == "bidding" else 0


def _units_in(units: Sequence[Unit], current: Round | None) -> int:
    if current is None:
        return 0
    return sum(unit.round == current.index and unit.status in ("committed", "revealed") for unit in units)


def _round_seconds(settled: Sequence[RoundMetrics]) -> float | None:
    return statistics.median(line.seconds for line in settled[-RECENT_ROUNDS:]) if settled else None


def _eta_seconds(
    job: Job, units: Sequence[Unit], settled: Sequence[RoundMetrics], current: Round | None, now_ms: int
) -> float | None:
    """Return the seconds from the ledger's head to the end: rounds as long as the last ones, then held pay."""
    if job.status in ENDED:
        return 0.0
    if job.status == "draining":
        waits = [max(0, unit.release_ms - now_ms) for unit in units if unit.status == "accepted"]
        return max(waits, default=0) / SECOND_MS
    each = _round_seconds(settled)
    if each is None:
        return None
    left = each * (int(current is not None) if job.ending else job.spec.rounds - job.completed)
    spent = min(each, max(0.0, (now_ms - current.started_ms) / SECOND_MS)) if current is not None else 0.0
    return max(0.0, left - spent) + job.spec.hold_ms / SECOND_MS


def as_json(record: RoundMetrics | Progress) -> dict[str, object]:
    """Return a record as plain JSON values."""
    return dict(msgspec.to_builtins(record))
