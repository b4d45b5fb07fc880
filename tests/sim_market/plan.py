"""What one seed stands for: a network, its weather, its jobs and its people."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.records import Allocation, Genesis, Staking
from gdf_market.identity import Identity
from gdf_market.units import CREDIT
from tests import contracts_world
from tests.sim.attacks import ATTACKS
from tests.sim.world import START_MS, Faults, key
from tests.sim_market.people import BISECTION, Character, Death, Person
from tests.sim_market.truth import SIZE, text_hash
from tests.simulator import Tamper

AUDIT_MS = 10_000
BOND = 1_000_000
RECIPE = msgspec.structs.replace(contracts_world.RECIPE, steps=4)
CHEATS = ("poison@0", "poison@2", "idle@1", "idle@0", "encode", "forge", "copy")
PHASES = (
    *("bid", "commit", "reveal", "receipt", "result", "sketch_open", "audit_open", "audit_committee"),
    *("audit_targeted", "arbiter_commit", "arbiter_open", "bisect_open", "state_offer"),
)


@dataclass(frozen=True)
class JobPlan:
    """A job, when its owner posts it, and when it gives up, if it does."""

    owner: int
    at_ms: int
    life_ms: int
    terms: tuple[tuple[str, Any], ...]
    cancel_ms: int | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that follows from a seed before the first event."""

    seed: int
    validators: tuple[Character, ...]
    others: int  # observers
    workers: tuple[Character, ...]
    owners: tuple[Identity, ...]
    jobs: tuple[JobPlan, ...]
    faults: Faults
    genesis: Genesis
    reaction_ms: tuple[int, int] = (20, 250)
    attackers: tuple[tuple[int, Tamper], ...] = ()  # validators whose nodes attack agreement, by place
    moves: tuple[tuple[int, int, str], ...] = ()  # (time, place of a person, join | leave)
    unheld_ppt: int = 0  # thousandths of updates that an attester cannot fetch
    most_per_bid: int = 2

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong but what people do."""
        faults = self.faults
        return not (faults.loss or faults.partitions or faults.crash or faults.power_cuts or faults.spikes)


def worker_key(place: int) -> Identity:
    return key(151 + place)


def draw_plan(seed: int, *, network: bool) -> Plan:
    """Return the plan of a seed, for a whole network of replicas or for one replica's chain."""
    chance = random.Random(seed)
    validators = chance.choice((3, 3, 4, 4)) if network else chance.choice((1, 2, 3, 3, 4))
    workers = chance.choice((2, 2, 3, 3) if network else (2, 3, 3, 4, 5))
    characters = _draw_characters(chance, validators, workers)
    owners = tuple(key(201 + place) for place in range(chance.choice((1, 1, 2))))
    jobs = tuple(
        _draw_job(chance, owner=place % len(owners), place=place, workers=workers)
        for place in range(chance.choice((1, 1, 1, 1, 1, 2) if network else (1, 1, 1, 2)))
    )
    attackers: tuple[tuple[int, Tamper], ...] = ()
    if network and validators >= 4 and chance.random() < 0.25:
        place = chance.randrange(validators)
        attackers = ((place, chance.choice(ATTACKS)),)
        characters[place] = _changed(characters[place], {"is_reliable": False})
    genesis = _make_genesis(chance, validators, len(characters) - validators, owners)
    return Plan(
        seed,
        validators=tuple(characters[:validators]),
        others=chance.choice((0, 0, 1, 1, 2)) if network else 0,
        workers=tuple(characters[validators:]),
        owners=owners,
        jobs=jobs,
        faults=_draw_faults(chance, network=network),
        genesis=genesis,
        attackers=attackers,
        moves=() if attackers else _draw_moves(chance, validators, workers, network=network),
        reaction_ms=chance.choice(((20, 150), (20, 350), (50, 1_200))),
        unheld_ppt=chance.choice((0, 0, 0, 30, 200)),
        most_per_bid=chance.choice((1, 2, 2, 4)),
    )


# ---- people


