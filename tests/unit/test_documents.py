"""What README and docs/ name exists: files that they link to, and commands that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gdf_market.commands import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)")
_SHOWN = re.compile(r"gdf-market((?: [^`\n#|()]*)?)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_linked_files_exist(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not link.startswith("mailto:") and not (page.parent / link).exists()]
    assert missing == []


def shown_commands(text: str) -> Iterator[list[str]]:
    """Yield the words after the program's name, from lines of code and from code in a sentence."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.splitlines():
            yield from (_words(found) for found in _SHOWN.findall(line))
    for code in re.findall(r"`(gdf-market [^`]+)`", text):
        yield _words(code.removeprefix("gdf-market"))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # the end of a line of shell with a quote that is still open
        return text.replace('"', " ").split()


def unknown(words: list[str]) -> str:
    """Return the first word that should be a command or an option and is none, or ""."""
    command: click.Command = cli
    context = click.Context(cli)
    options = set[str]()
    waiting = iter(words)
    for word in waiting:
        options |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        if word.startswith("-"):
            name = word.partition("=")[0]
            if name not in options | {"--help", "-h"}:
                return name
            if _takes_value(command, name) and "=" not in word:
                next(waiting, None)
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None:
                return word
            command = found
    return ""


def _takes_value(command: click.Command, name: str) -> bool:
    for group in (command, cli):
        for each in group.params:
            if isinstance(each, click.Option) and name in (*each.opts, *each.secondary_opts):
                return not each.is_flag
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_shown_commands_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("tells of earlier versions")
    wrong = []
    for words in shown_commands(page.read_text(encoding="utf-8")):
        plain = [word.strip("…[].,;:") for word in words]
        plain = [word for word in plain if word and not word.isupper() and word not in ("&&", "|", ">>")]
        bad = unknown(plain)
        if bad:
            wrong.append(f"{' '.join(words)}: {bad}")
    assert wrong == []


def test_a_command_that_is_none_is_noticed() -> None:
    assert unknown(["work", "--min-price", "0.5"]) == ""
    assert unknown(["--data-dir", "ann", "jobs", "show", "--watch"]) == ""
    assert unknown(["wrok"]) == "wrok"
    assert unknown(["work", "--no-such"]) == "--no-such"
