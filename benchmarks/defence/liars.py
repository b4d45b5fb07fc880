"""How often liars have an honest worker convicted: the draws of many jobs, without any training.

``python -m benchmarks.defence.liars``: 20 workers, 40% of them and one validator of four lie of every honest unit.
Only an honest audit's result is taken as known (it passes: benchmarks/results/defence.md); the rest is the market of
``market``, so hundreds of jobs take a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.defence import market, tasks
from benchmarks.defence.adversary import BY_NAME
from benchmarks.defence.images import Floats
from benchmarks.defence.world import ROUNDS, STEPS
from contracts.parameters import ARBITERS
from verifier.outcome import OutcomeResult

BAD = 8  # workers
VARIANTS = ((False, 15), (True, 11), (True, 15), (True, ARBITERS))  # bars, panel


class Liars(market._Job):
    """A job in which every unit is honest, and every audit by a liar of another one's unit says ``lie``."""

    def __init__(self, seed: int, lie: str, terms: market.Terms) -> None:
        recipe = SimpleNamespace(steps=STEPS, codec_bits=4, codec_block=64, codec_density_ppm=1_000_000)
        super().__init__(
            cast(Any, SimpleNamespace(seed=seed, recipe=recipe)),
            BY_NAME["lying auditor"],
            BAD,
            terms,
            ROUNDS,
            market.WORKERS,
        )
        self._lie, self._generator = lie, np.random.default_rng(seed)

    def play(self) -> market.Story:
        for index in range(self._rounds):
            self._round(index, b"", [])
        return self.story

    def _claims(self, index: int, history: Sequence[Floats]) -> list[market._Claim]:
        return [market._Claim(worker, 0, b"", lambda: (), cast(Any, None), False) for worker in self._active]

    def _outcome(self, checkpoint: bytes, claims: Sequence[market._Claim]) -> OutcomeResult:
        slots = tuple(range(len(claims)))
        nothing = (0,) * len(slots)
        order = tuple(int(slot) for slot in self._generator.permutation(len(slots)))
        return OutcomeResult(b"", slots, (), nothing, nothing, order, ())

    def _opinion(
        self, index: int, slot: int, claim: market._Claim, auditor: str, known: dict[int, market._Finding]
    ) -> str:
        if auditor not in self._bad_accounts or claim.worker >= self._first_bad:
            return "pass"
        self.story.lies += 1
        # as members they all say fail, or nobody would be convicted by a doubt
        return "fail" if self._judging else self._lie


def table(jobs: int, lie: str) -> str:
    """Return a Markdown table of what liars that say ``lie`` achieve."""
    lines = [
        "| accounts | bar | panel | lies a job | jobs in which an honest worker was convicted | honest convicted a job "
        "| extra compute |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, base in (("records", tasks.VETERANS), ("new", tasks.NEW)):
        for bars, panel in VARIANTS:
            terms = dataclasses.replace(base, bars=bars, committee=panel)
            stories = [Liars(seed, lie, terms).play() for seed in range(jobs)]
            convicted = [story.honest_convicted for story in stories]
            lines.append(
                f"| {name} | {'yes' if bars else 'no'} | {panel} | {statistics.fmean(s.lies for s in stories):.1f} "
                f"| {sum(map(bool, convicted))} of {jobs} | {statistics.fmean(convicted):.2f} "
                f"| {100 * market.extra_compute(stories):.0f}% |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print what liars achieve that say fail, and those that only doubt."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defence.liars", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    jobs = parser.parse_args().jobs
    for lie in ("fail", "grey"):
        print(f"## They say {lie}\n\n{table(jobs, lie)}\n")


if __name__ == "__main__":
    main()
