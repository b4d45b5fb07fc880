"""CPU of a frame on a link and of an order on gossip, both ends together; the figures of docs/adr/0003.

Run `python benchmarks/network_cost.py`; prints a Markdown table.  Two (frames)
or four (gossip) control hosts share one process and one core, so a figure is
the CPU of all ends divided as its row says.
"""

from __future__ import annotations

import contextlib
import logging
import time

import structlog
import trio

from gdf_market.identity import Identity
from gdf_market.node.control import ControlHost

NETWORK = "ab" * 32
ENTRY = bytes(426)  # a typical entry


class Node:
    """A control host that counts what arrives."""

    def __init__(self, seed: int, bootstrap: list[str]) -> None:
        self.frames = self.orders = 0
        self.control = ControlHost(
            Identity(bytes([seed]) * 32),
            NETWORK,
            listen=("127.0.0.1", 0),
            bootstrap=bootstrap,
            on_frame=self._frame,
            on_peer_up=lambda peer: None,
            on_peer_down=lambda peer: None,
            on_order=self._order,
        )

    def _frame(self, peer: str, data: bytes) -> None:
        self.frames += 1

    def _order(self, raw: bytes, peer: str) -> bool:
        self.orders += 1
        return True


async def _until(nodes: list[Node], field: str, value: int) -> None:
    with trio.fail_after(60):
        while any(getattr(node, field) < value for node in nodes):  # noqa: ASYNC110  # counters of callbacks
            await trio.sleep(0.005)


async def _frames(sender: Node, receiver: Node, count: int, gap_s: float) -> float:
    """Return CPU milliseconds per frame, sending and receiving."""
    receiver.frames, began = 0, time.process_time()
    for number in range(count):
        sender.control.send(receiver.control.account, ENTRY)
        if gap_s or number % 20 == 19:
            await trio.sleep(gap_s or 0.01)
    await _until([receiver], "frames", count)
    return (time.process_time() - began) / count * 1e3


async def _gossip(nodes: list[Node], count: int, gap_s: float) -> float:
    """Return CPU milliseconds per order and node (it is received from up to three peers and sent on)."""
    for node in nodes:
        node.orders = 0
    began = time.process_time()
    for number in range(count):
        nodes[0].control.publish_order(number.to_bytes(8, "big") + ENTRY)
        await trio.sleep(gap_s)
    await _until(nodes[1:], "orders", count)
    return (time.process_time() - began) / count / len(nodes) * 1e3


async def main() -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    async with contextlib.AsyncExitStack() as stack:
        nodes: list[Node] = []
        for seed in range(1, 5):
            node = Node(seed, [nodes[0].control.addresses[0]] if nodes else [])
            await stack.enter_async_context(node.control.run())
            nodes.append(node)
        with trio.fail_after(60):
            while any(len(node.control.gossip_peers) < 3 for node in nodes):  # noqa: ASYNC110
                await trio.sleep(0.01)
        rows = [
            ("frame of 426 bytes, 20 at a time, send + receive", await _frames(nodes[0], nodes[1], 4_000, 0.0)),
            ("frame of 426 bytes, one at a time, send + receive", await _frames(nodes[0], nodes[1], 300, 0.01)),
            ("order of 434 bytes on gossip, 4 nodes, per node", await _gossip(nodes, 150, 0.03)),
        ]
        began = time.process_time()
        await trio.sleep(5)
        idle = (time.process_time() - began) / 5 / len(nodes) * 100
    print("| what | CPU |\n|---|---|")
    for name, milliseconds in rows:
        print(f"| {name} | {milliseconds:.2f} ms |")
    print(f"| an idle node with three links | {idle:.2f}% of a core |")


if __name__ == "__main__":
    trio.run(main)
