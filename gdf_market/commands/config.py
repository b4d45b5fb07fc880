"""``gdf-market config``: settings, where each comes from, and changing them in config.toml."""

from __future__ import annotations

import os
from typing import Any

import rich_click as click
import tomlkit
from tomlkit.exceptions import TOMLKitError

from gdf_market.commands.common import App, pass_app, table
from gdf_market.errors import UsageError
from gdf_market.node.datadir import write_atomic
from gdf_market.node.settings import Settings, load_settings


@click.group()
def config() -> None:
    """Show settings and where they come from; change them in config.toml."""


def origin(name: str, file: dict[str, Any]) -> str:
    """Return where a setting's value comes from: flags of a command win over all of these."""
    variable = f"GDF_{name.upper()}"
    if any(known.upper() == variable for known in os.environ):
        return variable
    return "config.toml" if name in file else "default"


def _read(app: App) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(app.data.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise UsageError(f"{app.data.config} is not valid TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {app.data.config}: {error.strerror}") from None


@config.command()
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value comes from.")
@pass_app
def show(app: App, with_origin: bool) -> None:
    """Show the settings that a node on this folder would have.

    Example: gdf-market config show --origin
    """
    values, file = app.settings().model_dump(mode="json"), _read(app)
    found = {name: {"value": value, "origin": origin(name, file)} for name, value in values.items()}

    def text() -> object:
        shown = table(str(app.data.config), "setting", "value", *(["origin"] if with_origin else []))
        for name, each in found.items():
            shown.add_row(name, _plain(each["value"]), *([each["origin"]] if with_origin else []))
        return shown

    app.emit({"file": str(app.data.config), "settings": found}, text)


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@config.command(name="set")
@click.argument("name")
@click.argument("value")
@pass_app
def set_(app: App, name: str, value: str) -> None:
    """Write a setting into config.toml, once it has been checked; a running node takes it at its next start.

    Lists are written with commas.

    Example: gdf-market config set work_hours 22:00-07:00
    """
    _known(name)
    checked = store_settings(app, {name: value})[name]
    app.emit({"setting": name, "value": checked}, lambda: f"{name} = {_plain(checked)}; in force at the next start")


def store_settings(app: App, given: dict[str, str]) -> dict[str, Any]:
    """Write settings into config.toml, once they have been checked together; return them as they are stored.

    Raises UsageError for a value that does not fit, or a damaged file.
    """
    if not given:
        return {}
    document = _read(app)
    values = load_settings(app.data.root / "no-such-file", **given).model_dump(mode="json")
    for name in given:
        document[name] = values[name]
    _write(app, document)
    return {name: values[name] for name in given}


@config.command()
@click.argument("name")
@pass_app
def unset(app: App, name: str) -> None:
    """Take a setting out of config.toml, so that its default holds again.

    Example: gdf-market config unset work_hours
    """
    _known(name)
    document = _read(app)
    if name not in document:
        raise UsageError(f"{name} is not in {app.data.config}; `gdf-market config show --origin` says where it is from")
    del document[name]
    _write(app, document)
    app.emit({"setting": name, "value": None}, lambda: f"{name} has its default again; in force at the next start")


def _known(name: str) -> None:
    if name not in Settings.model_fields:
        raise UsageError(f"there is no setting {name!r}; the settings are {', '.join(sorted(Settings.model_fields))}")


def _write(app: App, document: tomlkit.TOMLDocument) -> None:
    app.data.create()
    write_atomic(app.data.config, tomlkit.dumps(document).encode())
