"""Makes copies of what jobs need where too few nodes have it: the owner may be gone for good.

Every caretaker of a job looks when its turn comes, the first in the job's own order at once and each one after it a
little later, so that not all of them fetch the same: whoever looks later finds the copies of those before.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import trio

from contracts.records import Job
from gdf_market.errors import GdfError, UnreachableError
from gdf_market.node.context import NodeContext
from gdf_market.node.pin_rules import get_caretakers
from gdf_market.node.pinning import Pinner

LOOK_EVERY_S = 5.0
SETTLE_S = 30.0  # those who computed a checkpoint have it by then
STEP_S = 10.0  # between two caretakers
AGAIN_S = 120.0  # between two looks of the first ones at the same blob
MAX_AGAIN_S = 3_600.0
COPY_BYTES_PER_S = 4 << 20  # on average, so that copies for others leave the line free
SHARE = 2  # at most a half of the quota is kept for jobs when a copy for others is made

log = structlog.get_logger("gdf.repairing")


@dataclass
class _Look:
    """When a blob is looked for next, and how often in a row it could not be had."""

    at_s: float
    failures: int = 0


class Repairer:
    """One blob at a time; ``pinner`` says which jobs there are and keeps the copies."""

    def __init__(self, context: NodeContext, pinner: Pinner) -> None:
        self._context, self._pinner = context, pinner
        self._copies = context.settings.blob_copies
        self._looks: dict[tuple[str, str], _Look] = {}
        self.short: dict[str, int] = {}  # blobs of which too few copies were found -> how many
        self.copied = 0

    async def run(self) -> None:
        """Look and copy until cancelled."""
        while True:
            try:
                await self.turn()
            except GdfError as error:
                self._context.note("storage", str(error))
            await trio.sleep(LOOK_EVERY_S)

    async def turn(self) -> None:
        """Look for every blob whose time has come.  Raises StorageError."""
        if self._pinner.is_behind():
            return
        state, wanted = self._context.state, set()
        for job in self._pinner.jobs():
            caretakers = get_caretakers(state, job)
            if self._context.account not in caretakers:
                continue
            place = caretakers.index(self._context.account)
            for root, max_bytes in await self._pinner.needs(state, job):
                wanted.add((job.id, root))
                await self._look(job, root, max_bytes, place)
        self._looks = {key: look for key, look in self._looks.items() if key in wanted}
        needed = {root for _, root in wanted}
        self.short = {root: count for root, count in self.short.items() if root in needed}

    async def _look(self, job: Job, root: str, max_bytes: int, place: int) -> None:
        now = trio.current_time()
        look = self._looks.setdefault((job.id, root), _Look(now + SETTLE_S + STEP_S * place))
        if now < look.at_s:
            return
        try:
            await self._see_to(job, root, max_bytes, place)
            look.failures = 0
        except GdfError as error:
            look.failures += 1
            level = log.info if isinstance(error, UnreachableError) else log.warning
            level("no copy made", job=job.id[:8], blob=root[:16], error=str(error))
            self._context.note("copies", f"blob {root[:16]} of job {job.id[:16]}: {error}")
        pause = AGAIN_S * (1 + place // self._copies) * 2 ** min(look.failures, 5)
        look.at_s = trio.current_time() + min(MAX_AGAIN_S, pause)

    async def _see_to(self, job: Job, root: str, max_bytes: int, place: int) -> None:
        """Keep the blob if it is here; fetch it if too few others have it.  Raises GdfError."""
        here = await trio.to_thread.run_sync(self._context.blobs.has, root)
        if here and place < self._copies:
            self._pinner.adopt(job.id)
        others = await self._context.bulk.holders(root)
        count = others + here
        # without the small manifest of the data nobody knows what else to look after
        enough = count >= self._copies and (here or root != job.spec.data or place >= self._copies)
        if enough:
            self.short.pop(root, None)
            return
        self.short[root] = count
        if here:
            self._pinner.adopt(job.id)
        elif self._has_room():
            await self._copy(job, root, max_bytes)

    def _has_room(self) -> bool:
        usage = self._pinner.usage
        if usage is None or usage.quota is None or (usage.active + usage.ended) * SHARE < usage.quota:
            return True
        self._context.note("copies", "no room for copies of other jobs' blobs; set a larger blob_quota")
        return False

    async def _copy(self, job: Job, root: str, max_bytes: int) -> None:
        self._pinner.adopt(job.id)  # before it arrives, so that nothing takes it away again
        path = await self._context.bulk.fetch(root, max_bytes=max_bytes)
        self.copied += 1
        self.short[root] += 1
        size = (await trio.Path(path).stat()).st_size
        log.info("copy made", job=job.id[:8], blob=root[:16], bytes=size)
        await trio.sleep(size / COPY_BYTES_PER_S)
