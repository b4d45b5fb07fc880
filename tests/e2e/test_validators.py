"""Validators come and go on a running network: real processes, real sockets, short epochs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gdf_market.demo.processes import Member, stop_all, wait_until
from ledger.store import LedgerStore

pytestmark = pytest.mark.e2e

EPOCH_BLOCKS = 6


class Home:
    """A network that ann founds and validates alone at first; epochs take some seconds."""

    def __init__(self, root: Path) -> None:
        self.ann, self.ben, self.cleo, self.dora = (Member(name, root) for name in ("ann", "ben", "cleo", "dora"))
        self.members = [self.ann, self.ben, self.cleo, self.dora]
        founding = ["--new-network", "home", "--block-ms", "100", "--heartbeat-ms", "700"]
        founding += ["--epoch-blocks", str(EPOCH_BLOCKS), "--validator-bond", "100", "--entry-fee", "0.001"]
        self.ann.account = self.ann.run("init", *founding)["account"]
        self.start(self.ann)
        self.invite = self.ann.run("node", "invite")["invite"]
        for member in (self.ben, self.cleo):
            self.join(member)
            self.ann.run("wallet", "send", member.account, "150")
            self.start(member)

    @property
    def running(self) -> list[Member]:
        """The members that are to be alive."""
        return [member for member in self.members if member.alive]

    def join(self, member: Member) -> None:
        member.account = member.run("init", "--join", self.invite)["account"]

    def start(self, member: Member) -> None:
        member.start("node", "run")
        wait_until(f"{member.name} answers", lambda: member.status() is not None, timeout_s=90, members=[member])

    def validators(self) -> dict[str, Any]:
        return self.ann.run("validator", "list")

    def seated(self) -> set[str]:
        return {line["account"] for line in self.validators()["members"]}

    def wait_for(self, *members: Member) -> None:
        wanted = {member.account for member in members}
        wait_until("the set changes", lambda: self.seated() == wanted, timeout_s=240, members=self.running)

    def height(self, member: Member) -> int:
        status = member.status()
        return int(status["height"]) if status is not None else 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    network = Home(tmp_path)
    yield network
    stop_all(network.members)


def refused(member: Member, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(member.command(*arguments), capture_output=True, text=True, timeout=120, check=False)


def until(what: str, holds: Callable[[], bool], home: Home) -> None:
    wait_until(what, holds, timeout_s=240, members=home.running)


def test_validators_join_leave_and_a_newcomer_starts_from_a_snapshot(home: Home, tmp_path: Path) -> None:
    assert home.seated() == {home.ann.account}
    for member in (home.ben, home.cleo):
        member.run("validator", "join")
    again = refused(home.ben, "validator", "join")
    assert again.returncode != 0
    assert "already" in again.stderr
    home.wait_for(home.ann, home.ben, home.cleo)
    # three agree: each of them is needed, and each makes blocks
    entry = home.ben.run("wallet", "send", home.ann.account, "1")
    until("everybody proposed", lambda: all(line["proposed"] for line in home.validators()["members"]), home)

    proof = tmp_path / "paid.proof"
    network = home.ann.run("ledger", "prove", entry["entry"], "-o", str(proof))["network"]
    assert home.dora.run("ledger", "check", str(proof), "--genesis", network)["holds"] is True

    home.ben.run("validator", "leave")
    home.wait_for(home.ann, home.cleo)
    home.ben.ask_to_stop()
    home.ben.join()  # it is not needed any more
    before = home.height(home.ann)
    until("two go on without the third", lambda: home.height(home.ann) > before + EPOCH_BLOCKS, home)

    home.join(home.dora)
    with home.dora.data.config.open("a", encoding="utf-8") as config:  # beside the address of its first peer
        config.write('sync = "snapshot"\nkeep_epochs = 1\n')
    home.start(home.dora)
    until("dora catches up", lambda: home.height(home.dora) >= before, home)
    with closing(LedgerStore(home.dora.data.ledger, read_only=True)) as store:
        assert store.oldest() > EPOCH_BLOCKS
        assert store.state().supply_check() == store.state().network().supply
    assert refused(home.dora, "ledger", "export", str(tmp_path / "no.gdfl")).returncode == 2
    assert home.ann.run("ledger", "diff", str(home.ann.data.root), str(home.cleo.data.root))["relation"] != "different"

    chain = tmp_path / "chain.gdfl"
    home.ann.run("ledger", "export", str(chain))
    assert home.dora.run("ledger", "verify", str(chain))["height"] > before
