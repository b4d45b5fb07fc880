"""The demonstration's story: five workers, one of them a cheat, and an owner who leaves right after posting."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

import gdf_market
from contracts.records import Job, Round, Unit
from gdf_market.demo.processes import Call, DemoError, Interrupts, Member, stop_all, wait_until
from gdf_market.errors import UsageError
from gdf_market.units import CREDIT
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore

LOCK = ".gdf-demo.lock"
MARKER = ".gdf-demo"  # only a folder with this file is ever wiped
WORKER_GRANT = 200 * CREDIT
OWNER_GRANT = 5_000 * CREDIT
ENDED = ("done", "cancelled", "expired")

# A short market for two cores: small windows, because every phase ends early when everybody acted.
POST = [
    "--units", "5", "--min-workers", "4", "--shards", "12", "--max-price", "5", "--bond", "20",
    "--bid-seconds", "16", "--work-seconds", "90", "--phase-seconds", "60", "--audit-seconds", "60",
    "--hold-seconds", "15", "--deadline-minutes", "20",
]  # fmt: skip
PRICES = {"alice": "1.0", "bob": "1.2", "carol": "1.4", "dave": "1.6", "mallory": "1.1"}


def example_file() -> Path:
    """Return the job file of the demonstration.  Raises UsageError when it is not installed."""
    places = [
        Path(gdf_market.__file__).resolve().parent.parent / "examples",
        Path(sys.prefix) / "share" / "gdf-market" / "examples",
    ]
    for place in places:
        if (place / "char_gpt.py").is_file():
            return place / "char_gpt.py"
    raise UsageError(f"examples/char_gpt.py is in none of {', '.join(map(str, places))}; run the demo from a checkout")


@contextlib.contextmanager
def demo_folder(root: Path) -> Iterator[None]:
    """Hold ``root``, emptied, for one demonstration.

    Raises UsageError rather than wiping a folder that no demonstration made, or in which one runs.
    """
    if root.is_file() or (root.exists() and any(root.iterdir()) and not (root / MARKER).exists()):
        raise UsageError(f"{root} is not empty and was not made by a demo; give another --dir")
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text("made by gdf-market demo; wiped by the next one\n", encoding="utf-8")
    lock = filelock.FileLock(root / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(f"another demo runs in {root}; let it end, or give another --dir") from None
    try:
        for child in root.iterdir():
            if child.is_dir():
                shutil.rmtree(child)
            elif child.name not in (LOCK, MARKER):
                child.unlink()
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            (root / LOCK).unlink()


@dataclass
class Market:
    """The running demonstration."""

    root: Path
    rounds: int
    say: Callable[[str], None]
    workers: list[Member] = field(init=False)
    owner: Member = field(init=False)
    explorer: Member = field(init=False)
    explorer_url: str = ""
    job: str = ""
    posted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = [Member(name, self.root) for name in PRICES]
        self.owner = Member("owner", self.root)
        self.explorer = Member("explorer", self.root)

    @property
    def honest(self) -> list[Member]:
        return self.workers[:-1]

    @property
    def cheat(self) -> Member:
        return self.workers[-1]

    @property
    def everybody(self) -> list[Member]:
        return [*self.workers, self.owner, self.explorer]

    def found(self) -> None:
        """Make the keys, the genesis and the folders of a new test network."""
        members = [*self.workers, self.owner]
        for pair in (members[:2], members[2:4], members[4:]):  # two cores: two at a time
            calls: list[tuple[Member, Call]] = [(member, member.spawn("init")) for member in pair]
            for member, call in calls:
                member.account = call.answer()["account"]
        options: list[str] = []
        for member in self.honest:
            options += ["--validator", member.account]
        for member in self.workers:
            options += ["--grant", f"{member.account}={WORKER_GRANT // CREDIT}"]
        invite = self.owner.run(
            "init", "--new-network", "demo", "--test-network", "--block-ms", "300", "--heartbeat-ms", "1500", *options
        )["invite"]
        self._join(self.honest[:1], invite)

    def _join(self, members: list[Member], invite: str) -> None:
        for member in members:
            member.run("init", "--join", invite)

    def open(self) -> None:
        """Start the workers and the explorer, and wait until they are one network."""
        first, others = self.workers[0], self.workers[1:]
        self._work(first)
        wait_until("the first worker answers", lambda: first.status() is not None, timeout_s=60, members=[first])
        invite = first.run("node", "invite")["invite"]
        self._join([*others, self.owner], invite)
        for member in others:
            self._work(member)
        wait_until("the workers are one network", self._connected, timeout_s=120, members=self.workers)
        self.explorer.start("--json", "explorer", "--db", str(first.data.ledger), "--port", "0")
        wait_until("the explorer answers", self._explorer_ready, timeout_s=30, members=[self.explorer])

    def _work(self, member: Member) -> None:
        options = ["--threads", "1", "--min-price", PRICES[member.name]]
        if member is self.honest[-1]:
            options += ["--units", "2"]  # one unit more than there are slots: its price is the first rejected one
        if member is self.cheat:
            options += ["--test-poison", "sign-flip"]
        member.start("work", *options)

    def _connected(self) -> bool:
        for member in self.workers:
            status = member.status()
            if status is None or len(status["peers"]) < len(self.workers) - 1 or status["height"] < 1:
                return False
        return True

    def _explorer_ready(self) -> bool:
        import json

        with contextlib.suppress(OSError, ValueError):
            self.explorer_url = json.loads(self.explorer.log.read_text(encoding="utf-8"))["url"]
        return bool(self.explorer_url)

    def post(self) -> None:
        """The owner posts its job and is gone as soon as the ledger has it."""
        options = ["--rounds", str(self.rounds), *POST]
        self.posted = self.owner.run("post", str(example_file()), *options)
        self.job = self.posted["job"]

    def watch(self, timeout_s: float) -> None:
        """Report progress until the job ended.  Raises DemoError when it does not in time."""
        end = time.monotonic() + timeout_s
        last = ""
        with contextlib.closing(LedgerStore(self.workers[0].data.ledger, read_only=True)) as store:
            while True:
                job = record_of(store, Job, f"job/{self.job}")
                line = self._progress(store, job)
                if line != last:
                    self.say(line)
                    last = line
                if job is not None and job.status in ENDED:
                    return
                for member in self.workers:
                    if not member.alive:
                        raise DemoError(f"{member.name} ended before the job did; see {member.log}")
                if time.monotonic() > end:
                    raise DemoError(f"the job did not end within {timeout_s:.0f} s ({line}); see {self.root}")
                Interrupts.pause(0.5)

    def _progress(self, store: LedgerStore, job: Job | None) -> str:
        if job is None:
            return "waiting for the job"
        if job.status != "running":
            return f"job {job.status} {job.reason}".strip()
        round_ = record_of(store, Round, f"round/{self.job}/{job.round}")
        phase = "" if round_ is None else f", {round_.phase}"
        convicted = [unit for unit in records_of(store, Unit, f"unit/{self.job}/") if unit.status == "convicted"]
        caught = f", {len(convicted)} units convicted" if convicted else ""
        return f"round {min(job.completed + 1, self.rounds)}/{self.rounds}{phase}{caught}"

    def fetch(self) -> dict[str, Any]:
        """The owner comes back for the result."""
        return self.owner.run("jobs", "fetch", self.job, "-o", str(self.root / "model.safetensors"))

    def close(self) -> None:
        """Stop everything that still runs."""
        stop_all(self.everybody)
