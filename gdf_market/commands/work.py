"""``gdf-market work``: lend this machine to jobs of the market."""

from __future__ import annotations

import rich_click as click

from gdf_market.commands.common import App, pass_app
from gdf_market.commands.node import run_node
from gdf_market.units import parse_credits

POISONS = ["sign-flip", "label-flip", "lazy", "noise", "lie"]  # the last one is an auditor's


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on (default 127.0.0.1 and a free port).")
@click.option(
    "--announce", multiple=True, metavar="MULTIADDR", help="Where others reach it, such as /ip4/203.0.113.7 (repeat)."
)
@click.option(
    "--min-price", metavar="CREDITS", help="Least credits per unit you work for (your true cost is the best bid)."
)
@click.option("--units", type=click.IntRange(1, 64), help="Units per round this machine can do.")
@click.option("--threads", type=click.IntRange(0, 1_024), help="CPU threads for training (0: torch chooses).")
@click.option("--devices", metavar="LIST", help="Where a unit is computed, several together: cuda:0,cuda:1.")
@click.option("--device-class", help="Device class to bid with (default cpu-fp32).")
@click.option("--hours", metavar="SPANS", help="Local time in which to work, such as 22:00-07:00 (default: always).")
@click.option("--on-battery/--no-battery", default=None, help="Work while not plugged in, too (default: do not).")
@click.option("--max-temperature", type=click.IntRange(0, 120), metavar="CELSIUS", help="Rest while a GPU is hotter.")
@click.option("--limit-up", metavar="RATE", help="Most bytes a second of blobs sent, such as 500k or 8Mbit/s.")
@click.option("--limit-down", metavar="RATE", help="Most bytes a second of blobs taken.")
@click.option("--test-poison", type=click.Choice(POISONS), hidden=True, help="Cheat on purpose; test networks only.")
@click.option("--log-level", help="debug, info, warning or error.")
@pass_app
def work(
    app: App,
    listen: str | None,
    announce: tuple[str, ...],
    min_price: str | None,
    units: int | None,
    threads: int | None,
    devices: str | None,
    device_class: str | None,
    hours: str | None,
    on_battery: bool | None,
    max_temperature: int | None,
    limit_up: str | None,
    limit_down: str | None,
    test_poison: str | None,
    log_level: str | None,
) -> None:
    """Find jobs on the order book, bid, train, audit, and earn credits, until Ctrl-C.

    `gdf-market pause`, `resume` and `finish` steer it from another terminal.

    Example: gdf-market work --min-price 0.5 --threads 4 --hours 22:00-07:00
    """
    run_node(
        app,
        listen=listen,
        announce=list(announce) or None,
        log_level=log_level,
        worker=True,
        poison=test_poison or "",
        min_price=parse_credits(min_price) if min_price is not None else None,
        units=units,
        threads=threads,
        devices=devices,
        device_class=device_class,
        work_hours=hours,
        on_battery=on_battery,
        max_temperature_c=max_temperature,
        limit_up=limit_up,
        limit_down=limit_down,
    )
