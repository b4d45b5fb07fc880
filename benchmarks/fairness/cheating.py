"""What a cheat can expect, by Monte Carlo over the real rules: pay and merit, less work, less what it is punished with.

Six workers with a long record do one unit each in every round; three of them follow a strategy.  Worst cases
throughout: a unit costs its whole price, so that a unit not done saves as much as it pays; the cheat's updates draw no
suspicion, so that the audit of each round's most suspicious unit is always somebody else's; its merit is that of
an honest unit; it finds other work at once when it is thrown out of the job, and its record, which a conviction ends,
is worth nothing.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.fairness.market import PRICE, RECORD, Market, Terms
from contracts.records import Event, Round
from gdf_market.messages import BidWithdraw
from gdf_market.units import CREDIT, PPM
from tests.contracts_world import Actor, key_of

CHEATS = ("c0", "c1", "c2")
HONEST = ("h0", "h1", "h2")
VALIDATORS = ("v0", "v1")
WORKERS = CHEATS + HONEST
ONCE = 0  # the round of a strategy that cheats once
FLOORS_PPM = (10_000, 50_000, 100_000, 200_000, 300_000)
NO_CHALLENGES = frozenset({"audit_challenge"})


@dataclass(frozen=True)
class Strategy:
    """``cheats(seed, name, round)`` says whether this unit is one; each saves ``saved`` of a unit's cost."""

    name: str
    saved: float
    cheats: Callable[[int, str, int], bool]
    record: int = RECORD
    allies: bool = False  # c0 and c1 pass each other; c2 is honest then
    mute: bool = False
    withdraws: bool = False
    rounds: int = 10
    suspected: bool = False  # the most suspicious unit of a round is a random one, not always an honest one's

    def pattern(self, suspected: bool) -> Strategy:
        """Return what of it decides whether it is found out."""
        return dataclasses.replace(self, name="", saved=0.0, suspected=suspected)


def _always(seed: int, name: str, index: int) -> bool:
    return True


def _once(seed: int, name: str, index: int) -> bool:
    return index == ONCE


def _quarter(seed: int, name: str, index: int) -> bool:
    return random.Random(f"{seed}/{name}/{index}").random() < 0.25


STRATEGIES = (
    Strategy("skips all work of every unit", 1.0, _always),
    Strategy("skips 10 of 20 steps", 0.5, _always),
    Strategy("skips 2 of 20 steps", 0.1, _always),
    Strategy("skips 1 of 20 steps", 0.05, _always),
    Strategy("skips all work of one unit, after a long record", 1.0, _once, rounds=1),
    Strategy("skips all work in a quarter of the rounds", 1.0, _quarter),
    Strategy("two skip all work and pass each other's audits", 1.0, _always, allies=True),
    Strategy("skips all work, and is silent when audited", 1.0, _always, mute=True),
    Strategy("skips all work of one unit and withdraws its bid", 1.0, _once, withdraws=True, rounds=2),
    Strategy("skips all work, without a record", 1.0, _always, record=0),
)


@dataclass
class Tally:
    """In units of the price, over all episodes of one pattern of cheating at one audit floor.

    What is saved by a cheated unit is no part of ``gains``: the same episodes tell of cheats that save more or less.
    """

    gains: list[float] = field(default_factory=list)  # of a cheat's seat in a job, over as many honest units
    cheated: list[int] = field(default_factory=list)  # units it cheated in
    punished: list[bool] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of those that were punished

    def add(self, other: Tally) -> None:
        self.gains += other.gains
        self.cheated += other.cheated
        self.punished += other.punished
        self.losses += other.losses

    def per_unit(self, saved: float) -> float:
        """Expected gain over honest work per cheated unit that saves so much: a ratio of means."""
        return saved + sum(self.gains) / max(1, sum(self.cheated))

    @property
    def mean_loss(self) -> float:
        """What a punishment took on average: bond, pay and merit, in prices."""
        return sum(self.losses) / max(1, len(self.losses))

    @property
    def error(self) -> float:
        """Standard error of ``per_unit`` (delta method)."""
        count, mean = len(self.gains), sum(self.cheated) / len(self.cheated)
        if count < 2 or not mean:
            return 0.0
        rest = [gain - self.per_unit(0.0) * units for gain, units in zip(self.gains, self.cheated, strict=True)]
        return statistics.stdev(rest) / math.sqrt(count) / mean


