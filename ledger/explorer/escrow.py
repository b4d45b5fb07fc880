"""A job's money as three statements that add up to zero: escrow, held pay, bonds.

Each statement sums the job's events into signed steps, takes what the records
say is left, and shows the difference, which is 0 when events and records agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts.records import Job
from gdf_market.messages import JobPost
from gdf_market.units import PPM

ESCROW = frozenset({"escrow", "audit_escrow"})
HELD = frozenset({"held"})
BONDS = frozenset({"bond"})

Flow = tuple[str, str, str, int, int]  # kind, source, target, micro-credits, events


@dataclass(frozen=True)
class Step:
    """One line of a statement; ``amount`` is signed, in micro-credits."""

    label: str
    amount: int
    events: int


@dataclass(frozen=True)
class Statement:
    """``difference`` = sum of steps - ``remaining``."""

    title: str
    steps: tuple[Step, ...]
    remaining: int
    difference: int


@dataclass(frozen=True)
class Budget:
    """What the owner locked, from the job's own terms."""

    base: int  # rounds x units per round x reserve price
    merit: int  # merit share of the base, rounded up
    audits: int

    @property
    def total(self) -> int:
        return self.base + self.merit + self.audits


LABELS = {  # (kind, into the pot?) -> label, for the pot's own statement
    ("escrow", True): "Locked by the owner",
    ("held", False): "Base pay",
    ("held", True): "Base pay of accepted units",
    ("merit", False): "Merit pay",
    ("merit", True): "Merit pay of accepted units",
    ("audit", False): "Audit fees",
    ("audit", True): "Bonds locked for audits",
    ("convicted", False): "Forfeited by convicted workers",
    ("convicted", True): "Pay taken back",
    ("slashed", True): "Slashed bonds",
    ("slashed", False): "Slashed",
    ("refund", False): "Refunded to the owner",
    ("paid", False): "Paid to workers",
    ("bid", True): "Bonds locked by bids",
}


def job_budget(spec: JobPost) -> Budget:
    """Return the escrow that the rules lock for a job."""
    base = spec.rounds * spec.units_per_round * spec.reserve_price
    return Budget(base, -(-base * spec.merit_ppm // PPM), spec.audit_budget)


def statement(title: str, pots: frozenset[str], flows: Iterable[Flow], remaining: int) -> Statement:
    """Return what went into and out of ``pots``; movements between them do not count."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for kind, source, target, amount, count in flows:
        into, out_of = target in pots, source in pots
        if into == out_of:
            continue
        fallback = f"{kind.replace('_', ' ').capitalize()} ({'from ' + source if into else 'to ' + target})"
        line = sums[LABELS.get((kind, into), fallback)]
        line[0] += amount if into else -amount
        line[1] += count
    order = list(LABELS.values())
    named = sorted(sums.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
    steps = tuple(Step(label, amount, count) for label, (amount, count) in named)
    return Statement(title, steps, remaining, sum(step.amount for step in steps) - remaining)


def job_statements(job: Job, flows: Sequence[Flow], held: int, bonds: int) -> tuple[Statement, Statement, Statement]:
    """Return the statements of a job; ``held`` and ``bonds`` are what its records hold now."""
    return (
        statement("Escrow", ESCROW, flows, job.escrow + job.audit_escrow),
        statement("Held pay", HELD, flows, held),
        statement("Bonds", BONDS, flows, bonds),
    )
