"""The command line ``gdf-market``; one module per group of commands."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from pathlib import Path

import rich_click as click
from click.exceptions import Abort, ClickException, Exit
from rich_click import rich_click as style

from gdf_market import __version__
from gdf_market.commands.common import App, printable
from gdf_market.errors import GdfError

TRACEBACK = "GDF_TRACEBACK"  # environment variable: show where an unexpected error came from

style.COMMAND_GROUPS = {
    "gdf-market": [
        {"name": "Start here", "commands": ["demo", "init", "status", "doctor"]},
        {"name": "Own a job", "commands": ["post", "jobs", "market"]},
        {"name": "Work", "commands": ["work", "pause", "resume", "finish", "earnings", "wallet", "key"]},
        {"name": "Run and audit", "commands": ["node", "validator", "challenge", "ledger", "explorer"]},
        {"name": "This machine", "commands": ["config", "logs", "service", "completion"]},
    ]
}


# Commands are imported when they are used: most need neither torch nor libp2p, and starting should not wait for them.
COMMANDS = {
    "demo": "demo",
    "init": "init",
    "key": "init",
    "status": "node",
    "doctor": "doctor",
    "node": "node",
    "limits": "limits",
    "post": "post",
    "jobs": "jobs",
    "market": "market",
    "work": "work",
    "pause": "controls",
    "resume": "controls",
    "finish": "controls",
    "earnings": "earnings",
    "wallet": "wallet",
    "ledger": "ledger",
    "explorer": "explorer",
    "validator": "validator",
    "challenge": "challenge",
    "config": "config",
    "logs": "logs",
    "service": "service",
    "completion": "completion",
}


class LazyGroup(click.RichGroup):
    """A group whose commands live in modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(f"gdf_market.commands.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
)
@click.option("--data-dir", type=click.Path(path_type=Path), envvar="GDF_DATA_DIR", help="Data folder of this node.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="No messages, results only.")
@click.option("--no-color", is_flag=True, envvar="NO_COLOR", help="No colours.")
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="File with the key's passphrase (or set GDF_PASSPHRASE).",
)
@click.version_option(__version__, prog_name="gdf-market")
@click.pass_context
def cli(
    context: click.Context,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    no_color: bool,
    passphrase_file: Path | None,
) -> None:
    """Train PyTorch models on strangers' machines, and be paid fairly for lending yours."""
    from gdf_market.node.datadir import DataDir
    from gdf_market.node.settings import default_data_dir

    context.obj = App(
        data=DataDir((data_dir or default_data_dir()).expanduser().absolute()),
        json=as_json,
        quiet=quiet,
        passphrase_file=passphrase_file,
        color=False if no_color else None,
    )


def main() -> None:
    """Entry point of the ``gdf-market`` script: every error becomes one sentence and an exit code."""
    if hasattr(sys.stdout, "reconfigure"):  # Windows consoles may not default to UTF-8
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
        sys.stderr.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        cli.main(prog_name="gdf-market", standalone_mode=False)
        sys.stdout.flush()
    except (Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output (head, less) has seen enough
        _close_stdout()
        sys.exit(1)
    except Exit as error:
        sys.exit(error.exit_code)
    except ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GdfError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        sys.stderr.write(f"Error: {_describe(error)}\n")
        sys.exit(1)


def _close_stdout() -> None:
    """Send what is still buffered for stdout nowhere, so that Python does not complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # stdout may be no file
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _describe(error: Exception) -> str:
    """Return one sentence about an error that nobody expected."""
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return f"{error.filename}: {what}" if error.filename else f"the system refused: {what}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    reason = " ".join(str(error).split())[:300]
    return f"internal error {type(error).__name__}{where} ({reason}); set {TRACEBACK}=1 and report what it prints"
