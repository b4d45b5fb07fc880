"""Everything the ledger knows about a job, as JSON values and as tables."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table

from contracts.records import Audit, Bid, Dispute
from gdf_market.commands.common import short, table
from gdf_market.commands.progress import median_loss, recipe_line, require_job, rounds_of, status_text, units_of
from gdf_market.units import format_credits
from ledger.reading import records_of
from ledger.store import LedgerStore


def job_report(store: LedgerStore, job_id: str) -> dict[str, Any]:
    """Return everything the ledger knows about a job, as plain JSON values."""
    job, rounds, units = require_job(store, job_id), rounds_of(store, job_id), units_of(store, job_id)
    audits: list[Audit] = records_of(store, Audit, f"audit/{job_id}/")
    disputes: list[Dispute] = records_of(store, Dispute, f"dispute/{job_id}/")
    bids: list[Bid] = records_of(store, Bid, f"bid/{job_id}/")
    return {
        "job": msgspec.to_builtins(job),
        "recipe": recipe_line(job.spec.recipe),
        "audit_fees": sum(audit.fee for audit in audits),
        "bids": msgspec.to_builtins(bids),
        "rounds": [
            {
                "index": round_.index,
                "phase": round_.phase,
                "reason": round_.reason,
                "price": round_.price,
                "included": list(round_.outcome.included) if round_.outcome else [],
                "flags": msgspec.to_builtins(round_.outcome.flags) if round_.outcome else [],
                "loss_e6": median_loss(round_),
                "seconds": (round_.ended_ms - round_.started_ms) / 1_000 if round_.ended_ms else None,
            }
            for round_ in rounds
        ],
        "units": msgspec.to_builtins(units),
        "audits": msgspec.to_builtins(audits),
        "disputes": msgspec.to_builtins(disputes),
    }


def report_text(value: dict[str, Any]) -> Group:
    """Return a report for people."""
    return Group(_head(value), _bids(value), _rounds(value), _units(value))


def _head(value: dict[str, Any]) -> Table:
    facts = value["job"]
    spec = facts["spec"]
    head = table(spec["title"], "what", "value")
    head.add_row("id", facts["id"])
    head.add_row("status", "; ".join(filter(None, (status_text(facts["status"], facts["ending"]), facts["reason"]))))
    warm = f", the first {spec['warm_rounds']} of one unit" if spec["warm_rounds"] else ""
    head.add_row("rounds", f"{facts['completed']} of {spec['rounds']} of {spec['units_per_round']} units{warm}")
    head.add_row("recipe", value["recipe"])
    head.add_row("clearing price", format_credits(facts["clearing_price"]))
    head.add_row("escrow left", format_credits(facts["escrow"] + facts["audit_escrow"]))
    head.add_row("audit fees paid", format_credits(value["audit_fees"]))
    head.add_row("refunded", format_credits(facts["refunded"]))
    return head


def _bids(value: dict[str, Any]) -> Table:
    bids = table("bids", "worker", "price", "units", "status", "reason")
    for bid in value["bids"]:
        price, units = format_credits(bid["price"]), str(bid["units"])
        bids.add_row(short(bid["worker"]), price, units, bid["status"], bid["reason"])
    return bids


def _rounds(value: dict[str, Any]) -> Table:
    rounds = table("rounds", "round", "phase", "units in", "loss", "seconds", "reason")
    for row in value["rounds"]:
        loss = "" if row["loss_e6"] is None else f"{row['loss_e6'] / 1e6:.4f}"
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        rounds.add_row(str(row["index"]), row["phase"], str(len(row["included"])), loss, seconds, row["reason"])
    return rounds


def _units(value: dict[str, Any]) -> Table:
    units = table("units", "round.slot", "worker", "shard", "status", "held", "paid", "reason")
    for unit in value["units"]:
        units.add_row(
            f"{unit['round']}.{unit['slot']}",
            short(unit["worker"]),
            str(unit["shard"]),
            unit["status"],
            format_credits(unit["held_pay"] + unit["held_merit"]),
            format_credits(unit["paid"]),
            unit["reason"],
        )
    return units
