"""Finding the network's nodes on the local network by multicast DNS (RFC 6762, RFC 6763).

The service's name carries a hash of the network id, so only nodes of one network meet.  What is announced
and read are TXT records ``dnsaddr=<multiaddr>``, as libp2p's mDNS has them.

Rules kept here:
1. What is heard is hearsay: it is checked like any address, dialled with the peer's id, and proven by Noise.
2. Records are bounded in number and rate; an overfull cache of the library is thrown away with its sockets.
3. Without multicast (no interface, port taken) the node runs on; the counters say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
import trio
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from gdf_market.codec import digest
from gdf_market.errors import MalformedError
from gdf_market.node import limits
from gdf_market.node.addresses import host_of, is_circuit, is_loopback, port_of, split_peer
from gdf_market.node.counters import Counters

log = structlog.get_logger("gdf.lan")

MAX_HEARD = 64  # records that wait for the node
HEARD_PER_S, HEARD_BURST = 2.0, 32.0
MAX_TXT = 8  # strings of a record that are looked at
MAX_CACHE = 4_096  # records that the library may keep
LOOK_EVERY_S = 30.0
RESOLVE_MS = 3_000
RETRY_S = 300.0

Found = Callable[[str, Sequence[str]], None]


def service_type(network: str) -> str:
    """Return the DNS-SD service of a network id; at most 15 characters before the protocol (RFC 6335, 5.1)."""
    return f"_gdf-{digest('gdf/lan', bytes.fromhex(network)).hex()[:10]}._tcp.local."


def txt(addresses: Iterable[str]) -> dict[str, str]:
    """Return the TXT properties that announce these full multiaddrs: what is useful on a LAN, bounded."""
    useful = [one for one in addresses if not is_circuit(split_peer(one)[1]) and not is_loopback(host_of(one))]
    names = ("dnsaddr", *(f"dnsaddr{number}" for number in range(2, limits.MAX_ADDRESSES + 1)))
    return dict(zip(names, useful, strict=False))


def read_txt(properties: Mapping[bytes, bytes | None]) -> tuple[str, tuple[str, ...]] | None:
    """Return (account, transport addresses) of a record; None if it names no peer, or more than one."""
    found: dict[str, list[str]] = {}
    for name, value in list(properties.items())[:MAX_TXT]:
        if not name.startswith(b"dnsaddr") or value is None:
            continue
        try:
            account, transport = split_peer(value.decode("ascii"))
        except (MalformedError, UnicodeDecodeError):
            continue
        if not is_circuit(transport) and not is_loopback(host_of(transport)):
            found.setdefault(account, []).append(transport)
    if len(found) != 1:
        return None
    account, transports = next(iter(found.items()))
    return account, tuple(transports[: limits.MAX_ADDRESSES])


class Lan:
    """Announces ``addresses`` (full multiaddrs) and calls ``found(account, transports)`` for other nodes' records."""

    def __init__(self, network: str, addresses: Sequence[str], found: Found, counters: Counters) -> None:
        self._type, self._addresses = service_type(network), addresses
        self._found, self._counters = found, counters
        self._own = split_peer(addresses[0])[0] if addresses else ""
        self._bucket = limits.Bucket(HEARD_PER_S, HEARD_BURST)
        self._put, self._take = trio.open_memory_channel[str](MAX_HEARD)

    async def run(self) -> None:
        """Announce and listen until cancelled; start anew where the system or the library's cache gives reason."""
        while True:
            try:
                await self._serve()
            except Exception as error:  # no multicast here, or a bug of the library: the node lives without it
                self._counters.add("lan", error=repr(error))
                log.info("not found on this local network", error=repr(error))
                await trio.sleep(RETRY_S)

    async def _serve(self) -> None:
        """Run the library, which lives in a thread of its own; returns when its cache is overfull."""
        properties = txt(self._addresses)
        token = trio.lowlevel.current_trio_token()
        library = await trio.to_thread.run_sync(lambda: Zeroconf(ip_version=IPVersion.V4Only))
        try:

            def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
                if state_change is not ServiceStateChange.Removed:
                    try:
                        token.run_sync_soon(self._heard, name)
                    except trio.RunFinishedError:
                        return

            await trio.to_thread.run_sync(lambda: ServiceBrowser(library, self._type, handlers=[changed]))
            if properties:
                await trio.to_thread.run_sync(library.register_service, self._service(properties))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._resolve, library)
                while len(library.cache.names()) <= MAX_CACHE:  # noqa: ASYNC110  # the cache is the library's
                    await trio.sleep(LOOK_EVERY_S)
                self._counters.add("lan-full")
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(library.close)

    def _service(self, properties: dict[str, str]) -> ServiceInfo:
        name = f"{self._own[-16:].lower()}-{digest('gdf/lan', self._own.encode()).hex()[:8]}"
        port = int(port_of(properties["dnsaddr"]))
        hosts = [host_of(one) for one in properties.values() if one.startswith("/ip4/")]
        return ServiceInfo(
            self._type,
            f"{name}.{self._type}",
            port=port,
            properties=properties,
            server=f"{name}.local.",
            parsed_addresses=hosts,
        )

    def _heard(self, name: str) -> None:
        """Queue a record's name to be looked up; what is too much is dropped, and comes again when it is renewed."""
        if not self._bucket.take(1, trio.current_time()):
            self._counters.add("lan-flood")
            return
        try:
            self._put.send_nowait(name)
        except trio.WouldBlock:
            self._counters.add("lan-flood")

    async def _resolve(self, library: Zeroconf) -> None:
        async for name in self._take:
            info = await trio.to_thread.run_sync(library.get_service_info, self._type, name, RESOLVE_MS)
            self.record(dict(info.properties) if info is not None else {})

    def record(self, properties: Mapping[bytes, bytes | None]) -> None:
        """Take the TXT properties of somebody's record."""
        told = read_txt(properties)
        if told is not None and told[0] != self._own:
            self._found(*told)
