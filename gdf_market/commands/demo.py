"""``gdf-market demo``: the whole market on this machine, as separate processes, with a checklist at the end."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click
from rich.text import Text

from gdf_market.commands.common import App, pass_app, table
from gdf_market.errors import VerificationFailedError
from gdf_market.units import format_credits

JOB_S = 900.0  # far above what two slow cores need; the demo ends as soon as the job does


@click.command()
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Rounds to train.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("demo-run"),
    show_default=True,
    help="Folder for the participants' data (wiped first).",
)
@click.option("--headless", is_flag=True, help="Never wait for a person; stop everything at the end.")
@pass_app
def demo(app: App, rounds: int, folder: Path, headless: bool) -> None:
    """Run an owner, four honest workers and one cheat on this machine, as users would.

    Exits with 0 only if the loss fell, the cheat lost credits, every honest worker was paid, all ledgers agree and
    credits are conserved; otherwise with 5.

    Example: gdf-market demo --headless --json
    """
    from gdf_market.demo.market import Market, demo_folder
    from gdf_market.demo.report import build_report, compare_heads

    root = folder.expanduser().absolute()
    started = time.monotonic()

    def say(sentence: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started:6.1f} s] {sentence}\n")
        sys.stderr.flush()

    market = Market(root, rounds, say if not app.quiet else lambda _: None)
    with _terminate_like_interrupt(), demo_folder(root):
        try:
            market.say(f"making six identities and a test network in {root}")
            market.found()
            market.say("starting five workers (four of them validate, one poisons its updates)")
            market.open()
            market.say(f"explorer: {market.explorer_url}")
            market.say("the owner posts examples/char_gpt.py, and leaves once the job is on the ledger")
            market.post()
            market.say(
                f"job {market.job[:16]}: escrow {format_credits(market.posted['escrow'])} credits; the owner is gone"
            )
            market.watch(JOB_S)
            market.say("the owner comes back and fetches the result")
            fetched = market.fetch()
            report = build_report(market, fetched, compare_heads(market), time.monotonic() - started)
            report["explorer"] = market.explorer_url
            app.emit(report, lambda: _checklist(report))
            if not headless and not app.json and sys.stdin.isatty():
                with contextlib.suppress(EOFError):
                    click.pause(f"The explorer stays at {market.explorer_url}; press a key to end …", err=True)
        finally:
            market.close()
    if not report["ok"]:
        failed = ", ".join(name for name, held in report["checks"].items() if not held)
        raise VerificationFailedError(f"the demo's promises do not all hold: {failed}; see {root}")


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Make SIGTERM (and Ctrl-Break) end the demo as Ctrl-C does, so that its processes are stopped too."""

    from gdf_market.demo.processes import Interrupts

    Interrupts.came = False
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    previous = {number: signal.signal(number, Interrupts.note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _checklist(report: dict[str, Any]) -> object:
    shown = table("what happened", "", "figure", "value")
    traffic, loss, ledger = report["traffic"], report["loss"], report["ledger"]
    bids = ", ".join(f"{name} {format_credits(price)}" for name, price in report["bids"].items())
    paid = ", ".join(f"{name} {format_credits(amount)}" for name, amount in report["paid"].items())
    facts = [
        ("nodes", f"{report['nodes']} ({report['validators']} validators)"),
        ("escrow", f"{format_credits(report['escrow'])} credits"),
        ("bids per unit", f"{bids}; clearing price {format_credits(report['clearing_price'])}"),
        ("rounds", f"{report['rounds']['completed']} completed, {report['rounds']['void']} void"),
        ("units", _counts(report["units"])),
        ("audits", _counts(report["audits"])),
        *(("convicted", _conviction(conviction)) for conviction in report["convictions"]),
        ("paid", f"{paid}; audits {format_credits(report['audit_fees'])}"),
        ("validation loss", f"{loss['before']:.4f} -> {loss['after']:.4f}"),
        (
            "bytes per worker per token",
            f"{traffic['bytes_per_worker_per_token']} against {traffic['all_reduce_bytes_per_worker_per_token']} "
            f"for a fp32 all-reduce ({traffic['times_fewer']} times fewer)",
        ),
        ("ledger head", f"{ledger.get('height')} {str(ledger.get('head'))[:16]}"),
        ("explorer", report["explorer"]),
        ("time", f"{report['seconds']} s"),
        ("folder", report["folder"]),
    ]
    for name, value in facts:
        shown.add_row("", name, value)
    for name, held in report["checks"].items():
        shown.add_row(Text("ok", "green") if held else Text("NO", "red"), name, "")
    return shown


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _conviction(conviction: dict[str, Any]) -> str:
    excess = ", ".join(f"{name} {value:.3g}" for name, value in conviction["excess"].items())
    where = f"round {conviction['round']}, slot {conviction['slot']}"
    return f"{conviction['worker']} in {where}, accused by {conviction['accuser']}; rounding excess: {excess}"
