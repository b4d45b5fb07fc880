"""A small real network that JavaScript clients take part in: ann is the validator, ben follows, cleo owns a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gdf_market.blobs.store import BlobStore
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.node.client import NodeClient
from gdf_market.units import CREDIT, MINUTE_MS, SECOND_MS
from tests.interop.driver import JsClient

EPOCH_BLOCKS = 12
PATIENCE_S = 300  # on a busy machine three nodes may take minutes to start
TITLE = "An order of the owner"
PROGRAM = b"a program that nobody runs" * 100_000  # three chunks

RECIPE = {
    "inner": "adamw", "steps": 20, "batch": 8, "lr_e9": 2_000_000, "beta1_ppm": 900_000, "beta2_ppm": 950_000,
    "weight_decay_ppm": 100_000, "clip_ppm": 1_000_000, "rewarm_steps": 10, "outer_lr_ppm": 1_000_000,
    "outer_momentum_ppm": 500_000, "codec_bits": 4, "codec_block": 128,
}  # fmt: skip


def terms(program: str) -> dict[str, Any]:
    """Return what `gdf-market post` hands to its node; the window for bids outlasts the test."""
    phases = ("work", "reveal", "receipt", "result", "audit", "hold")
    return {
        "title": TITLE,
        "program": program,
        "data": "22" * 32,
        "checkpoint": "33" * 32,
        "parameters": 156_000,
        "tokens_per_unit": 10_240,
        "recipe": RECIPE,
        "device_class": "cpu-fp32",
        "rounds": 2,
        "units_per_round": 2,
        "shards": 8,
        "min_workers": 1,
        "reserve_price": 5 * CREDIT,
        "unit_bond": 45 * CREDIT,
        "merit_ppm": 200_000,
        "audit_fee": 5 * CREDIT,
        "audit_budget": 20 * CREDIT,
        "audit_floor_ppm": 50_000,
        "bid_ms": 15 * MINUTE_MS,
        "deadline_ms": time.time_ns() // 1_000_000 + 60 * MINUTE_MS,
    } | {f"{phase}_ms": 60 * SECOND_MS for phase in phases}


class Network:
    """The three nodes, and the clients, which connect to ann."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ann, self.ben, self.cleo = self.members = [Member(name, root) for name in ("ann", "ben", "cleo")]
        self.clients: list[JsClient] = []

    def open(self) -> None:
        timing = ["--block-ms", "200", "--heartbeat-ms", "1000", "--epoch-blocks", str(EPOCH_BLOCKS)]
        self.ann.account = self.ann.run("init", "--new-network", "interop", *timing)["account"]
        self.ann.start("node", "run")
        wait_until("ann answers", lambda: self.ann.status() is not None, timeout_s=PATIENCE_S, members=[self.ann])
        self.invite = self.ann.run("node", "invite")["invite"]
        for member in (self.ben, self.cleo):
            member.account = member.run("init", "--join", self.invite)["account"]
            member.start("node", "run")
        self.pay(self.cleo.account)

    def close(self) -> None:
        for client in self.clients:
            client.stop()
        stop_all(self.members)

    def client(self) -> JsClient:
        """Start another JavaScript client."""
        found = JsClient(self.invite, self._root / f"client{len(self.clients)}.log")
        self.clients.append(found)
        return found

    def wait(self, what: str, condition: Any, timeout_s: float = PATIENCE_S) -> None:
        wait_until(what, condition, timeout_s=timeout_s, members=self.members)

    def call(self, member: Member, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a node's local API."""
        with NodeClient.of(member.data) as api:
            return api.call(method, path, body)

    def height(self, member: Member) -> int:
        status = member.status()
        return int(status["height"]) if status is not None else 0

    def pay(self, account: str) -> None:
        """Give an account 500 credits, and wait until every node knows of them."""
        fields = {"to": account, "amount": 500 * CREDIT, "memo": ""}
        self.call(self.ann, "POST", "/submit", {"kind": "transfer", "fields": fields})
        height = self.height(self.ann)
        self.wait("all nodes caught up", lambda: min(map(self.height, self.members)) >= height)

    def publish(self) -> str:
        """Let cleo announce its order, as the first half of `gdf-market post` does; return its id."""
        program = BlobStore(self.cleo.data.blobs).put_bytes(PROGRAM)
        return str(self.call(self.cleo, "POST", "/orders", {"fields": terms(program)})["order"])

    def post(self, order: str) -> int:
        """Let cleo put its order on the ledger, as the second half does; return the height."""
        return int(self.call(self.cleo, "POST", f"/orders/{order}/post")["height"])

    def refused(self, member: Member) -> dict[str, int]:
        """Return how many orders a member's book refused, by reason."""
        found: dict[str, int] = self.call(member, "GET", "/orders")["refused"]
        return found

    def order(self, member: Member, order: str) -> dict[str, Any] | None:
        """Return what a member's order book says of an order or job, or None if it does not list it."""
        rows = self.call(member, "GET", "/orders")["orders"]
        return next((row for row in rows if row["id"] == order), None)

    def order_state(self, member: Member, order: str) -> str | None:
        found = self.order(member, order)
        return found["state"] if found is not None else None
