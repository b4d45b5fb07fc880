"""``gdf-market jobs``: list, explain and fetch jobs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
import trio

from contracts.records import Audit, Bid, Dispute, Job, Round, Unit
from gdf_market.codec import decode
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.reading import open_ledger, resolve_job
from gdf_market.commands.session import run_async, with_client
from gdf_market.errors import LocalError, UsageError
from gdf_market.node.client import NodeClient
from gdf_market.units import format_credits
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore

EVALUATE_S = 600.0
MAX_MANIFEST_BYTES = 1 << 20


@click.group()
def jobs() -> None:
    """List jobs, look into one, fetch its model, cancel it."""


@jobs.command("ls")
@pass_app
def list_jobs(app: App) -> None:
    """List the jobs on this folder's ledger.

    Example: gdf-market jobs ls
    """
    with open_ledger(app) as store:
        found = sorted(records_of(store, Job), key=lambda job: (job.posted_ms, job.id))
    rows: list[dict[str, Any]] = [
        {
            "id": job.id,
            "title": job.spec.title,
            "owner": job.spec.author,
            "status": job.status,
            "reason": job.reason,
            "completed": job.completed,
            "rounds": job.spec.rounds,
            "escrow": job.escrow + job.audit_escrow,
        }
        for job in found
    ]

    def text() -> object:
        shown = table("jobs", "job", "title", "status", "rounds", "escrow", "reason")
        for row in rows:
            progress = f"{row['completed']}/{row['rounds']}"
            shown.add_row(
                short(row["id"]), row["title"], row["status"], progress, format_credits(row["escrow"]), row["reason"]
            )
        return shown

    app.emit({"jobs": rows}, text)


def job_report(store: LedgerStore, job_id: str) -> dict[str, Any]:
    """Return everything the ledger knows about a job, as plain JSON values."""
    job = _require(store, job_id)
    rounds: list[Round] = sorted(records_of(store, Round, f"round/{job_id}/"), key=lambda record: record.index)
    units: list[Unit] = sorted(records_of(store, Unit, f"unit/{job_id}/"), key=lambda unit: (unit.round, unit.slot))
    audits: list[Audit] = records_of(store, Audit, f"audit/{job_id}/")
    disputes: list[Dispute] = records_of(store, Dispute, f"dispute/{job_id}/")
    bids: list[Bid] = records_of(store, Bid, f"bid/{job_id}/")
    return {
        "job": msgspec.to_builtins(job),
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


def _require(store: LedgerStore, job_id: str) -> Job:
    job = record_of(store, Job, f"job/{job_id}")
    if job is None:
        raise UsageError(f"job {job_id[:16]} is not on this ledger (yet)")
    return job


def median_loss(round_: Round) -> int | None:
    """Return the median of the attesters' own loss measurements in micro-nats, or None."""
    losses = sorted(loss for _, loss in round_.losses if loss >= 0)
    return losses[len(losses) // 2] if losses else None


@jobs.command()
@click.argument("job")
@pass_app
def show(app: App, job: str) -> None:
    """Show a job: bids, rounds, units with verdicts and pay.  JOB may be the start of its id.

    Example: gdf-market jobs show 3fa9
    """
    with open_ledger(app) as store:
        value = job_report(store, resolve_job(store, job))

    def text() -> object:
        from rich.console import Group

        facts = value["job"]
        head = table(facts["spec"]["title"], "what", "value")
        head.add_row("id", facts["id"])
        head.add_row("status", f"{facts['status']} {facts['reason']}".strip())
        head.add_row("clearing price", format_credits(facts["clearing_price"]))
        head.add_row("escrow left", format_credits(facts["escrow"] + facts["audit_escrow"]))
        head.add_row("refunded", format_credits(facts["refunded"]))
        bids = table("bids", "worker", "price", "units", "status", "reason")
        for bid in value["bids"]:
            bids.add_row(
                short(bid["worker"]), format_credits(bid["price"]), str(bid["units"]), bid["status"], bid["reason"]
            )
        rounds = table("rounds", "round", "phase", "units in", "loss", "seconds", "reason")
        for row in value["rounds"]:
            loss = "" if row["loss_e6"] is None else f"{row['loss_e6'] / 1e6:.4f}"
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
            rounds.add_row(str(row["index"]), row["phase"], str(len(row["included"])), loss, seconds, row["reason"])
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
        return Group(head, bids, rounds, units)

    app.emit(value, text)


@jobs.command()
@click.argument("job")
@pass_app
def cancel(app: App, job: str) -> None:
    """Cancel an own job; the round under way still settles, the rest of the escrow returns.

    Example: gdf-market jobs cancel 3fa9
    """
    with open_ledger(app) as store:
        job_id = resolve_job(store, job)
    entry = with_client(app, lambda client: client.submit("job_cancel", job=job_id))
    app.emit({"job": job_id, "entry": entry}, lambda: f"job {job_id[:12]} is being cancelled")


@jobs.command()
@click.argument("job", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Target file (default: JOB.safetensors here).")
@click.option(
    "--wait", "wait_s", type=click.IntRange(0, 86_400), default=0, help="Wait this many seconds for the job to end."
)
@click.option("--no-evaluate", is_flag=True, help="Do not measure the validation loss.")
@pass_app
def fetch(app: App, job: str | None, out: Path | None, wait_s: int, no_evaluate: bool) -> None:
    """Fetch a job's latest checkpoint from peers as safetensors, and measure its validation loss.

    Example: gdf-market jobs fetch 3fa9 -o model.safetensors
    """
    value = with_client(app, lambda client: _fetch(app, client, job, wait_s))
    target = out or Path(f"{value['job'][:12]}.safetensors")
    value["out"] = str(_write_model(value, target))
    if not no_evaluate:
        value |= run_async(lambda: _evaluate(value))

    def text() -> str:
        lines = [f"job       {value['job']}", f"rounds    {value['completed']}/{value['rounds']} ({value['status']})"]
        lines.append(f"written   {value['out']}")
        if not no_evaluate:
            lines.append(f"loss      {value['loss_before']:.4f} -> {value['loss_after']:.4f}")
        return "\n".join(lines)

    app.emit(value, text)


def _fetch(app: App, client: NodeClient, prefix: str | None, wait_s: int) -> dict[str, Any]:
    """Return the facts and local paths of a job's blobs (runs beside the node)."""
    from gdf_market.train.data import DataManifest

    job = _wait_for_job(app, client, prefix, wait_s)
    with app.progress(f"fetching the checkpoint of {job.id[:12]} from peers"):
        data = Path(client.fetch(job.spec.data))
        content = decode(data.read_bytes(), DataManifest, max_bytes=MAX_MANIFEST_BYTES).content
        paths = {
            "program": client.fetch(job.spec.program),
            "data": str(data),
            "content": client.fetch(content),
            "first_checkpoint": client.fetch(job.spec.checkpoint),
            "checkpoint_file": client.fetch(job.checkpoint),
        }
    return {
        "job": job.id,
        "status": job.status,
        "completed": job.completed,
        "rounds": job.spec.rounds,
        "checkpoint": job.checkpoint,
        "paths": paths,
    }


def _wait_for_job(app: App, client: NodeClient, prefix: str | None, wait_s: int) -> Job:
    import time

    end = time.monotonic() + wait_s
    own = str(client.status()["account"])
    with app.progress("looking for the job") as say:
        while True:
            with open_ledger(app) as store:
                job = _find_job(store, prefix, own)
            if job.status in ("done", "cancelled", "expired") or time.monotonic() >= end:
                return job
            say(f"job {job.id[:12]} is {job.status}, round {job.completed}/{job.spec.rounds}")
            time.sleep(1.0)


def _find_job(store: LedgerStore, prefix: str | None, own: str) -> Job:
    if prefix is not None:
        return _require(store, resolve_job(store, prefix))
    owned = [job for job in records_of(store, Job) if job.spec.author == own]
    if not owned:
        raise UsageError("this account owns no job; name one: gdf-market jobs fetch JOB")
    return max(owned, key=lambda job: (job.posted_ms, job.id))


def _write_model(value: dict[str, Any], target: Path) -> Path:
    from gdf_market.node.datadir import write_atomic
    from gdf_market.train.program import Program, to_safetensors

    program = Program.from_bytes(Path(value["paths"]["program"]).read_bytes())
    checkpoint = Path(value["paths"]["checkpoint_file"]).read_bytes()
    write_atomic(target.absolute(), to_safetensors(program, checkpoint))
    return target


async def _evaluate(value: dict[str, Any]) -> dict[str, float]:
    from gdf_market.node.trainer import Trainer

    paths = {name: Path(path) for name, path in value["paths"].items()}
    losses: list[int] = []
    with trio.move_on_after(EVALUATE_S):
        async with Trainer(threads=0) as trainer:
            for checkpoint in (paths["first_checkpoint"], paths["checkpoint_file"]):
                losses.append(await trainer.evaluate(paths["program"], paths["data"], paths["content"], checkpoint))
    if len(losses) < 2:
        raise LocalError(
            f"the loss was not measured within {EVALUATE_S:.0f} s; the model is written, --no-evaluate skips this"
        )
    before, after = (loss / 1e6 for loss in losses)
    if not math.isfinite(before + after):
        raise LocalError("the loss is not finite; the checkpoint is unusable")
    return {"loss_before": before, "loss_after": after}
