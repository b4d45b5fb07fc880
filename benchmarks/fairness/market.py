"""The real contracts in process: jobs played by honest workers and cheats, fast enough for a Monte Carlo.

Everything that decides is ``contracts.apply_block``.  Two things are exchanged where a run says so, for speed alone:
entries are not signed (the rules do not look at signatures), and lotteries draw from a hash instead of the VRF (whose
output is as good as random, too).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from contracts.block import BlockContext, apply_block, next_wake_ms, select_entries
from contracts.records import Reputation, Round
from contracts.state import State, reputation_key
from contracts.views import Action
from gdf_market import merkle, vrf
from gdf_market.commands.terms import DEFAULT_BOND_PRICES
from gdf_market.errors import RuleError
from gdf_market.messages import Bid, Body, Entry
from gdf_market.messages import Commit as CommitBody
from gdf_market.messages import Result as ResultBody
from gdf_market.units import CREDIT
from tests import contracts_world
from tests.contracts_world import Actor, World, key_of, outcome_of

PRICE = CREDIT
BOND = DEFAULT_BOND_PRICES * PRICE
WORK_MS = 120_000
LATE_MS = 110_000  # into the work phase: when everybody commits, so that pay of the round before is released by then
DEVICE_CLASS = "cpu-fp32"
RECORD = 1_000  # consecutive valid units of a worker that is trusted
_HASHED = b"hashed"


@dataclass(frozen=True)
class Terms:
    """What a job of the Monte Carlo asks for; the rest is as ``gdf-market post`` has it."""

    rounds: int = 10
    floor_ppm: int = 100_000
    merit_ppm: int = 200_000
    bond: int = BOND

    def fields(self, units: int) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "units_per_round": units,
            "reserve_price": PRICE,
            "unit_bond": self.bond,
            "merit_ppm": self.merit_ppm,
            "audit_fee": PRICE,
            "audit_budget": 4 * PRICE * units * self.rounds,
            "audit_floor_ppm": self.floor_ppm,
            "bid_ms": 20_000,
            "work_ms": WORK_MS,
            "reveal_ms": 60_000,
            "receipt_ms": 60_000,
            "result_ms": 60_000,
            "audit_ms": 120_000,
            "hold_ms": 60_000,
        }


@dataclass
class Market(World):
    """``flavour(name, round)`` is "" for an honest unit; ``allies`` pass each other's units in audits.

    ``judge`` gives fields of a round's outcome (suspicion, merit, ...); without them all units are equal.
    """

    flavour: Callable[[str, int], str] = lambda name, index: ""
    allies: dict[str, str] = field(default_factory=dict)
    mute: Callable[[str, int], bool] = lambda name, index: False  # does not open sketches of this unit
    judge: Callable[[Round], dict[str, Any]] = lambda round_: {}
    signed: bool = False

    def __post_init__(self) -> None:
        self.check = False
        super().__post_init__()
        self._lost: set[tuple[str, str, int, int]] = set()  # tickets known not to win

    def trust(self, *names: str, consecutive: int = RECORD) -> None:
        """Give accounts a record as if they had done so many valid units elsewhere."""
        for name in names:
            key = reputation_key(key_of(name).account, DEVICE_CLASS)
            record = Reputation(consecutive=consecutive, valid=consecutive)
            self.state = State(self.state.records.set(key, record), self.state.used)

    def entry(self, name: str, kind: type[Body], **fields: object) -> Entry:
        if self.signed:
            return super().entry(name, kind, **fields)
        self.nonce += 1
        head = {"nonce": self.nonce, "expires_ms": self.time_ms + 600_000, "author": key_of(name).account}
        body = kind(**(head | fields))  # type: ignore[arg-type]
        return Entry(hashlib.sha256(self.nonce.to_bytes(8, "big")).hexdigest(), body, b"")  # type: ignore[arg-type]

    def advance(self, *entries: Entry, dt: int = 1_000) -> None:
        """Apply a block; unlike ``block`` it checks nothing, as the tests of the rules do."""
        context = BlockContext(self.height + 1, self.time_ms + dt, self.context().beacon, "")
        result = apply_block(self.state, entries, context)
        self.state, self.time_ms, self.height = result.state, context.time_ms, context.height
        self.events += result.events

    def act(self, actor: Actor, action: Action) -> Entry | None:
        """Return what an actor says: a cheat's own units have its flavour, everybody else's the truth."""
        if action.kind == "result":
            return self._result(actor, action)
        ticket = (actor.name, action.job, action.round, action.slot)
        if action.kind == "audit_lottery" and ticket in self._lost:
            return None
        unit = self.state.unit(action.job, action.round, action.slot)
        own = unit is not None and unit.worker == actor.account
        actor.flavour = self.flavour(actor.name, action.round) if own else ""
        if own and action.kind == "sketch_open" and self.mute(actor.name, action.round):
            return None
        ally = self.allies.get(actor.name, "")
        helps = unit is not None and bool(ally) and unit.worker == key_of(ally).account
        actor.audit_excess = (lambda unit: 0) if helps else None
        actor.audit_flavour = self.flavour(ally, action.round) if helps else ""
        found = super().act(actor, action)
        if found is None and action.kind == "audit_lottery":
            self._lost.add(ticket)
        return found

    def _result(self, actor: Actor, action: Action) -> Entry:
        round_ = self.round(action.job, action.round)
        outcome = outcome_of(round_, **self.judge(round_))
        return self.entry(actor.name, ResultBody, job=action.job, round=action.round, outcome=outcome, loss_e6=-1)

    def play_job(self, terms: Terms, units: int, offers: Mapping[str, tuple[int, int]]) -> str:
        """Post a job, let workers offer (units, micro-credits each), play it to its end, and return its id."""
        post = self.job_entry(**terms.fields(units), deadline_ms=self.time_ms + 30 * 86_400_000)
        self.advance(post)
        fields = {"job": post.id, "device_class": DEVICE_CLASS}
        bids = (self.entry(name, Bid, units=count, price=price, **fields) for name, (count, price) in offers.items())
        self.advance(*bids)
        while self.state.active().jobs:
            self.step()
        return post.id

    def step(self) -> None:
        """Make the next block: with what the actors say, commits last and late, or at the next deadline."""
        due = self.due()
        waiting = [entry for entry in due if not isinstance(entry.body, CommitBody)]
        dt = LATE_MS if due and not waiting else 1_000
        due = waiting or due
        if not due:
            wake = next_wake_ms(self.state)
            assert wake is not None
            self.advance(dt=max(1, wake - self.time_ms))
            return
        try:
            self.advance(*due, dt=dt)
        except RuleError:  # a deadline that passes with this very block may refuse some
            context = BlockContext(self.height + 1, self.time_ms + dt, self.context().beacon, "")
            selected, _ = select_entries(self.state, due, context)
            self.advance(*selected, dt=dt)


@contextlib.contextmanager
def hashed_lottery() -> Iterator[None]:
    """Exchange the VRF for a hash of key and input: the same distribution at a hundredth of the time."""

    def prove(seed: bytes, alpha: bytes) -> bytes:
        # 80 bytes as a proof has; the draws of one seed and input are always the same
        return _HASHED + hashlib.sha512(seed + alpha).digest() + bytes(80 - 64 - len(_HASHED))

    def output(proof: bytes) -> bytes:
        return proof[len(_HASHED) : len(_HASHED) + 64]

    def verify(public_key: bytes, alpha: bytes, proof: bytes) -> bytes:
        return output(proof)

    known: dict[tuple[tuple[int, ...], ...], merkle.Tree] = {}

    def tree_of(sketches: list[tuple[int, ...]]) -> merkle.Tree:
        key = tuple(sketches)
        if key not in known:
            known[key] = original(sketches)
        return known[key]

    original = contracts_world.tree_of
    with (
        patch.multiple(vrf, prove=prove, output=output, verify=verify),
        patch.object(contracts_world, "tree_of", tree_of),  # asked for several times by each who speaks of a unit
    ):
        contracts_world._ticket.cache_clear()
        yield
    contracts_world._ticket.cache_clear()
