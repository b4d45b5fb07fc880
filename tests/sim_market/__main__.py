"""``make sim-market SEEDS=5000 FROM=0``: any number of simulated markets, in all cores.

Exits with 1 if a seed fails, each with the command that repeats it, 130 if it was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.sim_market.runs import Totals, command, run_all, run_seed

PROGRESS_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim_market", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default: 1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed (default: 0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    if options.seeds < 1 or options.first < 0 or options.workers < 1:
        parser.error("--seeds and --workers are at least 1, --from is at least 0")
    if options.seeds == 1:
        for name, count in sorted(run_seed(options.first).items()):  # a failure is shown with its whole traceback
            print(f"{count:6} {name}")
        return 0
    return run(range(options.first, options.first + options.seeds), options.workers)


def run(seeds: range, workers: int) -> int:
    """Run seeds in worker processes; return the exit code."""
    totals, shown_s = Totals(), time.monotonic()
    try:
        for seed in run_all(seeds, workers, totals):
            if seed in totals.failed:
                print(f"seed {seed} failed: {totals.failed[seed]}", flush=True)
            if time.monotonic() >= shown_s + PROGRESS_S:
                shown_s = time.monotonic()
                print(totals.line(), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped: " + totals.line())
        return 130
    print(totals.line())
    for seed in totals.failed:
        print("repeat with:", command(seed))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
