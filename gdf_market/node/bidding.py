"""The bidder: prefetches orders that fit, bids on jobs on the ledger, and says why when it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from contracts.draws import is_convicted
from contracts.parameters import verdict
from contracts.records import Job
from gdf_market.book import match
from gdf_market.book.core import OrderBook
from gdf_market.book.match import Capabilities
from gdf_market.codec import encode
from gdf_market.errors import GdfError, LocalError, ensure
from gdf_market.messages import Bid, JobPost
from gdf_market.node.context import JobFiles, NodeContext
from gdf_market.node.ledger_service import now_ms
from gdf_market.node.runner_process import RequestFailedError
from gdf_market.train.sizing import units_that_fit
from gdf_market.units import PPB, SECOND_MS, format_credits

PROBE_STEPS = 3
PROBE_S = 120.0  # a probe holds up this node's own units: a program that needs longer is left to faster machines
RETRY_MS = 5_000  # pause after a failure
SLOW_RETRY_MS = 60_000  # ... after a probe that took too long, or that this machine cannot run; doubled each time
MAX_RETRY_MS = 3_600_000
MIN_AUDIT_MS = 10_000  # several blocks: an owner that gives less gets the bonds of those that cannot answer in time
MAX_KNOWN = 1_024
MAX_BIDDING = 32  # jobs under consideration at once
MAX_PREFETCHING = 8  # orders being fetched at once: anybody with credits can announce orders

log = structlog.get_logger("gdf.bidding")


class TooSlowHereError(LocalError):
    """The job's program runs too slowly on this machine (now) to be measured."""


class RefusedHereError(LocalError):
    """The job's program is none that this machine can run, for lack of memory for example."""


