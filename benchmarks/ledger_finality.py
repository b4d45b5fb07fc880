"""Time from submitting an entry to its finality in units of the link delay, and messages per block.

Real replicas on a virtual clock with no faults: computation takes no time here, so the figures are the protocol's own.
Verification results are shared between the nodes of the process.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from functools import partial

from benchmarks.ledger_table import Figure
from benchmarks.ledger_world import (
    START_MS,
    Net,
    Payments,
    make_genesis,
    shared_crypto,
    validator_accounts,
    validators_of,
)
from ledger.effects import Finalized
from ledger.rules import MARKET

BLOCK_MS = 500  # what `gdf-market init` chooses
HEARTBEAT_MS = 3_000
DELAYS_MS = (50, 100, 200)
SIZES = ((4, 20), (16, 10), (64, 3), (100, 2))  # validators, blocks
MESH = 12  # links that a node of the network tries to have


def measure_finality(delay_ms: int, entries: int) -> Figure:
    """Submit entries at random moments to random validators out of four; each waits for its own entry."""
    genesis = make_genesis(validator_accounts(4), block_ms=BLOCK_MS, heartbeat_ms=HEARTBEAT_MS)
    network, chance = MARKET.network_id(genesis), random.Random(delay_ms)
    payments = Payments(network)
    submitted: dict[str, tuple[str, int]] = {}
    waited: list[int] = []

    def on_final(name: str, block: Finalized) -> None:
        for entry in block.entries:
            if submitted[entry.id][0] == name:
                waited.append(net.now_ms - submitted[entry.id][1])

    def submit(name: str) -> None:
        entry = payments.make(net.now_ms)
        submitted[entry.id] = (name, net.now_ms)
        net.submit(name, entry)

    net = Net(validators_of(genesis), delay_ms=delay_ms, on_final=on_final)
    net.start()
    at_ms = START_MS + 5_000.0
    for _ in range(entries):
        at_ms += chance.expovariate(1 / 400)
        net.at(int(at_ms), partial(submit, chance.choice(genesis.validators)))
    net.run(lambda: len(waited) == entries, limit_ms=10**9)

    median = statistics.median(waited)
    allowed = 3 * delay_ms + BLOCK_MS
    numbers = {"delay_ms": delay_ms, "median_ms": median, "deltas": median / delay_ms, "worst_ms": max(waited)}
    measured = f"median {median:.0f} ms = {median / delay_ms:.1f} δ (slowest of {entries}: {max(waited)} ms)"
    target = f"≤ 3δ + block interval = {allowed} ms"
    name = f"submit to final, 4 validators, δ = {delay_ms} ms, block interval {BLOCK_MS} ms"
    return Figure(name, measured, target, median <= allowed, numbers)


def measure_messages(validators: int, blocks: int) -> Figure:
    """Count what the links carry per block that has one entry."""
    genesis = make_genesis(validator_accounts(validators), block_ms=BLOCK_MS, heartbeat_ms=HEARTBEAT_MS)
    payments = Payments(MARKET.network_id(genesis))
    first = genesis.validators[0]
    net = Net(validators_of(genesis), delay_ms=20, degree=MESH)
    replica = net.nodes[first].replica
    net.start()
    net.run(lambda: replica.height >= 1, limit_ms=60_000)
    before = (replica.height, net.messages, net.bytes)
    while replica.height < before[0] + blocks:
        height = replica.height
        net.submit(first, payments.make(net.now_ms))
        net.run(lambda height=height: replica.height > height, limit_ms=60_000)  # type: ignore[misc]
    made = replica.height - before[0]
    messages, size = (net.messages - before[1]) / made, (net.bytes - before[2]) / made
    links = len(net.nodes[first].links)
    numbers = {"validators": validators, "links": links, "messages": messages, "kib": size / 1024}
    per_node = f"{messages / validators:,.0f} ({size / 1024 / validators:,.0f} KiB) a node"
    return Figure(
        f"messages per block, n = {validators}, {links} links a node", f"{messages:,.0f}; {per_node}", numbers=numbers
    )


def measure(say: Callable[[str], None], *, quick: bool = False) -> list[Figure]:
    """Return all figures of this file; a quick look has fewer entries, and no large networks."""
    with shared_crypto():
        figures = []
        for delay_ms in DELAYS_MS:
            say(f"finality at a delay of {delay_ms} ms")
            figures.append(measure_finality(delay_ms, 20 if quick else 300))
        for validators, blocks in SIZES[: 1 if quick else None]:
            say(f"messages of {validators} validators")
            figures.append(measure_messages(validators, blocks))
        return figures
