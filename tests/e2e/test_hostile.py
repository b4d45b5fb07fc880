"""The most dangerous attacks at once against one node of a running network: it lives, stays small, and goes on serving.

Every attack by itself, for longer, and with figures: ``make hostile`` (docs/hostile.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gdf_market.demo.processes import Member, wait_until
from gdf_market.identity import Identity
from gdf_market.node.client import NodeClient
from tests.hostile.attackers import attack
from tests.hostile.gossip import order
from tests.hostile.kit import Target
from tests.hostile.market import Market, ask
from tests.hostile.watch import MIB, Watch, sample

pytestmark = pytest.mark.e2e

VICTIM = "ben"
ATTACKS = ("gossip-control", "eclipse-one", "ledger-slow-readers", "no-window", "half-open")
ATTACK_S = 40.0
MAX_GROWTH = 150 * MIB
WAIT_S = 120.0  # for what takes a second on an idle machine


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    made = Market(tmp_path, validators=("ann", "ben"), workers=())
    try:
        made.found()
        yield made
    finally:
        made.close()


def height(member: Member) -> int:
    status = ask(member)
    return int(status["height"]) if status is not None else -1


def publish(member: Member, title: str) -> str:
    """Announce an order through a node; return its id."""
    status = ask(member)
    assert status is not None
    target = Target(status["addresses"][0], status["network"])
    fields = msgspec.to_builtins(order(Identity(bytes(32)), target, 1, title=title).body)
    for name in ("kind", "author", "nonce", "expires_ms"):  # the node's own
        del fields[name]
    with NodeClient.of(member.data) as client:
        return str(client.call("POST", "/orders", {"fields": fields})["order"])


def knows_of(member: Member, order_id: str) -> bool:
    answer = ask(member, "/orders")
    return answer is not None and any(row["id"] == order_id for row in answer["orders"])


def test_a_node_under_five_attacks_at_once_lives_stays_small_and_serves(market: Market) -> None:
    victim, other = market[VICTIM], market["ann"]
    before = sample(victim)
    begun = height(other)
    watch = Watch(victim)
    watch.start()
    attackers = [attack(market, VICTIM, name, seconds=ATTACK_S, seed=number) for number, name in enumerate(ATTACKS, 1)]
    try:
        for attacker in attackers:
            attacker.wait_begun()
        for sender, receiver in ((other, victim), (victim, other)):
            found = publish(sender, f"of {sender.name}")
            wait_until(f"{receiver.name} knows of it", lambda: knows_of(receiver, found), timeout_s=WAIT_S)  # noqa: B023
        assert all(attacker.process.poll() is None for attacker in attackers), "that was to happen under attack"
        wait_until("blocks are made under attack", lambda: height(other) >= begun + 5, timeout_s=WAIT_S)
        tallies = {attacker.name: attacker.tally() for attacker in attackers}
    finally:
        for attacker in attackers:
            attacker.stop()
        watch.end()
    shown = f"{dict(watch.refusals())}, API {watch.latency_ms()} ms, {watch.silent} without an answer, {tallies}"
    assert victim.alive, shown
    assert watch.peak.rss - before.rss <= MAX_GROWTH
    for name, tally in tallies.items():
        assert tally["sent"]["cut off"] > 0, f"{name} was never cut off: {tally}"
    refused = watch.refusals()
    assert refused["disconnected"] + refused["address-banned"] > 0, refused
    assert refused["half-open"] + refused["hasty"] > 0, refused
    now = height(other)
    wait_until("the victim votes on", lambda: height(other) >= now + 3, timeout_s=WAIT_S)
