"""The most dangerous attacks at once against one node of a running network: it lives, stays small, and goes on serving.

Every attack by itself, for longer, and with figures: ``make hostile`` (docs/hostile.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gdf_market.demo.processes import Member, wait_until
from tests.hostile.attackers import attack
from tests.hostile.market import Market, ask
from tests.hostile.watch import MIB, Watch, sample

pytestmark = pytest.mark.e2e

VICTIM = "ben"
ATTACKS = ("gossip-control", "eclipse-one", "ledger-slow-readers", "no-window", "half-open")
ATTACK_S = 25.0
MAX_GROWTH = 150 * MIB
WAIT_S = 120.0  # for what takes a second on an idle machine
OFFER = (
    "--rounds", "1", "--max-price", "1", "--units", "1", "--bid-seconds", "60", "--deadline-minutes", "10",
)  # fmt: skip


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    made = Market(tmp_path, validators=("ann", "ben"), workers=("ben",))
    try:
        made.found()
        yield made
    finally:
        made.close()


def height(member: Member) -> int:
    status = ask(member)
    return int(status["height"]) if status is not None else -1


def knows_of(member: Member, job: str) -> bool:
    answer = ask(member, "/orders")
    return answer is not None and any(row["id"] == job for row in answer["orders"])


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
        job = str(market.owner.run("post", str(market.job_file(length=5_000)), *OFFER)["job"])
        for member in (other, victim):
            wait_until(f"{member.name} knows the job", lambda member=member: knows_of(member, job), timeout_s=WAIT_S)  # type: ignore[misc]
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
