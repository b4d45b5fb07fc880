"""What an auditor looks at twice: sudden credits, jobs whose payees paid their owner, transfers in circles.

None of them proves that anything is wrong; each names the accounts and blocks where to look.  Every search has a bound.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func
from sqlalchemy import select as select_columns
from sqlmodel import col

from contracts.records import Job, Network
from contracts.state import job_key
from ledger.explorer.queries import Reader
from ledger.tables import EventRow

MAX_SUMS = 1_000_000  # (account, block) pairs that are compared
MAX_EDGES = 2_000  # pairs of accounts with the largest transfers
MAX_PAYEES = 100_000  # (job, payee) pairs
MAX_STEPS = 200_000  # of the search for circles
MAX_LENGTH = 4  # accounts in a circle
SHOWN = 20
SPIKE_FACTOR = 20  # times the median of what an account gets in a block
SPIKE_SHARE = 100  # and at least one part in so many of the supply
_OWN = ("returned", "refund")  # one's own credits that come back


@dataclass(frozen=True)
class Spike:
    """Credits that came to one account in one block, in micro-credits; ``times`` the median."""

    account: str
    height: int
    amount: int
    times: int


@dataclass(frozen=True)
class OwnerLoop:
    """A job whose payee paid its owner, or is its owner (``returned`` 0); micro-credits."""

    job: str
    owner: str
    payee: str
    paid: int
    returned: int


@dataclass(frozen=True)
class Circle:
    """Accounts of which each paid the next and the last the first; ``amount`` is the least sum of one of these."""

    accounts: tuple[str, ...]
    amount: int


@dataclass(frozen=True)
class Anomalies:
    """``complete`` says whether every search came to its end within its bound."""

    spikes: list[Spike]
    median: int
    loops: list[OwnerLoop]
    circles: list[Circle]
    transfers: int  # pairs of accounts with transfers that were searched
    complete: bool


def find(reader: Reader) -> Anomalies:
    """Search the events of a file."""
    spikes, median, all_sums = _spikes(reader)
    edges, all_edges = _edges(reader)
    loops, all_payees = _loops(reader)
    circles, all_steps = find_circles(edges)
    complete = all_sums and all_edges and all_payees and all_steps
    return Anomalies(spikes, median, loops, circles, len(edges), complete)


def _spikes(reader: Reader) -> tuple[list[Spike], int, bool]:
    total = func.sum(EventRow.amount)
    query = (
        select_columns(col(EventRow.target), col(EventRow.height), total)
        .where(
            col(EventRow.amount) > 0,
            col(EventRow.kind).not_in(_OWN),
            col(EventRow.target) >= "12D3KooW",
            col(EventRow.target) < "12D3KooX",
        )
        .group_by(col(EventRow.target), col(EventRow.height))
        .order_by(total.desc(), col(EventRow.height))
        .limit(MAX_SUMS)
    )
    sums = [(str(account), int(height), int(amount)) for account, height, amount in reader.rows(query)]
    if not sums:
        return [], 0, True
    median = int(statistics.median_low([amount for _, _, amount in sums]))
    network = reader.record("network", Network)
    least = max(SPIKE_FACTOR * median, (network.supply if network else 0) // SPIKE_SHARE)
    found = [
        Spike(account, height, amount, amount // max(median, 1))
        for account, height, amount in sums[:SHOWN]
        if amount >= least
    ]
    return found, median, len(sums) < MAX_SUMS


def _edges(reader: Reader) -> tuple[dict[tuple[str, str], int], bool]:
    """Return the sums of transfers by (payer, payee), the largest ones."""
    total = func.sum(EventRow.amount)
    query = (
        select_columns(col(EventRow.source), col(EventRow.target), total)
        .where(col(EventRow.kind) == "transfer", col(EventRow.source) != col(EventRow.target))
        .group_by(col(EventRow.source), col(EventRow.target))
        .order_by(total.desc(), col(EventRow.source), col(EventRow.target))
        .limit(MAX_EDGES)
    )
    edges = {(str(payer), str(payee)): int(amount) for payer, payee, amount in reader.rows(query)}
    return edges, len(edges) < MAX_EDGES


def _loops(reader: Reader) -> tuple[list[OwnerLoop], bool]:
    query = (
        select_columns(col(EventRow.job), col(EventRow.target), func.sum(EventRow.amount))
        .where(
            col(EventRow.kind).in_(("paid", "merit", "audit")),
            col(EventRow.source).in_(("held", "audit_escrow")),
            col(EventRow.target) >= "12D3KooW",
        )
        .group_by(col(EventRow.job), col(EventRow.target))
        .order_by(col(EventRow.job), col(EventRow.target))
        .limit(MAX_PAYEES)
    )
    paid = [(str(job), str(payee), int(amount)) for job, payee, amount in reader.rows(query)]
    jobs = reader.records([job_key(job) for job in dict.fromkeys(job for job, _, _ in paid)], Job)
    owners = {job.id: job.spec.author for job in jobs.values()}
    back = _paid_to(reader, sorted(set(owners.values())))
    found = [
        OwnerLoop(job, owner, payee, amount, back.get((payee, owner), 0))
        for job, payee, amount in paid
        if (owner := owners.get(job)) is not None and (payee == owner or (payee, owner) in back)
    ]
    found.sort(key=lambda loop: (-min(loop.paid, loop.returned or loop.paid), loop.job, loop.payee))
    return found[:SHOWN], len(paid) < MAX_PAYEES


def _paid_to(reader: Reader, owners: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return the sums of transfers to each of some accounts, by (payer, payee)."""
    found: dict[tuple[str, str], int] = {}
    for start in range(0, len(owners), 500):
        query = (
            select_columns(col(EventRow.source), col(EventRow.target), func.sum(EventRow.amount))
            .where(col(EventRow.kind) == "transfer", col(EventRow.target).in_(owners[start : start + 500]))
            .group_by(col(EventRow.source), col(EventRow.target))
            .limit(MAX_PAYEES)
        )
        found |= {(str(payer), str(payee)): int(amount) for payer, payee, amount in reader.rows(query)}
    return found


def find_circles(edges: Mapping[tuple[str, str], int]) -> tuple[list[Circle], bool]:
    """Return the circles of up to ``MAX_LENGTH`` accounts, largest first; False if the search was cut short."""
    after: dict[str, list[str]] = defaultdict(list)
    for payer, payee in edges:
        after[payer].append(payee)
    steps, found = 0, list[Circle]()
    for start in sorted(after):
        for path in _paths(start, after):
            steps += 1
            if steps > MAX_STEPS:
                return _largest(found), False
            if start in after[path[-1]] and len(path) > 1:
                amount = min(edges[pair] for pair in zip(path, (*path[1:], start), strict=True))
                found.append(Circle(path, amount))
    return _largest(found), True


def _paths(start: str, after: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the paths from an account through later ones, so that each circle is met once."""
    stack: list[tuple[str, ...]] = [(start,)]
    while stack:
        path = stack.pop()
        yield path
        if len(path) < MAX_LENGTH:
            stack += [(*path, each) for each in after.get(path[-1], ()) if each > start and each not in path]


def _largest(found: Sequence[Circle]) -> list[Circle]:
    return sorted(found, key=lambda circle: (-circle.amount, circle.accounts))[:SHOWN]
