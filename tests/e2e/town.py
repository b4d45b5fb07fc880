"""A market on the test internet: every node is a real one, on a host of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from contracts.records import Account, Job, Round, Unit
from gdf_market import keystore
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.node.invite import make_invite
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from tests.e2e.netns import Internet, Machine

ENDED = ("done", "cancelled", "expired")
WAIT_S = 600.0  # of what takes seconds on an idle machine
WORKER_GRANT = 500  # credits; the owner founds the network and has the rest
PORT = 4_001


class Town:
    """``validators`` agree on blocks; who is in ``workers`` works (all validators run); the owner is olga."""

    def __init__(self, net: Internet, root: Path, *, validators: Iterable[str], workers: Iterable[str]) -> None:
        self.net, self.root = net, root
        self.validators, self.workers = list(validators), list(workers)
        names = dict.fromkeys([*self.validators, *self.workers, "olga"])
        self.members = {name: Machine(net.host(name), root) for name in names}
        self.invite = ""
        self.fortune = 0  # olga's first balance

    def __getitem__(self, name: str) -> Machine:
        return self.members[name]

    def __call__(self, names: Iterable[str]) -> list[Machine]:
        return [self.members[name] for name in names]

    @property
    def running(self) -> list[Machine]:
        return [member for member in self.members.values() if member.alive]

    def found(self) -> None:
        """Make everybody's key and the network, and let all know where two of the validators will be."""
        for member in self.members.values():
            member.data.create()
            member.account = keystore.create(member.data.key, None).account
        options: list[str] = []
        for name in self.validators:
            options += ["--validator", self[name].account]
        for name in self.members:
            if name != "olga":
                options += ["--grant", f"{self[name].account}={WORKER_GRANT}"]
        founding = ("--test-network", "--block-ms", "300", "--heartbeat-ms", "1500")
        self["olga"].run("init", "--new-network", "town", *founding, *options)
        genesis = self["olga"].data.genesis()
        self.fortune = next(one.balance for one in genesis.allocations if one.account == self["olga"].account)
        for member in self.members.values():
            known = [self._address(one) for one in self(self.validators[:2]) if one is not member]
            member.data.save_genesis(genesis)
            member.data.config.write_text(f"bootstrap = {json.dumps(known)}\n", encoding="utf-8")
        self.invite = make_invite(genesis, [self._address(one) for one in self(self.validators[:2])])

    def _address(self, member: Machine) -> str:
        return f"/ip4/{member.host.address}/tcp/{PORT}/p2p/{member.account}"

    def start(self, *names: str) -> None:
        for name in names:
            member = self[name]
            listen = ("--listen", f"{member.host.address}:{PORT}")
            if name in self.workers:
                member.start("work", "--threads", "1", "--min-price", "0.5", *listen)
            else:
                member.start("node", "run", *listen)

    def until(self, what: str, holds: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait; DemoError when time is up or one of those that should run has ended."""
        wait_until(what, holds, timeout_s=timeout_s, members=self.running)

    def lose(self, name: str) -> None:
        """End a member as a power cut does: nobody is told."""
        self.net.unplug(name)
        self[name].kill()

    def height(self, name: str) -> int:
        with self.store(name) as store:
            head = store.head()
        return head.height if head else 0

    @contextmanager
    def store(self, name: str) -> Iterator[LedgerStore]:
        with closing(LedgerStore(self[name].data.ledger, read_only=True)) as store:
            yield store

    def close(self) -> None:
        stop_all(list(self.members.values()))


def the_job(store: LedgerStore, job: str) -> Job:
    found = record_of(store, Job, f"job/{job}")
    assert found is not None
    return found


def units_of(store: LedgerStore, job: str, worker: Member) -> dict[int, Unit]:
    """Return a worker's units of a job by round."""
    units = records_of(store, Unit, f"unit/{job}/")
    return {unit.round: unit for unit in units if unit.worker == worker.account}


def check_paid_once(store: LedgerStore, job: str) -> None:
    """What moved to workers is what each unit's record says, once, and no unit got more than its round promised."""
    rounds = {one.index: one for one in records_of(store, Round, f"round/{job}/")}
    moved: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    for event in store.events(job=job, limit=1_000_000):
        if event.kind in ("paid", "merit") and event.source == "held":
            moved[event.round, event.slot] += event.amount
            times[event.round, event.slot] += event.kind == "paid"
    for unit in records_of(store, Unit, f"unit/{job}/"):
        where, round_ = (unit.round, unit.slot), rounds[unit.round]
        pot = round_.price * len(round_.included) * the_job(store, job).spec.merit_ppm // 1_000_000
        assert unit.paid <= round_.price + pot
        assert moved[where] == unit.paid
        assert times[where] == (1 if unit.paid else 0)


def check_conserved(store: LedgerStore) -> None:
    """All credits are there, and after all jobs ended none is locked but the validators' bonds."""
    state = store.state()
    assert state.supply_check() == state.network().supply
    locked = state.supply_check() - sum(one.balance + one.stake for one in records_of(store, Account, "account/"))
    assert locked == 0


def credits_of(store: LedgerStore, member: Member) -> int:
    return store.state().account(member.account).balance
