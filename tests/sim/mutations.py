"""The mutation check: each rule of agreement is removed in turn, and the simulation must notice.

``python -m tests.sim.mutations`` prints the table; ``--write`` stores it as docs/mutations.md.  Exits with 1 if the
removal of a rule was not noticed: then the simulation proves nothing about that rule.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.records import Staking
from tests.sim import attackers, forgers, liars, weaken, weaken_blocks
from tests.sim.attacks import named
from tests.sim.memory import TornStore
from tests.sim.scenarios import BOND, Plan, build, check
from tests.sim.weaken import allow
from tests.simulator import Cluster, Faults, InvariantError, MemoryStore, Tamper, cached_crypto

SEEDS = 40  # at most that many networks are tried until one notices
REPORT = Path(__file__).parents[2] / "docs" / "mutations.md"
CALM = Faults(until_ms=5_000, delay_ms=(5, 50), echo=0.2)
ROUGH = Faults(until_ms=6_000, loss=0.1, delay_ms=(5, 200), spikes=0.1, crash=0.01, partitions=3, echo=0.2)
LOSSY = Faults(until_ms=6_000, loss=0.3, delay_ms=(5, 200), spikes=0.1, partitions=2, echo=0.2)
CRASHES = Faults(until_ms=6_000, loss=0.1, delay_ms=(5, 100), crash=0.05, echo=0.2)
FRAGILE = Faults(until_ms=3_000, delay_ms=(5, 20), crash=0.2, echo=0.2)
POWER = Faults(until_ms=6_000, loss=0.3, delay_ms=(5, 200), crash=0.01, power_cuts=6, echo=0.2)
ARRIVALS = ((2_000, 4, "arrive"), (2_500, 5, "arrive"), (3_000, 6, "arrive"))
JOINS = ((300, 4, "join"), (350, 5, "join"), (400, 6, "join"))


@dataclass(frozen=True)
class Case:
    """A rule, what is removed of it, and the networks in which that must show."""

    rule: str
    mutate: Callable[[pytest.MonkeyPatch], None]
    attack: Tamper | None = None
    byzantine: int = 1
    twins: bool = False
    faults: Faults = CALM
    validators: int = 4
    others: int = 0
    epoch_blocks: int = 1_000
    moves: tuple[tuple[int, int, str], ...] = ()
    floor: int | None = None
    store: type[MemoryStore] | None = None
    send_before_save: bool = False
    first: int = 0  # the seed to begin with in the fast tier: one that noticed when this was written
    extra: dict[int, Tamper] = field(default_factory=dict)  # attackers at fixed places

    def plan(self, seed: int) -> Plan:
        """Return the plan of one network: neighbouring attackers, whose place goes round with the seed."""
        places = [(seed + index) % self.validators for index in range(self.byzantine)]
        bad = self.attack is not None or self.twins
        staking = Staking(
            epoch_blocks=self.epoch_blocks,
            bond=BOND,
            floor=self.floor or (3 * self.byzantine + 1 if bad else 1),
            silent_epochs=3,
        )
        return Plan(
            seed,
            self.validators,
            self.others,
            staking,
            block_ms=100,
            entry_fee=100,
            faults=self.faults,
            attackers=self.extra | ({place: self.attack for place in places} if self.attack is not None else {}),
            twins=tuple(places) if self.twins else (),
            moves=self.moves,
            transfers=20,
        )

    def build(self, seed: int, *, sound: bool = False) -> Cluster:
        """Return a network; a ``sound`` one has a disk and a shell that keep their promises."""
        plan = self.plan(seed)
        if sound or (self.store is None and not self.send_before_save):
            return build(plan)
        return build(plan, store=self.store or MemoryStore, send_before_save=self.send_before_save)


CASES = {
    "notarize twice": Case("one notarize vote per slot", weaken.notarize_twice, attackers.equivocate),
    "finalize after skip": Case("no finalize vote after a skip vote", weaken.finalize_after_skip, faults=ROUGH),
    "skip after final": Case("no skip vote after a finalize vote", weaken.skip_after_final, faults=ROUGH),
    "finalize unseen": Case(
        "a finalize vote is for the block that one notarized", weaken.finalize_unseen, attackers.equivocate
    ),
    "parent not notarized": Case(
        "a block's parent is notarized",
        weaken.parent_not_notarized,
        attackers.sibling,
        byzantine=2,
        validators=7,
        first=1,
    ),
    "no skip certificates": Case(
        "every slot that a block passes over is skip-certified",
        weaken.no_skip_certificates,
        attackers.front_run,
        faults=ROUGH,
        first=2,
    ),
    "send before save": Case(
        "votes are durable before they are sent", weaken.nothing, faults=CRASHES, send_before_save=True
    ),
    "forget votes": Case("a restart replays its votes", weaken.forget_votes, faults=ROUGH),
    "forget blocks": Case("a block voted for is durable", weaken.forget_blocks, faults=POWER),
    "propose twice": Case("one proposal per slot", weaken.propose_twice, faults=LOSSY),
    "propose before voting": Case(
        "a proposal is durable, with the vote for it, before it is sent", weaken.propose_before_voting, faults=CRASHES
    ),
    "torn write": Case(
        "finalized blocks, state and epoch are one transaction",
        weaken.nothing,
        faults=CRASHES,
        epoch_blocks=3,
        store=TornStore,
    ),
    "small quorum": Case("a quorum is more than two thirds", weaken.small_quorum, faults=ROUGH),
    "too few signers": Case(
        "a certificate has a quorum of signatures",
        allow("are a quorum"),
        named(forgers.forge, "few"),
    ),
    "repeated signers": Case(
        "a certificate's signers are distinct",
        allow("are not distinct validators"),
        named(forgers.forge, "repeated"),
    ),
    "unsigned certificates": Case(
        "a certificate's signatures hold", weaken.unsigned_certificates, named(forgers.forge, "unsigned")
    ),
    "unsigned votes": Case("a vote's signature holds", weaken.unsigned_votes, forgers.forge_votes),
    "unsigned blocks": Case("a block's signature holds", weaken.unsigned_blocks, forgers.impersonate),
    "unsigned entries": Case("an entry's signature holds", weaken.unsigned_entries, forgers.rob),
    "outsiders count": Case(
        "only validators of the epoch vote",
        weaken.count_outsiders,
        attackers.equivocate,
        validators=7,
        epoch_blocks=3,
        floor=4,
        extra={5: attackers.turncoat, 6: attackers.turncoat},
    ),
    "first set for ever": Case(
        "a certificate is checked against its epoch's set",
        weaken.first_set_for_ever,
        others=3,
        epoch_blocks=3,
        moves=JOINS,
        faults=LOSSY,
    ),
    "no epoch in votes": Case(
        "a vote signs its epoch", weaken.no_epoch_in_votes, attackers.replay, epoch_blocks=2, faults=LOSSY
    ),
    "certificates of any epoch": Case(
        "a certificate counts in its own epoch",
        weaken.certificates_of_any_epoch,
        forgers.stale,
        epoch_blocks=2,
        faults=LOSSY,
    ),
    "any leader": Case("only the slot's leader proposes", allow("belongs to"), attackers.usurp),
    "any height": Case(
        "a block's height follows from its parent's", weaken_blocks.any_height, named(forgers.lie, "height")
    ),
    "any parent time": Case(
        "a block's time is after its parent's", allow("is not after its parent's"), named(forgers.lie, "time_ms")
    ),
    "any time": Case("no vote for a block from the future", weaken_blocks.any_time, attackers.fast_clock),
    "any epoch": Case("a block names its epoch", weaken_blocks.any_epoch, named(forgers.lie, "epoch")),
    "any beacon": Case(
        "the beacon follows from a VRF proof of the leader", weaken_blocks.any_beacon, named(forgers.lie, "beacon")
    ),
    "any entries": Case(
        "a header names its entries", allow("do not match its header"), named(forgers.lie, "entries_root")
    ),
    "any state root": Case(
        "the state root is that of the execution", allow("claims state"), named(forgers.lie, "state_root")
    ),
    "any validators": Case(
        "a header names the set after it", allow("names other validators"), named(forgers.lie, "validators")
    ),
    "earlier set": Case(
        "the next set is the one in the boundary block's state",
        weaken_blocks.earlier_set,
        others=3,
        epoch_blocks=3,
        moves=JOINS,
    ),
    "root at closing block": Case(
        "an epoch is rooted at the boundary block", weaken_blocks.root_at_closing_block, epoch_blocks=2, faults=LOSSY
    ),
    "closing blocks with entries": Case(
        "closing blocks are empty",
        allow("has entries; epoch"),
        named(forgers.lie, "entries"),
        epoch_blocks=2,
        faults=LOSSY,
        first=7,
    ),
    "closing blocks that change the state": Case(
        "closing blocks change nothing", weaken_blocks.no_boundary, epoch_blocks=2, faults=LOSSY
    ),
    "no change limit": Case(
        "at most a third of the set changes", weaken_blocks.no_change_limit, others=3, epoch_blocks=12, moves=JOINS
    ),
    "sync without a chain": Case(
        "fetched blocks hang together",
        allow("does not follow the one before it"),
        named(liars.false_history, "another block"),
        faults=ROUGH,
        first=12,
    ),
    "sync with any certificate": Case(
        "a certificate covers the fetched blocks",
        allow("comes with a certificate of something else"),
        named(liars.false_history, "borrowed certificate"),
        faults=ROUGH,
    ),
    "any snapshot": Case(
        "a snapshot gives the state root of its block",
        allow("the records give state"),
        liars.false_snapshot,
        others=3,
        epoch_blocks=3,
        moves=ARRIVALS,
    ),
    "look away": Case("equivocation is reported", weaken_blocks.look_away, attackers.equivocate),
    "look away from twins": Case(
        "two nodes with one key are reported", weaken_blocks.look_away, twins=True, faults=LOSSY
    ),
    "forget evidence": Case(
        "evidence survives a restart", weaken_blocks.forget_evidence, attackers.whisper, faults=FRAGILE
    ),
    "convict the honest": Case("evidence convicts nobody honest", weaken_blocks.convict_the_honest, faults=LOSSY),
}


def run(case: Case, seed: int, *, sound: bool = False) -> None:
    """Run one network; raises InvariantError when something must not have happened."""
    check(case.build(seed, sound=sound))


@dataclass(frozen=True)
class Notice:
    """Which seed noticed, after how many, and the invariant that was broken."""

    seed: int
    tried: int
    invariant: str


def first_to_notice(case: Case, first: int = 0) -> Notice | None:
    """Return the first network from a seed on that breaks an invariant."""
    with pytest.MonkeyPatch.context() as patch:
        case.mutate(patch)
        for seed in range(first, first + SEEDS):
            try:
                with cached_crypto():
                    run(case, seed)
            except InvariantError as error:
                return Notice(seed, seed - first + 1, plain(str(error)))
    return None


def plain(text: str) -> str:
    """Return an invariant's text without names and numbers."""
    text = re.sub(r"12D3KooW\w{44}'?", "a validator", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "…", text)
    text = re.sub(r"; heights.*", "", text)
    return re.sub(r"\b\d+\b", "N", text)[:110]


