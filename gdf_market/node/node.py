"""One node: control host, bulk host, ledger replica, order book, roles and local API, in one trio nursery."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypercorn.config
import hypercorn.trio
import structlog
import trio

from contracts.block import check_entry
from contracts.jobs import escrow_of
from contracts.records import Job
from contracts.state import network_id
from gdf_market.blobs.disk import storing
from gdf_market.blobs.room import sensible_quota
from gdf_market.blobs.store import BlobStore
from gdf_market.book.core import Order, OrderBook
from gdf_market.errors import GdfError, PeerError, RuleError, StorageError, UsageError, ensure
from gdf_market.identity import Identity
from gdf_market.messages import Entry, JobPost, Void
from gdf_market.node import neighbours
from gdf_market.node.addresses import announced_elsewhere
from gdf_market.node.api import create_api
from gdf_market.node.bidding import Bidder
from gdf_market.node.bulk import BulkHost
from gdf_market.node.bulk_reach import keep_reachable
from gdf_market.node.context import ENTRY_TTL_MS, NodeContext
from gdf_market.node.control import ControlHost
from gdf_market.node.controls import Controls
from gdf_market.node.datadir import DataDir, write_atomic
from gdf_market.node.declaring import Declarer
from gdf_market.node.journal import Journal
from gdf_market.node.ledger_service import LedgerService, now_ms
from gdf_market.node.machine import unit_memory_bytes
from gdf_market.node.metrics import serve_metrics
from gdf_market.node.notify import Notifier
from gdf_market.node.own_orders import OwnOrders
from gdf_market.node.pinning import Pinner
from gdf_market.node.repairing import Repairer
from gdf_market.node.roles import Roles
from gdf_market.node.settings import Settings
from gdf_market.node.trainer import Trainer
from ledger import effects as core
from ledger.store import LedgerStore

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # the installed stubs of trio name it there

REPUBLISH_S = 5.0  # an order is gossiped again this often until its job is final
MAX_NOTES = 64
_STATS_S = 2.0  # the blobs' process may be starting anew
ENDED = ("done", "cancelled", "expired")

log = structlog.get_logger("gdf.node")


class Node:
    """A running node; build it with ``open_node``."""

    def __init__(
        self,
        data: DataDir,
        settings: Settings,
        context: NodeContext,
        control: ControlHost,
        book: OrderBook,
        *,
        worker: bool,
        poison: str,
    ) -> None:
        self.data, self.settings, self.context, self.control, self.book = data, settings, context, control, book
        self.roles = Roles(context, poison=poison)
        self.bidder = Bidder(context, book, device_class=settings.device_class) if worker else None
        self.declarer = Declarer(context, data.calibration, lambda: worker or context.ledger.replica.is_validator)
        self.notes: dict[str, str] = {}
        self.url = ""
        self.own_orders = OwnOrders(data.orders, context.network)
        self.pinner = Pinner(context, orders=self._own_specs, in_use=self.roles.get_jobs_in_use)
        self.repairer = Repairer(context, self.pinner)
        self.notifier = Notifier(context.account, settings.notify)
        self._stop = trio.Event()
        self.controls = (
            Controls(context, data.controls, settings.work_limits(), self.stop, tell=self.notifier.tell)
            if worker
            else None
        )
        if self.bidder is not None and self.controls is not None:
            self.bidder.hold = self.controls.get_hold
        self._started_ms = now_ms()

    # what the API offers ------------------------------------------------------

    def stop(self) -> None:
        """End the node; ``run`` returns soon after."""
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Return when ``stop`` was called."""
        await self._stop.wait()

    def status(self) -> dict[str, Any]:
        """Return what `gdf-market status` shows."""
        replica = self.context.ledger.replica
        account = self.context.state.account(self.context.account)
        return {
            "account": self.context.account,
            "network": self.context.network,
            "addresses": list(self.control.addresses),
            "peers": sorted(self.control.peers),
            "reach": self.control.reachability(),
            "height": replica.height,
            "head": replica.head,
            "state_root": replica.state_root,
            "block_age_ms": max(0, now_ms() - replica.time_ms) if replica.height else None,
            "validator": replica.is_validator,
            "worker": self.bidder is not None,
            "balance": account.balance,
            "stake": account.stake,
            "trained": self.roles.trained,
            "audited": self.roles.audited,
            "orders": len(self.book.orders()),
            "refused_orders": dict(self.book.refused),
            "idle_reasons": self._idle_reasons(),
            "bids": self._standings(),
            "hold": self.controls.get_hold() if self.controls is not None else "",
            "step": list(self.context.trainer.progress or ()) or None,
            "dropped": self.context.ledger.dropped,
            "storage": self.pinner.status() | {"copied": self.repairer.copied, "short": dict(self.repairer.short)},
            "limits": {"up": self.context.bulk.upload_bytes_per_s, "down": self.context.bulk.download_bytes_per_s},
            "notes": dict(self.notes),
            "uptime_s": (now_ms() - self._started_ms) // 1_000,
        }

    async def refused(self) -> dict[str, int]:
        """Return how often each reason to refuse a peer something occurred; bulk-…: at the host of the blobs."""
        counts = self.control.counters
        with trio.move_on_after(_STATS_S):
            counts |= {f"bulk-{name}": count for name, count in (await self.context.bulk.stats())["counters"].items()}
        return counts

    def _idle_reasons(self) -> dict[str, str]:
        """Return why this node has no bid, by job; under "*" what concerns all of them."""
        if self.bidder is None:
            return {"*": "this node does not work; start it with `gdf-market work`"}
        if self.controls is not None and self.controls.get_hold():
            return {"*": self.controls.get_hold()}
        if not self.control.peers and not self.context.ledger.replica.is_validator:
            return {"*": "no peer is connected; check the network, or join again with a fresh invite"}
        if not self.book.orders() and not self.context.state.active().jobs:
            return {"*": "nobody offers a job at the moment"}
        return dict(self.bidder.reasons)

    def _standings(self) -> dict[str, str]:
        """Return what this account's live bids stand for, by job."""
        state, bidder = self.context.state, self.bidder
        if bidder is None:
            return {}
        bids = {job: state.bid(job, self.context.account) for job in state.active().jobs}
        return {job: bidder.standing(job) for job, bid in bids.items() if bid is not None and bid.status != "closed"}

    def _row(self, job_id: str, spec: JobPost) -> dict[str, Any]:
        return {
            "id": job_id,
            "title": spec.title,
            "owner": spec.author,
            "reserve_price": spec.reserve_price,
            "rounds": spec.rounds,
            "units_per_round": spec.units_per_round,
            "device_class": spec.device_class,
            "unfit": self.bidder.unfit(job_id, spec) if self.bidder else "",
            "standing": self.bidder.standing(job_id) if self.bidder else "",
        }

    def order_rows(self) -> list[dict[str, Any]]:
        """Return announced orders and jobs under way, with why this node would not take them."""
        return [
            self._row(order.id, order.spec) | {"state": "announced", "reason": ""} for order in self.book.orders()
        ] + [self._job_row(job_id) for job_id in self.context.state.active().jobs]

    def _job_row(self, job_id: str) -> dict[str, Any]:
        job = self.context.state.job(job_id)
        assert job is not None, "an active job is in the state"
        over = job.status == "draining"  # no round will start: held pay alone waits
        return self._row(job_id, job.spec) | {"state": job.ending if over else job.status, "reason": job.reason}

    async def publish_order(self, fields: dict[str, Any], replace: str = "") -> str:
        """Sign a job order, put it in the own book and gossip it until its job is final; return its id.

        ``replace``: the start of the id of an own order whose place it takes: it gets the same nonce, so that the
        ledger takes one of them at most.  Raises RuleError for what the ledger would refuse, PeerError for what the
        book does, and UsageError.
        """
        given: dict[str, Any] = {}
        if replace:
            old = self.own_orders.find(replace)
            ensure(old.void is None, UsageError(f"order {old.order.id[:16]} was taken back; post a new one"))
            given = {"nonce": old.order.body.nonce, "expires_ms": self._later(old.order.body.expires_ms)}
        entry = self.context.seal(JobPost, **given, **fields)
        self._check(entry)
        self._accept(entry.raw, self.context.account)
        self.own_orders.put(entry)
        await trio.to_thread.run_sync(self.own_orders.save)
        self.control.publish_order(entry.raw)
        return entry.id

    def _later(self, expires_ms: int) -> int:
        """Return when an order expires that takes the place of one which expires at ``expires_ms``."""
        return max(now_ms() + ENTRY_TTL_MS, self.context.ledger.replica.time_ms + ENTRY_TTL_MS, expires_ms + 1)

    def _check(self, entry: Entry) -> None:
        """Raise RuleError unless the ledger would take the entry now."""
        check_entry(self.context.state, entry, max(now_ms(), self.context.ledger.replica.time_ms + 1))

    async def void_order(self, order_id: str) -> tuple[str, str, int]:
        """Take an own order back, for the fee; return (order id, void's entry id, height) once no one can post it.

        Raises UsageError, RuleError (the account cannot pay the fee, the order was posted meanwhile), NotFinalError.
        """
        own = self.own_orders.find(order_id)
        order, void = own.order, own.void
        if void is None:  # it lives as long as the order: whoever still has that one hears of both
            void = self.context.seal(Void, nonce=order.body.nonce, expires_ms=order.body.expires_ms)
        self._check(void)
        with contextlib.suppress(PeerError):  # the own book may have dropped the order, or know of the void
            self._accept(void.raw, self.context.account)
        self.own_orders.put(void)
        await trio.to_thread.run_sync(self.own_orders.save)
        self.control.publish_order(void.raw)
        height = await self.context.ledger.submit(void)
        return order.id, void.id, height

    async def post_order(self, order_id: str) -> tuple[str, int]:
        """Submit an own order's entry to the ledger; return (entry id, height) once it is final."""
        row = await trio.to_thread.run_sync(self.context.ledger.store.entry, order_id)
        if row is not None:  # asked before, and the answer came too late
            return row.id, row.height
        own = self.own_orders.find(order_id)
        ensure(own.void is None, UsageError(f"order {own.order.id[:16]} was taken back; post a new one"))
        height = await self.context.ledger.submit(own.order)
        return own.order.id, height

    # inner life ---------------------------------------------------------------

    def note(self, topic: str, sentence: str) -> None:
        if topic in self.notes or len(self.notes) < MAX_NOTES:
            self.notes[topic] = sentence

    def on_order(self, raw: bytes, peer: str) -> bool:
        """Take an order from gossip; True relays it."""
        try:
            self._accept(raw, peer)
        except PeerError as error:
            log.debug("order refused", peer=peer, reason=error.reason, error=str(error))
            return False
        return True

    def _accept(self, raw: bytes, peer: str) -> Order:
        state = self.context.state
        return self.book.on_order(
            raw,
            peer,
            now_ms(),
            balance_of=lambda account: state.account(account).balance,
            escrow_of=lambda spec: sum(escrow_of(spec)),
            is_spent=self._is_spent,
        )

    def _is_spent(self, author: str, nonce: int) -> bool:
        """Say whether the ledger took an entry of this author with this nonce within the life of any order."""
        return nonce in self.context.state.used.get(author, ())

    def _own_specs(self) -> list[JobPost]:
        """Return the own orders that may still become jobs."""
        return [own.order.body for own in self.own_orders if isinstance(own.order.body, JobPost) and own.void is None]

    def on_block(self, block: core.Finalized) -> None:
        """React to a finalized block: orders that became jobs, notes of jobs that ended."""
        for entry in block.entries:
            if isinstance(entry.body, JobPost):
                self.book.mark_posted(entry.id)
        self.book.drop_spent(self._is_spent)
        self.own_orders.forget(lambda entry: self._is_spent(entry.body.author, entry.body.nonce))
        self.notifier.on_events(block.events)
        self.book.drop_unfunded(lambda account: self.context.state.account(account).balance)
        ended = [event.job for event in block.events if event.kind == "job" and event.reason in ENDED]
        if ended:
            self.context.journal.forget(ended)

    def _ended_jobs(self) -> list[str]:
        """Return jobs that ended by the ledger as it is here: a node that was killed may have notes of them."""
        records = self.context.state.records.values()
        return [record.id for record in records if isinstance(record, Job) and record.status in ENDED]

    async def _tend_book(self) -> None:
        while True:
            await trio.sleep(REPUBLISH_S)
            self.book.expire(now_ms())
            await self._remember()
            await self._tend_own_orders()

    def _take_up_orders(self, nursery: trio.Nursery) -> None:
        """Go on with what the last run announced, and with taking back what it could not finish taking back."""
        for own in self.own_orders:
            if own.void is None:
                self.on_order(own.order.raw, self.context.account)
            else:
                nursery.start_soon(self._finish_void, own.void)

    async def _finish_void(self, void: Entry) -> None:
        try:
            await self.context.ledger.submit(void)
        except GdfError as error:
            self.note("orders", f"an order is not taken back yet: {error}")

    async def _tend_own_orders(self) -> None:
        """Gossip own orders, and voids, until they are over."""
        self.own_orders.forget(lambda entry: entry.body.expires_ms <= now_ms())
        try:
            if self.own_orders.changed:
                await trio.to_thread.run_sync(self.own_orders.save)
        except StorageError as error:  # what is over and still in the file is dropped again at the next start
            self.note("orders", str(error))
        for own in self.own_orders:
            self.control.publish_order(own.gossiped.raw)

    async def _remember(self) -> None:
        """Keep the own port and the peers' addresses for the next run."""
        port = self.control.port
        peers = tuple(sorted(self.control.peer_addresses))[: neighbours.MAX_PEERS]
        old = neighbours.load(self.data.neighbours)
        new = neighbours.Neighbours(port=port, peers=peers or old.peers)
        if new != old:
            try:
                await trio.to_thread.run_sync(neighbours.save, self.data.neighbours, new)
            except StorageError as error:  # only a convenience; what must not be lost is the ledger's
                self.note("neighbours", str(error))

    async def _serve_api(self, *, task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        token = secrets.token_urlsafe(32)
        config = hypercorn.config.Config()
        config.bind = ["127.0.0.1:0"]
        config.loglevel = "ERROR"
        config.errorlog = None
        async with trio.open_nursery() as nursery:
            binds = await nursery.start(hypercorn.trio.serve, create_api(self, token), config)
            self.url = binds[0]
            write_atomic(self.data.node_file, json.dumps({"url": self.url, "token": token}).encode(), private=True)
            task_status.started(self.url)

    async def _serve_metrics(self, nursery: trio.Nursery) -> None:
        port = self.settings.metrics_port
        try:
            await nursery.start(serve_metrics, self.status, port)
        except OSError as error:
            raise UsageError(f"metrics_port {port}: {error.strerror or error}; choose a free port") from None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop`` or cancellation."""
        async with trio.open_nursery() as nursery:
            self.context.ledger.listeners.append(self.on_block)
            self._take_up_orders(nursery)
            await self._remember()
            self.context.journal.forget(self._ended_jobs())
            await nursery.start(self.context.ledger.run)
            await nursery.start(self._serve_api)
            nursery.start_soon(self.roles.run)
            nursery.start_soon(self._tend_book)
            nursery.start_soon(self.pinner.run)
            nursery.start_soon(self.repairer.run)
            nursery.start_soon(self.declarer.run)
            nursery.start_soon(self.notifier.run)
            if self.settings.metrics_port:
                await self._serve_metrics(nursery)
            if self.bidder is not None and self.controls is not None:
                nursery.start_soon(self.bidder.run)
                nursery.start_soon(self.controls.run)
            task_status.started()
            await self._stop.wait()
            nursery.cancel_scope.cancel()


def _punish(control: ControlHost, peer: str, error: PeerError) -> None:
    """Disconnect a peer for bytes no honest node forwards; an entry that a rule refuses may be honest but late."""
    if not isinstance(error, RuleError):
        control.disconnect(peer, error)


def _worth(ledger: LedgerService, account: str) -> int:
    """Return what the ledger makes of an account: 2 for a validator, 1 for one with credits, else 0."""
    if account in ledger.replica.epoch.validators:
        return 2
    known = ledger.state.account(account)
    return 1 if known.balance or known.stake else 0


def _trainer(settings: Settings) -> Trainer:
    devices = settings.torch_devices()
    return Trainer(
        threads=settings.threads,
        device=devices[0],
        devices=devices if len(devices) > 1 else (),
        memory_bytes=settings.memory_bytes or unit_memory_bytes(devices),
    )


def _blob_store(data: DataDir, settings: Settings) -> BlobStore:
    """Open the store of the folder, with the quota that is set or a sensible one.  Raises StorageError."""
    blobs = BlobStore(data.blobs, max_blob_bytes=settings.max_blob_bytes)
    blobs.clean_staging(time.time() - 86_400)
    with storing(data.blobs):
        free = shutil.disk_usage(data.blobs).free
    blobs.room.quota_bytes = settings.blob_quota or sensible_quota(blobs.total_bytes(), free)
    return blobs


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Give an empty folder for the runner's files, and remove it afterwards.  Raises StorageError."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {folder}: {error.strerror}; choose another --data-dir") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def open_node(
    data: DataDir, settings: Settings, identity: Identity, *, worker: bool = False, poison: str = ""
) -> AsyncIterator[Node]:
    """Run a node on ``data`` for the length of the context.

    Raises UsageError (folder in use, port in use, poison outside a test network), StorageError.
    """
    genesis = data.genesis()
    network = network_id(genesis)
    ensure(
        not poison or genesis.test_network,
        UsageError(f"--test-poison works on test networks only; {genesis.name!r} is not one"),
    )
    with data.lock(), contextlib.ExitStack() as stack:
        known = neighbours.load(data.neighbours)
        port = neighbours.choose_port(settings.listen_host, settings.listen_port, known.port)
        store = stack.enter_context(contextlib.closing(LedgerStore(data.ledger)))
        store.create(genesis)
        blobs = _blob_store(data, settings)
        scratch = stack.enter_context(_scratch(data.root / "scratch"))
        book = OrderBook(network)
        holder: list[Node] = []
        async with (
            BulkHost(
                identity,
                network,
                data.blobs,
                host=settings.listen_host,
                port=settings.bulk_port,
                announce=announced_elsewhere(settings.announce),
                quota_bytes=blobs.room.quota_bytes or 0,
            ) as bulk,
            _trainer(settings) as trainer,
        ):
            bulk.limit_upload(settings.limit_up)
            bulk.limit_download(settings.limit_down)

            def gone(peer: str) -> None:
                bulk.remove_source(peer)
                ledger.post(core.PeerDown(peer))

            control = ControlHost(
                identity,
                network,
                listen=(settings.listen_host, port),
                bootstrap=[*settings.bootstrap, *known.peers],
                announce=settings.announce,
                relay=settings.relay,
                lan=settings.uses_lan(),
                on_bulk=bulk.add_source,
                on_frame=lambda peer, frame: ledger.post(core.Received(peer, frame)),
                on_peer_up=lambda peer: ledger.post(core.PeerUp(peer)),
                on_peer_down=gone,
                on_order=lambda raw, peer: bool(holder) and holder[0].on_order(raw, peer),
                worth=lambda account: _worth(ledger, account),
            )
            ledger = LedgerService(
                genesis,
                identity,
                store,
                send=control.send,
                broadcast=control.broadcast,
                misbehaved=lambda peer, error: _punish(control, peer, error),
                waiting_bytes=control.waiting_bytes,
                from_snapshot=settings.sync == "snapshot",
                keep_epochs=settings.keep_epochs or None,
            )
            context = NodeContext(
                identity=identity,
                network=network,
                settings=settings,
                ledger=ledger,
                blobs=blobs,
                bulk=bulk,
                trainer=trainer,
                journal=Journal(data.units),
                scratch=scratch,
                note=lambda topic, sentence: holder[0].note(topic, sentence) if holder else None,
            )
            node = Node(data, settings, context, control, book, worker=worker, poison=poison)
            holder.append(node)
            async with control.run(), trio.open_nursery() as nursery:
                control.announce_bulk(bulk.peer, bulk.addresses)
                nursery.start_soon(lambda: keep_reachable(control, bulk, relay=settings.relay))
                await nursery.start(node.run)
                yield node
                nursery.cancel_scope.cancel()
