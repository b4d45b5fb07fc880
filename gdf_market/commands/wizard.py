"""The questions of `gdf-market init` on a terminal.  Every answer can be given as a flag instead."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import rich_click as click

from gdf_market import keystore
from gdf_market.commands.common import App
from gdf_market.commands.node import split_listen
from gdf_market.errors import GdfError, UsageError
from gdf_market.node.availability import parse_hours
from gdf_market.units import parse_credits

GIB = 1 << 30
DEFAULT_PORT = 4_001

FIREWALL = {
    "win32": "New-NetFirewallRule -DisplayName gdf-market -Direction Inbound -Protocol TCP -LocalPort {ports}",
    "darwin": "System Settings, Network, Firewall: allow incoming connections for this Python ({python})",
    "linux": "sudo ufw allow {port}/tcp && sudo ufw allow {bulk}/tcp   (or firewall-cmd --add-port={port}/tcp)",
}


@dataclass(frozen=True)
class Choices:
    """What init needs to know; "" and None mean: not said."""

    network: str = ""  # the name of a new one
    invite: str = ""
    passphrase: str | None = None
    backup: Path | None = None
    listen: str = ""
    hours: str = ""
    min_price: str = ""
    check_gpu: bool = False


def ask(app: App, given: Choices) -> Choices:
    """Ask for what was not given.  Raises click.Abort on Ctrl-C or the end of the input."""
    _show_folder(app)
    if not app.data.key.exists():
        if given.passphrase is None:
            given = replace(given, passphrase=_ask_passphrase())
        if given.backup is None:
            given = replace(given, backup=_ask_backup())
    if not (given.network or given.invite or app.data.genesis_file.exists()):
        given = _ask_network(given)
    if not given.listen:
        given = replace(given, listen=_ask_listen())
    if not given.hours:
        said = "Hours in which this machine may work, such as 22:00-07:00 (empty: always)"
        given = replace(given, hours=_checked(said, parse_hours))
    if not given.min_price:
        said = "Least credits per unit you work for (empty: 0.1)"
        given = replace(given, min_price=_checked(said, lambda text: parse_credits(text) if text else 0))
    if not given.check_gpu:
        given = replace(
            given, check_gpu=click.confirm("Time a kernel on this machine's GPU or CPU?", default=True, err=True)
        )
    return given


def _show_folder(app: App) -> None:
    place = next(one for one in (app.data.root, *app.data.root.parents) if one.is_dir())
    free = shutil.disk_usage(place).free / GIB
    click.echo(f"Data folder: {app.data.root} ({free:.1f} GiB free; --data-dir chooses another)", err=True)


def _ask_passphrase() -> str | None:
    said = "Passphrase of the key (empty: none; a service cannot start with one)"
    found = click.prompt(said, default="", hide_input=True, confirmation_prompt=True, show_default=False, err=True)
    return str(found) or None


def _ask_backup() -> Path | None:
    found = click.prompt("File for a back-up of the key (empty: later)", default="", show_default=False, err=True)
    return Path(found).expanduser() if found else None


def _ask_network(given: Choices) -> Choices:
    found = click.prompt(
        "Invite of the network to join, or a name for a new one (empty: later)",
        default="",
        show_default=False,
        err=True,
    ).strip()
    if found.startswith("gdf1-"):
        return replace(given, invite=found)
    return replace(given, network=found)


def _ask_listen() -> str:
    click.echo("Others reach this node on a port of yours; without one it still works, through other nodes.", err=True)
    if not click.confirm("Listen for other machines?", default=False, err=True):
        return ""
    port = click.prompt(
        "Port (the next one is used too)", default=DEFAULT_PORT, type=click.IntRange(1, 65_534), err=True
    )
    return f"0.0.0.0:{port}"


def _checked(said: str, check: object) -> str:
    """Ask until ``check`` takes the answer."""
    assert callable(check)
    while True:
        found = str(click.prompt(said, default="", show_default=False, err=True)).strip()
        try:
            check(found)
        except UsageError as error:
            click.echo(f"{error}", err=True)
        else:
            return found


def settings_of(choices: Choices) -> dict[str, str]:
    """Return what goes into config.toml, as text."""
    found: dict[str, str] = {}
    if choices.listen:
        host, port = split_listen(choices.listen)
        assert host is not None
        assert port is not None
        found |= {"listen_host": host, "listen_port": str(port)}
        if port:
            found["bulk_port"] = str(port + 1 if port < 65_535 else port - 1)
    if choices.hours:
        parse_hours(choices.hours)
        found["work_hours"] = choices.hours
    if choices.min_price:
        found["min_price"] = str(parse_credits(choices.min_price))
    return found


def firewall_advice(choices: Choices, platform: str = sys.platform) -> str:
    """Return what to tell the system's firewall, or "" for a node that only listens to this machine."""
    host, port = split_listen(choices.listen or None)
    if not port or host in ("127.0.0.1", "::1", "localhost"):
        return ""
    text = FIREWALL.get(platform, "allow TCP to {port} and {bulk} in this system's firewall")
    bulk = port + 1 if port < 65_535 else port - 1
    said = text.format(port=port, bulk=bulk, ports=f"{port},{bulk}", python=sys.executable)
    return f"{said}; behind a router, forward TCP {port} and {bulk} to this machine"


def back_up(app: App, target: Path, secret: str | None) -> None:
    """Copy the key, and prove that the copy opens as the same account.  Raises GdfError."""
    keystore.backup(app.data.key, target, secret)
    if keystore.load(target, secret).account != keystore.load(app.data.key, secret).account:
        raise UsageError(f"{target} does not open as this key; copy it again to another place")


def kernel_sentence(app: App) -> str:
    """Time a kernel and say what it means; a GPU that is no faster than the CPU is found out."""
    from gdf_market.train.kernel import measure

    try:
        found = measure()
    except GdfError as error:
        return str(error)
    cpu = f"{found.cpu_flops / 1e9:.0f} GFLOP/s on the CPU"
    if found.gpu_flops is None:
        return f"no GPU that torch can use: {cpu}; this machine works in the class cpu-fp32"
    gpu = f"{found.gpu_flops / 1e9:.0f} GFLOP/s on {found.gpu_name}"
    if found.gpu_is_slow:
        return f"{gpu}, {cpu}: the GPU is not really used; check its driver and torch's build (`gdf-market doctor`)"
    return f"{gpu}, {cpu}: set device_class to cuda-fp32 to work on it (`gdf-market config set device_class cuda-fp32`)"
