"""Fuzzing of every decoder of bytes that others wrote: ``make fuzz INPUTS=1000000``, or ``python -m tests.fuzz``.

Inputs are random bytes and damaged valid ones.  The only exceptions that may come out are the typed ones.  Exits with 1
if any other did; each such input comes with the command that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.fuzz.draw import Draw, Target
from tests.fuzz.ledger_targets import TARGETS as LEDGER
from tests.fuzz.node_targets import TARGETS as NODE
from tests.fuzz.program_targets import TARGETS as PROGRAM

TARGETS: dict[str, Target] = {target.name: target for target in (*LEDGER, *NODE, *PROGRAM)}
CHUNK = 1_000  # inputs that one worker gives one target in a row; a target keeps its state for so long
SLOW_S = 5.0  # no input may keep a decoder busy for longer; generous, as machines that run tests are busy


@dataclass
class Tally:
    """What became of a target's inputs; ``bugs`` are descriptions."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    bugs: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        self.refused += other.refused
        self.seconds += other.seconds
        self.bugs += other.bugs


def run_chunk(name: str, first: int, count: int) -> tuple[str, Tally]:
    """Give a target the inputs of some numbers."""
    target, tally = TARGETS[name], Tally()
    run = target.prepare()
    started_s = time.perf_counter()
    for number in range(first, first + count):
        begun_s = time.perf_counter()
        try:
            run(Draw(f"{name}/{number}"))
        except target.allowed:
            tally.refused += 1
        except Exception as error:
            tally.bugs.append(_describe(name, first, number, f"{type(error).__name__}: {str(error)[:200]}"))
            run = target.prepare()
        taken_s = time.perf_counter() - begun_s
        if taken_s > SLOW_S:
            tally.bugs.append(_describe(name, first, number, f"took {taken_s:.1f} s"))
        tally.inputs += 1
    tally.seconds = time.perf_counter() - started_s
    return name, tally


def _describe(name: str, first: int, number: int, what: str) -> str:
    command = f'python -m tests.fuzz --target "{name}" --from {first} --inputs {number - first + 1}'
    return f"{name}, input {number}: {what}\n  repeat with: {command}"


def chunks(names: Sequence[str], inputs: int, first: int) -> Iterator[tuple[str, int, int]]:
    """Yield (target, first input, count): the inputs shared out by weight, at least one each."""
    total = sum(TARGETS[name].weight for name in names)
    for name in names:
        share = max(1, round(inputs * TARGETS[name].weight / total))
        for start in range(first, first + share, CHUNK):
            yield name, start, min(CHUNK, first + share - start)


def fuzz(names: Sequence[str], inputs: int, first: int, workers: int) -> dict[str, Tally]:
    """Run all inputs; return the tallies by target."""
    tallies = {name: Tally() for name in names}
    work = list(chunks(names, inputs, first))
    if workers == 1:
        results: Iterator[tuple[str, Tally]] = (run_chunk(*each) for each in work)
        for name, tally in results:
            tallies[name].add(tally)
        return tallies
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(run_chunk, *each) for each in work]:
            name, tally = future.result()
            tallies[name].add(tally)
    return tallies


def report(tallies: dict[str, Tally], elapsed_s: float) -> list[str]:
    """Return the lines of the result."""
    lines = [f"{'decoder':26}{'inputs':>10}{'refused':>10}{'inputs/s':>10}"]
    for name, tally in tallies.items():
        rate = tally.inputs / max(tally.seconds, 1e-9)
        lines.append(f"{name:26}{tally.inputs:>10}{tally.refused:>10}{rate:>10.0f}")
    inputs = sum(tally.inputs for tally in tallies.values())
    bugs = sum(len(tally.bugs) for tally in tallies.values())
    return [*lines, f"{inputs} inputs in {elapsed_s:.0f} s, {inputs / elapsed_s:.0f} inputs/s, {bugs} bugs"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many, over all decoders (default: 100000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first input (default: 0)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="a decoder (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    started_s = time.monotonic()
    workers = 1 if options.target else options.workers
    tallies = fuzz(options.target or list(TARGETS), options.inputs, options.first, workers)
    print("\n".join(report(tallies, time.monotonic() - started_s)))
    bugs = [bug for tally in tallies.values() for bug in tally.bugs]
    print("\n".join(bugs[:50]), end="\n" if bugs else "")
    return 1 if bugs else 0
