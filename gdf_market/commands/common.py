"""What every command shares: the data folder, output in two forms, errors to exit codes, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.style import StyleType
from rich.table import Table

from gdf_market.node.datadir import DataDir
from gdf_market.node.settings import Settings, load_settings


@dataclass
class App:
    """Global flags, and where output goes: data on stdout, messages on stderr."""

    data: DataDir
    json: bool = False
    quiet: bool = False
    passphrase_file: Path | None = None
    color: bool | None = None
    out: Console = field(init=False)
    err: Console = field(init=False)

    def __post_init__(self) -> None:
        plain = True if self.color is False else None
        # no markup, no emoji: much of what is shown was written by others
        self.out = Console(no_color=plain, highlight=False, soft_wrap=True, markup=False, emoji=False)
        self.err = Console(stderr=True, no_color=plain, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def settings(self, **flags: Any) -> Settings:
        return load_settings(self.data.config, **flags)

    def say(self, message: str) -> None:
        """Print a message for people (stderr; nothing with --quiet or --json)."""
        if not (self.quiet or self.json):
            self.err.print(printable(message))

    def emit(self, value: dict[str, Any], text: Callable[[], object] | None = None) -> None:
        """Print the result: JSON with --json, else what ``text`` returns (a string or a rich table)."""
        if self.json:
            sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
            sys.stdout.flush()
        elif text is not None:
            shown = text()
            self.out.print(printable(shown) if isinstance(shown, str) else shown)

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with a changing sentence on a terminal; plain lines elsewhere."""
        if self.quiet or self.json or not self.err.is_terminal:
            last = [""]

            def plain(sentence: str) -> None:
                if sentence != last[0]:
                    last[0] = sentence
                    self.say(sentence)

            plain(text)
            yield plain
            return
        with self.err.status(text) as status:
            yield lambda sentence: status.update(sentence)


def _json_too(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        app = context.find_object(App)
        assert app is not None
        app.json = True


def pass_app(command: Callable[..., object]) -> Callable[..., object]:
    """Pass the App as first argument, and take --json after the command's name, too."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_json_too, help="Print the result as JSON on stdout."
    )
    return option(click.make_pass_decorator(App)(command))


def printable(text: str) -> str:
    """Return ``text`` without what could steer the terminal: others choose titles, reasons and memos."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


class PlainTable(Table):
    """A table whose cells show text as it is."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row of texts (or of renderables)."""
        shown = [printable(cell) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*shown, style=style, end_section=end_section)


def table(title: str, *columns: str) -> Table:
    """Return an empty table in the house style."""
    made = PlainTable(title=printable(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def short(identifier: str, length: int = 12) -> str:
    """Return the recognisable part of an account id or hash."""
    return identifier[-length:] if identifier.startswith("12D3KooW") else identifier[:length]
