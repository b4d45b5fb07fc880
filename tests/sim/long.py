"""The long tier: many seeds of the agreement simulation in worker processes, one per core.

``make sim SEEDS=20000 FROM=0``, or ``python -m tests.sim.long --seeds 20000 --from 0``.  Exits with 1 if a seed fails
(each with the command that repeats it), 130 if it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.sim.scenarios import run_seed

PROGRESS_S = 2.0  # on a terminal; elsewhere lines come five times as rarely
QUEUED_PER_WORKER = 2


@dataclass(frozen=True)
class Outcome:
    """One seed's run; ``error`` is empty if everything that must hold did."""

    seed: int
    simulated_ms: int = 0
    messages: int = 0
    blocks: int = 0  # finalized, of the network's highest node
    epochs: int = 0  # that ended
    changes: int = 0  # of the validator set
    convicted: int = 0
    error: str = ""


def run_one(seed: int) -> Outcome:
    """Run a seed in a worker process."""
    try:
        cluster = run_seed(seed)
    except Exception as error:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
        return Outcome(seed, error=f"{type(error).__name__}: {text}")
    auditor = cluster.monitor.auditor
    return Outcome(
        seed,
        cluster.now_ms,
        cluster.delivered,
        len(auditor.chain) - 1,
        len(auditor.sets) - 1,
        sum(before != after for before, after in itertools.pairwise(auditor.sets)),
        len(auditor.convicted),
    )


@dataclass
class Totals:
    """What was run so far."""

    wanted: int
    started_s: float
    done: int = 0
    simulated_ms: int = 0
    messages: int = 0
    blocks: int = 0
    epochs: int = 0
    changes: int = 0
    convicted: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.simulated_ms += outcome.simulated_ms
        self.messages += outcome.messages
        self.blocks += outcome.blocks
        self.epochs += outcome.epochs
        self.changes += outcome.changes
        self.convicted += outcome.convicted
        if outcome.error:
            self.failed.append(outcome.seed)

    def line(self, now_s: float) -> str:
        elapsed_s = max(now_s - self.started_s, 1e-9)
        return (
            f"{self.done} of {self.wanted} seeds, {self.done / elapsed_s:.1f} seeds/s, "
            f"{self.simulated_ms / 3_600_000:.2f} h simulated in {elapsed_s:.0f} s, "
            f"{self.messages} messages, {self.blocks} blocks, {self.epochs} epochs, {self.changes} changes of the set, "
            f"{self.convicted} convicted, {len(self.failed)} failed"
        )


def prepare_worker() -> None:
    """Leave Ctrl-C, which reaches every process of the terminal, to the parent; and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the main thread may wait for a queue that nobody fills any more


def outcomes(pool: ProcessPoolExecutor, seeds: Iterator[int], queued: int) -> Iterator[Outcome | None]:
    """Yield outcomes as they come, and None when nothing came for a while; few seeds are in the queue at a time."""
    waiting: set[Future[Outcome]] = set()
    while True:
        while len(waiting) < queued and (seed := next(seeds, None)) is not None:
            waiting.add(pool.submit(run_one, seed))
        if not waiting:
            return
        done, waiting = wait(waiting, timeout=PROGRESS_S, return_when=FIRST_COMPLETED)
        if not done:
            yield None
        for future in done:
            yield future.result()


def follow(results: Iterator[Outcome | None], totals: Totals, show: Callable[[str], None]) -> None:
    """Count outcomes; show a progress line now and then and every failure at once."""
    shown_s = totals.started_s
    pause_s = PROGRESS_S if sys.stderr.isatty() else 5 * PROGRESS_S
    for outcome in results:
        if outcome is not None:
            totals.add(outcome)
            if outcome.error:
                print(f"seed {outcome.seed} failed: {outcome.error}", flush=True)
                print(f"  repeat with: python -m tests.sim.test_simplex {outcome.seed}", flush=True)
        now_s = time.monotonic()
        if now_s >= shown_s + pause_s:
            shown_s = now_s
            show(totals.line(now_s))


def show_progress(line: str) -> None:
    """Print a progress line to stderr, over the last one on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
    else:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


def run(seeds: range, workers: int) -> int:
    """Run seeds in worker processes; return the exit code."""
    totals = Totals(len(seeds), time.monotonic())
    stopped = run_all(seeds, workers, totals)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    print(("stopped: " if stopped else "") + totals.line(time.monotonic()))
    if totals.failed:
        print("failed seeds:", *sorted(totals.failed))
        return 1
    return 130 if stopped else 0


def run_all(seeds: range, workers: int, totals: Totals) -> bool:
    """Run seeds in worker processes and count what they did; say whether that was stopped."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker)
    stopped = False
    try:
        follow(outcomes(pool, iter(seeds), QUEUED_PER_WORKER * workers), totals, show_progress)
    except KeyboardInterrupt:
        stopped = True
        sys.stderr.write("\nstopping: the seeds under way end first\n")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return stopped


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.long", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20_000, help="how many (default: 20000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed (default: 0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    if options.seeds < 1 or options.first < 0 or options.workers < 1:
        parser.error("--seeds and --workers are at least 1, --from is at least 0")
    return run(range(options.first, options.first + options.seeds), options.workers)


if __name__ == "__main__":
    sys.exit(main())
