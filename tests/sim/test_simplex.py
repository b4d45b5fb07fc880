"""Agreement under faults: many seeds, each a different network.

A failure prints the seed; ``python -m tests.sim.test_simplex SEED`` repeats it.
"""

from __future__ import annotations

import sys

import pytest

from tests.sim.scenarios import draw_plan, run_seed

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_agreement(seed: int) -> None:
    try:
        run_seed(seed)
    except Exception:
        print(f"\nseed {seed} failed; repeat with: python -m tests.sim.test_simplex {seed}")
        raise


@pytest.mark.parametrize("seed", [3, 9, 27])
def test_a_seed_repeats_itself_to_the_last_event(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.delivered == second.delivered
    assert first.now_ms == second.now_ms
    assert [each.hash for each in first.monitor.auditor.chain] == [each.hash for each in second.monitor.auditor.chain]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(draw_plan(int(argument)))
        done = run_seed(int(argument))
        sets = [len(each) for each in done.monitor.auditor.sets]
        print(
            f"seed {argument}: heights {done.heights()}, {done.delivered} messages, {done.now_ms} ms, "
            f"sizes of sets {sets}, convicted {len(done.monitor.auditor.convicted)}"
        )
