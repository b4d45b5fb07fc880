"""``gdf-market jobs``: list, explain and fetch jobs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import rich_click as click
import trio

from contracts.records import Job
from gdf_market.codec import decode
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.metrics import Sinks
from gdf_market.commands.model_file import EVALUATE_S, check_target, snippet, write_model
from gdf_market.commands.progress import ENDED, metrics_of, require_job, rounds_of, status_text
from gdf_market.commands.reading import open_ledger, resolve_job
from gdf_market.commands.report import job_report, report_text
from gdf_market.commands.session import run_async, with_client
from gdf_market.commands.unit_report import parse_unit, unit_report, unit_text
from gdf_market.commands.watch import watch
from gdf_market.errors import LocalError, UsageError
from gdf_market.node.client import NodeClient
from gdf_market.units import format_credits
from ledger.reading import records_of
from ledger.store import LedgerStore

MAX_MANIFEST_BYTES = 1 << 20


@click.group(invoke_without_command=True)
@pass_app
@click.pass_context
def jobs(context: click.Context, app: App) -> None:
    """List jobs, look into one, watch it, fetch its model, cancel it."""
    if context.invoked_subcommand is not None:
        return
    if app.json:
        context.invoke(list_jobs)
    else:
        app.out.print(context.get_help())


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
            "ending": job.ending,
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
                short(row["id"]),
                row["title"],
                status_text(row["status"], row["ending"]),
                progress,
                format_credits(row["escrow"]),
                row["reason"],
            )
        return shown

    app.emit({"jobs": rows}, text)


@jobs.command()
@click.argument("job")
@click.option("--watch", "follow", is_flag=True, help="Follow it until it ends; Ctrl-C ends the view, not the job.")
@click.option("--metrics", type=click.Path(path_type=Path), help="Append one JSON line per settled round to this file.")
@click.option(
    "--tensorboard", type=click.Path(path_type=Path), help="Write the rounds for TensorBoard into this folder."
)
@click.option("--unit", metavar="ROUND/SLOT", help="Explain one unit: every number behind its verdict and its pay.")
@pass_app
def show(app: App, job: str, follow: bool, metrics: Path | None, tensorboard: Path | None, unit: str | None) -> None:
    """Show a job: bids, rounds, units with verdicts and pay.  JOB may be the start of its id.

    With --watch and --json, one JSON object per line for every change.

    Example: gdf-market jobs show 3fa9 --watch --metrics rounds.jsonl
    """
    if unit is not None:
        if follow or metrics or tensorboard:
            raise UsageError("--unit explains one unit; leave out --watch, --metrics and --tensorboard")
        explain(app, job, *parse_unit(unit))
        return
    with open_ledger(app) as store:
        job_id = resolve_job(store, job)
        value = {} if follow else job_report(store, job_id)
    with Sinks(job_id, metrics, tensorboard) as sinks:
        if follow:
            watch(app, job_id, sinks)
            return
        if metrics or tensorboard:
            with open_ledger(app) as store:
                sinks.write(metrics_of(require_job(store, job_id), rounds_of(store, job_id)))
    app.emit(value, lambda: report_text(value))


def explain(app: App, job: str, index: int, slot: int) -> None:
    """Print every number behind a unit."""
    with open_ledger(app) as store:
        value = unit_report(store, resolve_job(store, job), index, slot)
    app.emit(value, lambda: unit_text(value))


@jobs.command()
@click.argument("job")
@pass_app
def cancel(app: App, job: str) -> None:
    """Cancel an own job; the round under way still settles, the rest of the escrow returns.

    Example: gdf-market jobs cancel 3fa9
    """
    with open_ledger(app) as store:
        found = require_job(store, resolve_job(store, job))
    entry = with_client(app, lambda client: _cancel(client, found))
    app.emit({"job": found.id, "entry": entry}, lambda: f"job {found.id[:12]} is being cancelled")


def _cancel(client: NodeClient, job: Job) -> str:
    """Submit the cancellation and return its entry.  Raises UsageError where the ledger would refuse it."""
    name = f"job {job.id[:12]}"
    if job.spec.author != client.status()["account"]:
        raise UsageError(f"{name} belongs to {job.spec.author}; only its owner can cancel it")
    if job.ending == "cancelled" or job.status == "cancelled":
        raise UsageError(f"{name} is cancelled already; held pay settles by itself, and the rest of the escrow returns")
    if job.ending or job.status in ENDED:
        raise UsageError(f"{name} is over ({job.ending or job.status}); there is nothing left to cancel")
    return client.submit("job_cancel", job=job.id)


@jobs.command()
@click.argument("job", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Target file (default: JOB.safetensors here).")
@click.option(
    "--wait", "wait_s", type=click.IntRange(0, 86_400), default=0, help="Wait this many seconds for the job to end."
)
@click.option("--no-evaluate", is_flag=True, help="Do not measure the validation loss.")
@click.option("--trained-only", is_flag=True, help="Write only the tensors that were trained, such as adapters.")
@pass_app
def fetch(app: App, job: str | None, out: Path | None, wait_s: int, no_evaluate: bool, trained_only: bool) -> None:
    """Fetch a job's latest checkpoint from peers as safetensors, and measure its validation loss.

    The file loads into the module that was posted: it holds every tensor of its state_dict.

    Example: gdf-market jobs fetch 3fa9 -o model.safetensors
    """
    check_target(out or Path("model.safetensors"))
    value = with_client(app, lambda client: fetch_blobs(app, client, job, wait_s))
    target = out or Path(f"{value['job'][:12]}.safetensors")
    write_model(value["paths"], target, trained_only=trained_only)
    value |= {"out": str(target), "load": snippet(target, trained_only=trained_only)}
    if not no_evaluate:
        value |= run_async(lambda: _evaluate(value))

    def text() -> str:
        lines = [f"job       {value['job']}", f"rounds    {value['completed']}/{value['rounds']} ({value['status']})"]
        lines.append(f"written   {value['out']}")
        if not no_evaluate:
            lines.append(f"loss      {value['loss_before']:.4f} -> {value['loss_after']:.4f}")
        lines.append(f"load it   {value['load']}")
        return "\n".join(lines)

    app.emit(value, text)


def fetch_blobs(app: App, client: NodeClient, prefix: str | None, wait_s: int) -> dict[str, Any]:
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
                job = find_job(store, prefix, own)
            if job.status in ENDED or time.monotonic() >= end:
                return job
            say(f"job {job.id[:12]} is {job.status}, round {job.completed}/{job.spec.rounds}")
            time.sleep(1.0)


def find_job(store: LedgerStore, prefix: str | None, own: str) -> Job:
    if prefix is not None:
        return require_job(store, resolve_job(store, prefix))
    owned = [job for job in records_of(store, Job) if job.spec.author == own]
    if not owned:
        raise UsageError("this account owns no job; name one: gdf-market jobs fetch JOB")
    return max(owned, key=lambda job: (job.posted_ms, job.id))


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
