"""The overview page: head, supply check, validators, jobs, latest blocks and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import Job, Network
from ledger.explorer.queries import Reader
from ledger.explorer.rows import BlockView, EventView, block_views, event_views
from ledger.explorer.totals import Totals

LATEST_JOBS = 8
LATEST_BLOCKS = 6
LATEST_EVENTS = 10
SAMPLE = 100  # blocks over which proposals are counted


@dataclass(frozen=True)
class JobLine:
    """One job as a line of a list; amounts in micro-credits."""

    id: str
    title: str
    owner: str
    status: str
    reason: str
    device_class: str
    completed: int
    rounds: int
    units_per_round: int
    price: int  # clearing price, 0 before the first auction
    reserve_price: int
    escrow: int
    audit_escrow: int
    posted_ms: int


@dataclass(frozen=True)
class ValidatorLine:
    """A validator and how many of the last ``SAMPLE`` blocks it proposed."""

    account: str
    stake: int
    proposed: int


@dataclass(frozen=True)
class Overview:
    """``supply_difference`` is the supply minus the sum over all records: 0 when nothing was minted or lost."""

    head: BlockView | None
    pools: tuple[tuple[str, int], ...]
    total: int
    supply: int
    supply_difference: int
    paid: int
    held: int
    escrowed: int
    bonded: int
    slashed: int
    job_counts: dict[str, int]
    unit_counts: dict[str, int]
    epoch: int
    blocks_left: int  # of the epoch
    pruned_below: int  # 0: nothing was pruned
    validators: list[ValidatorLine]
    sampled_blocks: int
    jobs: list[JobLine]
    blocks: list[BlockView]
    events: list[EventView]


def job_lines(jobs: Sequence[Job]) -> list[JobLine]:
    """Return jobs as lines of a list."""
    return [
        JobLine(
            id=job.id,
            title=job.spec.title,
            owner=job.spec.author,
            status=job.status,
            reason=job.reason,
            device_class=job.spec.device_class,
            completed=job.completed,
            rounds=job.spec.rounds,
            units_per_round=job.spec.units_per_round,
            price=job.clearing_price,
            reserve_price=job.spec.reserve_price,
            escrow=job.escrow,
            audit_escrow=job.audit_escrow,
            posted_ms=job.posted_ms,
        )
        for job in jobs
    ]


def _validators(reader: Reader, proposers: Sequence[str]) -> list[ValidatorLine]:
    network = reader.record("network", Network)
    names = network.validators if network else ()
    stakes = reader.stakes(names)
    return [ValidatorLine(name, stakes.get(name, 0), proposers.count(name)) for name in names]


def load(reader: Reader, totals: Totals) -> Overview:
    """Return the overview of the reader's snapshot."""
    recent = reader.blocks(SAMPLE)
    network, oldest = reader.record("network", Network), reader.oldest()
    epoch = network.epoch if network else 0
    last = (epoch + 1) * reader.genesis().staking.epoch_blocks
    return Overview(
        head=block_views(recent[:1])[0] if recent else None,
        pools=totals.pools,
        total=totals.total,
        supply=totals.supply,
        supply_difference=totals.supply - totals.total,
        paid=totals.paid,
        held=totals.pool("Unit.held_pay", "Unit.held_merit"),
        escrowed=totals.pool("Job.escrow", "Job.audit_escrow"),
        bonded=totals.pool("Bid.bond", "Audit.bond"),
        slashed=reader.sum_events("slashed"),
        job_counts=totals.jobs,
        unit_counts=totals.units,
        epoch=epoch,
        blocks_left=last - (recent[0].height if recent else 0),
        pruned_below=oldest if oldest > 1 else 0,
        validators=_validators(reader, [block.proposer for block in recent]),
        sampled_blocks=len(recent),
        jobs=job_lines(reader.latest("job", Job, LATEST_JOBS)),
        blocks=block_views(recent[:LATEST_BLOCKS]),
        events=event_views(reader, reader.events(LATEST_EVENTS)),
    )