def _draw_characters(chance: random.Random, validators: int, workers: int) -> list[Character]:
    """Return validators, workers and bystanders; a mood says what most of the trouble is."""
    mood = chance.choice(("fair", "cheats", "cheats", "liars", "liars", "ring", "ring", "dying", "dying", "mixed"))
    people = [Character(lottery=chance.random() < 0.7) for _ in range(validators)]
    people += [
        Character(
            lottery=chance.random() < 0.6,
            capacity=chance.choice((1, 2, 2, 4)),
            price_ppm=chance.randint(100_000, 1_000_000),
        )
        for _ in range(workers)
    ]
    if chance.random() < 0.3:
        people.append(Character(challenges=True, lottery=False))
    if chance.random() < 0.25:
        people.append(Character(spams=True, lottery=False))
    if chance.random() < 0.25:
        people.append(Character(capacity=2, arrives_ms=chance.randint(3_000, 20_000), price_ppm=300_000))
    for place in _places(chance, mood, validators, workers):
        people[place] = _trouble(chance, mood, people[place])
    return people


def _places(chance: random.Random, mood: str, validators: int, workers: int) -> list[int]:
    """Return who is trouble: liars and rings are fewer than half of those who judge."""
    total = validators + workers
    match mood:
        case "fair":
            return []
        case "cheats":
            return chance.sample(range(validators, total), chance.randint(1, max(1, workers - 1)))
        case "liars" | "ring":
            most = max(1, (total - 2) // 2)
            return chance.sample(range(total), chance.randint(min(2, most), min(3, most)))
        case "dying":
            return chance.sample(range(total), chance.randint(1, max(1, total // 2)))
    return chance.sample(range(total), chance.randint(1, max(1, total // 2)))


def _trouble(chance: random.Random, mood: str, person: Character) -> Character:
    """Return a person with a fault that fits the mood."""
    changes: dict[str, Any] = {}
    kind = mood if mood != "mixed" else chance.choice(("cheats", "liars", "ring", "dying", "dying"))
    match kind:
        case "cheats":
            changes = {"flavour": chance.choice(CHEATS)}
            if chance.random() < 0.3:
                changes["refuses"] = chance.choice((BISECTION, frozenset({"sketch_open"}), frozenset({"state_offer"})))
            changes["false_states"] = chance.random() < 0.2
        case "liars":
            changes = {"lies": chance.choice(("accuse", "accuse", "doubt", "slander"))}
            changes["refuses"] = chance.choice((frozenset(), frozenset(), BISECTION, frozenset({"audit_open"})))
            changes["challenges"] = chance.random() < 0.3
            changes["stuffs"] = chance.random() < 0.2
        case "ring":
            changes = {"ring": 1, "lies": chance.choice(("accuse", "")), "flavour": "poison@1"}
            changes["hides"] = chance.random() < 0.2
        case _:
            changes = {"deaths": (_draw_death(chance),)}
            if chance.random() < 0.3:
                changes["refuses"] = frozenset({chance.choice(PHASES)})
    return _changed(person, changes)


def _changed(person: Character, changes: dict[str, Any]) -> Character:
    return Character(**({name: getattr(person, name) for name in Character.__dataclass_fields__} | changes))


def _draw_death(chance: random.Random) -> Death:
    return Death(
        before=chance.choice((*PHASES[:6], *PHASES)),
        nth=chance.choice((1, 1, 2)),
        back_ms=chance.choice((800, 3_000, 8_000, 30_000, None)),
        loses_disk=chance.random() < 0.2,
    )


def make_people(plan: Plan) -> list[Person]:
    """Return everybody, at home on some node: validators on their own."""
    chance = random.Random(plan.seed + 3)
    bad = {place for place, _ in plan.attackers}
    nodes = [place for place in range(len(plan.validators) + plan.others) if place not in bad]
    people = [Person(key(1 + place), each, place) for place, each in enumerate(plan.validators)]
    people += [Person(worker_key(place), each, chance.choice(nodes)) for place, each in enumerate(plan.workers)]
    return people + [Person(each, Character(only_posts=True), chance.choice(nodes)) for each in plan.owners]


# ---- jobs


def _draw_job(chance: random.Random, *, owner: int, place: int, workers: int) -> JobPlan:
    units = chance.choice((1, 2, 2, 3, 3, 4))
    price = chance.choice((7, CREDIT, 3 * CREDIT))
    terms: dict[str, Any] = {
        "title": "job",
        "program": text_hash("program"),
        "data": text_hash("data"),
        "checkpoint": text_hash("checkpoint", place),
        "parameters": SIZE,
        "tokens_per_unit": 0,
        "recipe": RECIPE,
        "device_class": "cpu-fp32",
        "rounds": chance.choice((1, 1, 2, 2, 3, 3)),
        "units_per_round": units,
        "warm_rounds": chance.choice((0, 0, 0, 1)),
        "shards": chance.choice((1, 2, 16)),
        "min_workers": min(units, chance.choice((1, 1, 2))),
        "reserve_price": price,
        "unit_bond": chance.choice((0, 5, 2 * price, 2 * price + 1)),
        "merit_ppm": chance.choice((0, 100_000, 333_333)),
        "audit_fee": chance.choice((0, 3, price)),
        "audit_budget": chance.choice((0, 4, 6 * price, 6 * price)),
        "audit_floor_ppm": chance.choice((50_000, 1_000_000)),
        "bid_ms": 2_000,
        "work_ms": 4_000,
        "reveal_ms": 3_000,
        "receipt_ms": 3_000,
        "result_ms": 3_000,
        "audit_ms": AUDIT_MS,
        "hold_ms": chance.choice((1_000, 6_000, 6_000)),
    }
    life_ms = chance.choice((90_000, 90_000, 90_000, 90_000, 15_000, 40_000))
    at_ms = 300 if place == 0 else chance.randint(300, 12_000)
    cancel_ms = at_ms + chance.randint(1_000, 15_000) if chance.random() < 0.12 else None
    return JobPlan(owner, at_ms, life_ms, tuple(terms.items()), cancel_ms)


# ---- the network


def _draw_faults(chance: random.Random, *, network: bool) -> Faults:
    calm = chance.random() < (0.25 if network else 0.6)
    if calm:
        return Faults(until_ms=0, skew_ms=chance.choice((0, 300, 2_000)), echo=0.02)
    return Faults(
        until_ms=chance.choice((8_000, 16_000, 30_000)),
        loss=chance.choice((0.0, 0.02, 0.1, 0.25)),
        repeat=chance.choice((0.0, 0.2)),
        delay_ms=chance.choice(((5, 30), (5, 150), (50, 400))),
        spikes=chance.choice((0.0, 0.03)),
        crash=chance.choice((0.0, 0.002, 0.01)),
        partitions=chance.choice((0, 1, 2, 3)),
        power_cuts=chance.choice((0, 0, 0, 1)),
        skew_ms=chance.choice((300, 2_000)),
        jumps=chance.choice((0, 1)),
        echo=0.02,
    )


def _draw_moves(
    chance: random.Random, validators: int, workers: int, *, network: bool
) -> tuple[tuple[int, int, str], ...]:
    """Return who gives up its seat, and which worker asks for one where nobody has to run a node for it."""
    moves = []
    if chance.random() < 0.25:
        moves.append((chance.randint(200, 12_000), chance.randrange(validators), "leave"))
    if not network and chance.random() < 0.25:
        moves.append((chance.randint(200, 8_000), validators + chance.randrange(workers), "join"))
    return tuple(moves)


def _make_genesis(chance: random.Random, validators: int, others: int, owners: tuple[Identity, ...]) -> Genesis:
    members = [key(1 + place).account for place in range(validators)]
    rest = [worker_key(place).account for place in range(others)]
    poor = chance.random() < 0.1  # one worker without credits
    balances = {account: 200 * CREDIT for account in (*members, *rest)} | (
        {owner.account: 1_000 * CREDIT for owner in owners}
    )
    if poor:
        balances[rest[0]] = 0
    return Genesis(
        name="sim",
        test_network=True,
        time_ms=START_MS,
        allocations=tuple(
            Allocation(account=account, balance=amount, stake=BOND if account in members else 0)
            for account, amount in balances.items()
        ),
        validators=tuple(members),
        block_ms=400,
        heartbeat_ms=20_000,
        audit_bond=chance.choice((0, 1, 2 * CREDIT)),
        committee=chance.choice((3, 5, 11)),
        arbiters=chance.choice((3, 5, 15)),
        max_void_rounds=chance.choice((0, 1, 3)),
        staking=Staking(bond=BOND, epoch_blocks=chance.choice((10, 25, 1_000)), floor=max(1, validators - 1)),
        entry_fee=chance.choice((0, 100)),
    )
