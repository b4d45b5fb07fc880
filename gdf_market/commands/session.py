"""Running a node inside a command, or using the one that already runs on the data folder."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from gdf_market import keystore
from gdf_market.commands.common import App
from gdf_market.errors import KeyLockedError, UsageError
from gdf_market.identity import Identity
from gdf_market.node.client import NodeClient
from gdf_market.node.settings import Settings

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # the installed stubs of trio name it there

T = TypeVar("T")

SYNC_S = 90.0  # how long a command waits for its own node to catch up with the network


def passphrase(app: App) -> str | None:
    """Return the passphrase from --passphrase-file or GDF_PASSPHRASE, or None."""
    if app.passphrase_file is not None:
        try:
            return app.passphrase_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise KeyLockedError(f"cannot read {app.passphrase_file}: {error.strerror}") from None
    return os.environ.get("GDF_PASSPHRASE")


def load_identity(app: App) -> Identity:
    """Return the folder's identity.  Raises KeyLockedError."""
    app.data.require_key()
    return keystore.load(app.data.key, passphrase(app))


def configure_logging(level: str) -> None:
    """Send log lines to stderr at ``level``; libraries log errors only."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UsageError(f"log level {level!r} is not one of debug, info, warning, error")
    logging.basicConfig(stream=sys.stderr, level=max(number, logging.ERROR), format="%(name)s: %(message)s")
    # libp2p logs every lost connection as an error with its trace; the node counts and reports them itself
    logging.getLogger("libp2p").setLevel(logging.CRITICAL if number > logging.DEBUG else logging.DEBUG)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
    )


async def _stop_on_signals(stop: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
    names = ["SIGINT", "SIGTERM", "SIGBREAK"]
    with trio.open_signal_receiver(*(getattr(signal, name) for name in names if hasattr(signal, name))) as signals:
        task_status.started()
        async for _ in signals:
            stop()


@asynccontextmanager
async def running_node(app: App, settings: Settings, *, worker: bool = False, poison: str = "") -> AsyncIterator[Any]:
    """Open a node whose clean stop is tied to SIGINT and SIGTERM."""
    from gdf_market.node.node import open_node

    identity = load_identity(app)
    async with (
        open_node(app.data, settings, identity, worker=worker, poison=poison) as node,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(lambda task_status: _stop_on_signals(node.stop, task_status=task_status))
        yield node
        nursery.cancel_scope.cancel()


def with_client(app: App, use: Callable[[NodeClient], T], *, settings: Settings | None = None) -> T:
    """Call ``use`` with a client of the running node; if none runs, start one for the length of the call."""
    found = app.data.running()
    if found is not None:
        client = NodeClient(*found)
        try:
            return use(client)
        finally:
            client.close()
    chosen = settings or app.settings()
    configure_logging(chosen.log_level)
    return run_async(lambda: _with_own_node(app, chosen, use))


async def _with_own_node(app: App, settings: Settings, use: Callable[[NodeClient], T]) -> T:
    async with running_node(app, settings) as node:
        with app.progress("joining the network"):
            await caught_up(node)
        found = app.data.running()
        assert found is not None, "the node of this process runs"
        client = NodeClient(*found)
        try:
            return await trio.to_thread.run_sync(use, client)
        finally:
            client.close()


async def caught_up(node: Any) -> None:
    """Wait until the replica's head is recent, or time is up (the network may simply be quiet or away)."""
    with trio.move_on_after(SYNC_S):
        while True:
            status = node.status()
            alone = node.context.ledger.replica.is_validator and not node.settings.bootstrap
            recent = status["block_age_ms"] is not None and status["block_age_ms"] < 4 * _heartbeat_ms(node)
            if recent and (status["peers"] or alone):
                return
            await trio.sleep(0.2)


def _heartbeat_ms(node: Any) -> int:
    return int(node.data.genesis().heartbeat_ms)


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run a trio program; a lone exception inside nested groups is raised as itself."""
    assert threading.current_thread() is threading.main_thread()

    async def entry() -> T:
        return await main()

    try:
        return trio.run(entry)
    except BaseExceptionGroup as group:
        raise first_cause(group) from None


def first_cause(group: BaseException) -> BaseException:
    """Return the first exception inside nested groups that is no cancellation."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
