"""Entries per second of verify + apply + store, and of a cold sync, against bare Ed25519 verification.

The floor verifies the same signatures over the same bytes with PyNaCl and does nothing else.  It alternates with what
it is compared to, a few blocks at a time, in one process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import nacl.signing

from benchmarks.ledger_table import Clock, Figure, ratio
from benchmarks.ledger_world import History, Net, finalize
from contracts.records import Genesis
from gdf_market import identity
from gdf_market.codec import decode, encode
from gdf_market.messages import MAX_ENTRY_BYTES, Envelope, open_entry
from ledger import export, importing
from ledger.block import open_block, verify_certificate
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import ReplicaEvent, SaveBlocks, Write
from ledger.limits import MAX_RAW_SEEN
from ledger.opening import OpenPool
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.store import LedgerStore
from ledger.wire import SyncBlock

LAP_BLOCKS = 8
Check = tuple[nacl.signing.VerifyKey, bytes, bytes]


class Floor:
    """The history's entry signatures as bare verifications; a lap checks those of a range of blocks."""

    def __init__(self, history: History) -> None:
        self.clock = Clock()
        self._network = history.network
        self._path = history.path
        self._keys: dict[str, nacl.signing.VerifyKey] = {}

    def checks(self, first: int, last: int) -> list[Check]:
        """Return (key, signed bytes, signature) of the entries in blocks first..last."""
        with contextlib.closing(LedgerStore(self._path, read_only=True)) as store:
            raws = [row.raw for height in range(first, last + 1) for row in store.block_entries(height)]
        return [self._check(raw) for raw in raws]

    def _check(self, raw: bytes) -> Check:
        envelope = decode(raw, Envelope, max_bytes=MAX_ENTRY_BYTES)
        author = open_entry(raw, self._network, check_signature=False).body.author
        if author not in self._keys:
            self._keys[author] = nacl.signing.VerifyKey(identity.public_key(author))
        covered = b"gdf-market/1\0" + self._network.encode() + b"\0entry\0" + bytes(envelope.body)
        return self._keys[author], covered, bytes.fromhex(envelope.sig)

    def lap(self, first: int, last: int) -> None:
        """Verify the signatures of blocks first..last."""
        checks = self.checks(first, last)
        self.clock.start()
        verify_all(checks)
        self.clock.stop()


def verify_all(checks: Sequence[Check]) -> None:
    """Verify signatures, and nothing else."""
    for key, message, signature in checks:
        key.verify(message, signature)


def measure_blocks(history: History, folder: Path) -> Figure:
    """Verify, apply and store block by block, as a node that follows the network does."""
    floor, ours = Floor(history), Clock()
    genesis = history.genesis
    chain = Chain(genesis, MARKET, genesis_tip(genesis, MARKET), SeenEntries(MAX_RAW_SEEN))
    with contextlib.closing(LedgerStore(folder / "blocks.sqlite")) as store:
        store.create(genesis)
        for first, messages in _laps(history):
            floor.lap(first, first + len(messages) - 1)
            ours.start()
            for message in messages:
                store.save([_take(chain, decode(message, SyncBlock))])
            ours.stop()
        _check_same(history, store)
    return _figure("verify + apply + store, a transaction per block", history, ours, floor, least=0.5)


def _take(chain: Chain, item: SyncBlock) -> SaveBlocks:
    block = open_block(item.block, chain.network, chain.epoch.leader(msgspec.json.decode(item.block.header)["slot"]))
    chain.execute(block)
    assert item.certificate is not None, "each block of the history has its own"
    verify_certificate(item.certificate, chain.network, chain.epoch.validators, chain.epoch.number)
    return finalize(chain, item.certificate)


def _laps(history: History) -> Iterator[tuple[int, list[bytes]]]:
    with history.open() as store:
        for first in range(1, history.blocks + 1, LAP_BLOCKS):
            rows = store.blocks_from(first, LAP_BLOCKS)
            yield first, [encode(item) for row in rows for item in store.sync_blocks(row)]


