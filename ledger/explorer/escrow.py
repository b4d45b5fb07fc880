"""A job's money as three statements that add up to zero: escrow, held pay, bonds.

Each statement sums the job's events into signed steps, takes what the records
say is left, and shows the difference, which is 0 when events and records agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contracts.records import Job
from gdf_market.messages import JobPost
from gdf_market.units import PPM

Flow = tuple[str, str, str, int, int]  # kind, source, target, micro-credits, events


@dataclass(frozen=True)
class Step:
    """One line of a statement; ``amount`` is signed, in micro-credits; ``start`` is the sum before it."""

    label: str
    amount: int
    events: int
    start: int


@dataclass(frozen=True)
class Statement:
    """``difference`` = sum of steps - ``remaining``; ``peak`` is the largest sum on the way.

    Where events were pruned the first step is what they must have left.
    """

    title: str
    steps: tuple[Step, ...]
    remaining: int
    difference: int
    peak: int


@dataclass(frozen=True)
class Budget:
    """What the owner locked, from the job's own terms."""

    base: int  # rounds x units per round x reserve price
    merit: int  # merit share of the base, rounded up
    audits: int

    @property
    def total(self) -> int:
        return self.base + self.merit + self.audits


@dataclass(frozen=True)
class Pots:
    """Pots that one statement is about; ``labels`` names (event kind, into the pots?) in reading order."""

    title: str
    names: frozenset[str]
    labels: Mapping[tuple[str, bool], str]


ESCROW = Pots(
    "Escrow",
    frozenset({"escrow", "audit_escrow"}),
    {
        ("escrow", True): "Locked by the owner",
        ("held", False): "Base pay",
        ("merit", False): "Merit pay",
        ("audit", False): "Audit fees",
        ("convicted", True): "Pay taken back from convicted workers",
        ("slashed", True): "Slashed bonds",
        ("forfeited", True): "Forfeited by who missed a duty",
        ("refund", False): "Refunded to the owner",
    },
)
HELD = Pots(
    "Held pay",
    frozenset({"held"}),
    {
        ("held", True): "Base pay of accepted units",
        ("merit", True): "Merit pay of accepted units",
        ("paid", False): "Base pay released",
        ("merit", False): "Merit pay released",
        ("convicted", False): "Taken back from convicted workers",
        ("forfeited", False): "Forfeited by silent workers",
    },
)
BONDS = Pots(
    "Bonds",
    frozenset({"bond"}),
    {
        ("bid", True): "Locked by bids",
        ("audit", True): "Locked by auditors",
        ("returned", False): "Returned",
        ("slashed", False): "Slashed",
        ("forfeited", False): "Forfeited by who missed a duty",
    },
)


def job_budget(spec: JobPost) -> Budget:
    """Return the escrow that the rules lock for a job."""
    base = spec.most_units() * spec.reserve_price
    return Budget(base, -(-base * spec.merit_ppm // PPM), spec.audit_budget)


def statement(pots: Pots, flows: Iterable[Flow], remaining: int, pruned_below: int = 0) -> Statement:
    """Return what went into and out of ``pots``; movements between them do not count.

    ``pruned_below``: the height before which events of the job were pruned; 0 if none were.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for kind, source, target, amount, count in flows:
        into, out_of = target in pots.names, source in pots.names
        if into == out_of:
            continue
        name = kind.replace("_", " ").capitalize()
        line = sums[pots.labels.get((kind, into), f"{name} ({'in' if into else 'out'})")]
        line[0] += amount if into else -amount
        line[1] += count
    order = list(pots.labels.values())
    steps: list[Step] = []
    total = peak = 0
    if pruned_below:
        total = peak = remaining - sum(amount for amount, _ in sums.values())
        steps.append(Step(f"Before block {pruned_below} (pruned)", total, 0, 0))
    for label in sorted(sums, key=lambda name: (order.index(name) if name in order else len(order), name)):
        amount, count = sums[label]
        steps.append(Step(label, amount, count, total))
        total += amount
        peak = max(peak, total)
    return Statement(pots.title, tuple(steps), remaining, total - remaining, peak)


def job_statements(
    job: Job, flows: Sequence[Flow], held: int, bonds: int, pruned_below: int = 0
) -> tuple[Statement, Statement, Statement]:
    """Return the statements of a job; ``held`` and ``bonds`` are what its records hold now."""
    return (
        statement(ESCROW, flows, job.escrow + job.audit_escrow, pruned_below),
        statement(HELD, flows, held, pruned_below),
        statement(BONDS, flows, bonds, pruned_below),
    )
