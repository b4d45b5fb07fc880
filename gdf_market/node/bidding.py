"""The bidder: prefetches orders that fit, bids on jobs on the ledger, and says why when it does not."""

from __future__ import annotations

import structlog
import trio

from contracts.records import Job
from gdf_market.book import match
from gdf_market.book.core import OrderBook
from gdf_market.book.match import Capabilities
from gdf_market.errors import GdfError
from gdf_market.messages import Bid, JobPost
from gdf_market.node.context import NodeContext
from gdf_market.node.ledger_service import now_ms
from gdf_market.units import format_credits

PROBE_STEPS = 3
WORK_SHARE = 0.8  # a unit must fit in this share of the work phase
RETRY_MS = 5_000
MAX_KNOWN = 1_024

log = structlog.get_logger("gdf.bidding")


class Bidder:
    """Decides per job; ``reasons`` maps a job to why this node has no bid on it."""

    def __init__(self, context: NodeContext, book: OrderBook, *, device_class: str) -> None:
        self._context, self._book, self._device_class = context, book, device_class
        self._ready: dict[str, float] = {}  # program + data -> measured seconds per step
        self._busy: set[str] = set()
        self._retry: dict[str, int] = {}
        self.reasons: dict[str, str] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for order in self._book.orders():
                    self._spawn(nursery, order.id, self._prefetch, order.id, order.spec)
                for job_id in self._context.state.active().jobs:
                    self._spawn(nursery, "bid/" + job_id, self._consider, job_id)
                with trio.move_on_after(1.0):
                    await self._context.ledger.wait_block()

    def _spawn(self, nursery: trio.Nursery, key: str, task, *args: object) -> None:  # type: ignore[no-untyped-def]
        if key in self._busy or self._retry.get(key, 0) > now_ms():
            return
        self._busy.add(key)
        nursery.start_soon(self._guard, key, task, *args)

    async def _guard(self, key: str, task, *args: object) -> None:  # type: ignore[no-untyped-def]
        try:
            await task(*args)
        except (GdfError, trio.TooSlowError) as error:
            log.info("not now", key=key[:24], error=str(error))
            self._say(key.removeprefix("bid/"), str(error))
            if len(self._retry) > MAX_KNOWN:
                self._retry.clear()
            self._retry[key] = now_ms() + RETRY_MS
        finally:
            self._busy.discard(key)

    def _say(self, job_id: str, reason: str) -> None:
        if len(self.reasons) >= MAX_KNOWN:
            self.reasons.clear()
        self.reasons[job_id] = reason

    def unfit(self, spec: JobPost) -> str:
        """Return why this node would never take the job, or ""."""
        context = self._context
        worker = Capabilities(context.account, (self._device_class,), min_price=context.settings.min_price)
        return "; ".join(match.unfit(spec, worker))

    async def _prefetch(self, job_id: str, spec: JobPost) -> None:
        reason = self.unfit(spec)
        if reason:
            self._say(job_id, reason)
            return
        await self._prepare(spec)

    async def _prepare(self, spec: JobPost) -> float:
        """Hold the job's blobs and know its step time (seconds)."""
        key = spec.program + spec.data + spec.checkpoint
        if key not in self._ready:
            files = await self._context.files(spec)
            limit = 8 * spec.parameters + 4_096
            checkpoint = await self._context.bulk.fetch(spec.checkpoint, max_bytes=limit)
            if len(self._ready) > MAX_KNOWN:
                self._ready.clear()
            self._ready[key] = await self._context.trainer.probe(
                program=files.program,
                data=files.data,
                tokens=files.tokens,
                checkpoint=checkpoint,
                recipe=spec.recipe,
                steps=PROBE_STEPS,
            )
        return self._ready[key]

    async def _consider(self, job_id: str) -> None:
        context = self._context
        job = context.state.job(job_id)
        if job is None:
            return
        reason = self.unfit(job.spec) or self._closed(job)
        if reason:
            self._say(job_id, reason)
            return
        step_s = await self._prepare(job.spec)
        units = self._units_that_fit(job, step_s)
        if units == 0:
            needed = step_s * job.spec.recipe.steps
            self._say(job_id, f"a unit takes {needed:.0f} s here; the job allows {job.spec.work_ms / 1_000:.0f} s")
            return
        bond = units * job.spec.unit_bond
        if context.state.account(context.account).balance < bond:
            self._say(job_id, f"a bid locks {format_credits(bond)} credits as bond; the balance is too low")
            return
        price = context.settings.min_price
        await context.submit(Bid, job=job_id, price=price, units=units, device_class=self._device_class)
        self.reasons.pop(job_id, None)
        context.note("bid", f"bid {format_credits(context.settings.min_price)} on {job.spec.title!r}")

    def _units_that_fit(self, job: Job, step_s: float) -> int:
        unit_s = max(step_s * job.spec.recipe.steps, 1e-3)
        possible = int(WORK_SHARE * job.spec.work_ms / 1_000 / unit_s)
        return min(self._context.settings.units, job.spec.units_per_round, possible)

    def _closed(self, job: Job) -> str:
        """Return why a bid now would be refused or pointless, or ""."""
        bid = self._context.state.bid(job.id, self._context.account)
        if bid is not None and bid.status in ("open", "matched"):
            return f"already {bid.status}"
        if bid is not None and bid.reason.startswith("convicted"):
            return "convicted in this job"
        if job.status == "bidding":
            return ""
        if job.status == "running":
            return "" if "" in job.slots else "every slot is taken"
        return f"the job is {job.status}"
