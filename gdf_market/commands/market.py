"""``gdf-market market``: the order book of the running node, and what the ledger says about prices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
from rich.console import Group
from rich.text import Text

from contracts.parameters import DEVICE_CLASSES
from gdf_market.commands import estimating
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.plot import curve
from gdf_market.commands.progress import require_job
from gdf_market.commands.reading import open_ledger, resolve_job
from gdf_market.commands.session import interrupted_after, with_client
from gdf_market.commands.terms import parse_price, terms_of
from gdf_market.errors import UsageError
from gdf_market.messages import MAX_ROUNDS, MAX_UNITS_PER_ROUND, JobPost
from gdf_market.units import CREDIT, format_credits
from ledger.prices import WINDOW_BLOCKS, price_report

CHART_WIDTH, CHART_HEIGHT = 72, 11
NOBODY = "12D3KooW" + "1" * 44  # stands for the owner of a job that nobody posts


@click.group()
def market() -> None:
    """Look at the order book and at prices, and take an order back."""


@market.command("ls")
@pass_app
def list_orders(app: App) -> None:
    """List announced orders and jobs under way, what this node bids on them or why it does not, and refused orders.

    Example: gdf-market market ls
    """
    value = with_client(app, lambda client: client.call("GET", "/orders"))

    def text() -> object:
        shown = table("order book", "order", "title", "owner", "at most", "rounds x units", "state", "this node")
        for order in value["orders"]:
            shown.add_row(
                short(order["id"]),
                order["title"],
                short(order["owner"], 8),
                format_credits(order["reserve_price"]),
                f"{order['rounds']} x {order['units_per_round']}",
                f"{order['state']} {order['reason']}".strip(),
                order["standing"] or order["unfit"] or "yes",
            )
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(value["refused"].items()))
        shown.caption = f"refused orders: {refused or 'none'}"
        return shown

    app.emit(value, text)


@market.command()
@click.argument("order")
@pass_app
def cancel(app: App, order: str) -> None:
    """Take back an own ORDER that is announced but not on the ledger yet.

    Whoever heard an order could still post it until it expires; this uses up its nonce on the ledger, for the fee of
    one entry, so that nobody can. A job that is on the ledger is ended with `gdf-market jobs cancel`.

    Example: gdf-market market cancel 3fa9
    """
    if not (order.isascii() and order.isalnum()):
        raise UsageError(f"{order!r} is no order; `gdf-market market ls` shows their ids")
    value = with_client(app, lambda client: client.call("POST", f"/orders/{order}/void"))
    app.emit(value, lambda: f"order {value['order'][:12]} is taken back (block {value['height']}): nobody can post it")


@market.command()
@click.option("--class", "device_class", metavar="CLASS", help="Only this device class, such as cpu-fp32.")
@click.option(
    "--blocks",
    type=click.IntRange(1, 999_999_999),
    default=WINDOW_BLOCKS,
    show_default=True,
    help="Look at so many of the last blocks.",
)
@pass_app
def prices(app: App, device_class: str | None, blocks: int) -> None:
    """Show at what prices jobs were cleared, by device class: last, median, least, most, and their history.

    From this folder's ledger alone; a node need not run. Prices per 10^12 multiply-adds are of jobs on tokens: 3 per
    trained value and token.

    Example: gdf-market market prices --class cpu-fp32
    """
    if device_class is not None and device_class not in DEVICE_CLASSES:
        raise UsageError(f"--class {device_class} is none of {', '.join(DEVICE_CLASSES)}")
    with open_ledger(app) as store:
        value = price_report(store, device_class=device_class, blocks=blocks)
    app.emit(value, lambda: _prices_text(value, device_class))


@market.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--like", metavar="JOB", help="Terms and size of a job on the ledger, instead of FILE.")
@click.option("--rounds", type=click.IntRange(1, MAX_ROUNDS), help="Rounds, if not as many as there.")
@click.option("--units", type=click.IntRange(1, MAX_UNITS_PER_ROUND), help="Units per round, if not as many as there.")
@click.option("--max-price", metavar="CREDITS", help="Most you would pay per unit, if not as much as there.")
@pass_app
def estimate(
    app: App, file: Path | None, like: str | None, rounds: int | None, units: int | None, max_price: str | None
) -> None:
    """Estimate price and time of the job that FILE declares, or of one like JOB, and say how sure that is.

    From the ledger's auctions and rounds, the idle workers' last asks and, where a node runs on this folder, the open
    orders of its book. Nothing is signed, announced or spent.

    Example: gdf-market market estimate examples/char_gpt.py --rounds 20
    """
    if (file is None) == (like is None):
        raise UsageError("name either FILE or --like JOB")
    given = {"rounds": rounds, "units": units, "max_price": max_price}
    spec, unit_s = _spec_of_file(app, file, given) if file is not None else (_spec_like(app, str(like), given), None)
    value = estimating.estimate(spec, estimating.facts_of(app, spec.device_class), unit_s)
    app.emit(value, lambda: _estimate_text(value))


def _spec_of_file(app: App, file: Path, given: dict[str, Any]) -> tuple[JobPost, float]:
    """Capture the job and measure a unit here; return its terms and the seconds."""
    from gdf_market.commands.post import prepare_order, spec_of
    from gdf_market.train.job_file import load_job

    parse_price(given["max_price"])
    with app.progress(f"capturing {file}"), interrupted_after():
        job = load_job(file)
        fields, measured = prepare_order(app, job, terms_of(job, given), job.title or file.stem)
    return spec_of(fields, NOBODY), measured["unit_s"]


def _spec_like(app: App, job: str, given: dict[str, Any]) -> JobPost:
    with open_ledger(app) as store:
        spec = require_job(store, resolve_job(store, job)).spec
    rounds, units = given["rounds"] or spec.rounds, given["units"] or spec.units_per_round
    return msgspec.structs.replace(
        spec,
        rounds=rounds,
        units_per_round=units,
        warm_rounds=min(spec.warm_rounds, rounds),
        min_workers=min(spec.min_workers, units),
        reserve_price=spec.reserve_price if given["max_price"] is None else parse_price(given["max_price"]),
    )


def _estimate_text(value: dict[str, Any]) -> object:
    shown = table("estimate: nothing was signed or spent", "what", "value")
    shown.add_row("job", f"{value['rounds']} rounds x {value['units_per_round']} units, {value['device_class']}")
    shown.add_row("price per unit", estimating.price_sentence(value["price"]))
    pay = value["pay_micro"]
    if pay["likely"] is not None:
        low, likely, high = (format_credits(pay[name]) for name in ("low", "likely", "high"))
        shown.add_row("pay of all units", f"about {likely} credits, from {low} to {high}; merit and audits come on top")
    shown.add_row("time", estimating.time_sentence(value["time"]))
    return shown


def _prices_text(value: dict[str, Any], device_class: str | None) -> object:
    window = f"blocks {value['from_height']:,} to {value['to_height']:,}"
    if not value["classes"]:
        return f"no job{f' of class {device_class}' if device_class else ''} was cleared in {window}"
    shown = table(
        f"clearing prices, credits, {window}",
        "class", "per", "last", "median", "least", "most", "auctions", "jobs", "owners",
    )  # fmt: skip
    for found in value["classes"]:
        counts = (str(found["auctions"]), str(found["jobs"]), str(found["owners"]))
        shown.add_row(found["device_class"], "unit", *_range(found["per_unit_micro"]), *counts)
        if found["per_tera_macs_micro"]:
            shown.add_row("", "10^12 multiply-adds", *_range(found["per_tera_macs_micro"]))
    return Group(shown, *(Text(line) for found in value["classes"] for line in _chart(found)))


def _range(prices: dict[str, int]) -> list[str]:
    return [format_credits(prices[name]) for name in ("last", "median", "least", "most")]


def _chart(found: dict[str, Any]) -> list[str]:
    """Return a chart of one class; none where there is nothing to compare."""
    points = [(point["height"], point["price_micro"] / CREDIT) for point in found["history"]]
    if len(points) < 2:
        return []
    width = min(CHART_WIDTH, shutil.get_terminal_size((CHART_WIDTH, 24)).columns)
    label = f"{found['device_class']}, credits per unit"
    return ["", *curve(points, width, CHART_HEIGHT, x_label="block", y_label=label)]
