"""Auctions and rounds: who gets slots at which price, who loses them, and which units must be audited."""

from __future__ import annotations

from collections import Counter

from contracts.records import Event, Job, Round, Unit
from contracts.state import State, present
from tests.sim_market.ground import Ground, require, unit_key

MISSES = 2
MOST_TARGETS = 4
TWIN_FLAGS = ("twin-differs", "duplicate")


class Conduct:
    """Checks what the rules do with people who say nothing false."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._misses: Counter[tuple[str, str]] = Counter()  # rounds in a row, by (job, worker)
        self._ended: set[tuple[str, int]] = set()

    def on_block(self, before: State, after: State, events: tuple[Event, ...]) -> None:
        """Check a block's matches and the rounds that it ended."""
        self._check_matches(before, after, events)
        for job_id in before.active().jobs:
            index = present(before.job(job_id)).round
            round_ = after.round(job_id, index)
            if round_ is not None and round_.phase in ("settled", "void") and (job_id, index) not in self._ended:
                self._ended.add((job_id, index))
                self._on_end(round_, after)

    def _check_matches(self, before: State, after: State, events: tuple[Event, ...]) -> None:
        """Nobody gets less than it asked for; nobody who asked for less than a winner is outbid."""
        matched = [event for event in events if event.kind == "matched"]
        for event in matched:
            job, bid = present(after.job(event.job)), present(before.bid(event.job, event.account))
            asked = self._ground.said.prices[event.job, event.account]
            require(asked == bid.price, f"the bid of {event.account} is {bid.price}, it asked {asked}")
            require(
                asked <= job.clearing_price <= job.spec.reserve_price,
                f"{event.account} asked {asked} and gets {job.clearing_price}; reserve {job.spec.reserve_price}",
            )
            require(job.slots.count(event.account) <= bid.units, f"{event.account} has more slots than it bid for")
        for event in events:
            if event.kind == "unmatched" and event.reason.startswith("outbid"):
                asked = present(before.bid(event.job, event.account)).price
                others = [other.account for other in matched if other.job == event.job]
                dearer = [other for other in others if present(before.bid(event.job, other)).price > asked]
                require(not dearer, f"{event.account} asked {asked} and is outbid by {dearer}, who asked more")

    def _on_end(self, round_: Round, after: State) -> None:
        self._ground.seen[round_.phase] += 1
        self._count_misses(present(after.job(round_.job)), round_, after)
        if round_.phase == "settled":
            self._check_targets(round_, after)

    def _count_misses(self, job: Job, round_: Round, after: State) -> None:
        """Two rounds in a row with a missed deadline, by what was said, end a bid."""
        units = [present(after.unit(job.id, round_.index, slot)) for slot in round_.units]
        for worker in dict.fromkeys(unit.worker for unit in units):
            own, where = [unit for unit in units if unit.worker == worker], (job.id, worker)
            if any(self._was_missed(round_, unit) for unit in own):
                self._misses[where] += 1
            elif any(unit_key(unit) in self._ground.held for unit in own):
                self._misses[where] = 0
            bid = after.bid(job.id, worker)
            if bid is None or bid.status != "matched":
                self._misses[where] = 0  # a new bid begins anew
            require(self._misses[where] < MISSES, f"{worker} missed {MISSES} rounds in a row and holds its slots")

    def _was_missed(self, round_: Round, unit: Unit) -> bool:
        said, where = self._ground.said, unit_key(unit)
        if unit.worker in self._ground.convicts[unit.job]:
            return False
        if where not in said.commits:
            return round_.audit_seed != "" or round_.reason == "nobody committed"
        return where not in said.reveals and (bool(round_.attesters) or round_.reason == "nobody revealed")

    def _check_targets(self, round_: Round, after: State) -> None:
        """The most suspicious unit and the twins of a round are to be audited."""
        outcome = present(round_.outcome)
        named = {target.slot for target in round_.targets}
        twins = {slot for flag in outcome.flags if flag.reason in TWIN_FLAGS for slot in (flag.slot, flag.other)}
        wanted = dict.fromkeys([*outcome.suspicion[:1], *sorted(twins)])
        units = {slot: present(after.unit(round_.job, round_.index, slot)) for slot in wanted}
        due = [slot for slot in wanted if unit_key(units[slot]) in self._ground.held]
        self._ground.seen["twins"] += bool(twins)
        require(
            named >= set(due[:MOST_TARGETS]),
            f"round {round_.index} of {round_.job[:8]} must audit {due}; named are {sorted(named)}",
        )
