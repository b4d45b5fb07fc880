"""Orders on a real network before they are jobs: replaced, taken back, and what the market then says of prices.

Nothing is trained: blobs that nobody asks for need not exist.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gdf_market.commands.common import App
from gdf_market.commands.estimating import open_orders
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.node.client import NodeClient
from gdf_market.units import CREDIT
from tests.contracts_world import make_world
from tests.e2e.home import cli

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


def fields(price: int) -> dict[str, Any]:
    deadline_ms = time.time_ns() // 1_000_000 + 1_800_000
    changes = {"reserve_price": price * CREDIT, "deadline_ms": deadline_ms, "units_per_round": 1, "warm_rounds": 0}
    return dict(msgspec.to_builtins(make_world().job_fields() | changes))


def announced(member: Member) -> dict[str, int]:
    """Return the orders that a node heard of, with their reserve prices."""
    rows: list[dict[str, Any]] = open_orders(App(data=member.data)) or []
    return {row["id"]: row["reserve_price"] for row in rows if row["state"] == "announced"}


def announce(owner: Member, other: Member, price: int, replace: str = "") -> str:
    """Announce an order; return its id once the other node has it, and no other one."""
    with NodeClient.of(owner.data) as client:
        order = str(client.call("POST", "/orders", {"fields": fields(price), "replace": replace})["order"])
    for member in (owner, other):
        wait_until(
            f"{member.name} has the order at {price}",
            lambda member=member: announced(member) == {order: price * CREDIT},
            timeout_s=PATIENCE_S,
            members=[owner, other],
        )
    return order


def start(member: Member) -> None:
    member.start("node", "run")
    wait_until(f"{member.name} answers", lambda: member.status() is not None, timeout_s=PATIENCE_S, members=[member])


def test_orders_are_replaced_and_taken_back_and_the_market_tells_its_prices(tmp_path: Path) -> None:
    ann, ben = Member("ann", tmp_path), Member("ben", tmp_path)
    members = [ann, ben]
    try:
        ann.run("init", "--new-network", "orders")
        start(ann)
        ben.account = ben.run("init", "--join", ann.run("node", "invite")["invite"])["account"]
        start(ben)
        wait_until(
            "ben has a peer", lambda: bool((ben.status() or {}).get("peers")), timeout_s=PATIENCE_S, members=members
        )

        first = announce(ann, ben, 5)
        second = announce(ann, ben, 6, replace=first[:10])
        ann.end(signal.SIGTERM)
        start(ann)  # who starts again still knows its orders
        taken = ann.run("market", "cancel", second[:10])
        assert taken["order"] == second
        wait_until("ben's book is empty", lambda: announced(ben) == {}, timeout_s=PATIENCE_S, members=members)
        refused = cli("--data-dir", str(ann.data.root), "market", "cancel", second[:10])
        assert refused.returncode == 2, refused.stderr
        assert "waits to be posted" in refused.stderr

        price_of_one_job(ann, ben, members)
    finally:
        stop_all(members)


def price_of_one_job(ann: Member, ben: Member, members: list[Member]) -> None:
    """Let ben win a job of ann's, and ask the market what jobs like it cost."""
    ann.run("wallet", "send", ben.account, "500")
    with NodeClient.of(ann.data) as owner, NodeClient.of(ben.data) as worker:
        job = str(owner.call("POST", "/orders", {"fields": fields(5)})["order"])
        height = int(owner.call("POST", f"/orders/{job}/post")["height"])
        wait_until(
            "ben has the job", lambda: worker.status()["height"] >= height, timeout_s=PATIENCE_S, members=members
        )
        worker.submit("bid", job=job, price=CREDIT, units=1, device_class="cpu-fp32")
    wait_until(
        "it is cleared", lambda: bool(ann.run("market", "prices")["classes"]), timeout_s=PATIENCE_S, members=members
    )
    (found,) = ann.run("market", "prices")["classes"]
    assert [(point["job"], point["price_micro"]) for point in found["history"]] == [(job, 5 * CREDIT)]
    value = ben.run("market", "estimate", "--like", job, "--rounds", "3")
    assert (value["price"]["samples"], value["price"]["likely_micro"]) == (1, 5 * CREDIT)
    assert value["demand"]["orders"] == 0
