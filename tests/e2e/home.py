"""A small network by hand, for end-to-end tests: real processes with folders of their own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from gdf_market.demo.processes import Member, wait_until
from ledger.store import LedgerStore

# Deadlines that fit a busy machine with two cores.
PHASES = [
    "--bid-seconds", "8", "--work-seconds", "25", "--phase-seconds", "20", "--audit-seconds", "40",
    "--hold-seconds", "8", "--deadline-minutes", "15",
]  # fmt: skip


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gdf_market", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


class Home:
    """A network by hand: ann validates and owns the credits, ben and cleo work."""

    network: tuple[str, ...] = ()  # how it is founded

    def __init__(self, root: Path) -> None:
        self.ann, self.ben, self.cleo = (Member(name, root) for name in ("ann", "ben", "cleo"))
        self.members = [self.ann, self.ben, self.cleo]
        self.ann.account = self.ann.run("init", "--new-network", "home", *self.network)["account"]
        self.ann.start("node", "run")
        wait_until("ann answers", lambda: self.ann.status() is not None, timeout_s=60, members=[self.ann])
        invite = self.ann.run("node", "invite")["invite"]
        for member in (self.ben, self.cleo):
            member.account = member.run("init", "--join", invite)["account"]
            self.ann.run("wallet", "send", member.account, "500")
            self.work(member)

    def work(self, member: Member) -> None:
        member.start("work", "--threads", "1", "--min-price", "0.5")

    def store(self, member: Member) -> closing[LedgerStore]:
        return closing(LedgerStore(member.data.ledger, read_only=True))
