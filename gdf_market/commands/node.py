"""``gdf-market node`` and ``status``: the replica itself."""

from __future__ import annotations

import rich_click as click
import trio

from gdf_market.commands.common import App, pass_app, table
from gdf_market.commands.reach_checks import in_short
from gdf_market.commands.session import configure_logging, run_async, running_node
from gdf_market.commands.shift import show_shift
from gdf_market.errors import UsageError
from gdf_market.node.client import NodeClient
from gdf_market.sizes import format_bytes
from gdf_market.units import format_credits


def split_listen(listen: str | None) -> tuple[str | None, int | None]:
    """Return host and port of HOST:PORT (or nothing).  Raises UsageError."""
    if listen is None:
        return None, None
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise UsageError(f"--listen {listen!r} is not HOST:PORT; write for example 0.0.0.0:4001")
    return host.removeprefix("[").removesuffix("]"), int(port)


_STORAGE_ROWS = (
    ("held_bytes", "held"),
    ("quota_bytes", "quota"),
    ("active_bytes", "of jobs under way"),
    ("ended_bytes", "of jobs that ended"),
    ("collectable_bytes", "not needed"),
)


@click.group()
def node() -> None:
    """Run a replica, and invite others to it."""


@node.command()
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on (default 127.0.0.1 and a free port).")
@click.option(
    "--announce", multiple=True, metavar="MULTIADDR", help="Where others reach it, such as /ip4/203.0.113.7 (repeat)."
)
@click.option("--limit-up", metavar="RATE", help="Most bytes a second of blobs sent, such as 500k or 8Mbit/s.")
@click.option("--limit-down", metavar="RATE", help="Most bytes a second of blobs taken.")
@click.option("--log-level", help="debug, info, warning or error.")
@pass_app
def run(
    app: App,
    listen: str | None,
    announce: tuple[str, ...],
    limit_up: str | None,
    limit_down: str | None,
    log_level: str | None,
) -> None:
    """Run a node that follows, validates (if it is in the set) and audits, but does not bid on jobs.

    Example: gdf-market node run --listen 127.0.0.1:4001
    """
    run_node(
        app,
        listen=listen,
        announce=list(announce) or None,
        limit_up=limit_up,
        limit_down=limit_down,
        log_level=log_level,
    )


def run_node(
    app: App,
    *,
    listen: str | None,
    log_level: str | None,
    worker: bool = False,
    poison: str = "",
    **flags: object,
) -> None:
    """Run a node in the foreground until it is told to stop."""
    host, port = split_listen(listen)
    settings = app.settings(listen_host=host, listen_port=port, log_level=log_level, **flags)
    app.data.create()
    configure_logging(settings.log_level, app.data.log)

    async def main() -> None:
        async with running_node(app, settings, worker=worker, poison=poison, serves=True) as opened:
            invite = _invite(app, opened.control.addresses)
            app.emit(
                {"account": opened.context.account, "addresses": opened.control.addresses, "invite": invite},
                lambda: f"account  {opened.context.account}\ninvite   {invite}\nrunning  Ctrl-C stops it",
            )
            async with trio.open_nursery() as nursery:
                if worker:
                    nursery.start_soon(show_shift, app, opened)
                await opened.wait_stopped()
                nursery.cancel_scope.cancel()
        app.say("stopped")

    run_async(main)


def _invite(app: App, addresses: list[str]) -> str:
    from gdf_market.node.invite import make_invite

    return make_invite(app.data.genesis(), addresses)


@node.command()
@pass_app
def invite(app: App) -> None:
    """Print an invite string with the running node's addresses.

    Example: gdf-market init --join "$(gdf-market --data-dir other node invite)"
    """
    with NodeClient.of(app.data) as client:
        addresses = client.status()["addresses"]
    text = _invite(app, addresses)
    app.emit({"invite": text}, lambda: text)


@node.command()
@pass_app
def storage(app: App) -> None:
    """Show what the blobs on this disk are kept for, and what may be deleted for others.

    Example: gdf-market node storage --json
    """
    with NodeClient.of(app.data) as client:
        value = client.status()["storage"]

    def text() -> object:
        shown = table("blobs", "what", "value")
        for name, label in _STORAGE_ROWS:
            if value.get(name) is not None:
                shown.add_row(label, format_bytes(value[name]))
        shown.add_row("jobs", str(value["jobs"]))
        shown.add_row("copies made for others", str(value["copied"]))
        for root, count in sorted(value["short"].items()):
            shown.add_row(f"too few copies of {root[:12]}", str(count))
        if value["problem"]:
            shown.add_row("problem", value["problem"])
        return shown

    app.emit(value, text)


@node.command()
@pass_app
def stop(app: App) -> None:
    """Stop the node that runs on this folder.

    Example: gdf-market node stop
    """
    with NodeClient.of(app.data) as client:
        client.call("POST", "/stop")
    app.emit({"stopping": True}, lambda: "stopping")


@click.command()
@pass_app
def status(app: App) -> None:
    """Show what the running node does, and why it is idle if it is.

    Example: gdf-market status --json
    """
    with NodeClient.of(app.data) as client:
        value = client.status()

    def text() -> object:
        shown = table(value["account"], "what", "value")
        age = value["block_age_ms"]
        shown.add_row("height", f"{value['height']} ({'no block yet' if age is None else f'{age / 1000:.1f} s old'})")
        shown.add_row("peers", str(len(value["peers"])))
        shown.add_row("reach", in_short(value["reach"]))
        roles = [name for name in ("validator", "worker") if value[name]]
        shown.add_row("roles", ", ".join(roles) or "observer")
        shown.add_row("balance", f"{format_credits(value['balance'])} credits")
        shown.add_row("trained / audited", f"{value['trained']} / {value['audited']} units")
        if value["step"]:
            shown.add_row("at work", "step {} of {}".format(*value["step"]))
        for job, standing in sorted(value["bids"].items()):
            shown.add_row(f"bid on {job[:12]}", standing)
        for job, reason in sorted(value["idle_reasons"].items()):
            shown.add_row(f"not on {job[:12]}" if job != "*" else "idle", reason)
        for topic, sentence in sorted(value["notes"].items()):
            shown.add_row(f"last {topic}", sentence)
        return shown

    app.emit(value, text)
