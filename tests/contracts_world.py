"""A network in memory for tests of the rules: real keys, signed entries, blocks, and actors that play roles.

Every block is checked: the credits add up, nothing is negative, events
rebuild the balances, records survive their own encoding, and ``next_wake_ms``
told when something would change.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.block import BlockContext, Transition, apply_block, next_wake_ms, select_entries
from contracts.records import Account, Allocation, Audit, Bid, Event, Genesis, Job, Round, Staking, Unit, Validator
from contracts.state import State, genesis_state, network_id
from contracts.views import Action, pending_actions
from gdf_market import merkle, vrf
from gdf_market.codec import decode, encode
from gdf_market.errors import RuleError
from gdf_market.identity import Identity
from gdf_market.messages import (
    SKETCH_DIM,
    ArbiterCommit,
    ArbiterOpen,
    AuditCommit,
    AuditOpen,
    BisectOpen,
    Body,
    Commit,
    Entry,
    JobPost,
    Opening,
    Outcome,
    Receipt,
    Recipe,
    Result,
    Reveal,
    SketchOpen,
    StateOffer,
    arbiter_commitment,
    audit_alpha,
    audit_commitment,
    commitment,
    draw,
    lottery_wins,
    seal,
    shard_alpha,
    sketch_leaf,
)
from gdf_market.messages import Bid as BidBody
from gdf_market.units import CREDIT, PPB
from tests.contracts_staking import check_validators

START_MS = 1_700_000_000_000
STEPS = 6
RECIPE = Recipe(
    inner="adamw",
    steps=STEPS,
    batch=4,
    lr_e9=1_000_000,
    beta1_ppm=900_000,
    beta2_ppm=950_000,
    weight_decay_ppm=0,
    clip_ppm=0,
    rewarm_steps=2,
    outer_lr_ppm=1_000_000,
    outer_momentum_ppm=500_000,
    codec_bits=4,
    codec_block=64,
)
_keys: dict[str, Identity] = {}


def key_of(name: str) -> Identity:
    """Return the identity that a name always has."""
    if name not in _keys:
        _keys[name] = Identity(hashlib.sha256(b"test/" + name.encode()).digest())
    return _keys[name]


def text_hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def make_genesis(balances: dict[str, int], validators: Iterable[str], **changes: int | Staking) -> Genesis:
    """Return a test network's genesis; each validator has a bond of one credit."""
    fields: dict[str, int | Staking] = {"audit_bond": 5 * CREDIT, "committee": 3, "arbiters": 3, "max_void_rounds": 3}
    fields |= changes
    return Genesis(
        name="test",
        test_network=True,
        time_ms=START_MS,
        allocations=tuple(
            Allocation(account=key_of(name).account, balance=amount, stake=CREDIT if name in validators else 0)
            for name, amount in balances.items()
        ),
        validators=tuple(key_of(name).account for name in validators),
        block_ms=1_000,
        heartbeat_ms=5_000,
        **fields,  # type: ignore[arg-type]
    )


def sketch_of(job: str, index: int, slot: int, shard: int, step: int, flavour: str = "") -> tuple[int, ...]:
    """Return what a unit's re-execution finds after a step; another flavour is another result.

    A flavour such as "cheat@3" is honest before step 3.
    """
    flavour, _, first = flavour.partition("@")
    if step < int(first or 0):
        flavour = ""
    seed = hashlib.sha512(repr((job, index, slot, shard, step, flavour)).encode()).digest()
    return (
        tuple(1_000_000 + seed[place] for place in range(SKETCH_DIM))
        if not flavour
        else tuple(50_000 * (seed[place] - 128) for place in range(SKETCH_DIM))
    )


def open_steps(sketches: list[tuple[int, ...]], steps: Iterable[int]) -> tuple[Opening, ...]:
    tree = tree_of(sketches)
    return tuple(
        Opening(step=step, sketch=sketches[step], path=tuple(node.hex() for node in tree.path(step)))
        for step in sorted(steps)
    )


def tree_of(sketches: list[tuple[int, ...]]) -> merkle.Tree:
    tree = merkle.Tree()
    for step, sketch in enumerate(sketches):
        tree.append(sketch_leaf(step, sketch))
    return tree


