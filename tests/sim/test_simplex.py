"""Agreement under faults: many seeds, each a different network, and mutations that the simulation must catch.

A failure prints the seed; ``python -m tests.sim.test_simplex SEED`` repeats it.
"""

from __future__ import annotations

import functools
import random
import sys

import pytest

from tests.sim.attackers import ATTACKS
from tests.simulator import Cluster, Faults, InvariantError, cached_crypto, key, transfer

SEEDS = 200
CHAOS_MS = 3_000
PATIENCE_MS = 90_000  # simulated time in which a healed network must have agreed


def scenario(seed: int) -> Cluster:
    """Return the network of a seed: size, shape, faults and attackers all follow from it."""
    chance = random.Random(seed)
    validators = chance.choice((1, 2, 3, 4, 4, 4, 4, 5, 7))
    attackers = {}
    if validators >= 4 and chance.random() < 0.6:
        attackers = {chance.randrange(validators): chance.choice(ATTACKS)}
    ring = chance.random() < 0.2 and not attackers  # with an incomplete mesh an attacker could cut it
    size = validators + chance.choice((0, 0, 1))
    faults = Faults(
        until_ms=CHAOS_MS,
        loss=chance.choice((0.0, 0.02, 0.1, 0.3)),
        repeat=chance.choice((0.0, 0.2)),
        delay_ms=chance.choice(((5, 30), (5, 150), (50, 400))),
        spikes=chance.choice((0.0, 0.05)),
        crash=chance.choice((0.0, 0.0, 0.005, 0.02)),
        partitions=chance.choice((0, 0, 1, 3)),
        echo=chance.choice((0.05, 0.05, 0.2, 1.0)),
    )
    return Cluster(
        seed,
        validators,
        size - validators,
        faults=faults,
        byzantine=attackers,
        links=(lambda a, b: (a - b) % size in (1, size - 1)) if ring else (lambda a, b: True),
    )


def submit(cluster: Cluster, number: int) -> str | None:
    """Hand a transfer to some running honest node; return its id."""
    nodes = [name for name in cluster.up() if name not in cluster.byzantine]
    if not nodes:
        return None
    name = cluster.random.choice(nodes)
    entry = transfer(cluster.network, key(101 + number % 4), key(1).account, number, cluster.clock(name))
    cluster.submit(name, entry)
    return entry.id


def check(cluster: Cluster) -> None:
    """Run through the faults, then require that everybody agrees on new entries (safety is checked all along)."""
    for number in range(12):
        cluster.at(cluster.random.randint(100, CHAOS_MS), functools.partial(submit, cluster, number))
    cluster.run(CHAOS_MS + 100)
    late = [submit(cluster, number) for number in range(100, 103)]
    entry_ids = [entry_id for entry_id in late if entry_id is not None]
    assert len(entry_ids) == 3
    while cluster.now_ms < CHAOS_MS + PATIENCE_MS:
        cluster.run(cluster.now_ms + 250)
        if cluster.finalized_everywhere(entry_ids):
            return
    raise InvariantError(f"no agreement {PATIENCE_MS} ms after the network healed; heights {cluster.heights()}")


def run_seed(seed: int) -> Cluster:
    """Run one seed and return the network for a closer look."""
    with cached_crypto():
        cluster = scenario(seed)
        check(cluster)
        return cluster


@pytest.mark.parametrize("seed", range(SEEDS))
def test_agreement(seed: int) -> None:
    try:
        run_seed(seed)
    except Exception:
        print(f"\nseed {seed} failed; repeat with: python -m tests.sim.test_simplex {seed}")
        raise


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        done = run_seed(int(argument))
        print(f"seed {argument}: heights {done.heights()}, {done.delivered} messages, {done.now_ms} ms")