class Episode(Market):
    """One job under one strategy."""

    def prepare(self, strategy: Strategy, terms: Terms, seed: int) -> None:
        """Set the stage."""
        self.strategy, self.terms, self.seed, self.left = strategy, terms, seed, False
        for name in (*WORKERS, *VALIDATORS):
            self.cast(Actor(name, lottery=True, skips=NO_CHALLENGES))
        self.trust(*HONEST)
        self.trust(*CHEATS, consecutive=strategy.record)
        self.cheats = CHEATS[:2] if strategy.allies else CHEATS
        self.allies = {"c0": "c1", "c1": "c0"} if strategy.allies else {}
        self.flavour = lambda name, index: "cheat" if self.is_cheat(name, index) else ""
        self.mute = lambda name, index: strategy.mute and self.is_cheat(name, index)
        self.judge = lambda round_: {"suspicion": self._suspicion(round_)}
        self.height = seed << 32  # beacons follow from heights, so every seed has its own

    def is_cheat(self, name: str, index: int) -> bool:
        return name in self.cheats and self.strategy.cheats(self.seed, name, index)

    def _suspicion(self, round_: Round) -> tuple[int, ...]:
        slots = round_.included
        if self.strategy.suspected:
            turn = random.Random(f"{self.seed}/{round_.index}").randrange(len(slots))
            return slots[turn:] + slots[:turn]
        cheats = {key_of(name).account for name in self.cheats}
        units = {slot: self.unit(round_.job, round_.index, slot) for slot in slots}
        return tuple(sorted(slots, key=lambda slot: (units[slot].worker in cheats, slot)))

    def step(self) -> None:
        """Withdraw once the cheated units are committed, if the strategy says so."""
        super().step()
        (job,) = self.state.active().jobs or ("",)
        if not self.strategy.withdraws or self.left or not job or self.job(job).round != ONCE:
            return
        round_ = self.state.round(job, ONCE)
        if round_ is not None and round_.phase == "receipt":
            self.left = True
            self.advance(*(self.entry(name, BidWithdraw, job=job) for name in self.cheats))

    def tally(self, job: str) -> Tally:
        """Return what the cheats' seats gained over as many units of the honest ones."""
        honest = [self._seat(job, name) for name in WORKERS if name not in self.cheats]
        normal = sum(seat.value for seat in honest) / sum(seat.units for seat in honest)
        found = Tally()
        for seat in (self._seat(job, name) for name in self.cheats):
            found.gains.append(seat.value - normal * seat.units)
            found.cheated.append(seat.cheated)
            found.punished.append(seat.lost > 0)
            found.losses += [seat.lost] if seat.lost else []
        return found

    def _seat(self, job: str, name: str) -> Seat:
        account, value, units, cheated, missed = key_of(name).account, 0.0, 0, 0, 0.0
        for index in range(self.job(job).round + 1):
            round_ = self.state.round(job, index)
            for slot in round_.units if round_ is not None else ():
                unit = self.unit(job, index, slot)
                if unit.worker == account and unit.commit:
                    units, cheated = units + 1, cheated + self.is_cheat(name, index)
                    value += unit.paid / PRICE - 1.0
                    missed += 0 if unit.paid else 1 + self.terms.merit_ppm / PPM
        penalty = sum(map(_penalty, (event for event in self.events if event.account == account))) / PRICE
        return Seat(value - penalty, units, cheated, penalty + missed if penalty else 0.0)


@dataclass(frozen=True)
class Seat:
    """What became of one worker, in prices: pay less work and penalties; what a punishment took, pay included."""

    value: float
    units: int
    cheated: int
    lost: float


def _penalty(event: Event) -> int:
    """Return what an event takes of a bid's bond for good; bonds of audits, which have a round, are no part of it."""
    kept = event.source == "bond" and event.round == -1
    return event.amount if kept and event.kind in ("slashed", "forfeited") else 0


def play(strategy: Strategy, terms: Terms, seed: int, *, signed: bool = False) -> Tally:
    """Return the tally of one job."""
    names = ("owner", *WORKERS, *VALIDATORS)
    market = Episode({name: 100_000 * CREDIT for name in names}, VALIDATORS, {}, signed=signed)
    market.prepare(strategy, terms, seed)
    return market.tally(market.play_job(terms, len(WORKERS), dict.fromkeys(WORKERS, (1, PRICE))))


def measure(strategy: Strategy, terms: Terms, episodes: int) -> Tally:
    """Return the tally of many jobs, and of as many more as a job of fewer rounds is shorter."""
    terms = dataclasses.replace(terms, rounds=strategy.rounds)
    total = Tally()
    for seed in range(episodes * 10 // strategy.rounds):
        total.add(play(strategy, terms, seed))
    return total


def break_even_ppm(strategy: Strategy, tally: Tally) -> int:
    """Return the audit floor at which a cheated unit saves what its punishment costs, by the contracts' own chances.

    A unit's auditors draw independently, each with the floor divided by their number (at least 1 ppm more than
    nothing): together they are seen with 1 - (1 - chance)**auditors.  A floor above 1 means that none is enough.
    """
    auditors = len(WORKERS) + len(VALIDATORS) - 1 - (1 if strategy.allies else 0)
    needed = min(1.0, strategy.saved / tally.mean_loss) if tally.losses else 1.0
    eligible = len(WORKERS) + len(VALIDATORS) - 1
    chance = 1 - math.pow(1 - needed, 1 / auditors)
    return round(eligible * chance * PPM)
