"""``gdf-market market``: the order book of the running node."""

from __future__ import annotations

import rich_click as click

from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.session import with_client
from gdf_market.units import format_credits


@click.group()
def market() -> None:
    """Look at the order book."""


@market.command("ls")
@pass_app
def list_orders(app: App) -> None:
    """List announced orders and jobs under way, why this node would not take them, and how many orders were refused.

    Example: gdf-market market ls
    """
    value = with_client(app, lambda client: client.call("GET", "/orders"))

    def text() -> object:
        shown = table("order book", "order", "title", "owner", "at most", "rounds x units", "state", "fit")
        for order in value["orders"]:
            shown.add_row(
                short(order["id"]),
                order["title"],
                short(order["owner"], 8),
                format_credits(order["reserve_price"]),
                f"{order['rounds']} x {order['units_per_round']}",
                f"{order['state']} {order['reason']}".strip(),
                order["unfit"] or "yes",
            )
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(value["refused"].items()))
        shown.caption = f"refused orders: {refused or 'none'}"
        return shown

    app.emit(value, text)
