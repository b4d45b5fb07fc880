"""The shell around the ledger replica: one task takes events in order and carries out effects in order.

What holds: a Save is durable before any later effect of the same or a later
event is carried out, so nothing is promised that a crash could forget.
Frames of peers take turns, so that a flood of one delays only its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from contracts.records import Genesis
from contracts.state import State
from gdf_market.errors import GdfError, LocalError, PeerError, ensure
from gdf_market.identity import Identity
from gdf_market.messages import Entry
from gdf_market.node.fair import FairQueue, Requests
from ledger import effects as core
from ledger.opening import OpenPool
from ledger.replica import Replica
from ledger.serving import links_message, snapshot_message
from ledger.store import LedgerStore

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # the installed stubs of trio name it there

MAX_EVENTS = 1_024  # peers that come and go, timers and own entries that wait for the replica
MAX_WAITERS = 1_024  # own entries that somebody waits for
CLOCK_CHECK_S = 5.0  # a clock that was set back is noticed within this time

log = structlog.get_logger("gdf.ledger")


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class NotFinalError(LocalError):
    """An own entry was not in a final block in time; it may still become final."""

    exit_code = 4


@dataclass
class _Waiter:
    done: trio.Event = field(default_factory=trio.Event)
    height: int = 0
    error: GdfError | None = None


class LedgerService:
    """Runs one Replica on one LedgerStore and tells the node about finalized blocks."""

    def __init__(
        self,
        genesis: Genesis,
        identity: Identity,
        store: LedgerStore,
        *,
        send: Callable[[str, bytes], object],
        broadcast: Callable[[bytes, str | None], None],
        misbehaved: Callable[[str, PeerError], None],
        waiting_bytes: Callable[[str], int] = lambda peer: 0,
        from_snapshot: bool = False,
        keep_epochs: int | None = None,
    ) -> None:
        self.store = store
        self._open_many = OpenPool()  # its threads end with this object
        self.replica = Replica(
            genesis,
            identity,
            store.restored(),
            from_snapshot=from_snapshot,
            keep_epochs=keep_epochs,
            open_many=self._open_many,
        )
        self._send, self._broadcast, self._misbehaved = send, broadcast, misbehaved
        self._events_in, self._events_out = trio.open_memory_channel[core.ReplicaEvent](MAX_EVENTS)
        self._frames = FairQueue()
        self._work = trio.Event()  # something was queued
        self._requests = Requests(waiting_bytes)
        self._timers: dict[str, int] = {}
        self._timer_changed = trio.Event()
        self._waiters: dict[str, list[_Waiter]] = {}
        self._advanced = trio.Event()
        self.listeners: list[Callable[[core.Finalized], None]] = []
        self.dropped = 0

    @property
    def state(self) -> State:
        """State after the last finalized block."""
        return self.replica.state

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            await self._handle(core.Started())
            nursery.start_soon(self._run_timers)
            nursery.start_soon(self._serve)
            task_status.started()
            while True:
                await self._handle(await self._next())

    async def _next(self) -> core.ReplicaEvent:
        """Return the next event: frames of peers take turns, and whatever else there is comes first."""
        while True:
            with contextlib.suppress(trio.WouldBlock):
                return self._events_out.receive_nowait()
            frame = self._frames.take()
            if frame is not None:
                await trio.lowlevel.checkpoint()
                return core.Received(*frame)
            self._work = trio.Event()
            await self._work.wait()

    def post(self, event: core.ReplicaEvent) -> None:
        """Queue an event for the replica; drops it when there is no room (counted), frames before anything else."""
        match event:
            case core.Received(peer=peer, data=data):
                self.dropped += not self._frames.put(peer, data)
            case _:
                if isinstance(event, core.PeerDown):
                    self._frames.forget(event.peer)
                    self._requests.forget(event.peer)
                try:
                    self._events_in.send_nowait(event)
                except trio.WouldBlock:
                    self.dropped += 1
        self._work.set()

    async def _queue(self, event: core.ReplicaEvent) -> None:
        await self._events_in.send(event)
        self._work.set()

    async def submit(self, entry: Entry, *, timeout_s: float = 60.0) -> int:
        """Submit an entry and return the height of the block that finalized it.

        Raises the error it was refused with; NotFinalError after ``timeout_s``: the entry is not withdrawn then, so
        a new one that pays again must not follow before its ``expires_ms``.
        """
        waiting = sum(len(waiters) for waiters in self._waiters.values())
        ensure(waiting < MAX_WAITERS, LocalError(f"{waiting} entries of this node wait for a block; try again later"))
        waiter = _Waiter()
        self._waiters.setdefault(entry.id, []).append(waiter)
        try:
            with trio.move_on_after(timeout_s):
                await self._queue(core.Submitted(entry))
                await waiter.done.wait()
        finally:
            self._waiters[entry.id].remove(waiter)
            if not self._waiters[entry.id]:
                del self._waiters[entry.id]
        if not waiter.done.is_set():
            raise NotFinalError(
                f"entry {entry.id} was not final within {timeout_s:.0f} s and may still become so: too few validators "
                "are reachable, see `gdf-market status`; look for it with `gdf-market ledger show --entry` before "
                "you try again"
            )
        if waiter.error is not None:
            raise waiter.error
        return waiter.height

    async def wait_block(self) -> None:
        """Return after the next finalized block."""
        await self._advanced.wait()

    async def _handle(self, event: core.ReplicaEvent) -> None:
        for effect in self.replica.step(event, now_ms()):
            match effect:
                case core.Save(writes=writes):
                    await trio.to_thread.run_sync(self.store.save, writes)
                case core.Serve() | core.ServeLinks() | core.ServeSnapshot():
                    self._requests.put(effect)
                case _:
                    self._carry_out(effect)

    async def _serve(self) -> None:
        """Answer requests from the file, beside agreement, which must not wait for who asks."""
        while True:
            request = await self._requests.take()
            for message in await trio.to_thread.run_sync(self._answer, request):
                self._send(request.peer, message)

    def _answer(self, request: core.Serve | core.ServeLinks | core.ServeSnapshot) -> list[bytes]:
        match request:
            case core.Serve(height=height):
                return self.store.sync_messages(height)
            case core.ServeLinks(epoch=epoch):
                return [links_message(self.store, epoch)]
            case core.ServeSnapshot(key=key, part=part):
                return [snapshot_message(self.store, key, part)]

    def _carry_out(self, effect: core.Effect) -> None:
        """Carry out an effect that needs no disk."""
        match effect:
            case core.Send(peer=peer, data=data):
                self._send(peer, data)
            case core.Broadcast(data=data, exclude=exclude):
                self._broadcast(data, exclude)
            case core.SetTimer(name=name, at_ms=at_ms):
                self._timers[name] = at_ms
                self._timer_changed.set()
            case core.Finalized():
                self._finalized(effect)
            case core.Refused(entry_id=entry_id, error=error):
                self._refused(entry_id, error)
            case core.Misbehaved(peer=peer, error=error):
                log.info("peer misbehaved", peer=peer, reason=error.reason, error=str(error))
                self._misbehaved(peer, error)
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _finalized(self, block: core.Finalized) -> None:
        for entry in block.entries:
            for waiter in self._waiters.get(entry.id, []):
                waiter.height = block.height
                waiter.done.set()
        self._advanced.set()
        self._advanced = trio.Event()
        for listener in self.listeners:
            listener(block)

    def _refused(self, entry_id: str, error: GdfError) -> None:
        for waiter in self._waiters.get(entry_id, []):
            waiter.error = error
            waiter.done.set()

    async def _run_timers(self) -> None:
        while True:
            before = now_ms()
            due = min(self._timers.values(), default=before + 1_000 * CLOCK_CHECK_S)
            self._timer_changed = trio.Event()
            with trio.move_on_after(min(CLOCK_CHECK_S, max(0.0, (due - before) / 1_000))):
                await self._timer_changed.wait()
            now = now_ms()
            set_back = now < before  # the replica must hear of it: it would wait for the old time to come again
            for name in sorted(name for name, at_ms in self._timers.items() if at_ms <= now or set_back):
                del self._timers[name]
                await self._queue(core.Timer(name))
