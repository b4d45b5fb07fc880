"""A lying auditor among real nodes: it loses its bond by bisection, and the worker that it accused is paid."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from contracts.records import Audit, Dispute, Unit
from gdf_market.demo.processes import DemoError, Member, stop_all, wait_until
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from tests.e2e.home import Home

pytestmark = pytest.mark.e2e

JOB = """
from pydoc_data.topics import topics

import torch
from torch import nn

from gdf_market import Job

text = "\\n".join(topics[name] for name in sorted(topics))[:60_000]
letters, context, width = len(set(text)), 8, 32


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(letters, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, letters)

    def forward(self, idx, targets):
        logits = self.head(torch.tanh(self.hidden(self.table(idx))))
        return nn.functional.cross_entropy(logits.view(-1, letters), targets.view(-1))


torch.manual_seed(1)
job = Job(title="letters", model=Letters(), data=text, context=context, batch=8, lr=2e-3)
"""
# time for challenges, and for an audit, five halvings and a replay on a busy machine
TERMS = [
    "--bid-seconds", "20", "--work-seconds", "60", "--phase-seconds", "30", "--audit-seconds", "60",
    "--hold-seconds", "40", "--deadline-minutes", "15",
]  # fmt: skip


class Court(Home):
    """ann validates, ben works on one thread; dora works on two, and cleo works but lies about others' units."""

    network = ("--test-network",)

    def __init__(self, root: Path) -> None:
        self.dora = Member("dora", root)
        super().__init__(root)
        invite = self.ann.run("node", "invite")["invite"]
        self.dora.account = self.dora.run("init", "--join", invite)["account"]
        self.ann.run("wallet", "send", self.dora.account, "500")
        self.dora.start("work", "--threads", "2", "--min-price", "0.5")
        self.members.append(self.dora)

    def work(self, member: Member) -> None:
        lie = ("--test-poison", "lie") if member is self.cleo else ()
        member.start("work", "--threads", "1", "--min-price", "0.5", *lie)


@pytest.fixture
def court(tmp_path: Path):  # type: ignore[no-untyped-def]
    network = Court(tmp_path)
    yield network
    stop_all(network.members)


def test_a_lying_auditor_loses_its_bond_and_an_honest_odd_worker_passes(court: Court, tmp_path: Path) -> None:
    file = tmp_path / "letters.py"
    file.write_text(JOB, encoding="utf-8")
    posted = court.ann.run(
        "post", str(file), "--rounds", "1", "--max-price", "5", "--units", "3", "--min-workers", "3", *TERMS
    )
    job = posted["job"]
    with court.store(court.ann) as store:
        wait_until("three units are accepted", lambda: len(held(store, job)) == 3, timeout_s=240, members=court.members)
        units = held(store, job)
        challenge(court.cleo, units[court.ben.account])
        challenge(court.ann, units[court.dora.account])
        wait_until(
            "the liar is refuted, its victim paid, and dora's work passed",
            lambda: is_over(court, store, job),
            timeout_s=300,
            members=court.members,
        )
        for lie in refuted(store, job):
            assert (lie.auditor, lie.verdict, lie.bond) == (court.cleo.account, "fail", 0)
            check_replayed(store, lie)
        lost = [event for event in store.events(job=job, limit=100_000) if event.kind == "forfeited"]
        assert {event.account for event in lost} == {court.cleo.account}
        honest = [audit for audit in audits_of(store, job, court.dora.account) if audit.auditor != court.cleo.account]
        assert {audit.verdict for audit in honest if audit.status == "opened" and audit.verdict} == {"pass"}
        disputes = records_of(store, Dispute, f"dispute/{job}/")
        assert "convicted" not in {dispute.status for dispute in disputes}
        state = store.state()
        assert state.supply_check() == state.network().supply


def held(store: LedgerStore, job: str) -> dict[str, Unit]:
    """Return the accepted units of a job by worker."""
    units = records_of(store, Unit, f"unit/{job}/")
    return {unit.worker: unit for unit in units if unit.status == "accepted"}


def challenge(member: Member, unit: Unit) -> None:
    """Let a member audit a unit that is not its own; it may have won a ticket, or been named, in the meantime."""
    with contextlib.suppress(DemoError):
        member.run("challenge", unit.job, str(unit.round), str(unit.slot))


def is_over(court: Court, store: LedgerStore, job: str) -> bool:
    """Say whether the lie about ben's unit is refuted, ben is paid, and an audit of dora's unit has passed."""
    lies = [audit for audit in refuted(store, job) if unit_of(store, audit).worker == court.ben.account]
    passed = [audit for audit in audits_of(store, job, court.dora.account) if audit.verdict == "pass"]
    return any(unit_of(store, lie).status == "paid" for lie in lies) and bool(passed)


def refuted(store: LedgerStore, job: str) -> list[Audit]:
    return [audit for audit in records_of(store, Audit, f"audit/{job}/") if audit.status == "refuted"]


def unit_of(store: LedgerStore, audit: Audit) -> Unit:
    unit = record_of(store, Unit, f"unit/{audit.job}/{audit.round}/{audit.slot}")
    assert unit is not None
    return unit


def audits_of(store: LedgerStore, job: str, worker: str) -> list[Audit]:
    return [audit for audit in records_of(store, Audit, f"audit/{job}/") if unit_of(store, audit).worker == worker]


def check_replayed(store: LedgerStore, lie: Audit) -> None:
    """One step in the middle of the unit, where the lie begins, was replayed from a state that both sides gave."""
    dispute = record_of(store, Dispute, f"dispute/{lie.job}/{lie.round}/{lie.slot}")
    assert dispute is not None
    assert dispute.status == "refuted"
    search = dispute.bisection
    assert search is not None
    assert search.high == search.low + 1
    assert search.worker.state
    assert search.accuser.state
    findings = [arbiter.finding for arbiter in search.arbiters]
    assert findings == ["worker"] * len(findings)
    assert len(findings) == 2  # ann, and the third worker
    assert all(arbiter.state_distance_ppb < 1_000_000 for arbiter in search.arbiters)
