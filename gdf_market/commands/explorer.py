"""``gdf-market explorer``: the read-only web explorer as a process of its own."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import rich_click as click
import trio

from gdf_market.commands.common import App, pass_app
from gdf_market.commands.session import run_async, stop_on_signals
from gdf_market.errors import UsageError


@click.command()
@click.option("--db", type=click.Path(path_type=Path), help="A ledger file (default: this folder's).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8_088, show_default=True, help="Port (0: any free one)."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the browser.")
@pass_app
def explorer(app: App, db: Path | None, host: str, port: int, open_browser: bool) -> None:
    """Serve the explorer over a ledger file; works without any node.

    Example: gdf-market explorer --open
    """
    from ledger.explorer.serve import serve

    path = db or app.data.ledger
    if not path.is_file():
        raise UsageError(f"{path} is not a ledger file; run a node on this folder first, or give --db FILE")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_on_signals, nursery.cancel_scope.cancel)
            url = await nursery.start(serve, path, host, port)
            app.emit({"url": url}, lambda: f"explorer  {url}\nrunning   Ctrl-C stops it")
            if open_browser:
                await trio.to_thread.run_sync(webbrowser.open, url)
        app.say("stopped")

    run_async(main)