class Bidder:
    """Decides per job; ``reasons`` maps a job to why this node has no bid on it."""

    def __init__(self, context: NodeContext, book: OrderBook, *, device_class: str) -> None:
        self._context, self._book, self._device_class = context, book, device_class
        self._ready: dict[bytes, float] = {}  # what a step depends on -> measured seconds per step
        self._bidding: set[str] = set()
        self._prefetching: set[str] = set()
        self._retry: dict[str, int] = {}  # job -> when it may be tried again
        self._slow: dict[str, int] = {}  # job -> pause after the last probe that gave no figure
        self._offered: dict[str, float] = {}  # job -> seconds per round of a bid that is not final yet
        self.reasons: dict[str, str] = {}
        self.hold: Callable[[], str] = str  # why no bid is made on anything now, or ""

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._start_due(nursery)
                with trio.move_on_after(1.0):
                    await self._context.ledger.wait_block()

    def _start_due(self, nursery: trio.Nursery) -> None:
        jobs = self._context.state.active().jobs
        orders = self._book.orders()
        self._forget_others({*jobs, *(order.id for order in orders)})
        for job_id in jobs:
            self._spawn(nursery, self._bidding, MAX_BIDDING, job_id, self._consider)
        for order in orders:
            self._spawn(nursery, self._prefetching, MAX_PREFETCHING, order.id, self._prefetch, order.spec)

    def _forget_others(self, known: set[str]) -> None:
        """Drop what is remembered of orders and jobs that are gone."""
        for remembered in (self.reasons, self._retry, self._slow):
            for job_id in remembered.keys() - known:
                del remembered[job_id]

    def _spawn(
        self,
        nursery: trio.Nursery,
        busy: set[str],
        most: int,
        job_id: str,
        task: Callable[..., Awaitable[None]],
        *args: object,
    ) -> None:
        if job_id in busy or len(busy) >= most or self._retry.get(job_id, 0) > now_ms():
            return
        busy.add(job_id)
        nursery.start_soon(self._guard, busy, job_id, task, *args)

    async def _guard(self, busy: set[str], job_id: str, task: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            await task(job_id, *args)
        except GdfError as error:
            log.info("not now", job=job_id[:16], error=str(error))
            self.reasons[job_id] = str(error)
            pause_ms = RETRY_MS
            if isinstance(error, TooSlowHereError | RefusedHereError):
                pause_ms = self._slow[job_id] = min(2 * self._slow.get(job_id, SLOW_RETRY_MS // 2), MAX_RETRY_MS)
            self._retry[job_id] = now_ms() + pause_ms
        finally:
            busy.discard(job_id)

    def unfit(self, job_id: str, spec: JobPost) -> str:
        """Return why this node would not take the order or job, or ""."""
        context = self._context
        bid = context.state.bid(job_id, context.account)
        if bid is not None and bid.status in ("open", "matched"):
            return ""
        worker = Capabilities(
            context.account,
            (self._device_class,),
            min_price=context.settings.min_price,
            max_unit_bond=self._bondable(job_id),
            min_audit_ms=MIN_AUDIT_MS,
        )
        return "; ".join(match.unfit(spec, worker))

    def _bondable(self, job_id: str) -> int:
        """Return the micro-credits this account can lock as bond: a new bid may use what its old one has locked."""
        state, account = self._context.state, self._context.account
        bid = state.bid(job_id, account)
        left = state.account(account).balance - state.network().entry_fee  # a bid is an entry of one KiB
        return max(0, left) + (bid.bond if bid is not None else 0)

    async def _prefetch(self, job_id: str, spec: JobPost) -> None:
        reason = self.hold() or self.unfit(job_id, spec)
        if reason:
            self.reasons[job_id] = reason
            return
        await self._prepare(spec)

    async def _prepare(self, spec: JobPost) -> float:
        """Hold the job's blobs and know its step time (seconds).  Raises GdfError."""
        key = _step_key(spec)
        if key not in self._ready:
            files = await self._context.files(spec)
            checkpoint = await self._context.bulk.fetch(spec.checkpoint, max_bytes=8 * spec.parameters + 4_096)
            if len(self._ready) >= MAX_KNOWN:
                self._ready.clear()
            self._ready[key] = await self._probe(spec, files, checkpoint)
        return self._ready[key]

    async def _probe(self, spec: JobPost, files: JobFiles, checkpoint: Path) -> float:
        """Return the seconds of a step as this node runs it: on all its devices, and in parts where memory is short."""
        with trio.move_on_after(PROBE_S):
            try:
                found = await self._context.trainer.probe(
                    program=files.program,
                    data=files.data,
                    content=files.content,
                    checkpoint=checkpoint,
                    recipe=spec.recipe,
                    steps=PROBE_STEPS,
                )
            except RequestFailedError as error:
                raise RefusedHereError(f"cannot be run here: {error}") from error
            ensure(
                verdict(self._device_class, found.excess_ppb, 0) == "pass",
                RefusedHereError(
                    f"its steps cannot be repeated: in another order of additions they differ by "
                    f"{found.excess_ppb / PPB:.1e}, and an audit of honest work would not pass"
                ),
            )
            return found.step_s
        raise TooSlowHereError(f"{PROBE_STEPS} steps of it were not done within {PROBE_S:.0f} s here")

    async def _consider(self, job_id: str) -> None:
        context = self._context
        job = context.state.job(job_id)
        if job is None:
            return
        reason = self.hold() or self.unfit(job_id, job.spec) or self._closed(job)
        if reason:
            self.reasons[job_id] = reason
            return
        if self._has_bid(job):
            self.reasons.pop(job_id, None)
            return
        step_s = await self._prepare(job.spec)
        units = self._units_that_fit(job, step_s)
        if units == 0:
            self.reasons[job_id] = (
                f"a unit takes {step_s * job.spec.recipe.steps:.0f} s here; beside other work of this node that is "
                f"too long for the {job.spec.work_ms / SECOND_MS:.0f} s which the job allows"
            )
            return
        price = context.settings.min_price
        self._offered[job_id] = units * job.spec.recipe.steps * step_s
        try:
            await context.submit(Bid, job=job_id, price=price, units=units, device_class=self._device_class)
        finally:
            del self._offered[job_id]
        self.reasons.pop(job_id, None)
        context.note("bid", f"bid {format_credits(price)} on {job.spec.title!r}")

    def _units_that_fit(self, job: Job, step_s: float) -> int:
        """Return how many units of the job this node can do in a round, beside the units it bid for elsewhere."""
        spec = job.spec
        possible = units_that_fit(step_s * spec.recipe.steps, spec.work_ms / SECOND_MS, self._promised_s(job.id))
        affordable = self._bondable(job.id) // spec.unit_bond if spec.unit_bond else possible
        return min(self._context.settings.units, spec.units_per_round, possible, affordable)

    def _promised_s(self, but: str) -> float:
        """Return the seconds that a round of every other job with a live bid of this account takes here."""
        state = self._context.state
        total = sum(seconds for job_id, seconds in self._offered.items() if job_id != but)
        for job_id in state.active().jobs:
            job, bid = state.job(job_id), state.bid(job_id, self._context.account)
            if job_id != but and job is not None and bid is not None and bid.status in ("open", "matched"):
                total += bid.units * job.spec.recipe.steps * self._ready.get(_step_key(job.spec), 0.0)
        return total

    def _has_bid(self, job: Job) -> bool:
        bid = self._context.state.bid(job.id, self._context.account)
        return bid is not None and bid.status in ("open", "matched")

    def _closed(self, job: Job) -> str:
        """Return why a bid now would be refused or pointless, or ""."""
        if is_convicted(self._context.state, job.id, self._context.account):
            return "convicted in this job"
        if self._has_bid(job) or job.status == "bidding":
            return ""
        if job.status == "running":
            return "" if "" in job.slots else "every slot is taken"
        over = job.ending if job.status == "draining" else job.status
        return f"the job is {over}"


def _step_key(spec: JobPost) -> bytes:
    """Return what the time of a step depends on."""
    return encode([spec.program, spec.data, spec.checkpoint, spec.recipe])
