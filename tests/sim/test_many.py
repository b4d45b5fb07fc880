"""The fast tier's many networks: the long simulation's worker processes over a fixed range of seeds."""

from __future__ import annotations

import os
import time

from tests.sim.long import Totals, run_all

SEEDS = range(2_000)


def test_agreement_in_many_networks() -> None:
    totals = Totals(len(SEEDS), time.monotonic())
    stopped = run_all(SEEDS, os.cpu_count() or 1, totals)
    print(totals.line(time.monotonic()))
    assert not stopped
    commands = [f"python -m tests.sim.test_simplex {seed}" for seed in sorted(totals.failed)]
    assert not commands, "repeat with: " + "; ".join(commands)
    assert totals.done == len(SEEDS)
    # the range is worth its time only while sets change and equivocators are caught in it
    assert min(totals.epochs, totals.changes, totals.convicted) > len(SEEDS) // 10
