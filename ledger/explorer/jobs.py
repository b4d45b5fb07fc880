"""The job list and the job page."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.records import Active, Bid, Job
from contracts.state import job_key
from gdf_market.messages import JobPost, Recipe
from gdf_market.units import PPM
from ledger.explorer.auction import BidLine, Clearing, bid_lines, clearing
from ledger.explorer.charts import LineChart, loss_chart
from ledger.explorer.escrow import Budget, Statement, job_budget, job_statements
from ledger.explorer.overview import JobLine, job_lines
from ledger.explorer.present import credits_text, duration, number, percent
from ledger.explorer.queries import Reader
from ledger.explorer.rounds import RoundView, latest_rounds, losses, round_views
from ledger.explorer.rows import EventView, event_views

OVER = ("draining", "done", "cancelled", "expired")  # no more rounds start, and slots are vacant
ROUNDS_PER_PAGE = 12
LATEST_EVENTS = 12
MAX_BIDDERS = 256


@dataclass(frozen=True)
class JobList:
    """One page of jobs, last changed first; ``next_skip`` is None on the last page."""

    jobs: list[JobLine]
    counts: dict[str, int]
    skip: int
    next_skip: int | None


@dataclass(frozen=True)
class JobPage:
    """Everything the ledger holds of one job; amounts in micro-credits."""

    job: Job
    summary: str
    recipe: list[tuple[str, str]]
    budget: Budget
    statements: tuple[Statement, Statement, Statement]
    bids: list[BidLine]
    clearing: Clearing
    deterrence: str
    rounds: list[RoundView]
    before: int | None
    next_before: int | None
    loss: list[tuple[int, int]]
    chart: LineChart | None
    events: list[EventView]
    last_workers: int | None  # workers of the last round, of a job that is over
    pruned_below: int  # the height before which its entries and events were pruned; 0 if none were


def load_list(reader: Reader, counts: dict[str, int], limit: int, skip: int) -> JobList:
    """Return one page of jobs."""
    found = reader.latest("job", Job, limit + 1, skip) if limit < 100 else reader.latest("job", Job, limit, skip)
    more = len(found) > limit or (limit >= 100 and len(found) == limit)
    return JobList(job_lines(found[:limit]), counts, skip, skip + limit if more else None)


def load(reader: Reader, job_id: str, rounds: int, before: int | None) -> JobPage | None:
    """Return a job's page with ``rounds`` rounds below index ``before``; None if there is no such job."""
    job = reader.record(job_key(job_id), Job)
    if job is None:
        return None
    bids = list(reader.records_under(f"bid/{job_id}/", Bid, MAX_BIDDERS).values())
    lines = bid_lines(job, bids)
    held, audit_bonds = reader.held_of_job(job_id)
    bonds = sum(bid.bond for bid in bids) + audit_bonds
    oldest = reader.oldest()
    pruned_below = oldest if oldest > 1 and reader.entry(job_id) is None else 0
    statements = job_statements(job, reader.flows(job_id), held, bonds, pruned_below)
    shown = latest_rounds(reader, job, rounds, before)
    loss = losses(reader, job)
    return JobPage(
        job=job,
        summary=summary(job.spec),
        recipe=recipe_terms(job.spec.recipe),
        budget=job_budget(job.spec),
        statements=statements,
        bids=lines,
        clearing=clearing(job, bids),
        deterrence=deterrence(job),
        rounds=round_views(reader, shown),
        before=before,
        next_before=shown[-1].index if shown and shown[-1].index > 0 else None,
        loss=loss,
        chart=loss_chart(loss),
        events=event_views(reader, reader.events(LATEST_EVENTS, job=job_id)),
        last_workers=last_workers(reader, job),
        pruned_below=pruned_below,
    )


def audit_floors(reader: Reader) -> list[int]:
    """Return the lottery rates, in parts per million, of the jobs under way."""
    active = reader.record("active", Active)
    jobs = reader.records([job_key(name) for name in active.jobs], Job) if active else {}
    return [job.spec.audit_floor_ppm for job in jobs.values()]


