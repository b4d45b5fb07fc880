"""What ``gdf-market doctor`` looks at: each check is one line of what is, what is needed, and how to mend it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gdf_market import keystore
from gdf_market.commands.common import App
from gdf_market.commands.reading import open_ledger
from gdf_market.errors import GdfError, UnreachableError
from gdf_market.node.client import NodeClient

LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1 << 30
LATEST_BLOCK_AHEAD_MS = 10_000  # clocks of validators differ by some seconds
FIRST_DAY_MS = 1_767_225_600_000  # 2026-01-01: this program is younger
OUR_PACKAGES = ("contracts", "ledger", "verifier")


@dataclass(frozen=True)
class Check:
    """One line: what is, what is needed, and how to mend it ("" where nothing is to mend)."""

    name: str
    ok: bool
    actual: str
    needed: str
    fix: str = ""


def _python(_: App) -> Check:
    least = ".".join(map(str, LEAST_PYTHON))
    ok = sys.version_info >= LEAST_PYTHON
    return Check("Python", ok, sys.version.split()[0], f"{least} or later", "" if ok else f"install Python {least}")


def _torch(_: App) -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("torch", False, f"cannot be imported ({error})", "torch", "reinstall with constraints.txt")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU, {_instructions()}"
    return Check("torch", True, f"{torch.__version__}, {device}", "any device")


def _instructions() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def _packages(_: App) -> Check:
    """Say when another distribution provides one of our top-level packages."""
    owners = metadata.packages_distributions()
    for name in OUR_PACKAGES:
        strangers = sorted(set(owners.get(name, [])) - {"gdf-market"})
        if strangers:
            fix = "install gdf-market in an environment of its own"
            return Check("packages", False, f"{strangers[0]} also installs {name!r}", "names of our own", fix)
    return Check("packages", True, "no other distribution uses our package names", "names of our own")


def _disk(app: App) -> Check:
    free = shutil.disk_usage(_present(app.data.root)).free
    ok = free >= LEAST_FREE_BYTES
    fix = "" if ok else f"free some space where {app.data.root} lies, or choose another --data-dir"
    return Check("disk", ok, f"{free >> 20:,} MiB free", f"{LEAST_FREE_BYTES >> 20:,} MiB", fix)


def _folder(app: App) -> Check:
    place = _present(app.data.root)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        fix = "change its owner, or choose another --data-dir"
        return Check("folder", False, f"{place}: {error.strerror}", "a folder that can be written", fix)
    return Check("folder", True, str(app.data.root), "a folder that can be written")


def _present(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _clock(app: App) -> Check:
    """Compare the clock with what is certainly past: the newest block's time, or this program's age."""
    now_ms, past_ms, what = time.time_ns() // 1_000_000, FIRST_DAY_MS, "this program"
    newest = _newest_block_ms(app)
    if newest is not None:
        past_ms, what = newest - LATEST_BLOCK_AHEAD_MS, "the ledger's newest block"
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_ms / 1_000))
    ok = now_ms >= past_ms
    fix = "" if ok else "set the clock, and let the system keep it (NTP)"
    return Check("clock", ok, shown, f"not before {what}", fix)


def _newest_block_ms(app: App) -> int | None:
    try:
        with open_ledger(app) as store:
            newest = store.blocks(limit=1)
            return newest[0].time_ms if newest else None
    except GdfError:
        return None  # the line about the ledger says so


def _config(app: App) -> Check:
    """Say whether a node on this folder would take its settings; a message about config.toml names the line."""
    try:
        app.settings()
    except GdfError as error:
        fix = "mend that line, or use `gdf-market config set NAME VALUE`"
        return Check("settings", False, str(error), "settings that a node takes", fix)
    where = str(app.data.config) if app.data.config.exists() else "no config.toml: flags, GDF_* and defaults"
    return Check("settings", True, where, "settings that a node takes")


def _key(app: App) -> Check:
    try:
        app.data.require_key()
        sealed = keystore.is_sealed(app.data.key)
    except GdfError as error:
        return Check("key", False, str(error), "a key in the data folder", "run `gdf-market init`, or `key restore`")
    how = "sealed with a passphrase" if sealed else "without a passphrase"
    return Check("key", True, f"{app.data.key}, {how}", "a key in the data folder")


def _ledger(app: App) -> Check:
    needed = "a network, and a ledger that opens"
    try:
        app.data.genesis()
        if not app.data.ledger.exists():
            return Check("ledger", True, "none yet", "it comes with the first run", "run `gdf-market node run`")
        with open_ledger(app) as store:
            newest = store.blocks(limit=1)
            store.state()
    except GdfError as error:
        return Check("ledger", False, str(error), needed, "see README, “Start here”, or restore the folder")
    return Check("ledger", True, f"height {newest[0].height if newest else 0}", needed)


def _node(app: App) -> Check:
    try:
        with NodeClient.of(app.data) as client:
            peers = len(client.status()["peers"])
    except UnreachableError:
        return Check("node", True, "not running", "nothing; commands start one when they need it")
    except GdfError as error:
        return Check("node", False, str(error), "a node that answers", "stop it with `gdf-market node stop`")
    return Check("node", True, f"running, {peers} peers", "a node that answers")


CHECKS: tuple[Callable[[App], Check], ...] = (
    _python,
    _torch,
    _packages,
    _folder,
    _disk,
    _clock,
    _config,
    _key,
    _ledger,
    _node,
)
