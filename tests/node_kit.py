"""Parts of a node for tests: the real context, journal, blob store and rules; the network and the runner stand in.

The ledger here is ``contracts_world.World``: what is submitted is a block at once, by the real rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from contracts.state import State
from gdf_market.blobs.manifest import check_root
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import encode
from gdf_market.errors import GdfError, OversizedError, UnreachableError
from gdf_market.identity import Identity
from gdf_market.messages import SKETCH_DIM, Entry
from gdf_market.node import bidding, context, pinning, roles
from gdf_market.node.context import NodeContext
from gdf_market.node.journal import Journal
from gdf_market.node.runner_process import RequestFailedError, TrainerError
from gdf_market.node.settings import Settings, load_settings
from gdf_market.node.trainer import (
    AuditResult,
    OutcomeResult,
    ProbeResult,
    ReplayResult,
    StateResult,
    TrainResult,
    UnitRequest,
)
from gdf_market.train.data import DataManifest
from gdf_market.train.protocol import UnitParts
from gdf_market.units import PPB
from tests.contracts_world import STEPS, World, key_of

SKETCHES = tuple(tuple(step * SKETCH_DIM + place for place in range(SKETCH_DIM)) for step in range(STEPS))


class WorldLedger:
    """A ledger on which every accepted entry is final at once; ``refuse_next`` is raised instead, once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: list[Entry] = []
        self.refuse_next: GdfError | None = None
        self.blocked = trio.Event()  # set: someone waits for a block
        self.accepted = trio.Event()  # set: an entry was accepted

    @property
    def state(self) -> State:
        return self.world.state

    @property
    def replica(self) -> Any:
        world = self.world
        return SimpleNamespace(
            time_ms=world.time_ms, height=world.height, head="00", state_root="00", is_validator=False
        )

    async def submit(self, entry: Entry, *, timeout_s: float = 60.0) -> int:
        await trio.lowlevel.checkpoint()
        if self.refuse_next is not None:
            error, self.refuse_next = self.refuse_next, None
            raise error
        self.world.block(entry)
        self.entries.append(entry)
        self.accepted.set()
        return self.world.height

    async def wait_block(self) -> None:
        self.blocked.set()
        await trio.sleep_forever()

    @property
    def kinds(self) -> list[str]:
        return [type(entry.body).__name__ for entry in self.entries]