def last_workers(reader: Reader, job: Job) -> int | None:
    """Return how many workers the last round of a job that is over had; None while there may be more rounds."""
    if job.status not in OVER:
        return None
    last = round_views(reader, latest_rounds(reader, job, 2)[:1])  # 2: the job's index is one past its last round
    return len({unit.worker for view in last for unit in view.units})


def summary(spec: JobPost) -> str:
    """Return the job's terms in words."""
    tokens = f" of {number(spec.tokens_per_unit)} tokens" if spec.tokens_per_unit else ""
    warm = f" (one unit in the first {number(spec.warm_rounds)})" if spec.warm_rounds else ""
    return (
        f"Train {number(spec.parameters)} parameters for {number(spec.rounds)} rounds of {spec.units_per_round} "
        f"units{tokens} each{warm} on {spec.device_class}, drawing from {number(spec.shards)} data shards. "
        f"At least {spec.min_workers} workers must take part. A unit pays at most {credits_text(spec.reserve_price)} "
        f"credits, plus a merit share of {percent(spec.merit_ppm)} of the round's base pay. A worker locks "
        f"{credits_text(spec.unit_bond)} credits per unit, and pay is held for {duration(spec.hold_ms)}."
    )


def recipe_terms(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the recipe as (term, meaning) pairs."""
    clip = f"{recipe.clip_ppm / PPM:g}" if recipe.clip_ppm else "none"
    sparse = recipe.codec_density_ppm < PPM
    held = f"the largest {recipe.codec_density_ppm / 10_000:g}% of the values" if sparse else "all values"
    return [
        ("Inner optimizer", recipe.inner),
        ("Inner steps per unit", number(recipe.steps)),
        ("Samples per step", number(recipe.batch)),
        ("Learning rate", f"{recipe.lr_e9 / 1e9:g}"),
        ("Schedule over the job", schedule(recipe)),
        ("Betas", f"{recipe.beta1_ppm / PPM:g}, {recipe.beta2_ppm / PPM:g}"),
        ("Weight decay", f"{recipe.weight_decay_ppm / PPM:g}"),
        ("Gradient norm limit", clip),
        ("Re-warm-up steps", number(recipe.rewarm_steps)),
        ("Precision", recipe.precision),
        ("Outer learning rate", f"{recipe.outer_lr_ppm / PPM:g}"),
        ("Outer Nesterov momentum", f"{recipe.outer_momentum_ppm / PPM:g}"),
        ("Update codec", f"{held}, {recipe.codec_bits} bits, blocks of {recipe.codec_block}"),
    ]


def schedule(recipe: Recipe) -> str:
    """Return how the learning rate changes over the whole job, in words."""
    warmup = f"{number(recipe.warmup_steps)} steps of warm-up, then " if recipe.warmup_steps else ""
    if recipe.schedule == "constant":
        return f"{warmup}constant"
    return f"{warmup}{recipe.schedule} to {percent(recipe.final_lr_ppm)} at step {number(recipe.schedule_steps)}"


def deterrence(job: Job) -> str:
    """Return what the job's audit rate deters (docs/verification.md, What an audit deters).

    With r the pay and b the bond, a unit that cheats loses p d (r + b) on average; what it saves is below r.
    """
    spec = job.spec
    price = job.clearing_price or spec.reserve_price
    lost = price + spec.unit_bond
    expected = lost * spec.audit_floor_ppm // PPM
    rate = percent(spec.audit_floor_ppm)
    return (
        f"The lottery audits every unit with a chance of at least {rate}. A convicted worker loses the pay of "
        f"{credits_text(price)} and the bond of {credits_text(spec.unit_bond)} credits. If d is how often an audit of "
        f"a cheat ends in its conviction, cheating costs {rate} × d × {credits_text(lost)} = d × "
        f"{credits_text(expected)} credits a unit on average by the lottery alone, and saves the work, which costs "
        f"less than the pay. {_covers(expected, price)} New workers and the most suspicious unit of each round are "
        "audited more."
    )


def _covers(expected: int, price: int) -> str:
    """Return from which d on cheating loses whatever the work costs: d x ``expected`` > ``price``."""
    if expected <= price:
        share = percent(expected * PPM // max(1, price))
        return f"If every audit of one convicts, that is {share} of the pay: cheating loses where it saves less."
    return f"Whatever the work costs, cheating loses where d is above {percent(price * PPM // expected)}."
