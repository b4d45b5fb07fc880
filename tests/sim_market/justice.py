"""Disputes: who may be convicted, and who must be, by what the simulation knows of everybody."""

from __future__ import annotations

from collections import defaultdict

from contracts.records import Audit, Dispute, Event, Unit
from contracts.state import Changes, State, present
from tests.sim_market.ground import Ground, require, unit_key, unit_of
from tests.sim_market.said import Where


class Justice:
    """Every panel that a unit was before, and what it may decide."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._panels: dict[Where, list[Dispute]] = defaultdict(list)

    def on_changes(self, changes: Changes) -> None:
        """Remember every panel as it was last seen at work."""
        for key, (_, record) in changes.items():
            if not key.startswith("dispute/") or not isinstance(record, Dispute) or not _is_at_work(record):
                continue
            panels = self._panels[record.job, record.round, record.slot]
            if panels and _name(panels[-1]) == _name(record):
                panels.pop()
            panels.append(record)

    def on_conviction(self, event: Event, before: State) -> None:
        """Nobody honest is convicted unless liars are most of those who judged, or of those who could."""
        where, ground = unit_of(event), self._ground
        if ground.truth.maker_of(where) != event.account or event.account in ground.convicts[event.job]:
            return  # a convict's unit in the round under way
        ground.convicts[event.job].add(event.account)
        if ground.truth.is_cheat(where):
            ground.seen["cheat convicted"] += 1
            return
        panels = [*self._panels[where], present(before.dispute(*where))]
        excused = any(self._liars_decide(panel) for panel in panels) or self._accusers_decide(where, before)
        require(excused, f"honest {event.account} is convicted for {where}: {event.reason}")
        ground.seen["honest convicted"] += 1

    def is_excused(self, where: Where) -> bool:
        """Say whether liars were most of some panel of a unit."""
        return any(self._liars_decide(panel) for panel in self._panels[where])

    def _liars_decide(self, panel: Dispute) -> bool:
        """Say whether liars are most of the arbiters drawn, or of the members that showed what they found."""
        where, honest = (panel.job, panel.round, panel.slot), self._ground.truth.is_honest
        if panel.status == "bisecting":
            judges = list(_members(panel))
        else:
            judges = [member for member in panel.committee if (*where, member) in self._ground.said.audit_opens]
        return 2 * sum(not honest(each) for each in judges) > len(judges)

    def _accusers_decide(self, where: Where, before: State) -> bool:
        """Say whether liars are most of all who could ever judge a unit."""
        round_, unit = present(before.round(where[0], where[1])), present(before.unit(*where))
        workers = {present(before.unit(where[0], where[1], slot)).worker for slot in round_.units}
        judges = {*before.network().validators, *workers} - {unit.worker}
        return 2 * sum(not self._ground.truth.is_honest(each) for each in judges) > len(judges)

    def check_cheat(self, unit: Unit, after: State) -> None:
        """A cheat that an honest auditor found is not paid, if the last panel that judged it had an honest majority."""
        where, seen = unit_key(unit), self._ground.seen
        audits = [present(after.audit(*where, auditor)) for auditor in unit.auditors]
        if not any(self._is_honest_find(audit) for audit in audits):
            seen["cheat never found"] += unit.status == "paid"
            return
        seen["cheat found"] += 1
        panels = self._panels[where]
        if unit.status == "paid":
            decided = self._honest_decide(panels[-1]) if panels else bool(self._left_to_judge(unit, after))
            require(
                not decided, f"the cheat {where} was paid, and honest people could have convicted it: {panels[-1:]}"
            )
            seen["cheat found and paid"] += 1

    def _left_to_judge(self, unit: Unit, after: State) -> list[str]:
        """Return who was there to judge a unit that no panel judged, and did not audit it."""
        round_ = present(after.round(unit.job, unit.round))
        workers = {present(after.unit(unit.job, unit.round, slot)).worker for slot in round_.units}
        others = {*after.network().validators, *workers} - {unit.worker, *unit.auditors}
        return sorted(each for each in others if self._ground.truth.is_steady(each))

    def _is_honest_find(self, audit: Audit) -> bool:
        honest = self._ground.truth.is_honest(audit.auditor)
        return honest and audit.verdict in ("fail", "grey") and audit.role != "committee"

    def _honest_decide(self, panel: Dispute) -> bool:
        """Say whether honest people who showed what they found are more than half of a panel."""
        where, members = (panel.job, panel.round, panel.slot), _members(panel)
        if panel.status == "bisecting":
            acted = [each.account for each in present(panel.bisection).arbiters if each.opened]
        else:
            acted = [each for each in members if (*where, each) in self._ground.said.audit_opens]
        return 2 * sum(self._ground.truth.is_honest(each) for each in acted) > len(members)


def _is_at_work(dispute: Dispute) -> bool:
    if dispute.status == "bisecting":
        return bool(present(dispute.bisection).arbiters)
    return dispute.status in ("committing", "opening")


def _name(panel: Dispute) -> tuple[bool, tuple[str, ...], str]:
    """Return what is one panel from its draw to its end."""
    return panel.status == "bisecting", _members(panel), panel.accuser


def _members(panel: Dispute) -> tuple[str, ...]:
    if panel.status == "bisecting":
        return tuple(each.account for each in present(panel.bisection).arbiters)
    return panel.committee
