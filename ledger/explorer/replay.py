"""``python -m ledger.explorer.replay --db FILE [--entry ID]``: the heavy work of the explorer, as a process of its own.

Without an entry: the whole ledger is exported to a temporary file and verified as ``gdf-market ledger verify`` does it,
then searched for anomalies.  With one: the state before and after it.  Prints JSON lines: {"done": i, "of": n} and at
the end {"result": …} or {"error": text}.  It ends when nobody reads them any more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from contracts.records import Genesis
from gdf_market.errors import GdfError
from ledger.effects import SaveBlocks
from ledger.explorer.anomalies import Anomalies, find
from ledger.explorer.differences import differences
from ledger.explorer.files import open_ledger
from ledger.export import export, verify
from ledger.store import LedgerStore

NICENESS = 10  # POSIX: whoever looks at pages, and the node, come first
EVERY_S = 0.3  # between two lines of progress


@dataclass(frozen=True)
class Report:
    """What a full replay has verified; ``supply`` in micro-credits."""

    network: str
    height: int
    head: str
    state_root: str
    time_ms: int
    entries: int
    supply: int
    seconds: int
    export_bytes: int
    anomalies: Anomalies


class Progress:
    """Prints how far it is, not too often; a ``ledger.export.Follower``."""

    def __init__(self, of: int) -> None:
        self._of = of
        self._last = 0.0

    def say(self, done: int, of: int) -> None:
        """Print a line if the last one is old enough."""
        if (now := time.monotonic()) - self._last >= EVERY_S or done == of:
            self._last = now
            _print({"done": done, "of": of})

    def started(self, genesis: Genesis) -> None:
        self.say(0, self._of)

    def finalized(self, blocks: SaveBlocks) -> None:
        self.say(blocks.blocks[-1].tip.height, self._of)


def audit(db: Path) -> Report:
    """Replay a whole ledger file.  Raises GdfError: VerificationFailedError names the height where it fails."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gdf-audit-") as folder:
        target = Path(folder) / "chain.gdfl"
        with contextlib.closing(LedgerStore(db, read_only=True)) as store:
            blocks = export(store, target)
        found = verify(target, follower=Progress(blocks))
        size = target.stat().st_size
    with open_ledger(db).read() as reader:
        anomalies = find(reader)
    return Report(
        network=found.network,
        height=found.height,
        head=found.head,
        state_root=found.state_root,
        time_ms=found.time_ms,
        entries=found.entries,
        supply=found.supply,
        seconds=round(time.monotonic() - begin),
        export_bytes=size,
        anomalies=anomalies,
    )


def _print(value: object) -> None:
    print(json.dumps(value, ensure_ascii=True), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ledger.explorer.replay", description=__doc__)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--entry", default="")
    options = parser.parse_args(arguments)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        if options.entry:
            with contextlib.closing(LedgerStore(options.db, read_only=True)) as store:
                _print({"result": dataclasses.asdict(differences(store, options.entry, Progress(0).say))})
        else:
            _print({"result": dataclasses.asdict(audit(options.db))})
    except GdfError as error:
        _print({"error": str(error)})
        return error.exit_code if hasattr(error, "exit_code") else 1
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
