"""A small honest market of real nodes on this machine, light enough for two cores."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contracts.records import Allocation, Genesis, Job, Staking
from gdf_market import keystore
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.errors import GdfError
from gdf_market.identity import Identity
from gdf_market.node.client import NodeClient
from gdf_market.units import CREDIT
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore

WAIT_S = 600.0  # for what takes seconds on an idle machine
ANSWER_S = 20.0  # of a status
WORKER_GRANT, OWNER_GRANT = 500, 1_000_000  # credits
FUNDED_GRANT = 5  # credits of each attacker that has some
ENDED = ("done", "cancelled", "expired")
BOND = 100 * CREDIT  # of each validator

JOB = """
from pydoc_data.topics import topics

import torch
from torch import nn

from gdf_market import Job

text = "\\n".join(topics[name] for name in sorted(topics))[:{length}]
letters, context, width = len(set(text)), 8, 16


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(letters, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, letters)

    def forward(self, idx, targets):
        logits = self.head(torch.tanh(self.hidden(self.table(idx))))
        return nn.functional.cross_entropy(logits.view(-1, letters), targets.view(-1))


torch.manual_seed({number})
job = Job(title="letters {number}", model=Letters(), data=text, context=context, batch=8, lr=2e-3)
"""
# every phase ends early when everybody acted; the deadlines stand a busy machine
TERMS = (
    "--units", "2", "--min-workers", "1", "--max-price", "1", "--bond", "2", "--audit-floor-percent", "5",
    "--bid-seconds", "10", "--work-seconds", "240", "--phase-seconds", "180", "--audit-seconds", "240",
    "--hold-seconds", "10",
)  # fmt: skip


def funded_seeds(count: int = 3) -> tuple[str, ...]:
    """Return secret seeds of accounts that the genesis gives some credits to, for attackers to use."""
    return tuple(bytes([200 + index] * 32).hex() for index in range(count))


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Market:
    """Nodes on loopback: ``validators`` agree on blocks, ``workers`` work; the owner, olga, runs none but to post."""

    def __init__(self, root: Path, *, validators: Iterable[str], workers: Iterable[str], later: Iterable[str] = ()):
        self.root = root
        self.validators, self.workers, self.later = tuple(validators), set(workers), tuple(later)
        names = dict.fromkeys([*self.validators, *sorted(self.workers), *self.later])
        self.members = {name: Member(name, root) for name in names}
        self.owner = Member("olga", root)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._jobs = 0

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def found(self) -> None:
        """Make everybody's key and the network, and start all nodes but those that come later."""
        everybody = [*self.members.values(), self.owner]
        for member in everybody:
            member.data.root.mkdir(parents=True)
            member.account = keystore.create(member.data.key, None).account
        genesis = self._genesis()
        bootstrap = ", ".join(
            f'"/ip4/127.0.0.1/tcp/{self._ports[name]}/p2p/{self[name].account}"' for name in self.validators
        )
        for member in everybody:
            member.data.save_genesis(genesis)
            member.data.config.write_text(f"bootstrap = [{bootstrap}]\n", encoding="utf-8")
        for name in self.members:
            if name not in self.later:
                self.start(name)
        self.until("all are one network", self._connected)

    def _genesis(self) -> Genesis:
        funded = [Identity(bytes.fromhex(seed)).account for seed in funded_seeds()]
        balances = {account: FUNDED_GRANT * CREDIT for account in funded}
        balances |= {member.account: WORKER_GRANT * CREDIT for member in self.members.values()}
        balances[self.owner.account] = OWNER_GRANT * CREDIT
        validators = tuple(sorted(self[name].account for name in self.validators))
        return Genesis(
            name="hostile",
            test_network=True,
            time_ms=time.time_ns() // 1_000_000,
            allocations=tuple(
                Allocation(account=account, balance=balances[account], stake=BOND if account in validators else 0)
                for account in sorted(balances)
            ),
            validators=validators,
            block_ms=300,
            heartbeat_ms=1_500,
            audit_bond=CREDIT // 10,
            max_void_rounds=5,
            staking=Staking(epoch_blocks=100_000, bond=BOND, floor=len(validators)),
            entry_fee=1_000,
        )

    def start(self, name: str) -> None:
        """Start a member's node, on the port that is its own."""
        listen = ("--listen", f"127.0.0.1:{self._ports[name]}")
        if name in self.workers:
            self[name].start("work", "--threads", "1", "--min-price", "0.5", *listen)
        else:
            self[name].start("node", "run", *listen)

    def _connected(self) -> bool:
        statuses = [member.status() for member in self.running]
        return all(
            status is not None and status["height"] >= 1 and len(status["peers"]) >= len(statuses) - 1
            for status in statuses
        )

    def until(self, what: str, holds: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait; DemoError when time is up or one of those that should run has ended."""
        wait_until(what, holds, timeout_s=timeout_s, members=self.running)

    def job_file(self, *, length: int = 20_000) -> Path:
        """Write the file of a job that nobody posted yet."""
        self._jobs += 1
        path = self.root / f"job{self._jobs}.py"
        path.write_text(JOB.format(length=length, number=self._jobs), encoding="utf-8")
        return path

    def post(self, rounds: int, *, minutes: int = 60, terms: Sequence[str] = TERMS) -> str:
        """Post a job; the owner is gone when this returns the job's id."""
        file = self.job_file()
        options = ("--rounds", str(rounds), *terms, "--deadline-minutes", str(minutes))
        return str(self.owner.run("post", str(file), *options)["job"])

    @contextlib.contextmanager
    def store(self, name: str = "") -> Iterator[LedgerStore]:
        member = self[name] if name else next(iter(self.members.values()))
        with contextlib.closing(LedgerStore(member.data.ledger, read_only=True)) as store:
            yield store

    def job(self, job_id: str) -> Job:
        with self.store() as store:
            found = record_of(store, Job, f"job/{job_id}")
        assert found is not None
        return found

    def rounds_finished(self) -> int:
        """Return the rounds of all jobs that came to a result."""
        with self.store() as store:
            return sum(job.completed for job in records_of(store, Job, "job/"))

    def close(self) -> None:
        stop_all(list(self.members.values()))


def ask(member: Member, path: str = "/status") -> dict[str, Any] | None:
    """Return what a node's API answers, None while it does not; its lock is not touched: it may be waiting for it."""
    with contextlib.suppress(GdfError, OSError, ValueError, KeyError):
        info = json.loads(member.data.node_file.read_text(encoding="utf-8"))
        with NodeClient(info["url"], info["token"]) as client:
            return client.call("GET", path, timeout_s=ANSWER_S)
    return None
