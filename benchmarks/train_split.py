"""How much of all computing power is at work when units are sized by the rules of ``gdf_market/train/sizing.py``?

    python -m benchmarks.train_split          # a second; prints Markdown

Workers have speeds from a quarter to twice that of the owner's machine (log-uniform), and take 3% more or less time
in each round.  They bid for as many units as the bidder's rule gives; slots go by the rules of the auction, at equal
prices, in random order.  A round ends when the last unit is there.  Counted is the time of a work phase in which a
worker computes, weighted by its speed: messages between the phases are left out.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from contracts.auction import compute_fill
from contracts.records import Bid
from gdf_market.train.sizing import Sizing, suggest, units_that_fit

SLOWEST, SPREAD = 0.25, 8.0
MEAN_SPEED = SLOWEST * (SPREAD - 1) / math.log(SPREAD)
JITTER = 0.03
ROUND_S = 60.0
STEP_S = 0.05
ROUNDS = 50
WORKERS = (4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Outcome:
    """``busy``: share of all computing power; ``idle_workers``: share of workers without a unit."""

    busy: float
    idle_workers: float
    round_s: float


def simulate(speeds: list[float], units: dict[int, int], unit_s: float, dice: random.Random) -> Outcome:
    """Return what ROUNDS rounds of these units look like; ``unit_s`` at speed 1."""
    worked = waited = 0.0
    for _ in range(ROUNDS):
        times = [units.get(worker, 0) * unit_s / speed * dice.gauss(1.0, JITTER) for worker, speed in enumerate(speeds)]
        worked += sum(time * speed for time, speed in zip(times, speeds, strict=True))
        waited += max(times) * sum(speeds)
    lazy = sum(units.get(worker, 0) == 0 for worker in range(len(speeds)))
    return Outcome(worked / waited, lazy / len(speeds), waited / sum(speeds) / ROUNDS)


def one_each(speeds: list[float], _sizing: Sizing, _dice: random.Random) -> dict[int, int]:
    """Give each worker one unit."""
    return dict.fromkeys(range(len(speeds)), 1)


def by_rule(speeds: list[float], sizing: Sizing, dice: random.Random) -> dict[int, int]:
    """Let each worker bid for what fits, and fill the slots by the rules of the ledger."""
    bids = [_bid(worker, units_that_fit(sizing.unit_s / speed, sizing.work_s)) for worker, speed in enumerate(speeds)]
    able = [bid for bid in bids if bid.units]
    dice.shuffle(able)
    return {int(worker): count for worker, count in compute_fill(able, sizing.units_per_round, 0, 1, 1).slots.items()}


def _bid(worker: int, units: int) -> Bid:
    return Bid(
        job="",
        worker=str(worker),
        price=1,
        units=units,
        device_class="cpu-fp32",
        bond=0,
        unsettled=0,
        status="open",
        entry="",
    )


Rule = Callable[[list[float], Sizing, random.Random], dict[int, int]]


def average(workers: int, rule: Rule, seeds: int) -> tuple[Sizing, Outcome]:
    """Return the sizes for so many workers and the mean outcome over draws of their speeds."""
    sizing = suggest(STEP_S, workers, ROUND_S, relative_speed=MEAN_SPEED)
    found = []
    for seed in range(seeds):
        dice = random.Random(seed)
        speeds = [SLOWEST * SPREAD ** dice.random() for _ in range(workers)]
        found.append(simulate(speeds, rule(speeds, sizing, dice), sizing.unit_s, dice))
    fields = ("busy", "idle_workers", "round_s")
    return sizing, Outcome(*(statistics.mean(getattr(outcome, name) for outcome in found) for name in fields))


def main(seeds: int) -> None:
    """Print a row for each number of workers."""
    print(f"{ROUNDS} rounds, {seeds} draws of speeds, target of {ROUND_S:.0f} s a round\n")
    print("| workers | units a round | steps a unit | busy: one unit each | busy: by the rule | left out |")
    print("|---|---|---|---|---|---|")
    for workers in WORKERS:
        _, single = average(workers, one_each, seeds)
        sizing, ruled = average(workers, by_rule, seeds)
        print(
            f"| {workers} | {sizing.units_per_round} | {sizing.steps} | {single.busy:.0%} | **{ruled.busy:.0%}** | "
            f"{ruled.idle_workers:.0%} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    main(parser.parse_args().seeds)
