"""One job on the market with bad workers in it: real units, real outcomes, real re-execution, the rules' own draws.

Simplified: every account acts in time, has the credits for its bonds, and rounds settle one after another; a VRF's
output is replaced by a hash of the same distribution.  A dispute is decided by a committee that runs the whole unit
again; arbiters of a bisection are as many, drawn in the same way, and run one step.  All disputes of a round are under
way at once: whoever is barred by one of them still judges in the others.  Convicted workers are not replaced.  What bad
accounts do as auditors is the worst that they can: they pass each other's units, and as liars fail honest ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.defence.adversary import Attack, Round
from benchmarks.defence.images import Floats
from benchmarks.defence.world import JOB, Sketches, Work, World
from contracts.audits import compute_targets
from contracts.disputes import compute_decision
from contracts.draws import compute_audit_chance_ppm, compute_counted_record, compute_draw_order, compute_opened_steps
from contracts.evidence import compute_sketch_distance_ppb
from contracts.parameters import (
    ARBITERS,
    MAX_AUDITS_PER_UNIT,
    MAX_DOUBTS,
    MAX_REDRAWS,
    MAX_TARGETS,
    OPENED_STEPS,
    verdict,
)
from contracts.records import Unit
from gdf_market.messages import Outcome, draw, lottery_wins
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.errors import DivergedError
from verifier.outcome import NoUpdatesError, OutcomeResult, compute_outcome
from verifier.verdict import measure

DEVICE_CLASS = "cpu-fp32"
WORKERS = 20
VALIDATORS = 4
HOLD = 1  # rounds from a unit's acceptance to its release
LAST = 5  # rounds at the end whose accuracy counts
VETERAN = 1_000  # valid units in a row of an account with a record


@dataclass(frozen=True)
class Terms:
    """How the job is audited and whether its accounts have a record (bad ones have it, too)."""

    floor_ppm: int = 50_000
    veterans: bool = True
    targeted: bool = True
    committee: int = ARBITERS  # members of the panel that decides a dispute
    alert: bool = True  # a conviction makes audits of the whole job as likely as those of new accounts, for a while
    bars: bool = True  # whoever accused somebody wrongly judges nothing in the job any more
    # what the rules do not have, to see what it would change
    outliers: bool = False  # targets are also all units less than half as similar to the others as the median is


@dataclass
class Story:
    """What happened; rounds count from the first one in which a worker cheated."""

    accuracy: float = 0.0
    backdoor: float = 0.0
    units: int = 0  # honest amounts of work that were accepted
    audits: int = 0
    disputes: int = 0
    members: int = 0  # audits by committees
    cheats: int = 0  # workers that ever cheated
    convicted: dict[int, int] = field(default_factory=dict)  # worker: rounds until its conviction
    kept_out: int = 0  # cheats of which no cheating update was ever taken
    honest_audits: int = 0  # by honest auditors of honest units
    honest_alarms: int = 0  # of those, grey or fail
    honest_convicted: int = 0
    honest_rejected: int = 0  # honest updates that the form check left out
    cheat_audits: int = 0  # by honest auditors of cheating units
    cheat_found: int = 0  # of those, fail
    cheat_grey: int = 0
    lies: int = 0  # false accusations
    lies_punished: int = 0
    honest_accusers_punished: int = 0
    barred: int = 0
    honest_barred: int = 0
    largest_honest_ppb: int = 0


@dataclass(frozen=True)
class _Claim:
    """What a worker handed in: its bytes, the sketches it committed to, the unit it should be."""

    worker: int
    shard: int
    data: bytes
    sketches: Callable[[], Sketches]
    unit: Work
    cheating: bool


@dataclass(frozen=True)
class _Finding:
    """An honest auditor's run of a unit: distances, and both sides' sketches."""

    excess_ppb: int
    own: Sketches
    claimed: Sketches


def play(world: World, attack: Attack, bad: int, terms: Terms, rounds: int, *, workers: int = WORKERS) -> Story:
    """Run a job of ``rounds`` rounds in which the last ``bad`` workers are bad."""
    return _Job(world, attack, bad, terms, rounds, workers).play()


class _Job:
    def __init__(self, world: World, attack: Attack, bad: int, terms: Terms, rounds: int, workers: int) -> None:
        self._world, self._attack, self._terms, self._rounds = world, attack, terms, rounds
        self._codec = Codec.of(world.recipe)
        self._active = list(range(workers))
        self._first_bad = workers - bad
        dishonest = dishonest_validators(bad / workers)
        names = [f"worker {i}" for i in range(workers)] + [f"validator {i}" for i in range(VALIDATORS)]
        self._bad_accounts = set(names[self._first_bad : workers]) | set(names[len(names) - dishonest :])
        self._consecutive = dict.fromkeys(range(workers), VETERAN if terms.veterans else 0)
        self._first_cheat: dict[int, int] = {}
        self._taken: set[int] = set()  # cheats of which a cheating update was taken
        self._held: list[list[int]] = []
        self._last_conviction = -1
        self._doubts: Counter[str] = Counter()
        self._barred: set[str] = set()
        self._judging = False  # on a panel
        self.story = Story()

    def play(self) -> Story:
        world = self._world
        checkpoint = pack(world.first, np.zeros_like(world.first))
        history: list[Floats] = []
        scores = []
        for index in range(self._rounds):
            parameters, _ = unpack(checkpoint, world.size)
            history.append(parameters)
            checkpoint = self._round(index, checkpoint, history)
            if index >= self._rounds - LAST:
                after, _ = unpack(checkpoint, world.size)
                scores.append((world.accuracy(after[None])[0], world.backdoor_success(after[None])[0]))
        story = self.story
        story.accuracy, story.backdoor = (float(value) for value in np.mean(scores, axis=0))
        story.cheats = len(self._first_cheat)
        story.kept_out = len(set(self._first_cheat) - self._taken)
        return story

    def _round(self, index: int, checkpoint: bytes, history: Sequence[Floats]) -> bytes:
        claims = self._claims(index, history)
        try:
            found = self._outcome(checkpoint, claims)
        except (NoUpdatesError, DivergedError):
            return checkpoint  # the round is void
        rejected = {each.slot for each in found.rejected}
        self.story.honest_rejected += sum(1 for slot in rejected if not claims[slot].cheating)
        self._taken |= {claims[slot].worker for slot in found.included if claims[slot].cheating}
        self.story.units += len(found.included)
        self._audit(index, claims, found)
        self._held.append([claims[slot].worker for slot in found.included])
        if len(self._held) > HOLD:
            for worker in self._held.pop(0):
                self._consecutive[worker] += 1
        return found.checkpoint

    def _outcome(self, checkpoint: bytes, claims: Sequence[_Claim]) -> OutcomeResult:
        updates = {slot: claim.data for slot, claim in enumerate(claims)}
        shards = {slot: claim.shard for slot, claim in enumerate(claims)}
        return compute_outcome(checkpoint, updates, shards, self._world.recipe, self._world.size)

    # what is handed in

    def _claims(self, index: int, history: Sequence[Floats]) -> list[_Claim]:
        world, attack, seed = self._world, self._attack, self._world.seed
        shards = [draw(self._hash("shard", index, worker), len(world.shards)) for worker in self._active]
        units = [world.unit(history[-1], index, shard) for shard in shards]
        cheating = [
            worker >= self._first_bad and attack.cheats(worker, self._first_bad, index, seed) for worker in self._active
        ]
        done = [
            attack.prepare(unit, np.random.default_rng([seed, index, worker, 5]), history)
            if cheats and attack.prepare is not None
            else unit
            for unit, cheats, worker in zip(units, cheating, self._active, strict=True)
        ]
        trained = world.train(done, sketched=True)
        updates = trained.deltas.copy()
        chosen = np.flatnonzero(cheating)
        for i in chosen:
            self._first_cheat.setdefault(self._active[i], index)
        if attack.forge is not None and len(chosen) and not all(cheating):
            others = [i for i in range(len(done)) if not cheating[i]]
            numbers = [self._active[i] for i in others]
            friend = next((k for k, number in enumerate(numbers) if number >= self._first_bad), 0)
            workers = tuple(self._active[i] for i in chosen)
            seen = Round(index, seed, updates[others], updates[chosen], workers, friend)
            updates[chosen] = attack.forge(seen)
        return [
            _Claim(worker, shard, self._encode(update), sketches, unit, cheats)
            for worker, shard, update, sketches, unit, cheats in zip(
                self._active, shards, updates, trained.sketches, units, cheating, strict=True
            )
        ]

    def _encode(self, update: Floats) -> bytes:
        try:
            return self._codec.encode(update)
        except DivergedError:
            return b"not finite, so it has no encoding"

    # what is checked

    def _audit(self, index: int, claims: Sequence[_Claim], found: OutcomeResult) -> None:
        """Name the round's auditors, let them work, and decide what they accuse."""
        targets = self._targets(found)
        accused: dict[int, list[tuple[str, str]]] = {}
        audited: dict[int, list[str]] = {}
        known: dict[int, _Finding] = {}
        for slot in found.included:
            eligible = self._eligible(claims[slot].worker)
            auditors = self._lottery_winners(index, slot, claims[slot].worker, eligible)
            if slot in targets and eligible:
                order = compute_draw_order(eligible, "gdf/target", self._beacon(index), JOB, index, slot, 0)
                auditors = [*order[:1], *(each for each in auditors if each != order[0])]
            audited[slot] = auditors
            for auditor in auditors:
                self.story.audits += 1
                said = self._opinion(index, slot, claims[slot], auditor, known)
                if said != "pass":
                    accused.setdefault(slot, []).append((auditor, said))
        wrong: set[str] = set()
        for slot, accusers in accused.items():
            for turn, (accuser, said) in enumerate(accusers):  # whoever accuses next begins its own dispute
                if claims[slot].worker not in self._active:
                    break
                decision = self._dispute(index, slot, turn, claims[slot], audited[slot], known)
                self._decided(index, claims[slot], accuser, decision)
                if decision == "cleared" and self._is_too_much(accuser, said):
                    wrong.add(accuser)
        if self._terms.bars:
            self._barred |= wrong
        self.story.barred, self.story.honest_barred = len(self._barred), len(self._barred - self._bad_accounts)

    def _is_too_much(self, accuser: str, said: str) -> bool:
        """Say whether an accusation that was cleared bars its author, as contracts.disputes has it."""
        self._doubts[accuser] += said == "grey"
        return said == "fail" or self._doubts[accuser] >= MAX_DOUBTS

    def _targets(self, found: OutcomeResult) -> list[int]:
        if not self._terms.targeted:
            return []
        named = compute_targets(_outcome(found))
        if self._terms.outliers:
            cosine = dict(zip(found.included, found.cosine_ppm, strict=True))
            median = sorted(cosine.values())[len(cosine) // 2]
            named += [slot for slot in found.suspicion if 2 * cosine[slot] < median and slot not in named]
        return named[:MAX_TARGETS]

    def _lottery_winners(self, index: int, slot: int, worker: int, eligible: Sequence[str]) -> list[str]:
        record = self._consecutive[worker]
        if self._terms.alert:
            record = compute_counted_record(record, self._last_conviction + 1, index)
        chance = compute_audit_chance_ppm(self._terms.floor_ppm, record, len(eligible))
        drawn = [each for each in eligible if lottery_wins(self._hash("audit", index, slot, each), chance)]
        return drawn[:MAX_AUDITS_PER_UNIT]

    def _eligible(self, worker: int) -> list[str]:
        """Return validators and the round's other workers that are not barred, as contracts.draws has it."""
        others = [f"worker {each}" for each in self._active if each != worker]
        everybody = [*(f"validator {i}" for i in range(VALIDATORS)), *others]
        return [each for each in everybody if each not in self._barred]

    def _opinion(self, index: int, slot: int, claim: _Claim, auditor: str, known: dict[int, _Finding]) -> str:
        """Return what an auditor says of a unit."""
        lying = auditor in self._bad_accounts
        if lying and claim.worker >= self._first_bad:
            return "pass"
        if lying and self._attack.lies:
            self.story.lies += 1
            return "fail"
        if slot not in known:
            known[slot] = self._reexecute(claim)
        finding = known[slot]
        unit = Unit(job=JOB, round=index, slot=slot, worker=str(claim.worker), status="accepted")
        steps = compute_opened_steps(self._beacon(index), unit, auditor, self._world.recipe.steps, OPENED_STEPS)
        distance = compute_sketch_distance_ppb(
            [finding.own[step] for step in steps], [finding.claimed[step] for step in steps]
        )
        said = verdict(DEVICE_CLASS, finding.excess_ppb, distance)
        if claim.cheating:
            self.story.cheat_audits += 1
            self.story.cheat_found += said == "fail"
            self.story.cheat_grey += said == "grey"
        else:
            self.story.honest_audits += 1
            self.story.honest_alarms += said != "pass"
            self.story.largest_honest_ppb = max(self.story.largest_honest_ppb, finding.excess_ppb, distance)
        return said

    def _reexecute(self, claim: _Claim) -> _Finding:
        run = self._world.rerun(claim.unit)
        excess = measure(claim.data, run.delta, self._codec).excess_ppb
        return _Finding(excess, run.sketches, claim.sketches())

    def _dispute(
        self, index: int, slot: int, turn: int, claim: _Claim, auditors: Sequence[str], known: dict[int, _Finding]
    ) -> str:
        """Return what a panel decides about a unit's accuser number ``turn``, "" if nobody decides."""
        asked = set(auditors)
        self.story.disputes += 1
        for attempt in range(MAX_REDRAWS + 1):
            able = [each for each in self._eligible(claim.worker) if each not in asked]
            order = compute_draw_order(able, "gdf/committee", self._beacon(index), JOB, index, slot, turn, attempt)
            committee = order[: self._terms.committee]
            if not committee:
                return ""
            asked |= set(committee)
            self.story.members += len(committee)
            lies, self._judging = self.story.lies, True
            said = [self._opinion(index, slot, claim, member, known) for member in committee]
            self.story.lies, self._judging = lies, False  # a lie of a member is no accusation
            decision = compute_decision(said, len(committee))
            if decision:
                return decision
        return ""

    def _decided(self, index: int, claim: _Claim, accuser: str, decision: str) -> None:
        lied = self._attack.lies and accuser in self._bad_accounts
        if decision == "cleared":
            self.story.lies_punished += lied
            self.story.honest_accusers_punished += not lied
        if decision != "convicted":
            return
        self._active.remove(claim.worker)
        self._last_conviction = index
        if claim.cheating:
            self.story.convicted[claim.worker] = index - self._first_cheat[claim.worker] + 1
        else:
            self.story.honest_convicted += 1

    def _beacon(self, index: int) -> str:
        return self._hash("beacon", index).hex()[:64]

    def _hash(self, *parts: str | int) -> bytes:
        """Return 64 bytes of the distribution of a VRF's output."""
        text = "/".join(str(part) for part in (self._world.seed, *parts))
        return hashlib.sha512(text.encode()).digest()


def _outcome(found: OutcomeResult) -> Outcome:
    return Outcome(
        checkpoint="00" * 32,
        included=found.included,
        rejected=found.rejected,
        merit_ppm=found.merit_ppm,
        cosine_ppm=found.cosine_ppm,
        suspicion=found.suspicion,
        flags=found.flags,
    )


def dishonest_validators(share: float) -> int:
    """Return how many validators are bad: as many as workers, but less than a third, or the ledger itself is lost."""
    return min(round(VALIDATORS * share), (VALIDATORS - 1) // 3)


def extra_compute(stories: Sequence[Story], *, member: float = 1.0) -> float:
    """Return how much work verification added, relative to the accepted units.

    ``member``: the share of a unit that each arbiter of a dispute runs; one step of them where bisection decides.
    """
    done = sum(each.audits + member * each.members for each in stories)
    return done / max(1, sum(each.units for each in stories))
