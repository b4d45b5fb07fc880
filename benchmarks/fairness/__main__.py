"""Is pay fair, and does cheating lose?  ``python -m benchmarks.fairness [--fast] [--write]`` prints Markdown.

Four parts: merit against exact Shapley values by retraining; what free-riders and copies earn; one machine under
several names; what cheating is worth by Monte Carlo over the real rules.  All of it takes about half an hour on one
core, ``--fast`` a few minutes; ``--parts`` chooses, in any order.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.fairness import cheating, identities, merits, report, riders
from benchmarks.fairness.digits import WORKERS, Federation, Spoil, clean, federation, load_digits
from benchmarks.fairness.market import Terms, hashed_lottery

PARTS = ("merit", "riders", "names", "cheating")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much of each part is measured."""

    merit_seeds: int = 8
    rider_seeds: int = 3
    names_jobs: int = 10
    floors: tuple[int, ...] = cheating.FLOORS_PPM
    jobs: int = 12


FAST = Size(merit_seeds=2, rider_seeds=1, names_jobs=2, floors=cheating.FLOORS_PPM[::2], jobs=3)


def merit(size: Size, digits: Path | None, say: Say) -> list[str]:
    """Compare merit with exact Shapley values."""
    federate = _federations(digits, tuple(WORKERS.values()))
    return report.merit_lines(merits.measure(range(size.merit_seeds), federate, say))


def free_riders(size: Size, digits: Path | None, say: Say) -> list[str]:
    """Measure what riders earn."""
    federate = functools.cache(_federations(digits, (clean,) * riders.UNITS))
    found = []
    for rider in riders.RIDERS:
        found.append(riders.measure(rider, range(size.rider_seeds), federate))
        say(f"riders: {rider.name}")
    return report.rider_lines(found)


def _federations(digits: Path | None, workers: Sequence[Spoil]) -> Callable[[int], Federation]:
    train, test = load_digits(digits)
    return lambda seed: federation(train, test, workers, seed)


def names(size: Size, digits: Path | None, say: Say) -> list[str]:
    """Divide a machine over names."""
    with hashed_lottery():
        found = [identities.play(count, Terms(), seed) for seed in range(size.names_jobs) for count in identities.NAMES]
    return report.identity_lines(found)


def monte_carlo(size: Size, digits: Path | None, say: Say) -> list[str]:
    """Let cheats play."""
    floors, jobs = size.floors, size.jobs
    grid: dict[tuple[cheating.Strategy, int], cheating.Tally] = {}
    with hashed_lottery():
        for strategy in cheating.STRATEGIES:
            cells = [(strategy.pattern(False), floor) for floor in floors]
            cells += [(strategy.pattern(True), floor) for floor in (floors[0], floors[-1])]
            for pattern, floor in cells:
                if (pattern, floor) not in grid:
                    grid[pattern, floor] = cheating.measure(pattern, Terms(floor_ppm=floor), jobs)
            say(f"cheating: {strategy.name}")
    return report.cheating_lines(grid, cheating.STRATEGIES, floors, jobs)


def main() -> None:
    """Measure the chosen parts, print them and, if asked to, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"also write {report.RESULTS.name}")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seeds", type=int, default=0, help="of merit and riders, instead of the usual number")
    parser.add_argument("--digits", type=Path, help="digits.csv.gz of scikit-learn, where that is not installed")
    arguments = parser.parse_args()
    started = time.perf_counter()
    size = FAST if arguments.fast else Size()
    if arguments.seeds:
        size = dataclasses.replace(size, merit_seeds=arguments.seeds, rider_seeds=arguments.seeds)

    def say(text: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {text}", file=sys.stderr, flush=True)

    measures = dict(zip(PARTS, (merit, free_riders, names, monte_carlo), strict=True))
    sections: dict[str, list[str]] = {}
    text = ""
    for part in arguments.parts:
        sections[part] = measures[part](size, arguments.digits, say)
        command = f"python -m benchmarks.fairness{' --fast' if arguments.fast else ''}"
        head = (
            f"`{command}`, torch {torch.__version__}, {platform.system()} {platform.machine()}, "
            f"{time.perf_counter() - started:.0f} s in all."
        )
        lines = [line for name in PARTS for line in ("", *sections.get(name, ()))]
        text = "\n".join(["# Is pay fair, and does cheating lose?", "", head, *lines]) + "\n"
        if arguments.write:  # what is measured is kept, whatever becomes of the next part
            report.RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
