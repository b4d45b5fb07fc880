"""People on a ledger: each looks at the state that its own node has, and says what it would say there.

A venue (venues.py) carries entries to the ledger and final blocks back; the market decides who says what, and keeps
what only a simulation can know: what was really computed, and who lies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.records import Job, Unit
from contracts.state import State, present
from contracts.views import Action, pending_actions
from gdf_market.messages import (
    AuditClasses,
    Bid,
    BidWithdraw,
    Body,
    Entry,
    JobCancel,
    JobPost,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
    seal,
)
from tests.sim_market.acts import ACTS, task_of, ticket_of, where_of
from tests.sim_market.books import Books
from tests.sim_market.people import FALSE, JUDGING, Person
from tests.sim_market.plan import JobPlan, Plan
from tests.sim_market.said import Where
from tests.sim_market.truth import Task, Vectors, excess_ppb, text_hash

RETRY_MS = 2_500  # an entry that is not final after so long is said again
TTL_MS = 1_800_000


class Venue(Protocol):
    """Where entries go, and where states come from."""

    @property
    def now_ms(self) -> int: ...

    @property
    def network(self) -> str: ...

    def at(self, when_ms: int, what: Callable[..., object], *arguments: Any) -> None: ...

    def view(self, person: Person) -> tuple[State, int, int] | None:
        """Return the state at a person's node, the time of its last block and the node's clock; None if it is down."""

    def submit(self, person: Person, entry: Entry) -> None: ...


@dataclass(frozen=True)
class Made:
    """What a unit really is."""

    worker: str
    flavour: str


class Market:
    """Everybody who takes part in one run."""

    def __init__(self, plan: Plan, people: list[Person], venue: Venue) -> None:
        self.plan = plan
        self.venue = venue
        self.random = random.Random(plan.seed * 7 + 1)
        self.people = {person.account: person for person in people}
        self.made: dict[Where, Made] = {}
        self.blobs: dict[str, Vectors] = {}
        self.jobs: dict[int, str] = {}  # by place in the plan, once posted
        self.unposted = len(plan.jobs)
        self._nonce = 0
        self._shards: dict[tuple[str, int], dict[int, int]] = {}  # of units that were computed, by slot
        self.books = Books(plan.genesis, self)
        for place, job in enumerate(plan.jobs):
            venue.at(job.at_ms, self._post, place, job, None)
        for at_ms, place, what in plan.moves:
            venue.at(at_ms, self._move, people[place], ValidatorJoin if what == "join" else ValidatorLeave)
        for person in people:
            if person.character.arrives_ms:
                person.asleep_until_ms = person.character.arrives_ms
                venue.at(person.character.arrives_ms, self.look, person)

    # ---- what only the simulation knows

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong in this run but what people do."""
        return self.plan.is_calm

    @property
    def posted(self) -> Mapping[int, str]:
        """Jobs that became final, by their place in the plan."""
        return self.jobs

    def maker_of(self, where: Where) -> str:
        """Return who computed a unit, "" if nobody did."""
        made = self.made.get(where)
        return "" if made is None else made.worker

    def is_mate(self, person: Person, account: str) -> bool:
        """Say whether two people are of one ring."""
        other = self.people.get(account)
        return bool(person.character.ring) and other is not None and other.character.ring == person.character.ring

    def flavour_of(self, person: Person, task: Task, slot: int) -> str:
        """Return what a worker makes of a unit; a copyist takes what another one of its ring makes."""
        flavour = person.character.flavour
        shards = self._shards.setdefault((task.job, task.round), {})
        shards[slot] = task.shard
        if flavour == "copy":
            other = next((shard for place, shard in shards.items() if place != slot and shard != task.shard), None)
            made = self.made.get((task.job, task.round, slot))
            if made is not None:
                return made.flavour
            return "" if other is None else f"copy/{other}"
        kind, _, first = flavour.partition("@")
        return f"{kind}@{min(int(first), task.steps - 1)}" if first else flavour

    def note_unit(self, where: Where, person: Person, flavour: str) -> None:
        """Remember what a unit is; it does not change any more."""
        self.made.setdefault(where, Made(person.account, flavour))

    def judged_flavour(self, person: Person, unit: Unit) -> str:
        """Return the path that somebody says it found when it ran a unit again."""
        if self.is_mate(person, unit.worker):
            return self.made[unit.job, unit.round, unit.slot].flavour
        return FALSE if person.character.lies == "accuse" else ""

    def holds(self, person: Person, unit: Unit) -> bool:
        """Say whether an attester can fetch an update."""
        worker = self.people[unit.worker]
        if person.account == unit.worker or self.is_mate(person, unit.worker):
            return True
        if worker.character.hides:
            return False
        draw = int(text_hash("holds", self.plan.seed, person.account, unit.update)[:6], 16)
        return draw % 1_000 >= self.plan.unheld_ppt

    def is_cheat(self, where: Where) -> bool:
        """Say whether a unit that was computed is not what it claims to be."""
        made = self.made.get(where)
        return made is not None and made.flavour != ""

    def is_honest(self, account: str) -> bool:
        """Say whether somebody tells the truth whenever it says something."""
        return account not in self.people or self.people[account].character.is_honest

    def is_steady(self, account: str) -> bool:
        """Say whether somebody is honest and did all that it should when it should."""
        return account not in self.people or self.people[account].character.is_steady

    # ---- saying something

    def say(self, person: Person, kind: type[Body], **fields: Any) -> Entry | None:
        """Sign an entry and hand it in where the person is; None if its node is down."""
        seen = self.venue.view(person)
        if seen is None:
            return None
        self._nonce += 1
        head = {"author": person.account, "nonce": self._nonce, "expires_ms": max(seen[1], seen[2]) + TTL_MS}
        entry = seal(person.key, self.venue.network, kind(**(head | fields)))  # type: ignore[arg-type]
        self.venue.submit(person, entry)
        return entry

    def _post(self, place: int, job: JobPlan, entry: Entry | None) -> None:
        """Post a job, with the same entry again and again until it is final; then its owner is gone for good."""
        owner = self.people[self.plan.owners[job.owner].account]
        seen = self.venue.view(owner)
        if seen is not None and entry is not None and seen[0].job(entry.id) is not None:
            self.jobs[place] = entry.id
            self.unposted -= 1
            if job.cancel_ms is not None:
                self.venue.at(job.cancel_ms, self._cancel, owner, entry.id)
            return
        if seen is not None and entry is None:
            terms = dict(job.terms) | {"deadline_ms": max(seen[1], seen[2]) + job.life_ms}
            entry = self.say(owner, JobPost, **terms)
        elif seen is not None and entry is not None:
            assert isinstance(entry.body, JobPost)
            if seen[1] >= entry.body.deadline_ms:
                self.unposted -= 1  # it could not be final in time
                return
            self.venue.submit(owner, entry)
        self.venue.at(self.venue.now_ms + 900, self._post, place, job, entry)

    def _move(self, person: Person, kind: type[Body]) -> None:
        """Ask for a seat, or give it up."""
        if self.say(person, kind) is None:
            self.venue.at(self.venue.now_ms + 1_000, self._move, person, kind)

    def _cancel(self, owner: Person, job: str) -> None:
        seen = self.venue.view(owner)
        if seen is None:
            self.venue.at(self.venue.now_ms + 1_000, self._cancel, owner, job)
            return
        found = present(seen[0].job(job))
        if found.status in ("bidding", "running") and not found.ending:
            self.say(owner, JobCancel, job=job)
            self.venue.at(self.venue.now_ms + RETRY_MS, self._cancel, owner, job)

    # ---- looking

    def on_block(self, home: int | None = None) -> None:
        """Let those who see a new block look at it a little later."""
        low, high = self.plan.reaction_ms
        for person in self.people.values():
            if (home is None or person.home == home) and not person.character.only_posts:
                self._look_at(person, self.venue.now_ms + self.random.randint(low, high))

    def _look_at(self, person: Person, when_ms: int) -> None:
        """Let a person look at a time, unless it does so before."""
        if not self.venue.now_ms <= person.looks_ms <= when_ms:
            person.looks_ms = when_ms
            self.venue.at(when_ms, self.look, person)

    def look(self, person: Person) -> None:
        """Let a person do what it can and wants to do now."""
        now_ms, person.looks_ms = self.venue.now_ms, -1
        seen = self.venue.view(person) if person.is_awake(now_ms) else None
        if seen is None:
            return
        state, time_ms, _ = seen
        waits = False
        for action in pending_actions(state, person.account, time_ms):
            waits |= self._do(person, state, action)
        waits |= self._trade(person, state)
        if waits and person.is_awake(now_ms):
            self._look_at(person, now_ms + RETRY_MS + 100)

    def _do(self, person: Person, state: State, action: Action) -> bool:
        """Act, unless the person refuses or dies; say whether it must look again to know that it worked."""
        act = ACTS.get(action.kind)
        if act is None or action.kind in person.character.refuses or not person.is_awake(self.venue.now_ms):
            return False
        if action.kind == "audit_lottery" and not self._draws(person, state, action):
            return False
        key = (action.kind, *where_of(action))
        if self.venue.now_ms < person.sent_ms.get(key, -RETRY_MS) + RETRY_MS:
            return True
        if person.dies_of(action.kind, self.venue.now_ms):
            if person.asleep_until_ms is not None:
                self.venue.at(person.asleep_until_ms, self.look, person)
            return False
        said = act(self, person, state, action)
        if said is None:
            return False
        person.sent_ms[key] = self.venue.now_ms
        self.say(person, said[0], **said[1])
        return True

    @staticmethod
    def _draws(person: Person, state: State, action: Action) -> bool:
        return person.character.lottery and ticket_of(person, state, action) is not None

    # ---- bids, challenges and spam

    def _trade(self, person: Person, state: State) -> bool:
        character = person.character
        waits = False
        if character.capacity:
            waits |= self._bid(person, state)
        if character.challenges:
            waits |= self._challenge(person, state)
        if character.spams:
            self._spam(person, state)
        return waits

    def _jobs(self, state: State) -> list[Job]:
        return [present(state.job(job)) for job in state.active().jobs]

    def _free(self, person: Person, state: State) -> int:
        """Return how many more units a worker can promise: what its live bids hold is promised."""
        held = 0
        for job in self._jobs(state):
            bid = state.bid(job.id, person.account)
            if bid is not None and bid.status != "closed":
                held += bid.units if bid.status == "open" else job.slots.count(person.account)
        return person.character.capacity - held

    def _bid(self, person: Person, state: State) -> bool:
        """Offer what is free on the jobs that pay best, once each; after a miss or a full house, again."""
        free = self._free(person, state)
        for job in sorted(self._jobs(state), key=lambda each: -each.spec.reserve_price):
            key = ("bid", job.id, 0, 0)
            if free < 1 or not self._wants(person, state, job):
                continue
            if self.venue.now_ms < person.sent_ms.get(key, -RETRY_MS) + RETRY_MS:
                return True
            if person.dies_of("bid", self.venue.now_ms):
                return False
            units = min(free, job.spec.units_per_round, self.plan.most_per_bid)
            price = max(1, job.spec.reserve_price * person.character.price_ppm // 1_000_000)
            person.sent_ms[key] = self.venue.now_ms
            free -= units
            self.say(person, Bid, job=job.id, price=price, units=units, device_class=job.spec.device_class)
        return False

    def _wants(self, person: Person, state: State, job: Job) -> bool:
        if job.ending or not (job.status == "bidding" or (job.status == "running" and "" in job.slots)):
            return False
        bid = state.bid(job.id, person.account)
        if bid is not None and (bid.status != "closed" or not bid.reason.startswith(("missed", "outbid", "the bond"))):
            return False
        return state.account(person.account).balance >= job.spec.unit_bond + 20_000

    def _challenge(self, person: Person, state: State) -> bool:
        """Challenge what is false; a liar challenges what is right."""
        for job in self._jobs(state):
            for key in job.unsettled:
                unit = state.unit_at(key)
                if unit.worker == person.account or person.account in unit.auditors:
                    continue
                found = excess_ppb(unit.update, task_of(state, unit), "")
                if (found > 1_000) == bool(person.character.lies):
                    continue
                if self._do(person, state, Action("audit_challenge", unit.job, unit.round, unit.slot, unit.release_ms)):
                    return True
        return False

    def _spam(self, person: Person, state: State) -> None:
        """Say things that cost the ledger work: bids that replace each other, on any terms, and payments to oneself."""
        jobs = self._jobs(state)
        if not jobs or self.random.random() > 0.2:
            return
        job = self.random.choice(jobs)
        match self.random.randrange(4):
            case 0:
                price = self.random.choice((1, job.spec.reserve_price, job.spec.reserve_price + 1))
                classes = self.random.choice(("cpu-fp32", "cpu-fp32", "cuda-fp32"))
                self.say(person, Bid, job=job.id, price=price, units=self.random.randint(1, 64), device_class=classes)
            case 1:
                self.say(person, BidWithdraw, job=job.id)
            case 2:
                self.say(person, Transfer, to=person.account, amount=1, memo="")
            case _:
                self.say(person, AuditClasses, classes=("cpu-fp32",))

    # ---- the end

    def is_over(self, state: State) -> bool:
        """Say whether every job was posted and has ended."""
        return self.unposted == 0 and not state.active().jobs


assert set(ACTS) >= JUDGING
