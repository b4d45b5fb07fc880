"""One seed, one run: build it, run it to the end of its last job, check everything once more; and many of them."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.sim.long import prepare_worker
from tests.sim_market.plan import draw_plan
from tests.sim_market.venues import Network, Solo
from tests.simulator import cached_crypto

NETWORK_EVERY = 5  # of so many seeds one runs on a whole network of replicas
REPLAY_EVERY = 8  # of so many others one is replayed by a second replica

# What so many seeds must have seen, or they prove little: by the names that tests/sim_market/ground.py counts.
ENDINGS = frozenset(
    {
        *("job done", "job expired", "job cancelled", "settled", "void", "refund", "merit", "paid", "honest paid"),
        *("verdict pass", "verdict fail", "verdict grey", "slashed", "forfeited", "missed no", "left missed", "twins"),
        *("dispute halving", "dispute offering", "dispute replaying", "dispute opening", "dispute refuted"),
        *("dispute convicted", "dispute cleared", "dispute unresolved", "dispute committee", "cheat convicted"),
        *("cheat found", "unmatched outbid", "bidding waits", "rejected the", "epoch epoch"),
    }
)


def is_network(seed: int) -> bool:
    """Say whether a seed runs on a whole network of replicas."""
    return seed % NETWORK_EVERY == 0


def command(seed: int) -> str:
    """Return what repeats a seed."""
    return f"python -m tests.sim_market --seeds 1 --from {seed}"


def run_seed(seed: int) -> Counter[str]:
    """Run a seed; return what happened in it.  Raises InvariantError."""
    network = is_network(seed)
    plan = draw_plan(seed, network=network)
    with cached_crypto():
        venue: Network | Solo = Network(plan) if network else Solo(plan)
        books = venue.market.books
        try:
            venue.run()
            if isinstance(venue, Solo) and seed % REPLAY_EVERY == 1:
                venue.check_replay()
            books.check_all_ended()
        except Exception as error:
            error.add_note(f"at {venue.now_ms} ms, height {books.height}; repeat with: {command(seed)}")
            raise
    seen = books.ground.seen
    seen["blocks"], seen["simulated_ms"], seen["networks"] = books.height, venue.now_ms, int(network)
    return seen


@dataclass
class Totals:
    """What was run so far."""

    started_s: float = field(default_factory=time.monotonic)
    done: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def line(self) -> str:
        elapsed_s = max(time.monotonic() - self.started_s, 1e-9)
        seen = self.seen
        return (
            f"{self.done} seeds ({seen['networks']} networks), {self.done / elapsed_s:.1f} seeds/s, "
            f"{seen['simulated_ms'] / 3_600_000:.2f} h simulated in {elapsed_s:.0f} s, {seen['blocks']} blocks, "
            f"{seen['JobPost']} jobs, {seen['accepted']} units accepted, {seen['cheat convicted']} cheats convicted, "
            f"{len(self.failed)} failed"
        )


def _run_one(seed: int) -> tuple[int, Counter[str], str]:
    try:
        return seed, run_seed(seed), ""
    except Exception as error:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
        return seed, Counter(), f"{type(error).__name__}: {text}"


def run_here(seeds: range) -> Totals:
    """Run seeds one after another in this process."""
    totals = Totals()
    for _ in _count(map(_run_one, seeds), totals):
        pass
    return totals


def run_all(seeds: range, workers: int, totals: Totals) -> Iterator[int]:
    """Run seeds in worker processes; yield each one as it was counted."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=prepare_worker) as pool:
        yield from _count(pool.map(_run_one, seeds, chunksize=4), totals)


def _count(results: Iterator[tuple[int, Counter[str], str]], totals: Totals) -> Iterator[int]:
    for seed, seen, error in results:
        totals.done += 1
        totals.seen.update(seen)
        if error:
            totals.failed[seed] = error
        yield seed
