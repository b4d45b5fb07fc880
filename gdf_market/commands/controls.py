"""``gdf-market pause``, ``resume`` and ``finish``: what a running worker offers, without stopping it."""

from __future__ import annotations

import re

import rich_click as click

from gdf_market.commands.common import App, pass_app
from gdf_market.errors import UsageError
from gdf_market.node.client import NodeClient
from gdf_market.units import SECOND_MS

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LENGTH = re.compile(r"(\d{1,6})([smhd])")


def parse_duration(text: str) -> int:
    """Return the milliseconds of a length of time such as ``90s``, ``30m``, ``2h`` or ``1h30m``.  Raises UsageError."""
    squeezed = text.replace(" ", "")
    parts = _LENGTH.findall(squeezed)
    if not parts or "".join(number + unit for number, unit in parts) != squeezed:
        raise UsageError(f"{text!r} is not a length of time; write for example 30m, 2h or 1h30m")
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts) * SECOND_MS


def _tell(app: App, path: str, body: dict[str, object] | None = None) -> None:
    with NodeClient.of(app.data) as client:
        answer = client.call("POST", path, body)
    app.emit(answer, lambda: answer["hold"] or "working: bids again on jobs that fit")


@click.command()
@click.option("--for", "length", metavar="TIME", help="How long, such as 30m or 2h (default: until resume).")
@pass_app
def pause(app: App, length: str | None) -> None:
    """Stop offering this machine: no new bids, and jobs are left when their round ends, so that no bond is lost.

    Audits of units that are done are still answered.  A restart of the node does not end the pause.

    Example: gdf-market pause --for 2h
    """
    _tell(app, "/pause", {} if length is None else {"for_ms": parse_duration(length)})


@click.command()
@pass_app
def resume(app: App) -> None:
    """Offer this machine again, after pause or finish.

    Example: gdf-market resume
    """
    _tell(app, "/resume")


@click.command()
@pass_app
def finish(app: App) -> None:
    """Take no new work, and stop the node once all its pay is settled.

    Example: gdf-market finish
    """
    _tell(app, "/finish")
