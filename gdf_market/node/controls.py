"""Pause, resume and finish: whether this node offers its machine now, and leaving jobs without losing a bond.

Rules kept here:
1. A node that should not work bids on nothing, and takes back the bids it has: a worker leaves a job when the round
   under way ends, so that no unit is missed.
2. What a person said survives a restart.
3. Finishing ends the node when the last of its units is settled: until then its worker must be there to answer audits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import trio

from contracts.views import my_units
from gdf_market.codec import Record, decode, encode
from gdf_market.errors import GdfError, PeerError, UsageError, ensure
from gdf_market.messages import BidWithdraw
from gdf_market.node.availability import Limits, Sensors, read_sensors, why_hot, why_not
from gdf_market.node.context import NodeContext
from gdf_market.node.datadir import write_atomic
from gdf_market.units import MAX_INT, SECOND_MS

LOOK_S = 5.0
RETRY_S = 15.0  # pause after a withdrawal that was refused
FOREVER_MS = MAX_INT
MAX_PAUSE_MS = 366 * 24 * 3_600 * SECOND_MS
MAX_BYTES = 1_024

log = structlog.get_logger("gdf.controls")


class Said(Record, frozen=True, kw_only=True):
    """What a person said last: no work until ``paused_until_ms`` (Unix time; 0: work), or end when all is settled."""

    paused_until_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)] = 0
    finishing: bool = False


def load(path: Path) -> Said:
    """Return what was said before the node started; nothing if the file is missing or damaged."""
    try:
        with path.open("rb") as file:
            return decode(file.read(MAX_BYTES + 1), Said, max_bytes=MAX_BYTES)
    except (OSError, PeerError):
        return Said()


class Controls:
    """Says with ``get_hold`` why the node should not bid ("": it should), and takes bids back while it should not."""

    def __init__(
        self,
        context: NodeContext,
        path: Path,
        limits: Limits,
        stop: Callable[[], None],
        *,
        tell: Callable[[str], None] = lambda sentence: None,
        sensors: Callable[[], Sensors] | None = None,
    ) -> None:
        self._context, self._path, self._limits, self._stop, self._tell = context, path, limits, stop, tell
        self._sensors = sensors or (lambda: read_sensors(context.settings.torch_devices()))
        self._said = load(path)
        self._hot = False
        self._unavailable = ""
        self._later: dict[str, float] = {}  # job -> trio time before which its bid is not taken back again

    @property
    def finishing(self) -> bool:
        """The node ends as soon as all its units are settled."""
        return self._said.finishing

    def get_hold(self) -> str:
        """Return why this node offers nothing now, or ""."""
        if self._said.finishing:
            left = len(my_units(self._context.state, self._context.account))
            return f"finishing: {left} unit{'' if left == 1 else 's'} not settled yet; no new bids"
        until = self._said.paused_until_ms
        if until >= FOREVER_MS:
            return "paused until `gdf-market resume`"
        if until > _now_ms():
            return f"paused for another {(until - _now_ms()) // SECOND_MS + 1} s, or until `gdf-market resume`"
        return self._unavailable

    def pause(self, for_ms: int | None) -> None:
        """Bid on nothing for so long (None: until ``resume``).  Raises UsageError, StorageError."""
        if for_ms is not None:
            ensure(0 < for_ms <= MAX_PAUSE_MS, UsageError(f"a pause of {for_ms} ms is not between 1 ms and a year"))
        self._say(Said(paused_until_ms=FOREVER_MS if for_ms is None else _now_ms() + for_ms))

    def resume(self) -> None:
        """Bid again, whatever was said before.  Raises StorageError."""
        self._say(Said())

    def finish(self) -> None:
        """Take no new work, and end the node when all is settled.  Raises StorageError."""
        self._say(Said(finishing=True))

    def _say(self, said: Said) -> None:
        write_atomic(self._path, encode(said))
        self._said = said

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await self._look()
            await trio.sleep(LOOK_S)

    async def _look(self) -> None:
        sensors = await trio.to_thread.run_sync(self._sensors)
        too_hot = why_hot(self._limits, sensors, hot=self._hot)
        if too_hot and not self._hot:
            self._tell(too_hot)
        self._hot = bool(too_hot)
        self._unavailable = why_not(self._limits, sensors, hot=self._hot)
        if not self.get_hold():
            return
        await self._leave_jobs()
        if self._said.finishing and not my_units(self._context.state, self._context.account) and not self._live():
            self._say(Said())  # the next start works again
            self._context.note("finish", "all units are settled; the node ends")
            self._stop()

    def _live(self) -> list[str]:
        """Return the jobs on which this account has a bid that is open, or matched and not leaving yet."""
        state, account = self._context.state, self._context.account
        found = []
        for job_id in state.active().jobs:
            bid = state.bid(job_id, account)
            if bid is not None and bid.status in ("open", "matched"):
                found.append(job_id)
        return found

    async def _leave_jobs(self) -> None:
        now = trio.current_time()
        self._later = {job: at for job, at in self._later.items() if at > now}
        for job_id in self._live():
            bid = self._context.state.bid(job_id, self._context.account)
            if job_id in self._later or bid is None or bid.leaving:
                continue
            self._later[job_id] = now + RETRY_S
            try:
                await self._context.submit(BidWithdraw, job=job_id)
            except GdfError as error:
                log.info("bid not taken back", job=job_id[:16], error=str(error))
                self._context.note("withdraw", str(error))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
