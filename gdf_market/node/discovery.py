"""Finding peers: bootstrap addresses, what hellos tell, and the redial loop with its back-off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import trio

from gdf_market.errors import PeerError, UsageError
from gdf_market.node import limits
from gdf_market.node.address_book import AddressBook
from gdf_market.node.addresses import check_transports, is_loopback, observed, split_peer
from gdf_market.node.frames import Hello
from gdf_market.node.p2p import Host

jitter = random.SystemRandom().random


class Discovery:
    """Keeps the host connected to up to ``limits.MESH_PEERS`` peers."""

    def __init__(self, account: str, bootstrap: Sequence[str]) -> None:
        self.book = AddressBook(account)
        self._changed = trio.Event()
        for address in bootstrap:
            self.add_bootstrap(address)

    def add_bootstrap(self, address: str) -> None:
        """Keep trying to reach the peer at ``address``; UsageError if it is no multiaddr with /p2p/…."""
        try:
            account, transport = split_peer(address)
        except PeerError as error:
            raise UsageError(f"not the address of a node: {error}") from None
        self.book.learn(account, [transport], bootstrap=True)
        self.changed()

    def learn(self, hello: Hello, remote: tuple[str, int] | None) -> None:
        """Remember the addresses in a peer's hello; ``remote`` is where its connection comes from."""
        local = remote is not None and is_loopback(remote[0])
        own = [one for one in check_transports(hello.account, hello.addresses) if local or not _names_loopback(one)]
        own += observed(own, remote)
        changed = bool(own) and self.book.learn(hello.account, own, replace=True)
        for address in hello.peers:
            try:
                account, transport = split_peer(address)
            except PeerError:
                continue
            if account != hello.account and (local or not _names_loopback(transport)):
                changed |= self.book.learn(account, [transport])
        if changed:
            self.changed()

    def known(self, accounts: Iterable[str]) -> tuple[str, ...]:
        """Return multiaddrs of a random choice of these peers, as a hello tells them."""
        chosen = sorted(accounts, key=lambda account: jitter())[: limits.MAX_HELLO_PEERS]
        return tuple(f"{one}/p2p/{account}" for account in chosen for one in self.book.addresses(account)[:2])

    def lost(self, account: str) -> None:
        """The connection to a peer ended: dial it again soon."""
        self.book.lost(account, trio.current_time(), jitter())
        self.changed()

    def changed(self) -> None:
        """Look again who is to be dialled."""
        self._changed.set()

    async def run(self, host: Host, links: Callable[[], int]) -> None:
        """Dial while ``links()`` is too low."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                now, wanted = trio.current_time(), limits.MESH_PEERS - links()
                wait = float("inf")
                if wanted > 0:
                    connected = host.connected()
                    for account in self.book.due(now, connected)[:wanted]:
                        self.book.dialing(account)
                        nursery.start_soon(self._dial, host, account)
                    wait = max(0.05, self.book.next_due(now, connected) - now)
                with trio.move_on_after(wait):
                    await self._changed.wait()

    async def _dial(self, host: Host, account: str) -> None:
        try:
            await host.dial(account, self.book.addresses(account))
        finally:
            self.book.dialed(account, trio.current_time(), jitter())
            self.changed()


def _names_loopback(address: str) -> bool:
    return is_loopback(address.split("/")[2])
