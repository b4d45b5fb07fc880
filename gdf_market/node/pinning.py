"""Keeps the list of blobs that must stay, and drops those that nobody needs any more (docs/blobs.md).

A job's program, data and last two checkpoints, and what its open audits need, stay on every node that has a part in it
or keeps a copy, while it is under way and for a while after its end.  The rules are in ``pin_rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from typing import Any

import structlog
import trio

from contracts.records import Job
from contracts.state import State
from gdf_market.blobs.pins import MAX_JOBS, Pins
from gdf_market.blobs.room import Usage
from gdf_market.codec import decode
from gdf_market.errors import GdfError, PeerError, StorageError
from gdf_market.messages import JobPost
from gdf_market.node.context import MAX_MANIFEST_BYTES, MAX_PROGRAM_BYTES, NodeContext
from gdf_market.node.ledger_service import now_ms
from gdf_market.node.pin_rules import (
    get_checkpoints,
    get_ended_jobs,
    get_evidence,
    get_kept_jobs,
    is_part_of,
)
from gdf_market.train.data import DataManifest

PIN_EVERY_S = 10.0  # much less than the grace after a blob's last use
COLLECT_EVERY_S = 300.0
RESCAN_MS = 600_000  # all records are searched for jobs that ended
UNUSED_S = 86_400.0  # what no job needs goes after a day without use
DAY_MS = 86_400_000
BEHIND_MS = 600_000  # a ledger whose last block is older is not the present one
MAX_CONTENTS = 4_096
MAX_RETIRED = 65_536

log = structlog.get_logger("gdf.pinning")


class Pinner:
    """``orders`` are the node's own orders that are no jobs yet, ``in_use`` the jobs that its roles compute for now."""

    def __init__(
        self,
        context: NodeContext,
        *,
        orders: Callable[[], Iterable[JobPost]] = tuple,
        in_use: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._context, self._orders, self._in_use = context, orders, in_use
        self._room = context.blobs.room
        self._pins: Pins | None = None
        self._adopted: set[str] = set()  # jobs that this node takes part in or keeps a copy for, until they are over
        self._ended: dict[str, Job] = {}
        self._scanned_ms = 0
        self._under_way: set[str] = set()
        self._contents: dict[str, str] = {}  # manifest of data -> its content
        self._updates: dict[tuple[str, int, int], str] = {}  # own units that are not revealed yet
        self._retired: set[str] = set()  # needed once
        self.usage: Usage | None = None
        self.problem = ""

    async def run(self) -> None:
        """Keep the list up to date until cancelled; collect from time to time."""
        collect_at = trio.current_time() + COLLECT_EVERY_S
        while True:
            try:
                await self.turn()
                if trio.current_time() >= collect_at:
                    collect_at = trio.current_time() + COLLECT_EVERY_S
                    await self.collect()
                self.problem = ""
            except GdfError as error:
                self._complain(str(error))
            await trio.sleep(PIN_EVERY_S)

    def _complain(self, sentence: str) -> None:
        self.problem = sentence
        self._context.note("storage", sentence)
        log.warning("blobs", error=sentence)

    def status(self) -> dict[str, Any]:
        """Return what `gdf-market status` shows of the disk."""
        usage = asdict(self.usage) if self.usage is not None else {}
        return {f"{name}_bytes" if name != "blobs" else name: value for name, value in usage.items()} | {
            "jobs": len(self._adopted),
            "problem": self.problem,
        }

    # jobs

    def jobs(self) -> list[Job]:
        """Return the jobs whose blobs must be somewhere: those under way, and those that ended a short while ago."""
        keep_ms = self._context.settings.blob_keep_days * DAY_MS
        return get_kept_jobs(self._context.state, self._ended.values(), now_ms(), keep_ms)

    def adopt(self, job: str) -> None:
        """Keep what this node has of a job, until it is over."""
        if len(self._adopted) < MAX_JOBS:
            self._adopted.add(job)

    async def load(self) -> None:
        """Read the list that an earlier run of the node left.  Raises StorageError."""
        self._pins = await trio.to_thread.run_sync(self._room.pins)
        if self._pins is not None:
            self._adopted |= self._pins.jobs

    def is_behind(self) -> bool:
        """Say whether the ledger here is an old one, which knows neither new jobs nor what has ended."""
        return now_ms() > self._context.ledger.replica.time_ms + BEHIND_MS

    async def turn(self) -> None:
        """Bring the list up to date with the ledger; the list of before holds while that is behind.

        Raises StorageError.
        """
        if self._pins is None:
            await self.load()
        if not self.is_behind():
            await self._update()
        self.usage = await trio.to_thread.run_sync(self._room.usage)

    async def _update(self) -> None:
        state = self._context.state
        await self._note_ended(state)
        jobs = self.jobs()
        for job in jobs:
            if is_part_of(state, job, self._context.account):
                self.adopt(job.id)
        self._adopted &= {job.id for job in jobs}
        pins = await self._compute(state, jobs)
        if pins != self._pins:
            await trio.to_thread.run_sync(self._room.set_pins, pins)
            self._retire(pins)
            self._pins = pins

    async def _note_ended(self, state: State) -> None:
        under_way = set(state.active().jobs)
        gone = (state.job(job) for job in self._under_way - under_way)
        found = [job for job in gone if job is not None]
        if now_ms() >= self._scanned_ms + RESCAN_MS:
            self._scanned_ms = now_ms()
            found = await trio.to_thread.run_sync(get_ended_jobs, state)
        self._ended |= {job.id: job for job in found}
        self._under_way = under_way

    # what stays

    async def _compute(self, state: State, jobs: list[Job]) -> Pins:
        active: set[str] = set()
        ended: dict[str, int] = {}
        in_use = self._in_use()
        for job in jobs:
            if job.id not in self._adopted and job.id not in in_use:
                continue
            roots = await self._roots(state, job)
            if job.id in state.active().jobs:
                active |= roots | get_evidence(state, job) | await self._own_updates(state, job)
            else:
                ended |= {root: max(ended.get(root, 0), job.ended_ms) for root in roots}
        for order in self._orders():
            active |= {order.program, order.data, order.checkpoint, *await self._content(order.data)}
        return Pins(frozenset(active), ended, frozenset(self._adopted))

    async def _roots(self, state: State, job: Job) -> set[str]:
        return {root for root, _ in await self.needs(state, job)}

    async def needs(self, state: State, job: Job) -> list[tuple[str, int]]:
        """Return (blob, most bytes) of what others may need of a job, the most important first.

        Of data whose manifest is not here, the content is not known.
        """
        spec, most = job.spec, self._context.settings.max_blob_bytes
        checkpoint_bytes = 8 * spec.parameters + 4_096
        needs = [(root, checkpoint_bytes) for root in get_checkpoints(state, job)]
        needs += [(spec.program, min(MAX_PROGRAM_BYTES, most)), (spec.data, MAX_MANIFEST_BYTES)]
        return needs + [(root, most) for root in await self._content(spec.data)]

    async def _content(self, data: str) -> list[str]:
        if data not in self._contents:
            root = await trio.to_thread.run_sync(self._read_content, data)
            if root is None:
                return []
            if len(self._contents) >= MAX_CONTENTS:
                self._contents.clear()
            self._contents[data] = root
        return [self._contents[data]]

    def _read_content(self, data: str) -> str | None:
        if not self._context.blobs.has(data):
            return None
        try:
            raw = self._context.blobs.path(data).read_bytes()
            return decode(raw, DataManifest, max_bytes=MAX_MANIFEST_BYTES).content
        except (OSError, StorageError, PeerError):  # a job with unusable data trains nobody; nothing is kept for it
            return None

    async def _own_updates(self, state: State, job: Job) -> set[str]:
        """Return the updates that this node committed to and did not reveal yet."""
        round_ = state.round(job.id, job.round)
        found: set[str] = set()
        for slot in round_.units if round_ is not None else ():
            unit = state.unit(job.id, job.round, slot)
            if unit is None or unit.worker != self._context.account or unit.status != "committed":
                continue
            key = (job.id, job.round, slot)
            if key not in self._updates:
                note = await trio.to_thread.run_sync(self._context.journal.unit, *key)
                if len(self._updates) >= MAX_CONTENTS:
                    self._updates.clear()
                self._updates[key] = note.update if note is not None else ""
            found.add(self._updates[key])
        return found - {""}

    # what goes

    def _retire(self, pins: Pins) -> None:
        """Remember what is not needed any more: old checkpoints, updates of rounds that settled."""
        if self._pins is not None:
            self._retired |= {*self._pins.active, *self._pins.ended}
        self._retired -= {*pins.active, *pins.ended}
        while len(self._retired) > MAX_RETIRED:  # the rest goes when nobody has used it for a day
            self._retired.pop()

    async def collect(self) -> int:
        """Delete what was needed once and is not any more, and what nobody used for long; return the bytes freed.

        Raises StorageError.
        """
        freed = await trio.to_thread.run_sync(self._room.drop, frozenset(self._retired))
        freed += await trio.to_thread.run_sync(self._room.drop_unused, UNUSED_S)
        await trio.to_thread.run_sync(self._room.sweep, now_ms() / 1_000 - UNUSED_S)
        self._retired &= set(await trio.to_thread.run_sync(self._context.blobs.roots))
        return freed
