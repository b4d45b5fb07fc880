"""The bidder: prefetches orders that fit, bids on jobs on the ledger, and says why when it does not.

Jobs are measured side by side and decided together: the one that pays this machine best gets its time first
(gdf_market/node/choosing.py).  A bid is decided anew whenever time is free again: when a job ends, a bid is closed, or
an open bid could offer more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from contracts.draws import is_convicted
from contracts.parameters import MIN_AUDIT_MS, verdict
from contracts.records import Bid as BidRecord
from contracts.records import Job
from gdf_market.book import match
from gdf_market.book.core import OrderBook
from gdf_market.book.match import Capabilities
from gdf_market.codec import encode
from gdf_market.errors import GdfError, LocalError, ensure
from gdf_market.messages import Bid, JobPost
from gdf_market.node.choosing import Promise, compute_rank, count_units, get_price, promise_of
from gdf_market.node.context import JobFiles, NodeContext
from gdf_market.node.ledger_service import now_ms
from gdf_market.node.runner_process import RequestFailedError
from gdf_market.units import PPB, SECOND_MS, format_credits

PROBE_STEPS = 3
PROBE_S = 120.0  # a probe holds up this node's own units: a program that needs longer is left to faster machines
RETRY_MS = 5_000  # pause after a failure
SLOW_RETRY_MS = 60_000  # ... after a probe that took too long, or that this machine cannot run; doubled each time
MAX_RETRY_MS = 3_600_000
COMPARE_MS = 10_000  # a job waits so long for others to be measured, and at most half its bidding window
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
        self._measuring: set[str] = set()  # jobs among those in ``_bidding``
        self._offered: dict[str, int] = {}  # job -> units of a bid that is not final yet
        self._since: dict[str, int] = {}  # job -> when it could be bid on first
        self._raised: dict[str, int] = {}  # job -> end of the bidding window in which its open bid was raised
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
            if self._needs_measuring(job_id) and self._take_place(self._bidding, MAX_BIDDING, job_id):
                self._measuring.add(job_id)
                nursery.start_soon(self._measure, job_id, nursery)
        for order in orders:
            if self._take_place(self._prefetching, MAX_PREFETCHING, order.id):
                nursery.start_soon(self._guard, self._prefetching, order.id, self._prefetch, order.spec)
        self._decide(nursery)

    def _forget_others(self, known: set[str]) -> None:
        """Drop what is remembered of orders and jobs that are gone."""
        for remembered in (self.reasons, self._retry, self._slow, self._since, self._raised):
            for job_id in remembered.keys() - known:
                del remembered[job_id]

    def _take_place(self, busy: set[str], most: int, job_id: str) -> bool:
        """Take a place among the ``most`` jobs at work; False if there is none, or it is too early after a failure."""
        if job_id in busy or len(busy) >= most or self._retry.get(job_id, 0) > now_ms():
            return False
        busy.add(job_id)
        return True

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

    def _needs_measuring(self, job_id: str) -> bool:
        """Say whether a job's step time is wanted: to bid on it, or to know what a bid of an earlier run promised."""
        job = self._context.state.job(job_id)
        if job is None or _step_key(job.spec) in self._ready:
            return False
        return self._has_bid(job) or not self._refusal(job)

    def _refusal(self, job: Job) -> str:
        """Return, and note, why this node would not bid on a job now whatever time it has, or ""."""
        reason = self.hold() or self.unfit(job.id, job.spec) or self._closed(job)
        if reason:
            self.reasons[job.id] = reason
        return reason

    async def _measure(self, job_id: str, nursery: trio.Nursery) -> None:
        try:
            await self._guard(self._bidding, job_id, self._prepare_job)
        finally:
            self._measuring.discard(job_id)
        self._decide(nursery)

    async def _prepare_job(self, job_id: str) -> None:
        job = self._context.state.job(job_id)
        if job is not None:
            await self._prepare(job.spec)

    def _decide(self, nursery: trio.Nursery) -> None:
        """Give this machine's time to the jobs that pay it best; bid, or note why not."""
        found = [self._context.state.job(job_id) for job_id in self._context.state.active().jobs]
        jobs = [(job, step_s) for job in found if job and (step_s := self._ready.get(_step_key(job.spec))) is not None]
        for job, step_s in sorted(jobs, key=lambda pair: compute_rank(*pair)):
            if job.id not in self._bidding:
                units = self._units_to_offer(job, step_s)
                if units and self._take_place(self._bidding, MAX_BIDDING, job.id):
                    self._offered[job.id] = units
                    nursery.start_soon(self._guard, self._bidding, job.id, self._bid, units)

    def _units_to_offer(self, job: Job, step_s: float) -> int:
        """Return how many units to bid for now; 0, with the reason noted, for none."""
        if self._refusal(job):
            return 0
        bid = self._context.state.bid(job.id, self._context.account)
        live = bid is not None and bid.status in ("open", "matched")
        if live:
            self.reasons.pop(job.id, None)
        if self._may_be_outdone(job) and not live:
            self.reasons[job.id] = "is compared with jobs that are being measured"
            return 0
        units = self._units_that_fit(job, step_s)
        if bid is not None and live:
            return units if self._can_raise(job, bid, units) else 0
        if units == 0:
            self.reasons[job.id] = (
                f"a unit takes {step_s * job.spec.recipe.steps:.0f} s here; beside other work of this node that is "
                f"too long for the {job.spec.work_ms / SECOND_MS:.0f} s which the job allows"
            )
        return units

    def _may_be_outdone(self, job: Job) -> bool:
        """Say whether a better job may still turn up: others are being measured, and there is time to wait for them."""
        now = now_ms()
        waited_ms = now - self._since.setdefault(job.id, now)
        in_time = job.status != "bidding" or job.phase_end_ms - now > job.spec.bid_ms / 2
        return bool(self._measuring) and in_time and waited_ms < COMPARE_MS

    def _can_raise(self, job: Job, bid: BidRecord, units: int) -> bool:
        """Say whether an open bid should offer more units, as time became free; once in a window, as it costs a fee."""
        if bid.status != "open" or units <= bid.units or self._raised.get(job.id) == job.phase_end_ms:
            return False
        self._raised[job.id] = job.phase_end_ms
        return True

    async def _bid(self, job_id: str, units: int) -> None:
        context, price = self._context, self._context.settings.min_price
        try:
            await context.submit(Bid, job=job_id, price=price, units=units, device_class=self._device_class)
        finally:
            del self._offered[job_id]
        self.reasons.pop(job_id, None)
        job = context.state.job(job_id)
        title = job.spec.title if job is not None else job_id[:12]
        context.note("bid", f"bid {format_credits(price)} on {title!r}")

    def _units_that_fit(self, job: Job, step_s: float) -> int:
        """Return how many units of the job this node can do in a round, beside the units it bid for elsewhere."""
        spec = job.spec
        possible = count_units(job, step_s, self._promises(job.id))
        affordable = self._bondable(job.id) // spec.unit_bond if spec.unit_bond else possible
        return min(self._context.settings.units, job.slots.count(""), possible, affordable)

    def _promises(self, but: str) -> list[Promise]:
        """Return what every other live bid of this account, final or not, may ask of this machine in a round."""
        state, found = self._context.state, []
        for job_id in state.active().jobs:
            job, bid = state.job(job_id), state.bid(job_id, self._context.account)
            live = bid.units if bid is not None and bid.status in ("open", "matched") else 0
            units = max(live, self._offered.get(job_id, 0))
            if job is not None and units and job_id != but:
                found.append(promise_of(job, units, self._ready.get(_step_key(job.spec))))
        return found

    def _has_bid(self, job: Job) -> bool:
        bid = self._context.state.bid(job.id, self._context.account)
        return bid is not None and bid.status in ("open", "matched")

    def _closed(self, job: Job) -> str:
        """Return why a bid now would be refused or pointless, or ""."""
        if is_convicted(self._context.state, job.id, self._context.account):
            return "convicted in this job"
        if self._has_bid(job):
            return ""
        if job.ending or job.status not in ("bidding", "running"):
            return f"the job is {job.ending or job.status}"
        if "" not in job.slots:
            return f"every slot is taken{self._last_outcome(job)}"
        asked = self._context.settings.min_price
        if asked > get_price(job):  # workers that stayed agreed to this price: nobody joins them for more
            return f"its slots go at {format_credits(get_price(job))} credits; this worker asks {format_credits(asked)}"
        return ""

    def _last_outcome(self, job: Job) -> str:
        """Return what the ledger says of this account's last bid on a job, in brackets, or ""."""
        bid = self._context.state.bid(job.id, self._context.account)
        return f" ({bid.reason})" if bid is not None and bid.reason else ""

    def standing(self, job_id: str) -> str:
        """Return what this account has to do with a job: its bid, its slots, or why neither; "" if nothing is known."""
        job, bid = self._context.state.job(job_id), self._context.state.bid(job_id, self._context.account)
        if job is None or bid is None or bid.status == "closed":
            return self.reasons.get(job_id, "")
        if bid.status == "open":
            return f"bids {format_credits(bid.price)} for up to {bid.units} units; {job.reason or 'the window is open'}"
        leaving = ", leaves when the round ends" if bid.leaving else ""
        return f"holds {job.slots.count(bid.worker)} slots at {format_credits(job.clearing_price)}{leaving}"


def _step_key(spec: JobPost) -> bytes:
    """Return what the time of a step depends on."""
    return encode([spec.program, spec.data, spec.checkpoint, spec.recipe])
