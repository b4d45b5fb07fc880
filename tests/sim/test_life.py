"""One simulated life of a network: n = 1 -> 2 -> 3 -> 4 -> 7 -> 4 -> 1, by entries of those who join and leave.

One node saw the first set and nothing else: when it comes back it verifies the whole chain of sets.  Another one was
a validator, left, and comes back to join again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contracts.records import Staking
from ledger.rules import MARKET
from tests.sim.scenarios import ask
from tests.simulator import Cluster, Faults, cached_crypto, key, make_genesis

STEP_MS = 60_000  # simulated time that each change may take
SIZES = (2, 3, 4, 7, 4, 1)


def grown(seed: int, faults: Faults) -> tuple[Cluster, list[str]]:
    """Return a network of one validator and seven others, of which the last only ever watches."""
    staking = Staking(epoch_blocks=3, bond=1_000_000, evidence_epochs=2)
    genesis = make_genesis(1, others=7, block_ms=50, heartbeat_ms=200, staking=staking, entry_fee=100)
    cluster = Cluster(seed, 1, 7, faults=faults, rules=MARKET, genesis=genesis)
    return cluster, list(cluster.nodes)


def wait_for(cluster: Cluster, done: Callable[[], bool], what: str) -> None:
    assert cluster.run(cluster.now_ms + STEP_MS, done), f"{what}: heights {cluster.heights()}"


def size(cluster: Cluster) -> int:
    return len(cluster.monitor.auditor.sets[-1])


def change_to(cluster: Cluster, names: list[str], wanted: int) -> None:
    """Have nodes join or leave until the set has a size, and everybody knows it."""
    members = cluster.monitor.auditor.sets[-1]
    if wanted > len(members):
        able = [name for name in names[:7] if name not in members]
        for name in able[: wanted - len(members)]:
            ask(cluster, name, "join")
    else:
        for name in members[: len(members) - wanted]:
            ask(cluster, name, "leave")
    wait_for(cluster, lambda: size(cluster) == wanted, f"a set of {wanted}")
    epoch = len(cluster.monitor.auditor.sets) - 1
    up = [node for node in cluster.nodes.values() if node.replica is not None]
    wait_for(cluster, lambda: all(each.replica.epoch.number >= epoch for each in up if each.replica), "the new epoch")


FAULTS = {
    "calm": Faults(until_ms=0, delay_ms=(5, 30), echo=0.1),
    "lossy": Faults(until_ms=10**9, loss=0.1, repeat=0.1, delay_ms=(5, 80), spikes=0.02, crash=0.001, echo=0.1),
}


@pytest.mark.parametrize("weather", FAULTS)
def test_a_life_from_one_validator_to_seven_and_back(weather: str) -> None:
    with cached_crypto():
        cluster, names = grown(1, FAULTS[weather])
        cluster.run(1_000)
        watcher = names[7]
        cluster.take_down(watcher, 10**9)
        seen = [1]
        for wanted in SIZES:
            change_to(cluster, names, wanted)
            seen.append(size(cluster))
        assert seen == [1, 2, 3, 4, 7, 4, 1]
        auditor = cluster.monitor.auditor
        assert auditor.sets[0] == (key(1).account,)
        assert auditor.sets[-1] != auditor.sets[0], "the last validator is not the first one"
        behind = cluster.nodes[watcher].store.tip.height
        assert len(auditor.sets) > 12
        assert behind < 3 * cluster.genesis.staking.epoch_blocks
        # back after all these epochs, the watcher follows from set to set
        cluster.nodes[watcher].down = False
        cluster.start(watcher)
        head = auditor.chain[-1].height
        wait_for(cluster, lambda: cluster.nodes[watcher].store.tip.height >= head, "the watcher catches up")
        learnt = [epoch.validators for epoch in cluster.nodes[watcher].store.epochs]
        assert learnt == auditor.sets[: len(learnt)]
        assert len(learnt) > head // cluster.genesis.staking.epoch_blocks
        # the first validator's bond has returned, and it joins once more
        change_to(cluster, [key(1).account, *names[1:]], 2)
        assert key(1).account in auditor.sets[-1]
