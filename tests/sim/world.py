"""What a simulated network is made of: keys, a genesis, payments, faults, and nodes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from contracts.records import Allocation, Genesis, Staking
from gdf_market.errors import GdfError
from gdf_market.identity import Identity
from gdf_market.messages import Entry, Transfer, seal
from ledger.block import Certificate, Proposal, Vote
from ledger.effects import Finalized
from ledger.replica import Replica
from tests.sim.caches import READ
from tests.sim.memory import MemoryStore

START_MS = 1_700_000_000_000


@functools.lru_cache(maxsize=256)
def key(number: int) -> Identity:
    """Return the identity of a number."""
    return Identity(number.to_bytes(32, "big"))


def make_genesis(
    validators: int,
    *,
    block_ms: int = 200,
    heartbeat_ms: int = 1_500,
    users: int = 4,
    others: int = 0,
    staking: Staking | None = None,
    entry_fee: int = 0,
) -> Genesis:
    """Return a network of validators ``key(1..)``, other nodes ``key(51..)`` and users ``key(101..)``.

    Each has 1000 credits, and validators have their bond locked besides.
    """
    staking = staking or Staking()
    names = [key(1 + index).account for index in range(validators)]
    poor = [key(51 + index).account for index in range(others)] + [key(101 + index).account for index in range(users)]
    bonds = {account: staking.bond for account in names}
    return Genesis(
        name="sim",
        test_network=True,
        time_ms=START_MS,
        allocations=tuple(
            Allocation(account=account, balance=1_000_000_000, stake=bonds.get(account, 0))
            for account in (*names, *poor)
        ),
        validators=tuple(names),
        block_ms=block_ms,
        heartbeat_ms=heartbeat_ms,
        audit_bond=0,
        max_void_rounds=3,
        staking=staking,
        entry_fee=entry_fee,
    )


def transfer(network: str, sender: Identity, to: str, nonce: int, now_ms: int, amount: int = 5) -> Entry:
    """Return a signed transfer that lives for half an hour."""
    body = Transfer(author=sender.account, nonce=nonce, expires_ms=now_ms + 1_800_000, to=to, amount=amount, memo="")
    return seal(sender, network, body)


@dataclass(frozen=True)
class Faults:
    """What goes wrong while the run is young; afterwards the network is well and every node is up."""

    until_ms: int = 6_000
    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: tuple[int, int] = (5, 60)
    spikes: float = 0.0  # share of messages that take up to 3 s
    crash: float = 0.0  # chance per step to crash within its effects
    partitions: int = 0
    power_cuts: int = 0  # of all nodes at once
    skew_ms: int = 300  # how far a clock is off, either way
    jumps: int = 0  # of clocks, forth and back
    echo: float = 1.0  # share of floods that reach a node which has the message already: gossip saves most of them


@dataclass
class Node:
    """A node of the simulation; ``name`` is its account, but for the second of two twins."""

    name: str
    key: Identity
    store: MemoryStore
    skew_ms: int
    replica: Replica | None = None
    timers: dict[str, int] = field(default_factory=dict)
    life: int = 0  # counts restarts: what was scheduled for an earlier life is void
    refused: list[tuple[str, Exception]] = field(default_factory=list)
    finalized: list[Finalized] = field(default_factory=list)
    got: set[bytes] = field(default_factory=set)  # in this life
    down: bool = False  # stays down until its time has come, whatever heals
    from_snapshot: bool = False  # a new ledger begins with one
    keep_epochs: int | None = None  # older blocks are deleted

    @property
    def account(self) -> str:
        return self.key.account


def is_flood(data: bytes) -> bool:
    """Say whether a broadcast message is one that everybody passes on: a status is said again as it is."""
    try:
        return isinstance(READ(data), (Vote, Proposal, Certificate))
    except GdfError:
        return False