def measure_import(history: History, folder: Path) -> list[Figure]:
    """Verify an export alone, and import it into a new ledger file."""
    source = folder / "ledger.jsonl"
    with history.open() as store:
        export.export(store, source)
    figures = []
    floor, ours = Floor(history), Clock()
    ours.start()
    export.verify(source, follower=_Pacer(ours, floor, history.blocks))
    ours.stop()
    _merge_last(ours)
    figures.append(_figure("cold sync: replay of an export (nothing stored)", history, ours, floor, most=2.0))

    floor, ours = Floor(history), Clock()
    target = folder / "import.sqlite"
    done = 0

    def progress(height: int) -> None:
        nonlocal done
        ours.stop()
        floor.lap(done + 1, height)
        done = height
        ours.start()

    ours.start()
    importing.build(source, target, history.network, progress=progress)
    importing.publish(target)
    ours.stop()
    _merge_last(ours)
    with contextlib.closing(LedgerStore(target, read_only=True)) as store:
        _check_same(history, store)
    name = f"cold sync: import of an export (a transaction per {importing.BATCH_BLOCKS} blocks)"
    figures.append(_figure(name, history, ours, floor, most=2.0))
    return figures


def _merge_last(clock: Clock) -> None:
    """Count what follows the last lap with it."""
    cpu, wall = clock.laps.pop()
    clock.laps[-1] = (clock.laps[-1][0] + cpu, clock.laps[-1][1] + wall)


class _Pacer:
    """Lets the floor run in between a replay's blocks."""

    def __init__(self, ours: Clock, floor: Floor, blocks: int) -> None:
        self._ours, self._floor, self._blocks = ours, floor, blocks
        self._done = 0

    def started(self, genesis: Genesis) -> None:
        """A replay begins."""

    def finalized(self, blocks: SaveBlocks) -> None:
        """Run a lap of the floor after each few blocks."""
        height = blocks.blocks[-1].tip.height
        if height >= min(self._done + LAP_BLOCKS, self._blocks):
            self._ours.stop()
            self._floor.lap(self._done + 1, height)
            self._done = height
            self._ours.start()


class _TimedNet(Net):
    """Counts the time of one node's steps and saves."""

    def __init__(self, replicas: dict[str, Replica], clock: Clock, **options: object) -> None:
        super().__init__(replicas, delay_ms=1, **options)  # type: ignore[arg-type]
        self._clock = clock

    def step(self, name: str, event: ReplicaEvent) -> None:
        """Give a node an event."""
        if name == "client":
            self._clock.start()
        super().step(name, event)
        if name == "client":
            self._clock.stop()


def measure_sync(history: History, folder: Path) -> Figure:
    """Let a new node fetch the whole ledger from a peer and store it: sync messages, a transaction for each."""
    floor, steps = Floor(history), Clock()
    saved = 0
    with (
        history.open() as source,
        contextlib.closing(LedgerStore(folder / "sync.sqlite")) as target,
        contextlib.closing(OpenPool()) as open_many,
    ):
        target.create(history.genesis)
        restored = source.restored()
        assert restored is not None

        def on_save(name: str, writes: Sequence[Write]) -> None:
            nonlocal saved
            target.save(writes)
            saved += 1

        replicas = {
            "client": Replica(history.genesis, None, None, open_many=open_many),
            "server": Replica(history.genesis, None, restored),
        }
        net = _TimedNet(replicas, steps, on_save=on_save, serve=lambda name, height: source.sync_messages(height))
        net.now_ms = source.blocks(1)[0].time_ms
        net.start()
        client, ours, counted = replicas["client"], Clock(), 0
        while client.height < history.blocks:
            goal = min(history.blocks, client.height + LAP_BLOCKS)
            before = client.height
            net.run(lambda goal=goal: client.height >= goal, limit_ms=10**9)  # type: ignore[misc]
            floor.lap(before + 1, client.height)
            laps = steps.laps[counted:]
            counted = len(steps.laps)
            ours.laps.append((sum(lap[0] for lap in laps), sum(lap[1] for lap in laps)))
        ours.cpu, ours.wall = steps.cpu, steps.wall
        _check_same(history, target)
    name = f"cold sync: a node fetches from a peer (a transaction per {history.blocks / saved:.1f} blocks)"
    return _figure(name, history, ours, floor, most=2.0)


