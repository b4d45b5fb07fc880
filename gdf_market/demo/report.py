"""Figures and verdict of the demonstration, all read from the ledgers it left."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from contracts.records import Audit, Bid, Dispute, Job, Round, Unit
from gdf_market.demo.market import WORKER_GRANT, Market
from gdf_market.demo.processes import Member
from gdf_market.train.codec import Codec
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore

HEADS_S = 20.0


def compare_heads(market: Market) -> dict[str, Any]:
    """Return the head that all running workers share, and whether the owner's chain is a prefix of it.

    Idle nodes go on making blocks, so the workers are asked again until they agree at one moment.
    """
    end = time.monotonic() + HEADS_S
    while True:
        statuses = [member.status() for member in market.workers]
        heads = {(s["height"], s["head"], s["state_root"]) for s in statuses if s is not None}
        if len(heads) == 1 and all(statuses):
            break
        if time.monotonic() > end:
            return {"equal": False, "heads": sorted(map(list, heads))}
        time.sleep(0.05)
    height, head, root = heads.pop()
    return {"equal": _owner_agrees(market), "height": height, "head": head, "state_root": root}


def _owner_agrees(market: Market) -> bool:
    with (
        contextlib.closing(LedgerStore(market.owner.data.ledger, read_only=True)) as own,
        contextlib.closing(LedgerStore(market.workers[0].data.ledger, read_only=True)) as other,
    ):
        mine = own.head()
        theirs = other.block(mine.height) if mine is not None else None
        if mine is None or theirs is None:
            return False
        return (mine.hash, mine.state_root) == (theirs.hash, theirs.state_root)


def conserved(market: Market) -> dict[str, int | bool]:
    """Return the supply as summed over every ledger's own records, and whether each equals the genesis supply."""
    sums = {}
    for member in [*market.workers, market.owner]:
        with contextlib.closing(LedgerStore(member.data.ledger, read_only=True)) as store:
            state = store.state()
            sums[member.name] = state.supply_check() - state.network().supply
    return {"conserved": not any(sums.values()), **sums}


def build_report(market: Market, fetched: dict[str, Any], heads: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return all figures and the checks that decide the exit code."""
    with contextlib.closing(LedgerStore(market.workers[0].data.ledger, read_only=True)) as store:
        job = record_of(store, Job, f"job/{market.job}")
        assert job is not None, "the job was watched on this ledger"
        units = records_of(store, Unit, f"unit/{market.job}/")
        rounds = records_of(store, Round, f"round/{market.job}/")
        audits = records_of(store, Audit, f"audit/{market.job}/")
        disputes = records_of(store, Dispute, f"dispute/{market.job}/")
        state = store.state()
        bids = records_of(store, Bid, f"bid/{market.job}/")
        payments = {member.name: _paid(units, member) for member in market.workers}
        balances = {member.name: state.account(member.account).balance for member in [*market.workers, market.owner]}
    names = {member.account: member.name for member in [*market.workers, market.owner]}
    supply = conserved(market)
    checks = {
        "job done": job.status == "done",
        "loss fell": fetched["loss_after"] < fetched["loss_before"],
        "poisoner lost credits": balances[market.cheat.name] < WORKER_GRANT,
        "poisoner convicted": any(d.status == "convicted" for d in disputes),
        "every honest worker paid": all(payments[member.name] > 0 for member in market.honest),
        "ledgers have the same head": bool(heads["equal"]),
        "credits conserved": bool(supply["conserved"]),
    }
    return {
        "ok": all(checks.values()),
        "checks": checks,
        "seconds": round(seconds, 1),
        "job": market.job,
        "nodes": len(market.workers) + 1,
        "validators": len(market.honest),
        "escrow": market.posted["escrow"],
        "bids": {names[bid.worker]: bid.price for bid in bids},
        "clearing_price": max((round_.price for round_ in rounds), default=0),
        "rounds": {"completed": job.completed, "void": sum(1 for round_ in rounds if round_.phase == "void")},
        "units": _count([unit.status for unit in units]),
        "audits": _count([f"{audit.role} {audit.verdict or audit.status}" for audit in audits]),
        "convictions": _convictions(disputes, audits, units, names),
        "paid": payments,
        "balances": balances,
        "loss": {"before": fetched["loss_before"], "after": fetched["loss_after"]},
        "traffic": traffic(job, rounds),
        "ledger": heads,
        "supply_difference": supply,
        "audit_fees": sum(audit.fee for audit in audits),
        "refunded": job.refunded,
        "unit_of_amounts": "micro-credits",
        "checkpoint": job.checkpoint,
        "folder": str(market.root),
    }


def _paid(units: list[Unit], member: Member) -> int:
    return sum(unit.paid for unit in units if unit.worker == member.account)


def _count(values: list[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


def _convictions(
    disputes: list[Dispute], audits: list[Audit], units: list[Unit], names: dict[str, str]
) -> list[dict[str, Any]]:
    """Return who was convicted, and the distances that every auditor of the unit measured."""
    workers = {(unit.round, unit.slot): unit.worker for unit in units}
    found = []
    for dispute in disputes:
        if dispute.status != "convicted":
            continue
        where = (dispute.round, dispute.slot)
        measured = [audit for audit in audits if (audit.round, audit.slot) == where and audit.verdict]
        found.append(
            {
                "worker": names[workers[where]],
                "round": dispute.round,
                "slot": dispute.slot,
                "accuser": names[dispute.accuser],
                "excess": {names[audit.auditor]: audit.excess_ppb / 1e9 for audit in measured},
                "distance": {names[audit.auditor]: audit.distance_ppb / 1e9 for audit in measured},
            }
        )
    return found


def traffic(job: Job, rounds: list[Round]) -> dict[str, float]:
    """Return bytes a worker receives per token it trains on, against an fp32 ring all-reduce every step.

    A worker receives every other included update of a round; a ring
    all-reduce of n values over k workers receives 2 * 4n * (k - 1) / k bytes a step.
    """
    spec, recipe = job.spec, job.spec.recipe
    size = Codec.of(recipe).expected_bytes(spec.parameters)
    settled = [round_ for round_ in rounds if round_.outcome is not None]
    workers = sum(len(round_.units) for round_ in settled) / max(1, len(settled))
    tokens = max(1, spec.tokens_per_unit)
    ours = size * (workers - 1) / tokens
    reduce = recipe.steps * 2 * 4 * spec.parameters * (workers - 1) / max(1.0, workers) / tokens
    return {
        "update_bytes": float(size),
        "bytes_per_worker_per_token": round(ours, 3),
        "all_reduce_bytes_per_worker_per_token": round(reduce, 3),
        "times_fewer": round(reduce / ours, 1) if ours else 0.0,
    }
