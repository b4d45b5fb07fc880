"""What must hold of the market after every final block: an accountant that knows what really happened.

It trusts no event: each movement of credits is checked against what was said in final entries (said.py), against what
the simulation knows was computed, and against what was paid before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from contracts.records import Audit, Bid, Event, Genesis, Job, Unit
from contracts.state import State, genesis_state, present
from gdf_market.messages import JobPost
from gdf_market.units import PPM
from ledger.effects import Executed
from tests.contracts_world import apply_event, pots_of
from tests.sim.memory import InvariantError
from tests.sim_market.conduct import Conduct
from tests.sim_market.ground import Ground, Truth, require, unit_key, unit_of
from tests.sim_market.justice import Justice
from tests.sim_market.said import Where

DRAIN_AUDITS = 30  # at most so many steps of audits and disputes follow one another before a unit settles
SLACK_MS = 100_000
Check = Callable[[Event, State, tuple[Event, ...]], None]


class Books:
    """The accounts of one run, block by block."""

    def __init__(self, genesis: Genesis, truth: Truth) -> None:
        self.state = genesis_state(genesis)
        self.ground = Ground(truth)
        self._justice, self._conduct = Justice(self.ground), Conduct(self.ground)
        self._pots: Counter[object] = pots_of(self.state)
        self._spent: Counter[str] = Counter()  # by job: what left its escrows for good, less what came back
        self._locked: Counter[str] = Counter()
        self._fees: Counter[tuple[str, int, int, str, bool]] = Counter()  # paid audits; True: as an arbiter
        self._ended: set[str] = set()
        self._checks: dict[tuple[str, str], Check] = {
            ("held", "escrow"): self._check_accepted,
            ("merit", "escrow"): self._check_merit,
            ("paid", "held"): self._check_paid,
            ("merit", "held"): self._check_paid,
            ("audit", "audit_escrow"): self._check_fee,
            ("slashed", "bond"): self._check_slashed,
            ("forfeited", "bond"): self._check_forfeited,
            ("forfeited", "held"): self._check_taken_back,
            ("convicted", "held"): self._check_taken_back,
            ("refund", "escrow"): self._check_refund,
            ("refund", "audit_escrow"): self._check_refund,
        }

    @property
    def height(self) -> int:
        """The height of the last block."""
        return self.ground.height

    # ---- one block

    def on_block(self, executed: Executed) -> None:
        """Check the next final block."""
        before, after, ground = self.state, executed.transition.state, self.ground
        events = executed.transition.events
        ground.height, ground.time_ms = executed.tip.height, executed.tip.time_ms
        require(after.supply_check() == after.network().supply, f"credits were made or lost at height {self.height}")
        self._follow_pots(events, after)
        for event in events:  # what a block moves on its own looks only at earlier blocks
            if not event.entry:
                self._on_event(event, before, events)
        for entry in executed.entries:
            ground.said.note(entry, self.height)
            ground.seen[type(entry.body).__name__] += 1
        for event in events:
            if event.entry and event.kind == "escrow":
                self._check_locked(event)
        self._justice.on_changes(executed.transition.changes)
        self._conduct.on_block(before, after, events)
        for job_id in set(before.active().jobs) - set(after.active().jobs):
            self._check_ended(present(after.job(job_id)), after)
        self.state = after

    def _follow_pots(self, events: tuple[Event, ...], after: State) -> None:
        """The events alone give what every pot holds, and no pot is ever below zero."""
        for event in events:
            apply_event(self._pots, event)
        require(min(self._pots.values()) >= 0, f"a pot is below zero at height {self.height}")
        require(+self._pots == +pots_of(after), f"the events of block {self.height} do not give its state")

    def _on_event(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        if not event.amount:
            self.ground.seen[f"{event.kind} {event.reason.partition(':')[0].partition(' ')[0]}".strip()] += 1
            if event.kind == "convicted":
                self._justice.on_conviction(event, before)
            return
        self.ground.seen[event.kind] += 1
        check = self._checks.get((event.kind, event.source))
        if check is not None:
            check(event, before, events)
        elif event.source in ("escrow", "audit_escrow", "held"):
            raise InvariantError(f"nothing explains {event}")

    # ---- a job's escrow

    def _check_locked(self, event: Event) -> None:
        spec = self.ground.said.posts[event.job]
        units = (spec.rounds - spec.warm_rounds) * spec.units_per_round + spec.warm_rounds
        pay = units * spec.reserve_price
        most = {"escrow": pay + -(-pay * spec.merit_ppm // PPM), "audit_escrow": spec.audit_budget}
        require(event.amount == most[event.target], f"job {event.job[:8]} locks {event.amount} as {event.target}")
        self._locked[event.job] += event.amount

    def _check_refund(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        require(event.target == self._spec(event).author, f"{event.target} gets the refund of another's job")
        self._spent[event.job] += event.amount

    def _spec(self, event: Event) -> JobPost:
        return self.ground.said.posts[event.job]

    # ---- pay

    def _check_accepted(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """Pay is held once for a unit, at the clearing price, that was revealed, is held, and is in the outcome."""
        where, said, ground = unit_of(event), self.ground.said, self.ground
        price = present(before.round(event.job, event.round)).price
        require(said.is_revealed(where), f"unit {where} is accepted and was never revealed")
        require(said.is_held(where), f"unit {where} is accepted and two thirds do not hold it")
        outcome = said.winner(event.job, event.round, ground.convicts[event.job])
        require(outcome is not None and event.slot in outcome.included, f"unit {where} is in no agreed outcome")
        require(event.account == said.reveals[where].author, f"unit {where} is accepted for {event.account}")
        require(where not in ground.held, f"unit {where} is accepted twice")
        require(event.amount == price, f"unit {where} holds {event.amount}; the price is {price}")
        ground.held[where] = event.amount

    def _check_merit(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """The merit pot follows from price and units, and a unit's part from the outcome."""
        where, convicts = unit_of(event), self.ground.convicts[event.job]
        price = present(before.round(event.job, event.round)).price
        outcome = present(self.ground.said.winner(event.job, event.round, convicts))
        share = dict(zip(outcome.included, outcome.merit_ppm, strict=True))[event.slot]
        workers = [present(before.unit(event.job, event.round, slot)).worker for slot in outcome.included]
        count = sum(worker not in convicts for worker in workers)
        merit = (price * count * self._spec(event).merit_ppm // PPM) * share // PPM
        require(event.amount == merit, f"unit {where} has merit {event.amount}, not {merit}")
        self.ground.held[where] += event.amount

    def _check_paid(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """A unit is paid once, what was held, to its worker, after its time and not to a convict."""
        where, ground = unit_of(event), self.ground
        unit = present(before.unit(*where))
        require(event.target == unit.worker == ground.said.reveals[where].author, f"{where} pays {event.target}")
        ground.paid[where] += event.amount
        require(ground.paid[where] <= ground.held[where], f"unit {where} is paid more than was held")
        require(event.account not in ground.convicts[event.job], f"the convict {event.account} is paid for {where}")
        require(ground.time_ms >= unit.release_ms, f"unit {where} is paid before its time")
        self._spent[event.job] += event.amount

    # ---- audits

    def _check_fee(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """A fee is paid once for an audit that was committed and opened, at most what the job offers."""
        where, said = unit_of(event), self.ground.said
        most = min(self._spec(event).audit_fee, present(before.round(event.job, event.round)).price)
        require(event.target == event.account, f"the fee of {event.account} goes to {event.target}")
        require(event.amount <= most, f"a fee of {event.amount} for {where}; at most {most}")
        arbiter, audited = event.reason.startswith("arbiter"), (*where, event.account)
        self._fees[*audited, arbiter] += 1
        done = said.replays[audited] if arbiter else int(audited in said.audit_opens)
        require(self._fees[*audited, arbiter] <= done, f"{event.account} is paid for work on {where} it did not show")
        self._spent[event.job] += event.amount

    def _check_slashed(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """A bond is shared only among those who showed what they found about a unit convicted in this block."""
        units = [unit_of(each) for each in events if each.kind == "convicted" and not each.amount]
        require(bool(units), f"a bond in job {event.job[:8]} is slashed and nobody is convicted")
        if event.target == "escrow":
            self._spent[event.job] -= event.amount
            return
        said = self.ground.said
        shown = [
            each for each in units if (*each, event.target) in said.audit_opens or said.replays[*each, event.target]
        ]
        require(bool(shown), f"{event.target} has a part of a bond and showed nothing about {units}")

    def _check_forfeited(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """A bond is lost only by silence, or by an accusation that was found wrong."""
        self._spent[event.job] -= event.amount
        if event.target == "escrow":  # of a bid
            silent = [each for each in events if each.kind == "forfeited" and each.source == "held"]
            units = [unit_of(each) for each in silent if present(before.unit(*unit_of(each))).worker == event.account]
            require(any(self._was_silent(where, before) for where in units), f"{event.account} was not silent")
            return
        where, opened = unit_of(event), (*unit_of(event), event.account) in self.ground.said.audit_opens
        decided = [each.reason for each in events if each.kind == "dispute" and unit_of(each) == where]
        dispute = before.dispute(*where)
        wrong = any(reason.startswith(("refuted", "cleared", "committee")) for reason in decided)
        wrong = wrong or (dispute is not None and dispute.status in ("cleared", "refuted"))
        require(not opened or wrong, f"{event.account} opened its audit of {where}, is not refuted, and loses its bond")
        if self.ground.truth.is_calm and self.ground.truth.is_steady(event.account):
            excused = self._justice.is_excused(where) or self.ground.truth.is_cheat(where)
            require(excused, f"the honest auditor {event.account} loses its bond for {where}")

    def _check_taken_back(self, event: Event, before: State, events: tuple[Event, ...]) -> None:
        """Held pay returns to the escrow only from silent workers and convicts, and never after it was paid."""
        where, ground = unit_of(event), self.ground
        if event.kind == "forfeited":
            require(self._was_silent(where, before), f"unit {where} is taken back and its worker was not silent")
        else:
            worker = present(before.unit(*where)).worker
            require(worker in ground.convicts[event.job], f"unit {where} is taken back without a conviction")
        ground.held[where] -= event.amount
        require(ground.held[where] >= 0 and not ground.paid[where], f"unit {where} is paid and taken back")

    def _was_silent(self, where: Where, before: State) -> bool:
        """Say whether an audit of a unit waited for its worker in vain until its deadline."""
        said = self.ground.said
        for auditor in present(before.unit(*where)).auditors:
            audit = present(before.audit(*where, auditor))
            since = said.audit_commits[(*where, auditor)]
            late = bool(audit.steps) and audit.phase_end_ms <= self.ground.time_ms
            if late and not said.opened_since(where, since, audit.steps):
                return True
        return False

    # ---- the end of a job

    def _check_ended(self, job: Job, after: State) -> None:
        """A job ends in time, with nothing locked, everything that was earned paid, and the rest with its owner."""
        spec, name = job.spec, job.id[:8]
        self._ended.add(job.id)
        self.ground.seen[f"job {job.status}"] += 1
        limit = max(spec.deadline_ms, job.posted_ms) + spec.hold_ms + DRAIN_AUDITS * spec.audit_ms + SLACK_MS
        require(job.status in ("done", "cancelled", "expired"), f"job {name} ended as {job.status}")
        require(job.ended_ms <= limit, f"job {name} ended {job.ended_ms - limit} ms too late")
        left = {
            pot: amount for pot, amount in self._pots.items() if amount and isinstance(pot, tuple) and job.id in pot
        }
        require(not left, f"job {name} ended and holds {left}")
        locked, spent = self._locked[job.id], self._spent[job.id]
        require(locked == spent, f"of the {locked} that job {name} locked {spent} are accounted for")
        for index in range(job.round):
            for slot in present(after.round(job.id, index)).units:
                self._check_unit(present(after.unit(job.id, index, slot)), after)

    def _check_unit(self, unit: Unit, after: State) -> None:
        where, ground = unit_key(unit), self.ground
        require(unit.status in ("missed", "rejected", "convicted", "paid"), f"unit {where} ended as {unit.status}")
        require(unit.paid == ground.paid[where], f"unit {where} says {unit.paid}, it was paid {ground.paid[where]}")
        if unit.status == "paid":
            require(unit.paid == ground.held[where], f"unit {where} was paid {unit.paid} of {ground.held[where]}")
        if ground.truth.is_cheat(where):
            self._justice.check_cheat(unit, after)
        elif where in ground.held and self._must_be_paid(unit):
            ground.seen["honest paid"] += 1
            require(unit.status == "paid", f"the steady {unit.worker} is not paid for {where}: {unit.reason}")

    def _must_be_paid(self, unit: Unit) -> bool:
        """Say whether nothing excuses that an accepted unit is not paid: its worker was steady, and no panel lied."""
        truth = self.ground.truth
        return truth.is_calm and truth.is_steady(unit.worker) and unit.worker not in self.ground.convicts[unit.job]

    def check_all_ended(self) -> None:
        """Nothing is locked for ever: after the last job only bonds of validators are bound."""
        bound = {pot: amount for pot, amount in self._pots.items() if amount and isinstance(pot, tuple)}
        left = {pot: amount for pot, amount in bound.items() if pot[0] != "stake"}
        require(not left, f"still locked at the end: {left}")
        for record in self.state.records.values():
            if isinstance(record, Bid | Audit):
                require(record.bond == 0, f"the bond of {record} is locked for ever")
        require(self._ended == set(self.ground.truth.posted.values()), "a job that was posted never ended")