def table(found: dict[str, Notice | None]) -> list[str]:
    """Return the rows of the report."""
    rows = ["| rule | mutation | attacker | networks until noticed | noticed by |", "|---|---|---|---|---|"]
    for name, notice in found.items():
        case = CASES[name]
        attack = getattr(case.attack, "__name__", "twins" if case.twins else "faults only")
        seen = ("**none**", f"not within {SEEDS}") if notice is None else (str(notice.tried), notice.invariant)
        rows.append(f"| {case.rule} | {name} | {attack} | {seen[0]} | {seen[1]} |")
    return rows


TEXT = """# Mutation check

Each rule of agreement is removed in turn from the program, and simulated networks (docs/simulation.md) are run until
one of them breaks an invariant. Written by `make mutations WRITE=--write`; `tests/sim/mutations.py` holds the cases.

"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutations to check (default: all)")
    parser.add_argument("--write", action="store_true", help=f"store the table as {REPORT.name}")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no such mutation: {', '.join(unknown)}")
    found: dict[str, Notice | None] = {}
    for name in options.names or CASES:
        started_s = time.monotonic()
        found[name] = first_to_notice(CASES[name])
        print(f"{name}: {found[name]} ({time.monotonic() - started_s:.1f} s)", file=sys.stderr, flush=True)
    rows = table(found)
    print("\n".join(rows))
    if options.write:
        REPORT.write_text(TEXT + "\n".join(rows) + "\n", encoding="utf-8")
    missed = [name for name, notice in found.items() if notice is None]
    print(f"{len(found) - len(missed)} of {len(found)} noticed" + "".join(f"; not: {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