def _check_same(history: History, store: LedgerStore) -> None:
    with history.open() as source:
        heads = [each.head() for each in (source, store)]
    theirs, own = [(row.hash, row.state_root) if row is not None else None for row in heads]
    assert theirs == own, "the same ledger came out"


def _figure(
    name: str, history: History, ours: Clock, floor: Floor, *, least: float | None = None, most: float | None = None
) -> Figure:
    cpu, wall = ratio(ours, floor.clock)
    numbers = {
        "entries": history.entries,
        "cpu_us_per_entry": ours.cpu / history.entries * 1e6,
        "floor_us_per_entry": floor.clock.cpu / history.entries * 1e6,
        "cpu_ratio": cpu,
        "wall_ratio": wall,
        "entries_per_cpu_s": history.entries / ours.cpu,
    }
    rate = f"{numbers['entries_per_cpu_s']:,.0f} entries/s of one core, {numbers['cpu_us_per_entry']:.0f} µs each"
    if least is not None:
        measured = f"{100 / cpu:.0f}% of the floor's rate ({100 / wall:.0f}% by wall clock); {rate}"
        return Figure(name, measured, f"≥ {least:.0%}", 1 / cpu >= least, numbers)
    assert most is not None
    # the time until a node is ready: unlike the figure of one core, several cores may shorten it
    measured = f"{wall:.2f} × the floor's time ({cpu:.2f} × its processor time); {rate}"
    return Figure(name, measured, f"≤ {most:.0f} ×", wall <= most, numbers)


def measure_threads(history: History) -> list[Figure]:
    """Say what a second thread brings, beside what a second process of anything brings on this machine just now."""
    checks = Floor(history).checks(1, min(history.blocks, 25))
    alone = min(_wall(lambda: verify_all(checks)) for _ in range(5))
    figures = []
    for name, size in (("one call a message", 1), ("60 messages a call", 60)):
        parts = [checks[start : start + size] for start in range(0, len(checks), size)]
        with ThreadPoolExecutor(2) as pool:
            both = min(_wall(lambda parts=parts: list(pool.map(verify_all, parts))) for _ in range(5))  # type: ignore[misc]
        figures.append(_gain(f"Ed25519 in two threads, {name}", alone / both))
    spare = 2 * min(_busy(1) for _ in range(3)) / min(_busy(2) for _ in range(3))
    figures.append(_gain("for comparison: two processes of plain arithmetic", spare))
    ticks = _ticks_during_verification()
    found = "yes" if ticks > 1 else "no"
    measured = f"{found} ({ticks} steps of another thread during one long verification)"
    return [*figures, Figure("PyNaCl leaves Python's lock while it verifies", measured, numbers={"steps": ticks})]


def _gain(name: str, gain: float) -> Figure:
    return Figure(name, f"{gain:.2f} × the rate of one", numbers={"gain": gain})


def _busy(processes: int) -> float:
    command = [sys.executable, "-c", "x = 0\nfor i in range(2_000_000): x += i"]

    def run() -> None:
        for child in [subprocess.Popen(command) for _ in range(processes)]:
            child.wait()

    return _wall(run)


def _ticks_during_verification() -> int:
    """Return how often this thread got a turn while another verified one signature over 32 MiB."""
    key = nacl.signing.SigningKey(bytes(32))
    message = bytes(32 << 20)
    signature = key.sign(message).signature
    ticks = 0
    with ThreadPoolExecutor(1) as pool:
        verification = pool.submit(key.verify_key.verify, message, signature)
        while not verification.done():
            ticks += 1
            time.sleep(0.001)
    return ticks


def _wall(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(history: History, say: Callable[[str], None]) -> list[Figure]:
    """Return all figures of this file."""
    with tempfile.TemporaryDirectory(prefix="gdf-bench-") as name:
        folder = Path(name)
        say("verify + apply + store, block by block")
        figures = [measure_blocks(history, folder)]
        say("export, replay, import")
        figures += measure_import(history, folder)
        say("a new node fetches everything from a peer")
        figures.append(measure_sync(history, folder))
        say("threads")
        return figures + measure_threads(history)
