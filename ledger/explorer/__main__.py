"""``python -m ledger.explorer --db FILE --port N``: the explorer as a process of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from gdf_market.errors import GdfError
from ledger.explorer.serve import DEFAULT_PORT, LOOPBACK, serve


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ledger.explorer", description="Read-only web pages of a ledger.")
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="a ledger's SQLite file, or a copy")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes any free one (default %(default)s)")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default %(default)s: this machine)")
    options = parser.parse_args(arguments)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(
                lambda task_status: serve(options.db, options.host, options.port, task_status=task_status)
            )
            print(url, flush=True)

    code = 0
    try:
        trio.run(run)
    except* GdfError as group:
        for error in leaves(group):
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
    except* KeyboardInterrupt:
        code = 130
    return code


def leaves(group: BaseExceptionGroup[GdfError]) -> Iterator[GdfError]:
    """Yield the errors inside nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


if __name__ == "__main__":
    sys.exit(main())
