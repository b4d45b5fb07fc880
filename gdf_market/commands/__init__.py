"""The command line ``gdf-market``; one module per group of commands."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from gdf_market import __version__
from gdf_market.commands.common import App
from gdf_market.errors import GdfError

click.rich_click.COMMAND_GROUPS = {
    "gdf-market": [
        {"name": "Start here", "commands": ["demo", "init", "status", "doctor"]},
        {"name": "Own a job", "commands": ["post", "jobs", "market"]},
        {"name": "Work", "commands": ["work", "wallet", "key"]},
        {"name": "Run and audit", "commands": ["node", "ledger", "explorer"]},
    ]
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None})
@click.option("--data-dir", type=click.Path(path_type=Path), envvar="GDF_DATA_DIR", help="Data folder of this node.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="No messages, results only.")
@click.option("--no-color", is_flag=True, envvar="NO_COLOR", help="No colours.")
@click.option("--yes", is_flag=True, help="Answer yes to every question.")
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
    yes: bool,
    passphrase_file: Path | None,
) -> None:
    """Train PyTorch models on strangers' machines, and be paid fairly for lending yours."""
    from gdf_market.node.datadir import DataDir
    from gdf_market.node.settings import default_data_dir

    context.obj = App(
        data=DataDir((data_dir or default_data_dir()).expanduser().absolute()),
        json=as_json,
        quiet=quiet,
        yes=yes,
        passphrase_file=passphrase_file,
        color=False if no_color else None,
    )


def _register() -> None:
    from gdf_market.commands import demo, explorer, init, jobs, ledger, market, node, post, wallet, work

    for command in (
        demo.demo,
        init.init,
        init.key,
        node.status,
        node.doctor,
        node.node,
        post.post,
        jobs.jobs,
        market.market,
        work.work,
        wallet.wallet,
        ledger.ledger,
        explorer.explorer,
    ):
        cli.add_command(command)


def main() -> None:
    """Entry point of the ``gdf-market`` script: typed errors become one sentence and an exit code."""
    if hasattr(sys.stdout, "reconfigure"):  # Windows consoles may not default to UTF-8
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
        sys.stderr.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        _register()
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GdfError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_code)