@dataclass
class Actor:
    """How an account plays; ``flavour`` other than "" is a cheat's result, ``skips`` are actions it never does."""

    name: str
    flavour: str = ""
    skips: frozenset[str] = frozenset()
    lottery: bool = False
    audit_excess: Callable[[Unit], int] | None = None  # what it claims as auditor, if not the truth
    audit_flavour: str = ""  # of the sketches and states that it shows as auditor
    arbiter_flavour: str = ""  # of the step that it says it replayed
    holds: Callable[[Unit], bool] = lambda unit: True
    vote: str = "honest"

    def __post_init__(self) -> None:
        self.key = key_of(self.name)
        self.account = self.key.account


@dataclass
class World:
    """``time_ms`` is the time of the last block; ``block`` makes the next one.

    Blocks have no proposer unless ``rotates``; then the members take turns, without the accounts in ``down``.
    """

    balances: dict[str, int]
    validators: tuple[str, ...] = ("val",)
    genesis_changes: dict[str, int | Staking] = field(default_factory=dict)
    check: bool = True
    rotates: bool = False
    down: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.genesis = make_genesis(self.balances, self.validators, **self.genesis_changes)
        self.network = network_id(self.genesis)
        self.state = genesis_state(self.genesis)
        self.time_ms = START_MS
        self.height = 0
        self.nonce = 0
        self.events: list[Event] = []
        self.entries: list[Entry] = []
        self.pots: Counter[object] = Counter()  # rebuilt from events alone
        for each in self.genesis.allocations:
            self.pots |= Counter({each.account: each.balance, ("stake", each.account): each.stake})
        self.actors: dict[str, Actor] = {}

    # entries

    def entry(self, name: str, kind: type[Body], **fields: object) -> Entry:
        self.nonce += 1
        head = {"nonce": self.nonce, "expires_ms": self.time_ms + 600_000, "author": key_of(name).account}
        return seal(key_of(name), self.network, kind(**(head | fields)))  # type: ignore[arg-type]

    def job_entry(self, name: str = "owner", **changes: object) -> Entry:
        return self.entry(name, JobPost, **(self.job_fields() | changes))

    def job_fields(self) -> dict[str, object]:
        return {
            "title": "job",
            "program": text_hash("program"),
            "data": text_hash("data"),
            "checkpoint": text_hash("checkpoint"),
            "parameters": 1_000,
            "tokens_per_unit": 0,
            "recipe": RECIPE,
            "device_class": "cpu-fp32",
            "rounds": 2,
            "units_per_round": 2,
            "shards": 16,
            "min_workers": 1,
            "reserve_price": 10 * CREDIT,
            "unit_bond": 20 * CREDIT,
            "merit_ppm": 100_000,
            "audit_fee": CREDIT,
            "audit_budget": 20 * CREDIT,
            "audit_floor_ppm": 50_000,
            "bid_ms": 5_000,
            "work_ms": 60_000,
            "reveal_ms": 10_000,
            "receipt_ms": 10_000,
            "result_ms": 10_000,
            "audit_ms": 20_000,
            "hold_ms": 60_000,
            "deadline_ms": self.time_ms + 3_600_000,
        }

    # blocks

    def context(self, dt: int = 1_000) -> BlockContext:
        beacon = text_hash("beacon", self.height + 1)
        proposer = self.leader() if self.rotates else ""
        return BlockContext(height=self.height + 1, time_ms=self.time_ms + dt, beacon=beacon, proposer=proposer)

    def leader(self) -> str:
        """Return whose turn the next block is."""
        seats = self.state.network().validators
        up = [account for account in seats if account not in self.down] or seats
        return up[self.height % len(up)]

    def block(self, *entries: Entry, dt: int = 1_000) -> Transition:
        """Apply a block and check everything that must hold after any block."""
        context = self.context(dt)
        wake = next_wake_ms(self.state)
        before = self.state
        result = apply_block(before, entries, context)
        self.state, self.time_ms, self.height = result.state, context.time_ms, context.height
        self.events += result.events
        self.entries += entries
        for event in result.events:
            apply_event(self.pots, event)
        assert result.state.used == State(result.state.records).used
        if self.check:
            check_block(self, before, result, entries, wake)
        return result

    def wake(self) -> Transition:
        """Make an empty block at the time the state asks for (the next millisecond if at once)."""
        wake = next_wake_ms(self.state)
        assert wake is not None
        return self.block(dt=max(1, wake - self.time_ms))

    def refuse(self, entry: Entry, match: str) -> None:
        """Check that the next block cannot hold the entry, for a reason that matches."""
        with pytest.raises(RuleError, match=match):
            apply_block(self.state, [entry], self.context())

    # reading

    def balance(self, name: str) -> int:
        return self.state.account(key_of(name).account).balance

    def stake(self, name: str) -> int:
        return self.state.account(key_of(name).account).stake

    def validator(self, name: str) -> Validator:
        found = self.state.validator(key_of(name).account)
        assert found is not None
        return found

    def at_boundary(self) -> bool:
        """Say whether the last block ended an epoch."""
        return self.height % self.genesis.staking.epoch_blocks == 0

    def job(self, job: str) -> Job:
        found = self.state.job(job)
        assert found is not None
        return found

    def round(self, job: str, index: int) -> Round:
        found = self.state.round(job, index)
        assert found is not None
        return found

    def unit(self, job: str, index: int, slot: int) -> Unit:
        found = self.state.unit(job, index, slot)
        assert found is not None
        return found

    def bid(self, job: str, name: str) -> Bid:
        found = self.state.bid(job, key_of(name).account)
        assert found is not None
        return found

    def audit(self, job: str, index: int, slot: int, name: str) -> Audit:
        found = self.state.audit(job, index, slot, key_of(name).account)
        assert found is not None
        return found

    def kinds(self, since: int = 0) -> list[str]:
        return [event.kind for event in self.events[since:]]

    # playing

    def cast(self, *actors: Actor) -> None:
        for actor in actors:
            self.actors[actor.name] = actor

    def due(self) -> list[Entry]:
        """Return an entry for everything that the actors can do and do not skip."""
        entries = []
        for actor in self.actors.values():
            for action in pending_actions(self.state, actor.account, self.time_ms):
                if action.kind not in actor.skips and (entry := self.act(actor, action)) is not None:
                    entries.append(entry)
        return entries

    def play(self, until: Callable[[], bool], limit: int = 200) -> None:
        """Let the actors act, block by block, until a condition holds; without actions, time moves on."""
        for _ in range(limit):
            if until():
                return
            # as a proposer: a deadline that passes with this very block may refuse some
            selected, _ = select_entries(self.state, self.due(), self.context())
            if selected:
                self.block(*selected)
            else:
                self.wake()
        raise AssertionError(f"not reached in {limit} blocks")

    def act(self, actor: Actor, action: Action) -> Entry | None:
        return ACTS[action.kind](self, actor, action)

    def sketches(self, unit: Unit, shard: int, flavour: str) -> list[tuple[int, ...]]:
        return [sketch_of(unit.job, unit.round, unit.slot, shard, step, flavour) for step in range(STEPS)]


