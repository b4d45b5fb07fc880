"""Does one machine earn more under several names?  The same units, by the real auction, rounds and settlement.

The machine does four units in every round, under one name or divided over two or four.  Its updates are the same
whoever signs them: a common direction with noise of its own, judged by the real merit and similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.fairness.market import PRICE, Market, Terms
from contracts.records import Round
from gdf_market.units import CREDIT
from tests.contracts_world import Actor, key_of
from verifier.gram import gram
from verifier.merit import merit_ppm
from verifier.similarity import flags, leave_one_out_ppm, suspicion

UNITS = 4  # of the machine in a round
OTHERS = ("o0", "o1", "o2", "o3")
LOSER = "late"  # asks for more than anybody, gets nothing, and so sets the price
VALIDATORS = ("v0", "v1")
COST = PRICE // 2
SIZE = 1_000  # values of an update
NAMES = (1, 2, 4)


@dataclass(frozen=True)
class Reward:
    """In credits: what all names of the machine got in a job."""

    names: int
    units: int
    base: float
    merit: float
    audits: float  # fees, for work of its own
    audited: int  # audits that its names did of others' units
    siblings: int  # audits that its names did of each other's units, for which they need no work

    @property
    def total(self) -> float:
        return self.base + self.merit


class Divided(Market):
    """One job with a machine under several names."""

    def prepare(self, names: Sequence[str], seed: int) -> None:
        self.names, self.seed = [key_of(name).account for name in names], seed
        for name in (*names, *OTHERS, *VALIDATORS):
            self.cast(Actor(name, lottery=True, skips=frozenset({"audit_challenge"})))
        self.judge = self._judge
        self.height = seed << 32
        self._judged: dict[int, dict[str, Any]] = {}

    def _judge(self, round_: Round) -> dict[str, Any]:
        if round_.index not in self._judged:
            self._judged[round_.index] = self._outcome(round_)
        return self._judged[round_.index]

    def _outcome(self, round_: Round) -> dict[str, Any]:
        slots = round_.included
        units = [self.unit(round_.job, round_.index, slot) for slot in slots]
        shards, done = [unit.shard for unit in units], 0
        updates = []
        for unit in units:
            mine = unit.worker in self.names
            updates.append(_update(self.seed, round_.index, f"machine {done}" if mine else unit.worker))
            done += mine
        matrix = gram(updates)
        cosines, found = leave_one_out_ppm(matrix), flags(matrix, slots, shards)
        return {
            "merit_ppm": tuple(merit_ppm(matrix, shards)),
            "cosine_ppm": tuple(cosines),
            "suspicion": tuple(suspicion(slots, cosines, found)),
            "flags": tuple(found),
        }


def _update(seed: int, index: int, source: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return an honest update: its cosine with another one is about 0.5."""
    common = np.random.default_rng((seed, index)).standard_normal(SIZE)
    own = np.random.default_rng([seed, index, *source.encode()]).standard_normal(SIZE)
    return np.rint((common + own) * 1e5).astype(np.int64)


def play(count: int, terms: Terms, seed: int) -> Reward:
    """Return what a machine earns under ``count`` names."""
    names = tuple(f"m{at}" for at in range(count))
    accounts = ("owner", *names, *OTHERS, LOSER, *VALIDATORS)
    market = Divided({name: 100_000 * CREDIT for name in accounts}, VALIDATORS, {})
    market.prepare(names, seed)
    offers = dict.fromkeys(names, (UNITS // count, COST)) | dict.fromkeys(OTHERS, (1, COST)) | {LOSER: (1, PRICE)}
    job = market.play_job(terms, UNITS + len(OTHERS), offers)
    mine = set(market.names)
    paid = {"paid": 0, "merit": 0, "audit": 0}
    for event in market.events:
        if event.target in mine and event.kind in paid and event.job == job:
            paid[event.kind] += event.amount
    units = [market.unit(job, index, slot) for index in range(terms.rounds) for slot in market.round(job, index).units]
    return Reward(
        names=count,
        units=sum(unit.worker in mine for unit in units),
        base=paid["paid"] / CREDIT,
        merit=paid["merit"] / CREDIT,
        audits=paid["audit"] / CREDIT,
        audited=sum(auditor in mine for unit in units if unit.worker not in mine for auditor in unit.auditors),
        siblings=sum(auditor in mine for unit in units if unit.worker in mine for auditor in unit.auditors),
    )
