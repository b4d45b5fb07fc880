"""Four validators as processes of their own on this machine: entries a second, time to finality, processor time.

They run ``gdf-market node run`` in temporary folders.  A fifth peer floods them with signed payments over an ordinary
link; a person at each node pays through its local API and waits until that is final.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio

from benchmarks.ledger_table import Figure
from benchmarks.ledger_world import BLOCK_ENTRIES, Payments, key, make_genesis, user
from gdf_market.commands.session import configure_logging
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.errors import GdfError
from gdf_market.node.client import NodeClient
from gdf_market.node.control import ControlHost
from ledger import wire
from ledger.rules import MARKET
from ledger.store import LedgerStore

VALIDATORS = 4
BLOCK_MS = 500
WAITING = 1_500  # entries on their way at any time: fewer than a mempool takes
WARM_S = 5.0
CALM_S = 15.0
LOAD_S = 20.0


@dataclass
class _Market:
    members: list[Member]
    network: str = ""
    addresses: list[str] = field(default_factory=list)


@contextlib.contextmanager
def _market(root: Path) -> Iterator[_Market]:
    """Run four linked validators."""
    market = _Market([Member(f"node{index}", root) for index in range(VALIDATORS)])
    try:
        calls = [(member, member.spawn("init")) for member in market.members]
        accounts = [str(call.answer()["account"]) for _, call in calls]
        now_ms = time.time_ns() // 1_000_000
        genesis = make_genesis(accounts, block_ms=BLOCK_MS, heartbeat_ms=3_000, time_ms=now_ms)
        market.network = MARKET.network_id(genesis)
        for member in market.members:
            member.data.save_genesis(genesis)
            if market.addresses:
                listed = ", ".join(f'"{address}"' for address in market.addresses)
                member.data.config.write_text(f"bootstrap = [{listed}]\n", encoding="utf-8")
            member.start("node", "run")
            if not market.addresses:
                wait_until("the first node answers", lambda: _links(market.members[0]) >= 0, timeout_s=120)
                status = market.members[0].status()
                assert status is not None, "it answered just now"
                market.addresses = list(status["addresses"])
        wait_until("the nodes are linked", lambda: all(map(_ready, market.members)), timeout_s=180)
        yield market
    finally:
        stop_all(market.members)


def _links(member: Member) -> int:
    status = member.status()
    return len(status["peers"]) if status is not None else -1


def _ready(member: Member) -> bool:
    status = member.status()
    return status is not None and len(status["peers"]) >= VALIDATORS - 1 and status["height"] >= 1


class _Payers:
    """One person at each node who pays, waits for it to be final, and pays again."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.waited_s: list[float] = []
        self.errors: list[GdfError] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._pay, args=(member,), daemon=True) for member in members]

    def __enter__(self) -> _Payers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _pay(self, member: Member) -> None:
        try:
            with NodeClient.of(member.data) as client:
                while not self._over.is_set():
                    begin = time.monotonic()
                    client.submit("transfer", to=user(0).account, amount=1, memo="")
                    self.waited_s.append(time.monotonic() - begin)
        except GdfError as error:
            self.errors.append(error)


@dataclass
class _Meter:
    """What one node's ledger finalized, and the processor time of all nodes, since it was made."""

    store: LedgerStore
    height: int = 0
    entries: int = 0

    def __post_init__(self) -> None:
        head = self.store.head()
        self.height = head.height if head is not None else 0
        self._cpu_s, self._begin = _cpu_s(), time.monotonic()

    def advance(self) -> int:
        """Return the entries finalized since the last call."""
        rows = self.store.blocks_from(self.height + 1, 1_000)
        count = sum(row.entry_count for row in rows)
        self.height += len(rows)
        self.entries += count
        return count

    def result(self) -> tuple[float, float]:
        """Return entries per second, and processor seconds per entry and node."""
        self.advance()
        seconds = time.monotonic() - self._begin
        return self.entries / seconds, (_cpu_s() - self._cpu_s) / VALIDATORS / max(1, self.entries)


def _cpu_s() -> float:
    """Return the processor time of this process's children, which are the nodes."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return total


async def _flood(market: _Market, store: LedgerStore) -> _Meter:
    """Keep WAITING entries on their way; return what was finalized after the first WARM_S seconds."""
    payments = Payments(market.network)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731 - what the nodes tell us is of no interest
    host = ControlHost(
        key(9_999),
        market.network,
        listen=("127.0.0.1", 0),
        bootstrap=market.addresses,
        on_frame=nothing,
        on_peer_up=nothing,
        on_peer_down=nothing,
    )
    async with host.run() as control:
        with trio.fail_after(60):
            while len(control.peers) < VALIDATORS:  # noqa: ASYNC110 - its links come up by themselves
                await trio.sleep(0.1)
        seen, meter = _Meter(store), None
        waiting, begin = 0, time.monotonic()
        while time.monotonic() < begin + WARM_S + LOAD_S:
            if meter is None and time.monotonic() >= begin + WARM_S:
                meter = _Meter(store)
            waiting = max(0, waiting - seen.advance())
            now_ms = time.time_ns() // 1_000_000
            batch = [payments.make(now_ms).raw for _ in range(min(200, WAITING - waiting))]
            waiting += len(batch)
            for index, message in enumerate(wire.batches(batch)):
                control.send(sorted(control.peers)[index % VALIDATORS], message)
            await trio.sleep(0.1)
        assert meter is not None, "the load lasts longer than the warm-up"
        meter.advance()
        return meter


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Return the figures of a calm and of a flooded network."""
    configure_logging("error")  # of the peer that floods
    with tempfile.TemporaryDirectory(prefix="gdf-bench-") as folder:
        say("starting four validators")
        with (
            _market(Path(folder)) as market,
            contextlib.closing(LedgerStore(market.members[0].data.ledger, read_only=True)) as store,
        ):
            say("payments one at a time")
            with _Payers(market.members) as calm:
                time.sleep(CALM_S)
            say("payments as fast as they become final")
            with _Payers(market.members) as busy:
                meter = trio.run(_flood, market, store)
                rate, cpu_s = meter.result()
    return [
        _waiting("calm network, four people who pay", calm.waited_s),
        Figure(
            f"loopback, {VALIDATORS} validators, flooded (a block takes about {BLOCK_ENTRIES} entries)",
            f"{rate:,.0f} entries/s finalized; {cpu_s * 1e3:.2f} ms of processor time an entry and node",
            numbers={"entries_per_s": rate, "cpu_ms_per_entry_and_node": cpu_s * 1e3, "entries": meter.entries},
        ),
        _waiting("flooded network, the same four people", busy.waited_s),
    ]


def _waiting(name: str, waited_s: Sequence[float]) -> Figure:
    median = statistics.median(waited_s)
    measured = f"median {median:.2f} s from request to answer (slowest of {len(waited_s)}: {max(waited_s):.2f} s)"
    return Figure(
        f"loopback, time to finality: {name}", measured, numbers={"median_s": median, "payments": len(waited_s)}
    )
