"""The fast tier's markets: a thousand seeds, two hundred of them on whole networks of replicas.

A failure prints the seed; ``python -m tests.sim_market --seeds 1 --from SEED`` repeats it.
"""

from __future__ import annotations

import pytest

from tests.sim_market.runs import ENDINGS, command, run_here, run_seed

SEEDS, PARTS = 1_000, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_markets_keep_their_promises(part: int) -> None:
    size = SEEDS // PARTS
    totals = run_here(range(part * size, (part + 1) * size))
    print(totals.line())
    assert not totals.failed, "; ".join(f"{error} ({command(seed)})" for seed, error in totals.failed.items())
    assert totals.done == size
    # markets in which nothing happens would prove little
    missing = {ending for ending in ENDINGS if not totals.seen[ending]}
    assert not missing, f"never seen: {sorted(missing)}; seen: {totals.seen}"


@pytest.mark.parametrize("seed", [5, 7, 10])
def test_a_seed_repeats_itself(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)
