"""Real validators on loopback, killed at random with no chance to clean up, while people pay: the long tier.

``make torture MINUTES=10``, or ``python -m tests.torture --minutes 10 --validators 4 --seed 1``.  At every kill the
ledger's files are copied as they lie there; every copy must open and verify.  In the end all nodes hold one chain, with
every payment that was confirmed to somebody, no payment twice, all credits, and no validator convicted: a killed
validator never contradicts itself.  Exits with 1 (and keeps the folder) if that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contracts.records import Allocation, Genesis, Staking, Validator
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.errors import GdfError
from gdf_market.node.client import NodeClient
from gdf_market.units import CREDIT
from ledger.block import Vote
from ledger.export import export, verify
from ledger.store import LedgerStore
from ledger.wire import read

EPOCH_BLOCKS = 12
BOND = 100 * CREDIT
ALL_AT_ONCE = 0.15  # share of kills that are a power cut
HASTY = 0.25  # share of kills that do not wait for a payment to be final
PATIENCE_S = 60.0  # how long the others wait for one
WAIT_S = 300.0  # for something that a busy machine may take long for
POLL_S = 0.2


@dataclass
class Report:
    """What happened."""

    validators: int
    seconds: int = 0
    kills: int = 0
    power_cuts: int = 0
    copies: int = 0
    height: int = 0
    epochs: int = 0
    entries: int = 0
    confirmed: int = 0

    def text(self) -> str:
        """Return one line."""
        return (
            f"{self.validators} validators, {self.seconds} s: {self.kills} kills ({self.power_cuts} of all at once), "
            f"{self.copies} copies verified, height {self.height}, {self.epochs} epochs, {self.entries} entries, "
            f"{self.confirmed} confirmed to their senders"
        )


@dataclass
class Evidence:
    """What files held at any moment; raises AssertionError when one contradicts another."""

    blocks: dict[int, str] = field(default_factory=dict)
    votes: dict[tuple[str, int, int, str], str] = field(default_factory=dict)

    def take(self, path: Path) -> tuple[int, int, int]:
        """Check a ledger file that nobody has open; return its height, epoch and number of entries."""
        with contextlib.closing(LedgerStore(path, read_only=True)) as store:
            seen = store.head()
        with contextlib.closing(LedgerStore(path)) as store:
            restored = store.restored()
            assert restored is not None, f"{path} lost its genesis"
            tip = restored.tip
            assert tip.hash == (seen.hash if seen is not None else tip.hash), f"{path} differs when it is written"
            for row in store.blocks_from(1, tip.height):
                assert self.blocks.setdefault(row.height, row.hash) == row.hash, f"two blocks of height {row.height}"
            for vote in map(read, restored.votes):
                assert isinstance(vote, Vote)
                where = vote.voter, vote.epoch, vote.slot, vote.kind
                assert self.votes.setdefault(where, vote.hash) == vote.hash, f"{vote.voter} voted twice: {where}"
            target = path.with_name("export.gdfl")
            export(store, target)
        report = verify(target)
        target.unlink()
        assert (report.height, report.head, report.state_root) == (tip.height, tip.hash, tip.sum.root())
        assert report.supply == report.state.network().supply
        convicted = [
            key for key, record in report.state.records.items() if isinstance(record, Validator) and record.convicted
        ]
        assert not convicted, f"{path}: convicted: {convicted}"
        return report.height, report.state.network().epoch, report.entries


class Payer(threading.Thread):
    """Pays through one node, again and again; remembers what the node confirmed as final."""

    def __init__(self, member: Member, to: str) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[str] = []
        self.over = threading.Event()
        self._member, self._to = member, to

    def run(self) -> None:
        while not self.over.is_set():
            # without DataDir.running: that takes the lock for a moment, which the node may be waiting for
            with contextlib.suppress(GdfError, OSError, ValueError, KeyError):
                info = json.loads(self._member.data.node_file.read_text(encoding="utf-8"))
                with NodeClient(info["url"], info["token"]) as client:
                    while not self.over.is_set():
                        self.confirmed.append(client.submit("transfer", to=self._to, amount=1, memo=""))
            self.over.wait(POLL_S)


class Network:
    """Validators in folders under ``root``; what is drawn depends on the seed, what that meets on the machine."""

    def __init__(self, root: Path, validators: int, seed: int, say: Callable[[str], None]) -> None:
        self.report = Report(validators)
        self._root, self._say, self._random = root, say, random.Random(seed)
        self._members = [Member(f"node{index}", root) for index in range(validators)]
        self._ports = _free_ports(validators)
        self._up_at: dict[str, float] = {}  # when those that are down come back
        self._evidence = Evidence()
        self._found()
        others = [*self._members[1:], self._members[0]]
        self._payers = [Payer(each, other.account) for each, other in zip(self._members, others, strict=True)]

    def _found(self) -> None:
        calls = [(member, member.spawn("init")) for member in self._members]
        for member, call in calls:
            member.account = str(call.answer()["account"])
        accounts = tuple(sorted(member.account for member in self._members))
        genesis = Genesis(
            name="torture",
            test_network=True,
            time_ms=time.time_ns() // 1_000_000,
            allocations=tuple(Allocation(account=each, balance=10_000 * CREDIT, stake=BOND) for each in accounts),
            validators=accounts,
            block_ms=200,
            heartbeat_ms=1_000,
            audit_bond=0,
            max_void_rounds=5,
            staking=Staking(epoch_blocks=EPOCH_BLOCKS, bond=BOND, silent_epochs=1_000_000),
            entry_fee=1_000,
        )
        peers = [
            f'"/ip4/127.0.0.1/tcp/{port}/p2p/{member.account}"'
            for member, port in zip(self._members, self._ports, strict=True)
        ]
        for member in self._members:
            member.data.save_genesis(genesis)
            member.data.config.write_text(f"bootstrap = [{', '.join(peers)}]\n", encoding="utf-8")

    def _start(self, member: Member) -> None:
        port = self._ports[self._members.index(member)]
        member.start("node", "run", "--listen", f"127.0.0.1:{port}")

    # ---- the run

    def run(self, seconds: float) -> Report:
        """Kill for a while, let everything come back, check everything.  Raises AssertionError or DemoError."""
        try:
            for member in self._members:
                self._start(member)
            wait_until("blocks are made", lambda: self._lowest() >= 1, timeout_s=WAIT_S, members=self._members)
            for payer in self._payers:
                payer.start()
            self._kill_until(time.monotonic() + seconds)
            self.report.seconds = round(seconds)
            self._settle()
        finally:
            for payer in self._payers:
                payer.over.set()
            stop_all(self._members)
        self._check()
        return self.report

    def _lowest(self) -> int:
        statuses = [member.status() if member.data.node_file.exists() else None for member in self._members]
        return min(-1 if status is None else int(status["height"]) for status in statuses)

    def _kill_until(self, end: float) -> None:
        begin = shown = time.monotonic()
        while time.monotonic() < end:
            self._kill_some()
            self._wait(min(end, time.monotonic() + self._random.uniform(0.5, 3.0)))
            if self._random.random() >= HASTY:
                self._wait_for_progress(min(end, time.monotonic() + PATIENCE_S))
            if time.monotonic() > shown + 60:
                shown = time.monotonic()
                self.report.seconds, self.report.confirmed = round(shown - begin), self._confirmed()
                self._say(self.report.text())
        self._bring_up(float("inf"))

    def _wait(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        while time.monotonic() < end and not done():
            self._bring_up(time.monotonic())
            time.sleep(POLL_S)

    def _wait_for_progress(self, end: float) -> None:
        """Wait until a payment that is made now is confirmed to somebody."""
        known = self._confirmed()
        self._wait(end, lambda: self._confirmed() > known)

    def _confirmed(self) -> int:
        return sum(len(payer.confirmed) for payer in self._payers)

    def _bring_up(self, now: float) -> None:
        for member in self._members:
            if member.name in self._up_at and self._up_at[member.name] <= now:
                del self._up_at[member.name]
                self._start(member)
            assert member.alive or member.name in self._up_at, f"{member.name} ended by itself; see {member.log}"

    def _kill_some(self) -> None:
        """Kill one node that runs, unless as many are down as may be; or all at once."""
        faulty = (len(self._members) - 1) // 3
        running = [member for member in self._members if member.name not in self._up_at]
        everybody = self._random.random() < ALL_AT_ONCE
        chosen = running if everybody else self._random.sample(running, int(len(self._up_at) < faulty))
        for member in chosen:
            member.kill()
        for member in chosen:
            self._up_at[member.name] = time.monotonic() + self._random.choice((0.0, 0.5, self._random.uniform(1, 8)))
        self.report.kills += len(chosen)
        self.report.power_cuts += everybody
        for member in chosen:
            self._check_copy(member)

    def _check_copy(self, member: Member) -> None:
        folder = self._root / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for suffix in ("", "-wal", "-shm"):
            source = member.data.ledger.with_name(member.data.ledger.name + suffix)
            if source.exists():
                shutil.copy(source, folder)
        self._take(folder / member.data.ledger.name)
        self.report.copies += 1

    def _take(self, path: Path) -> None:
        height, epoch, entries = self._evidence.take(path)
        if height >= self.report.height:
            self.report.height, self.report.epochs, self.report.entries = height, epoch, entries

    # ---- the end

    def _settle(self) -> None:
        """Wait until everybody is back and agrees on blocks that are newer than all that was confirmed."""
        for payer in self._payers:
            payer.over.set()
        wait_until("all nodes answer", lambda: self._lowest() >= 0, timeout_s=WAIT_S, members=self._members)
        for payer in self._payers:
            payer.join(WAIT_S)
            assert not payer.is_alive(), "a node neither confirms nor refuses a payment"
        statuses = [member.status() for member in self._members]
        goal = 2 + max(int(status["height"]) for status in statuses if status is not None)
        wait_until(f"all hold block {goal}", lambda: self._lowest() >= goal, timeout_s=WAIT_S, members=self._members)

    def _check(self) -> None:
        confirmed = [entry for payer in self._payers for entry in payer.confirmed]
        assert len(set(confirmed)) == len(confirmed)
        self.report.confirmed = len(confirmed)
        for member in self._members:
            self._take(member.data.ledger)
            with contextlib.closing(LedgerStore(member.data.ledger, read_only=True)) as store:
                lost = [entry for entry in confirmed if store.entry(entry) is None]
                assert not lost, f"{member.name} lacks {len(lost)} confirmed payments"
                assert not store.events(kind="convicted", limit=1)
            log = member.log.read_text(encoding="utf-8", errors="replace")
            assert "Traceback" not in log, f"see {member.log}"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--validators", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="gdf-torture-"))
    report = Network(root, options.validators, options.seed, lambda line: print(line, flush=True)).run(
        options.minutes * 60
    )
    print(report.text())
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
