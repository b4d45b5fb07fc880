"""Comparing a ledger on disk with that of a peer on the network.

A block's hash covers everything before it, so the first block that differs is found by bisection: some twenty requests
for a million blocks.  The peer is asked as by any node that catches up; it is believed nothing but what its ledger is,
and nothing that it sends is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from gdf_market.codec import encode
from gdf_market.errors import (
    MalformedError,
    PeerError,
    UnreachableError,
    UsageError,
    VerificationFailedError,
    ensure,
)
from gdf_market.identity import Identity
from gdf_market.node.addresses import split_peer
from gdf_market.node.control import ControlHost
from ledger import wire
from ledger.block import open_block
from ledger.compare import DIFFERENT, EQUAL, PREFIX, Attested, Comparison, attested, compare_block, stored_side
from ledger.epochs import epoch_of
from ledger.store import LedgerStore

CONNECT_S = 20.0  # to reach the peer and hear its status
ANSWER_S = 5.0  # to hear one block; asked three times
_ATTEMPTS = 3
_MESSAGES = 64  # of the peer that wait here; more are dropped, and asked for again

Fetch = Callable[[int], Awaitable[Attested]]


@dataclass(frozen=True)
class Reach:
    """Which blocks a peer says it holds."""

    head: int
    oldest: int


async def compare_with_peer(store: LedgerStore, addresses: Sequence[str]) -> Comparison:
    """Compare a store (side a) with the ledger of the first peer that answers at these multiaddrs (side b).

    Raises UsageError for an address that is none, UnreachableError when nobody answers, VerificationFailedError for an
    answer that is no block of this network.
    """
    for address in addresses:
        try:
            split_peer(address)
        except PeerError as error:
            raise UsageError(str(error)) from None
    network = store.rules.network_id(store.genesis())
    send, receive = trio.open_memory_channel[tuple[str, wire.AnyMessage]](_MESSAGES)

    def on_frame(peer: str, data: bytes) -> None:
        message = wire.read(data)  # a PeerError ends the link
        with contextlib.suppress(trio.WouldBlock):
            send.send_nowait((peer, message))

    host = ControlHost(
        Identity.generate(),  # a visitor, not the node of this folder, which may be running
        network,
        listen=("127.0.0.1", 0),
        bootstrap=addresses,
        on_frame=on_frame,
        on_peer_up=lambda peer: None,
        on_peer_down=lambda peer: None,
    )
    async with host.run() as control:
        visit = _Visit(control, receive, store, {split_peer(address)[0] for address in addresses})
        return await bisect(store, await visit.status(), visit.fetch)


class _Visit:
    """One peer, and what it answers."""

    def __init__(
        self,
        control: ControlHost,
        receive: trio.MemoryReceiveChannel[tuple[str, wire.AnyMessage]],
        store: LedgerStore,
        accounts: set[str],
    ) -> None:
        self._control, self._receive = control, receive
        self._genesis = store.genesis()
        self._network = store.rules.network_id(self._genesis)
        self._accounts = accounts  # others may connect to us, too
        self._peer = ""

    async def status(self) -> Reach:
        """Wait for the first status of a peer that was named."""
        with trio.move_on_after(CONNECT_S):
            while True:
                peer, message = await self._receive.receive()
                if peer in self._accounts and isinstance(message, wire.Status):
                    self._peer = peer
                    return Reach(message.height, message.oldest)
        raise UnreachableError(
            f"no peer of network {self._network[:16]}… answered within {CONNECT_S:.0f} s; is it running, and is the "
            "address right?"
        )

    async def fetch(self, height: int) -> Attested:
        """Return the peer's block of a height; raises UnreachableError or VerificationFailedError."""
        for _ in range(_ATTEMPTS):
            self._control.send(self._peer, encode(wire.SyncRequest(height=height)))
            with trio.move_on_after(ANSWER_S):
                while True:
                    peer, message = await self._receive.receive()
                    if peer == self._peer and isinstance(message, wire.SyncResponse):
                        found = self._first(message, height)
                        if found is not None:
                            return found
        raise UnreachableError(f"{self._peer} does not send its block {height}; try again later, or another peer")

    def _first(self, response: wire.SyncResponse, height: int) -> Attested | None:
        """Return the block at the beginning of a response with its closing blocks; None if it is of another height."""
        try:
            block = open_block(response.blocks[0].block, self._network)
            last = epoch_of(self._genesis, block.header.epoch, ()).last
            if block.header.height != height or height > last:
                return None
            group = [response.blocks[0]]
            for item in response.blocks[1:]:
                header = open_block(item.block, self._network).header
                if (header.epoch, header.height) != (block.header.epoch, last + len(group)) or height != last:
                    break
                group.append(item)
            return attested(group)
        except PeerError as error:
            raise VerificationFailedError(f"{self._peer} sent something else than block {height}: {error}") from error


async def bisect(store: LedgerStore, reach: Reach, fetch: Fetch) -> Comparison:
    """Find the first block that differs from a peer's; ``fetch`` raises when one cannot be had."""
    head = store.head()
    own = head.height if head is not None else 0
    first, common = max(store.oldest(), reach.oldest), min(own, reach.head)
    if common == 0:
        return _continuing(own, reach.head, 0, 1)
    ensure(
        first <= common,
        UsageError(
            f"this ledger holds blocks {store.oldest()} to {own}, the peer {reach.oldest} to {reach.head}; "
            "no block can be compared"
        ),
    )
    theirs = await fetch(common)
    if _same(store, common, theirs):
        return _continuing(own, reach.head, common, first)
    low, high = first - 1, common
    while high - low > 1:
        middle = (low + high) // 2
        fetched = await fetch(middle)
        if _same(store, middle, fetched):
            low = middle
        else:
            high, theirs = middle, fetched
    return Comparison(DIFFERENT, high, _reasons(store, high, theirs), first=first)


def _continuing(own: int, other: int, common: int, first: int) -> Comparison:
    if own == other:
        return Comparison(EQUAL, common, first=first)
    return Comparison(PREFIX, common, (), "a" if own > other else "b", abs(own - other), first=first)


def _same(store: LedgerStore, height: int, theirs: Attested) -> bool:
    row = store.block(height)
    return row is not None and row.header == bytes(theirs.block.header)


def _reasons(store: LedgerStore, height: int, theirs: Attested) -> tuple[str, ...]:
    row = store.block(height)
    ensure(row is not None, MalformedError(f"this ledger lacks block {height}"))
    assert row is not None
    ours = attested(store.sync_blocks(row))
    return compare_block(stored_side(store.path, store), height, ours, theirs, store.rules)
