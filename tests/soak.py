"""A market of real nodes for as long as you like: kills, restarts, newcomers, attackers, and an owner who is gone.

``make soak MINUTES=30``, or ``python -m tests.soak --minutes 30 --seed 1``.  Four validators (three of them work) and a
worker who comes and goes; an owner posts one small job after the other and runs no node in between.  Nodes are killed
with no chance to clean up and started again; attacks of ``tests/hostile`` hit one node or another.  Then all is calm:
jobs end, and every ledger is exported and replayed.  Exits with 1, and keeps the folder, if an invariant does not hold:
all jobs end, one chain everywhere, all credits there and none locked, nobody paid twice, nobody convicted, memory and
files bounded, no node ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contracts.records import Job, Validator
from gdf_market.demo.processes import DemoError
from ledger.export import export, verify
from ledger.reading import records_of
from ledger.store import LedgerStore
from tests.e2e.town import check_conserved, check_paid_once
from tests.hostile.attackers import Attacker, attack
from tests.hostile.market import ENDED, Market, ask
from tests.hostile.registry import ATTACKS
from tests.hostile.watch import MIB, sample

VALIDATORS = ("ann", "ben", "cleo", "dora")
WORKERS = ("ben", "cleo", "eve")
NEWCOMER = "eve"
ROUNDS = 2  # of each job
JOB_MINUTES = 12  # a job ends by then whatever happened
TERMS = (
    "--units", "2", "--min-workers", "1", "--max-price", "1", "--bond", "2", "--audit-floor-percent", "5",
    "--bid-seconds", "8", "--work-seconds", "100", "--phase-seconds", "60", "--audit-seconds", "80",
    "--hold-seconds", "8",
)  # fmt: skip
DOWN_S = (1.0, 12.0)  # how long a killed node stays away
BETWEEN_KILLS_S = (30.0, 80.0)
BETWEEN_ATTACKS_S = (5.0, 30.0)
ATTACK_S = (10.0, 25.0)
CALM_S = 1_500.0  # the most that all jobs may take to end
MAX_RSS = 900 * MIB  # of one node's processes without the one that trains
MAX_FILES = 800
POLL_S = 1.0


@dataclass
class Report:
    """What happened so far."""

    kills: int = 0
    joins: int = 0
    leaves: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    posted: int = 0
    not_posted: int = 0  # the network was too busy with a kill
    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    height: int = 0
    peak_rss: int = 0
    peak_files: int = 0

    def text(self) -> str:
        """Return one line."""
        ended = ", ".join(f"{count} {what}" for what, count in sorted(self.outcomes.items())) or "none"
        return (
            f"{self.rounds} rounds, jobs: {self.posted} posted ({self.not_posted} not), ended: {ended}; "
            f"{self.kills} kills, {self.joins} joins, {self.leaves} leaves, {self.attacks.total()} attacks; "
            f"height {self.height}; peak {self.peak_rss // MIB} MiB, {self.peak_files} files"
        )


class Owner(threading.Thread):
    """Posts one job after the other; between two of them it is gone."""

    def __init__(self, market: Market, report: Report) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._market, self._report = market, report

    def run(self) -> None:
        while not self.over.is_set():
            try:
                job = self._market.post(ROUNDS, minutes=JOB_MINUTES, terms=TERMS)
            except DemoError:
                self._report.not_posted += 1
                self.over.wait(5)
                continue
            self._report.posted += 1
            while not self.over.is_set() and self._market.job(job).status not in ENDED:
                self.over.wait(POLL_S)


class Soak:
    """One run; what is drawn depends on the seed, what that meets on the machine."""

    def __init__(self, root: Path, seed: int, say: Callable[[str], None]) -> None:
        self.report = Report()
        self._random, self._say = random.Random(seed), say
        self._market = Market(root, validators=VALIDATORS, workers=WORKERS, later=(NEWCOMER,))
        self._owner = Owner(self._market, self.report)
        self._up_at: dict[str, float] = {}  # when those that were killed come back
        self._here = set(VALIDATORS)
        self._attacker: Attacker | None = None
        self._attacker_ends = 0.0

    def run(self, seconds: float) -> Report:
        """Let it all happen, then check.  Raises AssertionError or DemoError."""
        try:
            self._market.found()
            self._owner.start()
            self._market.until("the first job is posted", lambda: self.report.posted > 0)
            self._trouble(seconds)
            self._calm()
        finally:
            self._owner.over.set()
            if self._attacker is not None:
                self._attacker.stop()
            self._market.close()
        self._check()
        return self.report

    # ---- trouble

    def _trouble(self, seconds: float) -> None:
        begin = shown = time.monotonic()
        end = begin + seconds
        comes, goes = (begin + share * seconds for share in (0.15, 0.75))
        kill_at, attack_at = begin + 0.1 * seconds, begin + 5.0
        while (now := time.monotonic()) < end:
            self._look(now)
            if NEWCOMER not in self._here and comes <= now < goes:
                self._come()
            if NEWCOMER in self._here and now >= goes:
                self._go()
            if now >= kill_at:
                self._kill()
                kill_at = now + self._random.uniform(*BETWEEN_KILLS_S)
            if now >= attack_at:
                attack_at = self._attack(now)
            if now > shown + 30:
                shown = now
                self._say(f"{now - begin:.0f} s: {self.report.text()}")
            time.sleep(POLL_S)

    def _look(self, now: float) -> None:
        """Bring back who was killed, and measure; nobody may have ended by itself."""
        for name in sorted(name for name, at in self._up_at.items() if at <= now):
            del self._up_at[name]
            self._market.start(name)
        for name in self._here - set(self._up_at):
            member = self._market[name]
            assert member.alive, f"{name} ended by itself; see {member.log}"
            seen = sample(member)
            self.report.peak_rss = max(self.report.peak_rss, seen.rss)
            self.report.peak_files = max(self.report.peak_files, seen.files)
        with self._market.store() as store:
            head, jobs = store.head(), records_of(store, Job, "job/")
        self.report.height = head.height if head is not None else 0
        self.report.rounds = sum(job.completed for job in jobs)
        self.report.outcomes = Counter(job.status for job in jobs if job.status in ENDED)

    def _kill(self) -> None:
        """End a node as a power cut does, once all others take part again: one validator of four may be away."""
        if self._up_at or any(ask(self._market[name]) is None for name in sorted(self._here)):
            return
        name = self._random.choice(sorted(self._here))
        self._market[name].kill()
        self._up_at[name] = time.monotonic() + self._random.uniform(*DOWN_S)
        self.report.kills += 1

    def _come(self) -> None:
        self._market.start(NEWCOMER)
        self._here.add(NEWCOMER)
        self.report.joins += 1

    def _go(self) -> None:
        if NEWCOMER in self._up_at:
            del self._up_at[NEWCOMER]
        member = self._market[NEWCOMER]
        member.ask_to_stop()
        member.join()
        self._here.remove(NEWCOMER)
        self.report.leaves += 1

    def _attack(self, now: float) -> float:
        """Start an attack, or end the one under way; return when to look again."""
        if self._attacker is not None:
            if now < self._attacker_ends:
                return self._attacker_ends
            self._attacker.stop()
            self._attacker = None
            return now + self._random.uniform(*BETWEEN_ATTACKS_S)
        name = self._random.choice(sorted(ATTACKS))
        seconds, seed = self._random.uniform(*ATTACK_S), self._random.randrange(2**30)
        running = sorted(self._here - set(self._up_at))
        victim = self._random.choice(running)
        if ask(self._market[victim]) is None:
            return now + 5  # it starts
        self._attacker = attack(self._market, victim, name, seconds=seconds, seed=seed)
        self._attacker_ends = now + seconds + 5
        self.report.attacks[name] += 1
        return self._attacker_ends

    # ---- the end

    def _calm(self) -> None:
        """No more kills, attacks and jobs: wait until everybody is back and every job has ended."""
        self._owner.over.set()
        if self._attacker is not None:
            self._attacker.stop()
        for name in list(self._up_at):
            self._up_at[name] = 0.0
        self._owner.join(CALM_S)
        assert not self._owner.is_alive(), "a post neither ends nor fails"
        until, shown = time.monotonic() + CALM_S, 0.0
        while not self._is_settled():
            self._look(time.monotonic())
            assert time.monotonic() < until, f"jobs did not end: {self.report.text()}"
            if time.monotonic() > shown + 30:
                shown = time.monotonic()
                self._say(f"calm: {self.report.text()}")
            time.sleep(POLL_S)

    def _is_settled(self) -> bool:
        if self._up_at:
            return False
        with self._market.store() as store:
            jobs, head = records_of(store, Job, "job/"), store.head()
        heights = [(ask(self._market[name]) or {"height": -1})["height"] for name in sorted(self._here)]
        settled = len(jobs) >= self.report.posted and all(job.status in ENDED for job in jobs)
        return settled and head is not None and min(heights) >= head.height - 1

    def _check(self) -> None:
        """Replay what every node holds."""
        lowest: dict[str, int] = {}
        for name in (*VALIDATORS, NEWCOMER):
            member = self._market[name]
            if not member.data.ledger.exists():
                continue  # it came too late for the time that there was
            target = member.data.root / "export.gdfl"
            with contextlib.closing(LedgerStore(member.data.ledger, read_only=True)) as store:
                export(store, target)
            replayed = verify(target)
            assert replayed.supply == replayed.state.network().supply, f"{name}: credits are missing"
            if name in self._here:
                lowest[name] = replayed.height
        height = min(lowest.values())
        hashes = set()
        for name in lowest:
            with self._market.store(name) as store:
                block = store.block(height)
                assert block is not None
                hashes.add((block.hash, block.state_root))
        assert len(hashes) == 1, f"{len(hashes)} chains at height {height}"
        self._check_market()

    def _check_market(self) -> None:
        with self._market.store() as store:
            jobs = records_of(store, Job, "job/")
            self.report.rounds = sum(job.completed for job in jobs)
            self.report.outcomes = Counter(job.status for job in jobs)
            assert set(self.report.outcomes) <= set(ENDED), "a job did not end"
            check_conserved(store)
            for job in jobs:
                check_paid_once(store, job.id)
            convicted = sum(record.convicted for record in records_of(store, Validator, "validator/"))
        assert not convicted, f"{convicted} validators were convicted"
        assert self.report.rounds > 0, "no round was finished"
        assert self.report.peak_rss <= MAX_RSS, f"a node took {self.report.peak_rss // MIB} MiB"
        assert self.report.peak_files <= MAX_FILES, f"a node had {self.report.peak_files} files open"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left behind
    root = Path(tempfile.mkdtemp(prefix="gdf-soak-"))
    soak = Soak(root, options.seed, lambda line: print(line, flush=True))
    try:
        report = soak.run(options.minutes * 60)
    except (AssertionError, DemoError) as error:
        print(soak.report.text())
        print(f"seed {options.seed}: {error}; the nodes' folders and logs are in {root}", file=sys.stderr)
        return 1
    print(report.text())
    print(f"credits conserved, one chain, every ledger replayed; attacks: {dict(sorted(report.attacks.items()))}")
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