class LocalBulk:
    """Blobs of the own store; others are unreachable, and ``hangs`` never arrive."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.upload_bytes_per_s = self.download_bytes_per_s = 0
        self.hangs: set[str] = set()
        self.fetched: Counter[str] = Counter()

    async def fetch(self, root: str, *, max_bytes: int) -> Path:
        check_root(root)
        self.fetched[root] += 1
        await trio.lowlevel.checkpoint()
        if root in self.hangs:
            await trio.sleep_forever()
        if not self.blobs.has(root):
            raise UnreachableError(f"no peer has blob {root[:16]}")
        if self.blobs.manifest(root).size > max_bytes:
            raise OversizedError(f"blob {root[:16]} is larger than {max_bytes} bytes")
        return self.blobs.path(root)

    def limit_upload(self, bytes_per_s: int) -> None:
        self.upload_bytes_per_s = bytes_per_s

    def limit_download(self, bytes_per_s: int) -> None:
        self.download_bytes_per_s = bytes_per_s

    async def holders(self, root: str) -> int:
        check_root(root)
        return 1 if self.blobs.has(root) else 0

    async def stats(self) -> dict[str, Any]:
        return {"counters": {}}


@dataclass
class FakeTrainer:
    """Answers like the runner, at once; ``step_s`` is what a probe measures, ``hangs`` never answers.

    ``lies_about_parts``: its program gives another result unless it is computed in ``parts``.
    """

    step_s: float = 0.001
    repeat_excess_ppb: int = 5_000
    loss: int | None = 1_500_000
    hangs: bool = False
    parts: UnitParts = field(default_factory=UnitParts)
    lies_about_parts: bool = False
    progress: tuple[int, int] | None = None
    calls: Counter[str] = field(default_factory=Counter)

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()

    async def train(self, request: UnitRequest, *, out: Path, poison: str = "") -> TrainResult:
        await self._called("train")
        out.write_bytes(f"update {request.round} {request.shard} {poison}".encode())  # noqa: ASYNC240
        return TrainResult(out, SKETCHES, 2.0, 1.0, 0.1, self.parts)

    async def audit(self, request: UnitRequest, *, claim: Path) -> AuditResult:
        await self._called("audit")
        parts = request.parts or UnitParts()
        excess_ppb = PPB if self.lies_about_parts and parts != self.parts else 0
        return AuditResult(excess_ppb, 0, SKETCHES, 0.1, parts)

    async def state(self, request: UnitRequest, *, step: int, out: Path) -> StateResult:
        await self._called("state")
        out.write_bytes(f"state {request.round} {request.shard} {step}".encode())  # noqa: ASYNC240
        return StateResult(out, SKETCHES[step - 1])

    async def replay(
        self,
        request: UnitRequest,
        *,
        step: int,
        seed: str,
        worker_state: Path | None = None,
        accuser_state: Path | None = None,
        claim: Path | None = None,
    ) -> ReplayResult:
        await self._called("replay")
        assert (worker_state is None) == (accuser_state is None) == (step == 0)
        assert (claim is not None) == (step == STEPS)
        for state in filter(None, (worker_state, accuser_state)):
            if not state.read_bytes().startswith(b"state "):
                raise RequestFailedError("not the state of this unit", "StateError")
        same = worker_state is None or worker_state.read_bytes() == accuser_state.read_bytes()  # type: ignore[union-attr]  # noqa: ASYNC240
        sketch = SKETCHES[min(step, STEPS - 1)]
        return ReplayResult(0 if same else 2_000_000_000, sketch, sketch[::-1], 0)

    async def outcome(self, *, updates: dict[int, Path], out: Path, **_: object) -> OutcomeResult:
        await self._called("outcome")
        out.write_bytes(b"checkpoint " + repr(sorted(updates)).encode())  # noqa: ASYNC240
        slots = tuple(sorted(updates))
        share = tuple(1_000_000 // len(slots) for _ in slots)
        return OutcomeResult(out, slots, (), share, tuple(900_000 for _ in slots), slots, ())

    async def evaluate(self, *_: Path) -> int:
        await self._called("evaluate")
        if self.loss is None:
            raise TrainerError("the loss is not finite")
        return self.loss

    async def probe(self, **_: object) -> ProbeResult:
        await self._called("probe")
        return ProbeResult(self.step_s, self.repeat_excess_ppb)


@dataclass
class Kit:
    """One account of a World with everything its roles use."""

    world: World
    ledger: WorldLedger
    blobs: BlobStore
    bulk: LocalBulk
    trainer: FakeTrainer
    journal: Journal
    context: NodeContext
    notes: dict[str, str]

    def blobs_of_job(self) -> dict[str, str]:
        """Put a job's blobs into the store; return the order's fields that name them."""
        content = self.blobs.put_bytes(b"\0\0" * 64)
        manifest = DataManifest(kind="tokens", content=content, count=64, train=32, vocab=8, context=4)
        return {
            "program": self.blobs.put_bytes(b"program"),
            "data": self.blobs.put_bytes(encode(manifest)),
            "checkpoint": self.blobs.put_bytes(b"checkpoint"),
        }


def make_kit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    name: str,
    *,
    near: Kit | None = None,
    **flags: object,
) -> Kit:
    """Return the parts of the node of ``name``; all clocks show the world's time.  It has the blobs of ``near``."""

    def clock() -> int:
        return world.time_ms

    for module in (context, roles, bidding, pinning):
        monkeypatch.setattr(module, "now_ms", clock)
    identity: Identity = key_of(name)
    folder = tmp_path / name
    for part in ("units", "scratch"):
        (folder / part).mkdir(parents=True)
    blobs = near.blobs if near is not None else BlobStore(folder / "blobs")
    ledger, bulk, trainer = WorldLedger(world), LocalBulk(blobs), FakeTrainer()
    notes: dict[str, str] = {}
    settings: Settings = load_settings(folder / "config.toml", **flags)
    journal = Journal(folder / "units")
    made = NodeContext(
        identity=identity,
        network=world.network,
        settings=settings,
        ledger=cast(Any, ledger),
        blobs=blobs,
        bulk=cast(Any, bulk),
        trainer=cast(Any, trainer),
        journal=journal,
        scratch=folder / "scratch",
        note=notes.__setitem__,
    )
    return Kit(world, ledger, blobs, bulk, trainer, journal, made, notes)


async def turn(start: Callable[[trio.Nursery], None]) -> None:
    """Run one turn of a role: start what is due, and wait until it is done."""
    async with trio.open_nursery() as nursery:
        start(nursery)


async def live(world: World, *nodes: roles.Roles, until: Callable[[], bool]) -> None:
    """Let nodes act in turns, block by block, until a condition holds; without actions, time moves on."""
    for _ in range(300):
        height = world.height
        for node in nodes:
            if until():
                return
            await turn(node._start_due)
        if world.height == height:
            world.wake()
    raise AssertionError("not reached in 300 turns")
