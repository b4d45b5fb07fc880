"""Finding peers: bootstrap addresses, what hellos tell, the local network, and the redial loop with its back-off.

Whom a node dials is its protection against being surrounded: some links are always its own choice
(``MIN_DIALLED``), and few of them lead to one network of addresses (``MAX_PER_GROUP``).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import trio

from gdf_market.errors import PeerError, UsageError
from gdf_market.node import limits
from gdf_market.node.address_book import AddressBook
from gdf_market.node.addresses import check_transports, group, host_of, is_loopback, observed, split_peer
from gdf_market.node.frames import Hello
from gdf_market.node.p2p import Host

MIN_DIALLED = 4  # links that this node dials even if as many as it wants came in
MAX_PER_GROUP = 3  # dialled peers in one /24 (IPv4) or /48 (IPv6), private networks and bootstrap peers apart
PUT_OFF_S = 60.0  # a peer of a network that has its share is looked at again after so long

jitter = random.SystemRandom().random


class Discovery:
    """Keeps the host connected to up to ``limits.MESH_PEERS`` peers."""

    def __init__(self, account: str, bootstrap: Sequence[str]) -> None:
        self.book = AddressBook(account)
        self.retell: Callable[[], None] = lambda: None  # called when a linked peer has other addresses than it had
        self._changed = trio.Event()
        self._dialing = 0
        self._tried: dict[str, limits.Bucket] = {}  # dials on hearsay, by IP address or name
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
        if changed:
            self.retell()
        for address in hello.peers:
            try:
                account, transport = split_peer(address)
            except PeerError:
                continue
            if account != hello.account and (local or not _names_loopback(transport)):
                changed |= self.book.learn(account, [transport], teller=hello.account, now=trio.current_time())
        if changed:
            self.changed()

    def found_on_lan(self, account: str, transports: Sequence[str]) -> None:
        """Take what was heard on the local network of another node."""
        if self.book.learn_lan(account, transports, trio.current_time()):
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
                now, connected, groups = trio.current_time(), host.connected(), _dialled_groups(host)
                wanted = max(limits.MESH_PEERS - links(), MIN_DIALLED - groups.total()) - self._dialing
                wait = float("inf")
                if wanted > 0:
                    for account in self.choose(now, connected, groups, wanted):
                        self.book.dialing(account)
                        nursery.start_soon(self._dial, host, account)
                    wait = max(0.05, self.book.next_due(now, connected) - now)
                with trio.move_on_after(wait):
                    await self._changed.wait()

    def choose(self, now: float, connected: Iterable[str], groups: Counter[str], wanted: int) -> list[str]:
        """Return whom to dial now: at most ``wanted``, and from no network more than its share."""
        chosen: list[str] = []
        for account in self.book.due(now, connected):
            if len(chosen) >= wanted:
                break
            network = group(host_of(self.book.addresses(account)[0]))
            if network and groups[network] >= MAX_PER_GROUP and not self.book.is_bootstrap(account):
                self.book.put_off(account, now + PUT_OFF_S)
                continue
            if self.book.is_hearsay(account) and not self._may_try(host_of(self.book.addresses(account)[0]), now):
                self.book.put_off(account, now + PUT_OFF_S)
                continue
            groups[network] += 1
            chosen.append(account)
        return chosen

    def _may_try(self, host: str, now: float) -> bool:
        """Count a dial for which there is only hearsay: no crowd of made-up names may send this node to one machine."""
        times = limits.LOOPBACK_TIMES if is_loopback(host) else 1
        bucket = self._tried.pop(host, None) or limits.Bucket(
            limits.HEARSAY_PER_S * times, limits.HEARSAY_BURST * times
        )
        self._tried[host] = bucket
        if len(self._tried) > limits.MAX_KNOWN_PEERS:
            del self._tried[next(iter(self._tried))]
        return bucket.take(1, now)

    async def _dial(self, host: Host, account: str) -> None:
        self._dialing += 1
        try:
            await host.dial(account, self.book.addresses(account))
        finally:
            self._dialing -= 1
            self.book.dialed(account, trio.current_time(), jitter())
            self.changed()


def _dialled_groups(host: Host) -> Counter[str]:
    """Return how many connected peers this host dialled, by network of addresses ("": private ones)."""
    found: Counter[str] = Counter()
    for peer in host.connected():
        ours = [conn.muxed_conn for conn in host.connections(peer) if conn.muxed_conn.is_initiator]
        if ours:
            found[group(host_of(str(ours[0].get_transport_addresses()[0])))] += 1
    return found


def _names_loopback(address: str) -> bool:
    return is_loopback(host_of(address))
