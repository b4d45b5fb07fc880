"""The attacks that scenarios draw from, each within what one validator can do."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ledger.block import (
    open_block,
)
from ledger.effects import Broadcast, Effect
from tests.sim import attackers, forgers, liars
from tests.sim.attackers import (
    proposals_of,
    replica_of,
    without_own,
)
from tests.simulator import Cluster, Tamper


def at_the_boundary(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader of a boundary block or later ones: two of them for two halves; as closing block one with entries."""
    forged = without_own(name, effects)
    last = replica_of(cluster, name).epoch.last
    for proposal, header in proposals_of(name, effects):
        data = open_block(proposal, cluster.network).raw
        if header.height < last:
            forged.append(Broadcast(data))
        elif header.height == last:
            forged += attackers.equivocate(cluster, name, [Broadcast(data)])
        else:
            forged += forgers.lie("entries", cluster, name, [Broadcast(data)])
    return forged


def mixture(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Another attack at every step."""
    return cluster.random.choice(ATTACKS[:-1])(cluster, name, effects)


def named(function: Callable[..., list[Effect]], *arguments: str) -> Tamper:
    """Return an attack with its first arguments fixed, and a name."""
    made = functools.partial(function, *arguments)
    functools.update_wrapper(made, function)
    return made


ATTACKS: tuple[Tamper, ...] = (
    attackers.equivocate,
    attackers.front_run,
    attackers.silent,
    attackers.selective,
    attackers.withhold,
    attackers.whisper,
    attackers.usurp,
    attackers.replay,
    attackers.fast_clock,
    forgers.lie_somewhere,
    forgers.rob,
    forgers.forge_somehow,
    forgers.forge_votes,
    forgers.stale,
    liars.false_history_somehow,
    liars.false_snapshot,
    liars.garbage,
    at_the_boundary,
    mixture,
)
