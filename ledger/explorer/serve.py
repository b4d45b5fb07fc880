"""Serves the explorer with hypercorn's trio worker."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config, Sockets
from hypercorn.trio.run import worker_serve

from gdf_market.errors import UsageError, UserError, ensure
from ledger.explorer.app import create_app

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # the installed stubs of trio name it there

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8320
MAX_PORT = 65_535
BACKLOG = 100
MAX_HEAD_BYTES = 16_384  # request line and headers
KEEP_ALIVE_S = 5
GRACE_S = 1  # for requests under way when it is stopped
TAKEN = {errno.EADDRINUSE, errno.EACCES} if sys.platform == "win32" else {errno.EADDRINUSE}


async def serve(
    db: Path,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    *,
    task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the explorer of ``db`` until cancelled; reports its URL once it listens.

    ``port`` 0 takes any free one.  Raises UserError when the port is in use or
    the address is not this machine's, UsageError or StorageError when ``db``
    holds no readable ledger.
    """
    app = create_app(db)
    listener = _listen(host, port)
    config = Config()
    config.errorlog = "-"  # tracebacks of failed pages go to stderr
    config.loglevel = "WARNING"
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.graceful_timeout = GRACE_S
    config.include_server_header = False
    async with trio.open_nursery() as nursery:
        sockets = Sockets([], [listener], [])
        await nursery.start(
            lambda task_status: worker_serve(ASGIWrapper(app), config, sockets=sockets, task_status=task_status)
        )
        task_status.started(_url(listener))


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.  Raises UsageError or UserError naming the address."""
    # getaddrinfo takes larger numbers modulo 65536
    ensure(0 <= port <= MAX_PORT, UsageError(f"port {port} does not exist; take one up to {MAX_PORT}"))
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(
            f"{host!r} port {port} is no address of this machine ({error}); try --host {LOOPBACK}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # there, SO_REUSEADDR would share the port with whoever has it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno in TAKEN:
            text = f"port {port} on {host} is in use; choose another with --port, or --port 0 for any free one"
            raise UserError(text) from None
        raise UserError(f"cannot listen on {host} port {port} ({error}); try --host {LOOPBACK}") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
