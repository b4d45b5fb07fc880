"""TCP with caps: how many sockets a host accepts, in all and from one address, and a bind that notices a taken port.

The library keeps a connection's accept task, and with it one of its inbound
slots, until the host ends.  Here the task ends when its socket is closed, so a
host that runs for weeks does not run out of slots.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.transport.tcp.tcp import TCP, TCPListener

from gdf_market.errors import UserError
from gdf_market.node import limits
from gdf_market.node.counters import Counters

Handler = Callable[[TrioTCPStream], Awaitable[None]]


class _WatchedStream(TrioTCPStream):  # type: ignore[misc]
    """A TCP stream that tells when this side closed it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.closed = trio.Event()

    async def close(self) -> None:
        self.closed.set()
        await super().close()


class Gate:
    """Counts accepted sockets; ``enter`` says whether one more from this address is welcome."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Take a slot for an IP address, if there is one."""
        key = source(host)
        most = limits.MAX_PER_LOOPBACK if ipaddress.ip_address(host).is_loopback else limits.MAX_PER_ADDRESS
        if self._open.total() >= limits.MAX_INBOUND or self._open[key] >= most:
            return False
        self._open[key] += 1
        return True

    def leave(self, host: str) -> None:
        """Give the slot back."""
        key = source(host)
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    def __len__(self) -> int:
        return self._open.total()


def source(host: str) -> str:
    """Return what one holder of addresses is counted under: the IPv4 address, or the /64 of an IPv6 address."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class CappedTCP(TCP):  # type: ignore[misc]
    """TCP whose listeners pass each accepted socket through a Gate."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters
        self.gate = Gate()

    def create_listener(self, handler_function: Handler) -> TCPListener:
        """Return a listener that serves each welcome socket until it is closed."""

        async def handler(accepted: TrioTCPStream) -> None:
            await self._serve(accepted, handler_function)

        return TCPListener(handler)

    async def _serve(self, accepted: TrioTCPStream, handler: Handler) -> None:
        stream = _WatchedStream(accepted.stream)
        try:
            host = str(accepted.stream.socket.getpeername()[0]).partition("%")[0]
        except OSError:  # gone already
            await stream.close()
            return
        if not self.gate.enter(host):
            self._counters.add("connections", address=host)
            await stream.close()
            return
        try:
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    await handler(stream)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(serve)
                await stream.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.gate.leave(host)


def check_port_free(host: str, port: int) -> None:
    """Raise UserError if something listens on (host, port) already.

    The library's listener shares ports (SO_REUSEPORT), so two nodes on one port
    would each get half of the connections and no error.
    """
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)  # Windows
        option = socket.SO_REUSEADDR if exclusive is None else exclusive
        probe.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise UserError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; "
                "stop the program that uses the port or choose another one"
            ) from None