def _where(action: Action) -> dict[str, object]:
    return {"job": action.job, "round": action.round, "slot": action.slot}


def reveal_fields(world: World, actor: Actor, action: Action) -> dict[str, str]:
    """Return what the actor's unit reveals."""
    alpha = shard_alpha(action.job, action.round, action.slot, world.round(action.job, action.round).seed)
    proof = vrf.prove(actor.key.seed, alpha)
    shard = draw(vrf.output(proof), world.job(action.job).spec.shards)
    unit = world.unit(action.job, action.round, action.slot)
    return {
        "update": text_hash("update", action.job, action.round, action.slot, actor.flavour),
        "proof": proof.hex(),
        "sketch_root": tree_of(world.sketches(unit, shard, actor.flavour)).root().hex(),
        "salt": text_hash("salt", actor.name),
    }


def act_commit(world: World, actor: Actor, action: Action) -> Entry:
    digest = commitment(actor.account, **reveal_fields(world, actor, action))
    return world.entry(actor.name, Commit, **_where(action), digest=digest)


def act_reveal(world: World, actor: Actor, action: Action) -> Entry:
    return world.entry(actor.name, Reveal, **_where(action), **reveal_fields(world, actor, action))


def act_receipt(world: World, actor: Actor, action: Action) -> Entry:
    round_ = world.round(action.job, action.round)
    units = [world.unit(action.job, action.round, slot) for slot in round_.units]
    holds = tuple(unit.slot for unit in units if unit.status == "revealed" and actor.holds(unit))
    return world.entry(actor.name, Receipt, job=action.job, round=action.round, holds=holds)


