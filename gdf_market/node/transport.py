"""TCP behind a gate that decides which sockets a host keeps, and a bind that notices a taken port.

The library keeps a connection's accept task, and with it one of its inbound
slots, until the host ends.  Here the task ends when its socket is closed, so a
host that runs for weeks does not run out of slots.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.transport.tcp.tcp import TCP, TCPListener

from gdf_market.errors import UserError
from gdf_market.node.counters import Counters
from gdf_market.node.gate import Gate, Guest

Handler = Callable[[TrioTCPStream], Awaitable[None]]


class _WatchedStream(TrioTCPStream):  # type: ignore[misc]
    """A TCP stream that tells when this side closed it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.closed = trio.Event()

    async def close(self) -> None:
        self.closed.set()
        await super().close()


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
            host, port = accepted.stream.socket.getpeername()[:2]
        except OSError:  # gone already
            await stream.close()
            return
        host, now = str(host).partition("%")[0], trio.current_time()
        reason = self.gate.refuse(host, now)
        if reason:
            self._counters.add(reason, address=host)
            await stream.close()
            return
        guest = Guest(host, int(port), now, stream.closed.set)
        self.gate.enter(guest)
        try:
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    await handler(stream)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(serve)
                await stream.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.gate.leave(guest)
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await stream.close()


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
