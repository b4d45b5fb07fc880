"""What the simulation draws from a seed: a network, its weather, its attackers, and how its validator set changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.records import Staking
from gdf_market.messages import Entry, ValidatorJoin, ValidatorLeave, seal
from ledger.rules import MARKET
from tests.sim.attacks import ATTACKS
from tests.simulator import (
    Cluster,
    Faults,
    InvariantError,
    MemoryStore,
    Tamper,
    cached_crypto,
    key,
    make_genesis,
    transfer,
)

CHAOS_MS = 3_000
PATIENCE_MS = 90_000  # simulated time in which a healed network must have agreed
PATIENCE_SLOTS = 40  # and the slots that it may take
BOND = 1_000_000


@dataclass(frozen=True)
class Plan:
    """Everything that follows from a seed before the first event."""

    seed: int
    validators: int
    others: int  # nodes outside the first set; candidates in most runs
    staking: Staking
    block_ms: int
    entry_fee: int
    faults: Faults
    attackers: dict[int, Tamper] = field(default_factory=dict)
    twins: tuple[int, ...] = ()
    ring: bool = False
    moves: tuple[tuple[int, int, str], ...] = ()  # (time, position of a node, join | leave | down | arrive)
    pruning: tuple[int, ...] = ()  # positions of nodes that keep the blocks of one epoch only
    transfers: int = 8


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    if chance.random() < 0.03:
        return draw_absence(seed, chance)
    validators = chance.choice((1, 2, 3, 4, 4, 4, 4, 5, 7))
    others = chance.choice((0, 0, 0, 1, 1, 2, 3))
    attackers, twins = _draw_attackers(chance, validators)
    bad = len(attackers) + len(twins)
    strangers = [index for index in range(validators, validators + others) if chance.random() < 0.1]
    outside = {index: chance.choice(ATTACKS) for index in strangers}
    chaos_ms = chance.choice((CHAOS_MS, CHAOS_MS, CHAOS_MS, 2 * CHAOS_MS))
    staking = Staking(
        epoch_blocks=chance.choice((1, 2, 2, 3, 3, 5, 8, 12, 1_000)),
        bond=BOND,
        floor=max(1, 3 * bad + 1),  # honest members may not leave an attacker a third of the set
        silent_epochs=chance.choice((1, 2, 3)),
        evidence_epochs=chance.choice((2, 24)),
    )
    ring = chance.random() < 0.2 and not bad and not outside  # with an incomplete mesh an attacker could cut it
    faults = Faults(
        until_ms=chaos_ms,
        loss=chance.choice((0.0, 0.02, 0.1, 0.3)),
        repeat=chance.choice((0.0, 0.2)),
        delay_ms=chance.choice(((5, 30), (5, 150), (50, 400))),
        spikes=chance.choice((0.0, 0.05)),
        crash=chance.choice((0.0, 0.0, 0.005, 0.02)),
        partitions=chance.choice((0, 0, 1, 3)),
        power_cuts=chance.choice((0, 0, 0, 1)),
        skew_ms=chance.choice((300, 300, 2_000)),
        jumps=chance.choice((0, 0, 2)),
        echo=chance.choice((0.02, 0.02, 0.02, 0.05, 0.05, 0.05, 0.1, 0.1, 0.1, 0.3, 0.3, 1.0)),
    )
    moves = _draw_moves(chance, validators, others, {*attackers, *twins, *outside}, chaos_ms)
    return Plan(
        seed,
        validators,
        others,
        staking,
        block_ms=chance.choice((50, 200)),
        entry_fee=chance.choice((0, 100)),
        faults=faults,
        attackers=attackers | outside,
        twins=twins,
        ring=ring,
        moves=moves,
        pruning=_draw_pruning(chance, validators, {*attackers, *twins}),
    )


def draw_absence(seed: int, chance: random.Random) -> Plan:
    """Return a network in which one validator is away for so long that it is evicted, while another may join."""
    validators = chance.choice((4, 4, 5))
    until_ms = 3 * CHAOS_MS
    moves = [(chance.randint(200, 1_000), chance.randrange(validators), "down")]
    if chance.random() < 0.5:
        moves.append((chance.randint(100, until_ms // 2), validators, "join"))
    return Plan(
        seed,
        validators,
        1,
        Staking(epoch_blocks=2 * validators + 2, bond=BOND, floor=chance.choice((1, validators - 1)), silent_epochs=1),
        block_ms=50,
        entry_fee=100,
        faults=Faults(
            until_ms=until_ms,
            loss=chance.choice((0.0, 0.02)),
            delay_ms=(5, 30),
            crash=chance.choice((0.0, 0.002)),
            echo=0.05,
        ),
        moves=tuple(moves),
        transfers=80,
    )


def _draw_attackers(chance: random.Random, validators: int) -> tuple[dict[int, Tamper], tuple[int, ...]]:
    """Return attackers and twins, together fewer than a third of the validators."""
    limit = (validators - 1) // 3
    if not limit or chance.random() > 0.6:
        return {}, ()
    bad = chance.sample(range(validators), chance.randint(1, limit))
    if chance.random() < 0.15:
        return {}, tuple(bad)
    return {index: chance.choice(ATTACKS) for index in bad}, ()


def _draw_moves(
    chance: random.Random, validators: int, others: int, bad: set[int], chaos_ms: int
) -> tuple[tuple[int, int, str], ...]:
    moves = []
    for index in range(validators, validators + others):
        if index not in bad and chance.random() < 0.8:
            moves.append((chance.randint(50, chaos_ms), index, "join"))
    for index in range(validators + others):
        if index not in bad and chance.random() < 0.15:
            moves.append((chance.randint(100, chaos_ms), index, "leave"))
    if chance.random() < 0.3:
        moves.append((chance.randint(100, chaos_ms), chance.randrange(validators + others), "down"))
    for index in range(validators, validators + others):
        if index not in bad and chance.random() < 0.3:
            moves.append((chance.randint(500, chaos_ms), index, "arrive"))
    return tuple(moves)


def _draw_pruning(chance: random.Random, validators: int, bad: set[int]) -> tuple[int, ...]:
    """Return who forgets old blocks: somebody honest keeps them for those who were away."""
    honest = [index for index in range(validators) if index not in bad]
    return tuple(honest[1:]) if chance.random() < 0.3 else ()


def build(plan: Plan, *, store: type[MemoryStore] = MemoryStore, send_before_save: bool = False) -> Cluster:
    """Return the network of a plan."""
    size = plan.validators + plan.others
    genesis = make_genesis(
        plan.validators,
        others=plan.others,
        block_ms=plan.block_ms,
        staking=plan.staking,
        entry_fee=plan.entry_fee,
    )
    links: Callable[[int, int], bool] = lambda a, b: True  # noqa: E731
    if plan.ring:
        links = lambda a, b: (a - b) % size in (1, size - 1)  # noqa: E731
    cluster = Cluster(
        plan.seed,
        plan.validators,
        plan.others,
        faults=plan.faults,
        byzantine=plan.attackers,
        twins=plan.twins,
        rules=MARKET,
        genesis=genesis,
        links=links,
        stores=lambda name: store(genesis, MARKET),
        send_before_save=send_before_save,
    )
    names = list(cluster.nodes)
    for index in plan.pruning:
        cluster.nodes[names[index]].keep_epochs = 1
    for at_ms, index, what in plan.moves:
        if what == "arrive":
            cluster.nodes[names[index]].from_snapshot = True
            cluster.take_down(names[index], at_ms)
        elif what == "down":
            cluster.at(at_ms, cluster.take_down, names[index], plan.faults.until_ms)
        else:
            cluster.at(at_ms, ask, cluster, names[index], what)
    for number in range(plan.transfers):
        at_ms = cluster.random.randint(100, plan.faults.until_ms)
        cluster.at(at_ms, submit, cluster, number)
    return cluster


def ask(cluster: Cluster, name: str, what: str) -> None:
    """Have a node ask for a seat, or give its own up; it asks again if it is down now."""
    if cluster.nodes[name].replica is None:
        cluster.at(cluster.now_ms + 200, ask, cluster, name, what)
        return
    kind = ValidatorJoin if what == "join" else ValidatorLeave
    now_ms = cluster.clock(name)
    body = kind(author=name, nonce=now_ms, expires_ms=now_ms + 1_800_000)
    cluster.submit(name, seal(cluster.nodes[name].key, cluster.network, body))


def submit(cluster: Cluster, number: int) -> Entry | None:
    """Hand a transfer to some running honest node; return it."""
    nodes = [name for name in cluster.up() if name not in cluster.byzantine]
    if not nodes:
        return None
    name = cluster.random.choice(nodes)
    entry = transfer(cluster.network, key(101 + number % 4), key(1).account, number, cluster.clock(name))
    cluster.submit(name, entry)
    return entry


def check(cluster: Cluster) -> None:
    """Run through the faults, then require agreement on new entries and the conviction of who was seen to cheat.

    Safety is checked all along.
    """
    healed_ms = cluster.faults.until_ms
    cluster.run(healed_ms + 100)
    late = [entry.id for entry in (submit(cluster, number) for number in range(1_000, 1_003)) if entry is not None]
    assert len(late) == 3
    slot = max(node.replica._quorum.frontier for node in cluster.honest() if node.replica is not None)
    _wait(cluster, healed_ms + PATIENCE_MS, lambda: cluster.finalized_everywhere(late), "agreement")
    slots = cluster.monitor.auditor.chain[-1].slot - slot
    if slots > PATIENCE_SLOTS:
        raise InvariantError(f"agreement took {slots} slots after the network healed")
    _wait(cluster, cluster.now_ms + PATIENCE_MS, lambda: not cluster.monitor.unpaid(), "conviction")


def _wait(cluster: Cluster, until_ms: int, done: Callable[[], bool], what: str) -> None:
    while not done():
        if cluster.now_ms >= until_ms:
            debts = [(debt.accused, debt.epoch) for debt in cluster.monitor.unpaid()]
            raise InvariantError(f"no {what} within {PATIENCE_MS} ms; heights {cluster.heights()}, owed {debts}")
        cluster.run(cluster.now_ms + 250)


def run_seed(seed: int) -> Cluster:
    """Run one seed and return the network for a closer look."""
    with cached_crypto():
        cluster = build(draw_plan(seed))
        try:
            check(cluster)
        except Exception as error:
            error.add_note(f"at {cluster.now_ms} ms, after {cluster.delivered} messages; heights {cluster.heights()}")
            raise
        return cluster