def outcome_of(round_: Round, vote: str = "honest", **changes: object) -> Outcome:
    """Return the outcome that honest attesters find (all in, equal merit), or another one."""
    slots = round_.included
    fields: dict[str, object] = {
        "checkpoint": text_hash("checkpoint", round_.index, vote),
        "included": slots,
        "rejected": (),
        "merit_ppm": tuple(1_000_000 // len(slots) for _ in slots),
        "cosine_ppm": tuple(900_000 for _ in slots),
        "suspicion": slots,
        "flags": (),
    }
    return Outcome(**(fields | changes))  # type: ignore[arg-type]


def act_result(world: World, actor: Actor, action: Action) -> Entry:
    outcome = outcome_of(world.round(action.job, action.round), actor.vote)
    return world.entry(actor.name, Result, job=action.job, round=action.round, outcome=outcome, loss_e6=-1)


def audit_fields(world: World, actor: Actor, action: Action) -> dict[str, object]:
    """Return the opening of an audit: the truth by re-execution, or what the actor claims instead."""
    unit = world.unit(action.job, action.round, action.slot)
    claimed = text_hash("update", action.job, action.round, action.slot, "")
    excess = 0 if unit.update == claimed else 50_000_000
    if actor.audit_excess is not None:
        excess = actor.audit_excess(unit)
    sketches = world.sketches(unit, unit.shard, actor.audit_flavour)
    return {
        "excess_ppb": excess,
        "distance_ppb": excess,
        "sketch_root": tree_of(sketches).root().hex(),
        "salt": text_hash("audit salt", actor.name),
    }


@functools.cache
def _ticket(name: str, alpha: bytes) -> bytes:
    return vrf.prove(key_of(name).seed, alpha)


def lottery_proof(world: World, name: str, action: Action) -> str:
    """Return the proof of a winning ticket, "" if the ticket does not win."""
    unit = world.unit(action.job, action.round, action.slot)
    seed = world.round(action.job, action.round).audit_seed
    ticket = _ticket(name, audit_alpha(action.job, action.round, action.slot, seed))
    return ticket.hex() if lottery_wins(vrf.output(ticket), unit.audit_chance_ppm) else ""


def act_audit(world: World, actor: Actor, action: Action) -> Entry | None:
    role, proof = action.kind.removeprefix("audit_"), ""
    if role == "lottery":
        proof = lottery_proof(world, actor.name, action) if actor.lottery else ""
        if not proof:
            return None
    digest = audit_commitment(actor.account, **audit_fields(world, actor, action))  # type: ignore[arg-type]
    return world.entry(actor.name, AuditCommit, **_where(action), role=role, proof=proof, digest=digest)


def act_sketch_open(world: World, actor: Actor, action: Action) -> Entry:
    unit = world.unit(action.job, action.round, action.slot)
    openings = open_steps(world.sketches(unit, unit.shard, actor.flavour), action.steps)
    return world.entry(actor.name, SketchOpen, **_where(action), openings=openings)


def act_audit_open(world: World, actor: Actor, action: Action) -> Entry:
    unit = world.unit(action.job, action.round, action.slot)
    openings = open_steps(world.sketches(unit, unit.shard, actor.audit_flavour), action.steps)
    fields = audit_fields(world, actor, action)
    return world.entry(actor.name, AuditOpen, **_where(action), **fields, openings=openings)


def _side_flavour(world: World, actor: Actor, action: Action) -> str:
    unit = world.unit(action.job, action.round, action.slot)
    return actor.flavour if unit.worker == actor.account else actor.audit_flavour


def act_bisect_open(world: World, actor: Actor, action: Action) -> Entry:
    unit = world.unit(action.job, action.round, action.slot)
    sketches = world.sketches(unit, unit.shard, _side_flavour(world, actor, action))
    (opening,) = open_steps(sketches, action.steps)
    return world.entry(actor.name, BisectOpen, **_where(action), opening=opening)


def state_of(action: Action, done: int, flavour: str) -> str:
    """Return the name of a unit's state after so many steps; before a cheat begins, it is the honest one."""
    kind, _, first = flavour.partition("@")
    return text_hash("state", action.job, action.round, action.slot, done, kind if done > int(first or 0) else "")


def act_state_offer(world: World, actor: Actor, action: Action) -> Entry:
    state = state_of(action, action.steps[0], _side_flavour(world, actor, action))
    return world.entry(actor.name, StateOffer, **_where(action), state=state)


def arbiter_fields(world: World, actor: Actor, action: Action) -> dict[str, Any]:
    """Return what an arbiter measures: states by their names, the honest step (or its own), the excess as an auditor.

    A seeded sketch is here the sketch itself times a number that the seed gives.
    """
    unit = world.unit(action.job, action.round, action.slot)
    dispute = world.state.dispute(action.job, action.round, action.slot)
    assert dispute is not None
    assert dispute.bisection is not None
    bisection, encoding = dispute.bisection, dispute.bisection.high == STEPS
    sketches = world.sketches(unit, unit.shard, actor.arbiter_flavour)
    sketch = sketches[min(bisection.high, STEPS - 1)]
    factor = 1 if int(bisection.seed[-1], 16) % 2 else -1
    return {
        "state_distance_ppb": 0 if bisection.worker.state == bisection.accuser.state else 2 * PPB,
        "excess_ppb": audit_fields(world, actor, action)["excess_ppb"] if encoding else 0,
        "sketch": sketch,
        "seeded": tuple(factor * value for value in sketch),
        "salt": text_hash("arbiter salt", actor.name),
    }


def act_arbiter_commit(world: World, actor: Actor, action: Action) -> Entry:
    digest = arbiter_commitment(actor.account, **arbiter_fields(world, actor, action))
    return world.entry(actor.name, ArbiterCommit, **_where(action), digest=digest)


def act_arbiter_open(world: World, actor: Actor, action: Action) -> Entry:
    return world.entry(actor.name, ArbiterOpen, **_where(action), **arbiter_fields(world, actor, action))


ACTS: dict[str, Callable[[World, Actor, Action], Entry | None]] = {
    "train": lambda world, actor, action: None,
    "commit": act_commit,
    "reveal": act_reveal,
    "receipt": act_receipt,
    "result": act_result,
    "audit_lottery": act_audit,
    "audit_targeted": act_audit,
    "audit_committee": act_audit,
    "audit_challenge": act_audit,
    "sketch_open": act_sketch_open,
    "audit_open": act_audit_open,
    "bisect_open": act_bisect_open,
    "state_offer": act_state_offer,
    "arbiter_commit": act_arbiter_commit,
    "arbiter_open": act_arbiter_open,
}
BISECTION = frozenset({"bisect_open", "state_offer"})  # what the two sides of a bisection do


# checks


def pot_name(event: Event, side: str) -> object:
    """Return which pot one side of an event means, from the event alone."""
    if side.startswith("12D3KooW"):
        return side
    if side == "held":
        return (side, event.job, event.round, event.slot)
    if side == "bond":
        return (side, event.job, event.account, event.round, event.slot)
    if side == "stake":
        return (side, event.account)
    assert side in ("escrow", "audit_escrow"), side
    return (side, event.job)


def apply_event(pots: Counter[object], event: Event) -> None:
    if event.amount:
        pots[pot_name(event, event.source)] -= event.amount
        pots[pot_name(event, event.target)] += event.amount


def pots_of(state: State) -> Counter[object]:
    """Return every pot of a state under the name that events give it."""
    pots: Counter[object] = Counter()
    for key, record in state.records.items():
        match record:
            case Account():
                pots[key.removeprefix("account/")] += record.balance
                pots[("stake", key.removeprefix("account/"))] += record.stake
            case Job():
                pots[("escrow", record.id)] += record.escrow
                pots[("audit_escrow", record.id)] += record.audit_escrow
            case Bid():
                pots[("bond", record.job, record.worker, -1, -1)] += record.bond
            case Unit():
                pots[("held", record.job, record.round, record.slot)] += record.held_pay + record.held_merit
            case Audit():
                pots[("bond", record.job, record.auditor, record.round, record.slot)] += record.bond
    return pots


def check_block(world: World, before: State, result: Transition, entries: tuple[Entry, ...], wake: int | None) -> None:
    state = result.state
    assert state.supply_check() == state.network().supply
    # the events alone give every pot
    assert +world.pots == +pots_of(state)
    assert min(world.pots.values()) >= 0
    # the changes are exactly the difference
    keys = set(before.records) | set(state.records)
    changed = {key for key in keys if before.records.get(key) != state.records.get(key)}
    assert set(result.changes) == changed
    for key, (old, new) in result.changes.items():
        assert (old, new) == (before.records.get(key), state.records.get(key))
        if new is not None:  # what is stored can be read again: every number and text is in its bounds
            assert decode(encode(new), type(new), max_bytes=1 << 22) == new
    check_validators(before, state, boundary=world.at_boundary())
    due = wake is not None and wake <= world.time_ms
    if not entries:
        # what goes on by height: whoever waits for a block by the time does not wait for these
        steady = ["active", "network", "spent/", "validator/"]
        if world.at_boundary():
            steady.append("account/")
        moved = {key for key in changed if not key.startswith(tuple(steady))}
        assert bool(moved) == due, f"wake at {wake}, block at {world.time_ms}, changed {moved}"
    for job_id in state.active().jobs:
        job = state.job(job_id)
        assert job is not None
        bids = [state.bid(job_id, worker) for worker in job.bidders]
        held = Counter(state.unit_at(key).worker for key in job.unsettled)
        for bid in bids:
            assert bid is not None
            assert bid.unsettled == held[bid.worker]
            assert (bid.status == "matched") == (bid.worker in job.slots)


# scenes


WORKERS = ("w1", "w2", "w3")


def make_world(*, validators: tuple[str, ...] = ("val",), **changes: int | Staking) -> World:
    """Return a network of an owner, three workers and validators, everybody with credits."""
    names = ("owner", "other", *WORKERS, *validators)
    return World({name: 1_000 * CREDIT for name in names}, validators, changes)


def make_staking_world(count: int, **changes: int) -> World:
    """Return a network of ``count`` validators val1, val2, … that take turns, with short epochs and cheap seats.

    The owner and w1, w2, w3 have credits and no seat; ``changes`` are of Staking, or of the genesis.
    """
    fields = {"epoch_blocks": 20, "bond": 10 * CREDIT + 7, "silent_epochs": 2, "evidence_epochs": 3} | changes
    staking = Staking(**{name: fields.pop(name) for name in tuple(fields) if name in Staking.__struct_fields__})
    world = make_world(validators=tuple(f"val{at}" for at in range(1, count + 1)), staking=staking, **fields)
    world.rotates = True
    return world


def end_epoch(world: World, *entries: Entry) -> Transition:
    """Make blocks until an epoch ended; the last of them, which ends it, holds the entries."""
    while (world.height + 1) % world.genesis.staking.epoch_blocks:
        world.block()
    return world.block(*entries)


def bid_entry(world: World, name: str, job: str, price: int = 5, units: int = 1, **changes: object) -> Entry:
    fields: dict[str, object] = {"job": job, "price": price * CREDIT, "units": units, "device_class": "cpu-fp32"}
    return world.entry(name, BidBody, **(fields | changes))


def post(world: World, **changes: object) -> str:
    """Post a job and return its id."""
    entry = world.job_entry(**changes)
    world.block(entry)
    return entry.id


def start(world: World, *names: str, **changes: object) -> str:
    """Post a job, let workers bid for one unit each (at 1, 2, … credits), and run until the first round is under way.

    Slot i is the i-th worker's; the price is the reserve.
    """
    job = post(world, **({"units_per_round": len(names)} | changes))
    world.block(*(bid_entry(world, name, job, price) for price, name in enumerate(names, 1)))
    world.wake()
    assert world.job(job).status == "running"
    return job


def cast_all(world: World, *names: str, **changes: object) -> None:
    """Let workers (all of them if none are named) and validators play honestly, with changes for all."""
    for name in (*(names or WORKERS), *world.validators):
        world.cast(Actor(name, **changes))  # type: ignore[arg-type]


def play_to(world: World, job: str, phase: str, index: int = 0) -> Round:
    """Let the actors act until a round is in a phase."""

    def reached() -> bool:
        round_ = world.state.round(job, index)
        return round_ is not None and round_.phase == phase

    world.play(reached)
    return world.round(job, index)


def play_to_end(world: World, limit: int = 400) -> None:
    """Let the actors act until no job is active; then nothing may be locked."""
    world.play(lambda: not world.state.active().jobs, limit)
    assert_nothing_locked(world)


def assert_nothing_locked(world: World) -> None:
    """Check that no job holds credits; what validators have at stake is not a job's."""
    locked = {pot: amount for pot, amount in world.pots.items() if amount and isinstance(pot, tuple)}
    locked = {pot: amount for pot, amount in locked.items() if pot[0] != "stake"}
    assert locked == {}
