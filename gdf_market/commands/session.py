"""Running a node inside a command, or using the one that already runs on the data folder."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from gdf_market import keystore, logfile
from gdf_market.commands.common import App
from gdf_market.errors import GdfError, KeyLockedError, LocalError, UnreachableError, UsageError
from gdf_market.identity import Identity
from gdf_market.node.client import NodeClient
from gdf_market.node.settings import Settings

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # the installed stubs of trio name it there

T = TypeVar("T")

PEERS_S = 30.0  # how long it looks for a first peer
SYNC_S = 90.0  # how long a command waits for its own node to catch up with the network


def passphrase(app: App) -> str | None:
    """Return the passphrase from --passphrase-file or GDF_PASSPHRASE, or None."""
    if app.passphrase_file is not None:
        try:
            return app.passphrase_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise KeyLockedError(f"cannot read {app.passphrase_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise KeyLockedError(f"{app.passphrase_file} is not a text file in UTF-8") from None
    return os.environ.get("GDF_PASSPHRASE")


def load_identity(app: App) -> Identity:
    """Return the folder's identity.  Raises KeyLockedError."""
    app.data.require_key()
    return keystore.load(app.data.key, passphrase(app))


def configure_logging(level: str, file: Path | None = None) -> None:
    """Send log lines to stderr at ``level``, and from "info" on to ``file``, too; libraries log errors only."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UsageError(f"log level {level!r} is not one of debug, info, warning, error")
    kept = min(number, logging.INFO)
    logging.basicConfig(stream=sys.stderr, level=max(number, logging.ERROR), format="%(name)s: %(message)s")
    # libp2p logs every lost connection as an error with its trace; the node counts and reports them itself
    logging.getLogger("libp2p").setLevel(logging.CRITICAL if number > logging.DEBUG else logging.DEBUG)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number if file is None else kept),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([] if file is None else [logfile.Keep(file, kept, number)]),
            # plain: the default one prints local variables, and some of them are secrets
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
    )


async def stop_on_signals(stop: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
    """Call ``stop`` on the first signal; raise KeyboardInterrupt on the second, after which a third one kills."""
    names = ["SIGINT", "SIGTERM", "SIGBREAK"]
    with trio.open_signal_receiver(*(getattr(signal, name) for name in names if hasattr(signal, name))) as signals:
        task_status.started()
        await anext(signals)
        stop()
        await anext(signals)
        raise KeyboardInterrupt


def _interrupt() -> None:
    raise KeyboardInterrupt


@asynccontextmanager
async def running_node(
    app: App, settings: Settings, *, worker: bool = False, poison: str = "", serves: bool = False
) -> AsyncIterator[Any]:
    """Open a node; SIGINT and SIGTERM stop one that ``serves``, and interrupt one that only helps a command."""
    from gdf_market.node.node import open_node

    identity = load_identity(app)
    opened: list[Any] = []

    def stop() -> None:
        if serves and opened:
            opened[0].stop()
        else:
            _interrupt()

    async with trio.open_nursery() as nursery:  # around the node: a signal while it starts must end it, too
        await nursery.start(lambda task_status: stop_on_signals(stop, task_status=task_status))
        async with open_node(app.data, settings, identity, worker=worker, poison=poison) as node:
            opened.append(node)
            yield node
        nursery.cancel_scope.cancel()


def with_client(app: App, use: Callable[[NodeClient], T], *, settings: Settings | None = None) -> T:
    """Call ``use`` with a client of the running node; if none runs, start one for the length of the call."""
    found = app.data.running()
    if found is not None:
        with NodeClient(*found) as client:
            return use(client)
    chosen = settings or app.settings()
    configure_logging(chosen.log_level)
    return run_async(lambda: _with_own_node(app, chosen, use))


async def _with_own_node(app: App, settings: Settings, use: Callable[[NodeClient], T]) -> T:
    async with running_node(app, settings) as node:
        with app.progress("joining the network"):
            await caught_up(node)
        found = app.data.running()
        assert found is not None, "the node of this process runs"
        with NodeClient(*found) as client:
            # abandoned when the node ends: its last call would wait for an answer that nobody gives
            return await trio.to_thread.run_sync(use, client, abandon_on_cancel=True)  # type: ignore[call-arg]  # old stubs


async def caught_up(node: Any) -> None:
    """Wait until the replica's head is recent, or time is up (the network may simply be quiet).

    Raises UnreachableError when no peer was there for PEERS_S seconds.
    """
    patience = trio.current_time() + PEERS_S
    with trio.move_on_after(SYNC_S):
        while True:
            status = node.status()
            alone = node.context.ledger.replica.is_validator and not node.settings.bootstrap
            recent = status["block_age_ms"] is not None and status["block_age_ms"] < 4 * _heartbeat_ms(node)
            if recent and (status["peers"] or alone):
                return
            if status["peers"] or alone:
                patience = trio.current_time() + PEERS_S
            elif trio.current_time() > patience:
                raise UnreachableError(
                    f"no peer answered within {PEERS_S:.0f} s; start a node that this folder knows, or "
                    "join again with a fresh invite (`gdf-market node invite` on a running one)"
                )
            await trio.sleep(0.2)


def _heartbeat_ms(node: Any) -> int:
    return int(node.data.genesis().heartbeat_ms)


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Let a Ctrl-C take effect at the end of the block; a second one ends the process at once.

    torch must not be interrupted: it swallows the exception in places, and in others its C++ side aborts.
    """
    came = 0

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if came > 1:
            os._exit(130)
        sys.stderr.write("ending as soon as this step is over; Ctrl-C again ends at once\n")

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if came:
        raise KeyboardInterrupt


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run a trio program; of nested groups of exceptions, the one that explains the others is raised."""
    assert threading.current_thread() is threading.main_thread()

    async def entry() -> T:
        return await main()

    error: BaseException
    try:
        return trio.run(entry)
    except BaseExceptionGroup as group:
        error = first_cause(group)
    raise error  # outside the handler, so that the group is not shown as its context


def first_cause(group: BaseException) -> BaseException:
    """Return the exception inside nested groups that explains the others; of several, the first.

    What a person asked for (an interrupt) comes before what failed here, that before any other typed error, and a
    lost connection last: it is what the other tasks see when one of them fails.
    """
    return min(_leaves(group), key=_rank)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _rank(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return 0
    if isinstance(error, LocalError):
        return 1
    if isinstance(error, UnreachableError):
        return 4
    return 2 if isinstance(error, GdfError) else 3
