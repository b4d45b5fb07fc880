"""The ledger's figures, each as a ratio to what limits it, measured in one run on this machine.

``python -m benchmarks.ledger`` prints a Markdown table; progress goes to stderr.  ``--entries`` sizes the cold sync,
``--json`` prints numbers instead, ``--write`` also puts the table into benchmarks/results/ledger.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nacl

from benchmarks import ledger_finality, ledger_loopback, ledger_speed, ledger_state
from benchmarks.ledger_table import Figure, table
from benchmarks.ledger_world import make_history

RESULTS = Path(__file__).parent / "results" / "ledger.md"
NOTES = "\n## What the figures say\n"
PARTS = ("speed", "finality", "state", "loopback")


def measure(parts: Sequence[str], entries: int, quick: bool, say: Callable[[str], None]) -> list[Figure]:
    """Return the figures of the chosen parts, in the order of PARTS."""
    figures: list[Figure] = []
    if "speed" in parts:
        with tempfile.TemporaryDirectory(prefix="gdf-bench-") as folder:
            history = make_history(Path(folder) / "ledger.sqlite", entries, say)
            figures += ledger_speed.measure(history, say)
    if "finality" in parts:
        figures += ledger_finality.measure(say, quick=quick)
    if "state" in parts:
        figures += ledger_state.measure(say, quick=quick)
    if "loopback" in parts:
        figures += ledger_loopback.measure(say)
    return figures


def report(figures: Sequence[Figure], entries: int, seconds: float) -> str:
    """Return the table with the conditions it was measured under."""
    return (
        f"`python -m benchmarks.ledger --entries {entries}`, {platform.python_implementation()} "
        f"{platform.python_version()}, PyNaCl {nacl.__version__}, {platform.system()} {platform.machine()}, "
        f"{seconds:.0f} s in all.\n\n{table(figures)}\n"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000, help="length of the ledger that is verified and synced")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller networks and states, for a first look")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help=f"also write the table to {RESULTS.name}")
    chosen = parser.parse_args(arguments)
    if chosen.entries < 1:
        parser.error("--entries must be at least 1")
    begin = time.monotonic()
    figures = measure(chosen.parts, chosen.entries, chosen.quick, _say)
    text = report(figures, chosen.entries, time.monotonic() - begin)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(each) for each in figures], indent=2))
    else:
        print(text)
    if chosen.write:
        _write(text)


def _write(text: str) -> None:
    """Replace the table in the results file; what people wrote below it stays."""
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    _, found, notes = old.partition(NOTES)
    RESULTS.write_text(f"# The ledger's figures\n\n{text}{found}{notes}", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
