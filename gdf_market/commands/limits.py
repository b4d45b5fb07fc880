"""``gdf-market limits``: how much of the line the blobs of a running node may use."""

from __future__ import annotations

import rich_click as click

from gdf_market.commands.common import App, pass_app
from gdf_market.node.client import NodeClient
from gdf_market.sizes import format_bytes, parse_rate


@click.command()
@click.option("--up", metavar="RATE", help="Most bytes a second sent, such as 500k or 8Mbit/s; 0 is no limit.")
@click.option("--down", metavar="RATE", help="Most bytes a second taken.")
@pass_app
def limits(app: App, up: str | None, down: str | None) -> None:
    """Show or set how fast the running node sends and takes blobs, all peers together.

    What is set here holds until the node stops; `limit_up` and `limit_down` in config.toml hold longer.

    Example: gdf-market limits --up 500k --down 2M
    """
    wanted = {name: parse_rate(text) for name, text in (("up", up), ("down", down)) if text is not None}
    with NodeClient.of(app.data) as client:
        value = client.call("POST", "/limits", wanted) if wanted else client.call("GET", "/limits")
    app.emit(value, lambda: f"up    {_shown(value['up'])}\ndown  {_shown(value['down'])}")


def _shown(rate: int) -> str:
    return f"{format_bytes(rate)}/s" if rate else "no limit"
