"""Each rule of agreement, removed, must be noticed by the simulation: otherwise the simulation proves nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest

import ledger.block
import ledger.chain
import ledger.quorum
import ledger.replica
from ledger.block import FINAL, NOTAR, SKIP
from ledger.proposals import Proposals
from ledger.quorum import Decision, Position, Quorum
from ledger.replica import Replica
from tests.sim import attackers
from tests.simulator import Cluster, Faults, InvariantError, Tamper, cached_crypto, key, transfer

SEEDS = 40  # at most that many networks are tried until one notices
CALM = Faults(until_ms=8_000, delay_ms=(5, 50))
ROUGH = Faults(until_ms=8_000, loss=0.1, delay_ms=(5, 200), spikes=0.1, crash=0.01, partitions=3)


def notarize_twice(patch: pytest.MonkeyPatch) -> None:
    """Rule 3 without "once per slot"."""

    def decisions(self: Quorum) -> Iterator[Decision]:
        yield from original(self)
        voted: set[str] = self.__dict__.setdefault("voted", set())
        for slot in sorted(self._blocks):
            for hash_, parent in self._blocks[slot].items():
                if self.me is not None and hash_ not in voted and self.stands_on(slot, parent):
                    voted.add(hash_)
                    yield Decision(NOTAR, slot, hash_)

    original = Quorum.decisions
    patch.setattr(Quorum, "decisions", decisions)
    patch.setattr(Proposals, "wants", lambda self, slot, hash_, certified: self.get(slot, hash_) is None)
    patch.setattr(Quorum, "wants_vote", lambda self, vote: vote.voter in self.validators and self.in_window(vote.slot))


def finalize_after_skip(patch: pytest.MonkeyPatch) -> None:
    """Rule 4 without "did not vote SKIP"."""

    def may_finalize(self: Quorum, slot: int, hash_: str) -> bool:
        return self.me is not None and self.own_vote(FINAL, slot) is None and self.own_vote(NOTAR, slot) == hash_

    patch.setattr(Quorum, "may_finalize", may_finalize)


def skip_what_was_passed(patch: pytest.MonkeyPatch) -> None:
    """Rule 5 without "at the frontier" and without "did not vote FINAL"."""

    def skip(self: Replica) -> bool:
        slot = self._quorum.frontier - 1
        if original(self):
            return True
        if self._key is None or slot <= self._quorum.root.slot or self._quorum.own_vote(SKIP, slot) is not None:
            return False
        self._cast(SKIP, slot, "")
        return True

    original = Replica._skip
    patch.setattr(Replica, "_skip", skip)


def parent_not_notarized(patch: pytest.MonkeyPatch) -> None:
    """Rule 2 without the parent's notarization."""

    def stands_on(self: Quorum, slot: int, parent: Position) -> bool:
        return self.root.slot <= parent.slot < slot and all(
            between in self.skipped for between in range(parent.slot + 1, slot)
        )

    patch.setattr(Quorum, "stands_on", stands_on)
    # keeping only a slot's first block would hide the mistake: siblings would not get far
    patch.setattr(Proposals, "wants", lambda self, slot, hash_, certified: self.get(slot, hash_) is None)


def no_skip_certificates(patch: pytest.MonkeyPatch) -> None:
    """Rule 2 without the skip certificates between."""

    def stands_on(self: Quorum, slot: int, parent: Position) -> bool:
        return self.root.slot <= parent.slot < slot and self.is_notarized(parent)

    patch.setattr(Quorum, "stands_on", stands_on)


def small_quorum(patch: pytest.MonkeyPatch) -> None:
    """A threshold that only looks like two thirds."""
    for module in (ledger.block, ledger.quorum):
        patch.setattr(module, "quorum_size", lambda validators: 2 * validators // 3)


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    """A restart that does not replay its votes."""

    def rebuild(self: Replica, restored: ledger.replica.Restored) -> None:
        original(self, ledger.replica.Restored(restored.genesis, restored.tip))

    original = Replica._rebuild
    patch.setattr(Replica, "_rebuild", rebuild)


def any_leader(patch: pytest.MonkeyPatch) -> None:
    """Blocks from validators whose turn it is not."""
    original = ledger.block.open_block
    patch.setattr(ledger.replica, "open_block", lambda proposal, network, leader=None: original(proposal, network))


def any_height(patch: pytest.MonkeyPatch) -> None:
    """A height that does not follow from the parent's."""

    def check(header: ledger.block.Header, parent: ledger.effects.Tip) -> None:
        original(msgspec.structs.replace(header, height=parent.height + 1), parent)

    original = ledger.chain.check_follows
    patch.setattr(ledger.chain, "check_follows", check)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No mutation here."""


@dataclass(frozen=True)
class Case:
    mutate: Callable[[pytest.MonkeyPatch], None]
    attack: Tamper | None = None
    send_before_save: bool = False
    faults: Faults = ROUGH
    validators: int = 4
    byzantine: int = 1
    first: int = 0  # the seed to begin with: one that noticed when this was written


CASES = {
    "notarize twice": Case(notarize_twice, attackers.equivocate),
    "finalize after skip": Case(finalize_after_skip),
    "skip what was passed": Case(skip_what_was_passed),
    "parent not notarized": Case(
        parent_not_notarized, attackers.sibling, faults=CALM, validators=7, byzantine=2, first=10
    ),
    "no skip certificates": Case(no_skip_certificates, attackers.front_run, first=8),
    "small quorum": Case(small_quorum, first=16),
    "forget votes": Case(forget_votes),
    "send before save": Case(nothing, send_before_save=True, faults=Faults(until_ms=8_000, crash=0.05)),
    "any leader": Case(any_leader, attackers.usurp),
    "any height": Case(any_height, attackers.misnumber),
}


def rough_run(seed: int, case: Case) -> None:
    """Run a network, with neighbouring Byzantine validators if the case has an attack, through rough weather."""
    attackers_at = [(seed + index) % case.validators for index in range(case.byzantine)]
    cluster = Cluster(
        seed,
        case.validators,
        faults=case.faults,
        byzantine={index: case.attack for index in attackers_at} if case.attack is not None else None,
        send_before_save=case.send_before_save,
    )

    def submit(number: int) -> None:
        name = cluster.random.choice(cluster.up() or [None])
        if name is not None and name not in cluster.byzantine:
            sender = key(101 + number % 4)
            cluster.submit(name, transfer(cluster.network, sender, key(1).account, number, cluster.clock(name)))

    for number in range(20):
        cluster.at(100 + number * 400, functools.partial(submit, number))
    cluster.run(case.faults.until_ms + 3_000)


def first_to_notice(case: Case) -> int | None:
    """Return the first seed whose run breaks an invariant."""
    with cached_crypto():
        for seed in range(case.first, case.first + SEEDS):
            try:
                rough_run(seed, case)
            except InvariantError:
                return seed
    return None


@pytest.mark.parametrize("name", CASES)
def test_simulation_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[name].mutate(monkeypatch)
    assert first_to_notice(CASES[name]) is not None, f"{SEEDS} networks did not notice: {name}"


@pytest.mark.parametrize("name", CASES)
def test_unmutated_survives(name: str) -> None:
    case = dataclasses.replace(CASES[name], mutate=nothing, send_before_save=False)
    with cached_crypto():
        for seed in range(1):
            rough_run(seed, case)
