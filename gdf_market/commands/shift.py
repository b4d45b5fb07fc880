"""What `gdf-market work` shows: the step at hand, credits settled, pending and locked, or why it is idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio

from contracts.state import State, present
from contracts.views import my_units
from gdf_market.commands.common import App
from gdf_market.units import format_credits

EVERY_S = 1.0


@dataclass(frozen=True)
class Shift:
    """A node's work at one moment; amounts in micro-credits."""

    settled: int
    pending: int
    locked: int  # bonds of bids and audits
    trained: int
    audited: int
    peers: int
    activity: str

    def sentence(self) -> str:
        """Return it as one line."""
        money = f"settled {format_credits(self.settled)}, pending {format_credits(self.pending)}"
        money += f", bonds locked {format_credits(self.locked)} credits" if self.locked else " credits"
        peers = f"{self.peers} peer{'' if self.peers == 1 else 's'}"
        return f"{self.activity} · {money} · {self.trained} trained, {self.audited} audited · {peers}"


def read_shift(node: Any, *, steps: bool) -> Shift:
    """Return what a node does now; ``steps``: with the number of the step, which changes all the time."""
    status, context = node.status(), node.context
    units = my_units(context.state, context.account)
    return Shift(
        settled=status["balance"],
        pending=sum(unit.held_pay + unit.held_merit for unit in units),
        locked=my_bonds(context.state, context.account),
        trained=status["trained"],
        audited=status["audited"],
        peers=len(status["peers"]),
        activity=_activity(status, [unit.round for unit in units if unit.status == "assigned"], steps),
    )


def my_bonds(state: State, account: str) -> int:
    """Return the micro-credits that an account has locked in bids, and in audits of units that are not settled."""
    locked = 0
    for name in state.active().jobs:
        bid, job = state.bid(name, account), present(state.job(name))
        locked += bid.bond if bid is not None else 0
        for unit in map(state.unit_at, job.unsettled):
            if account in unit.auditors:
                locked += present(state.audit(unit.job, unit.round, unit.slot, account)).bond
    return locked


def _activity(status: dict[str, Any], rounds: list[int], steps: bool) -> str:
    if status["step"]:
        where = f"round {rounds[0]}: " if rounds else ""
        return where + ("step {} of {}".format(*status["step"]) if steps else "at work")
    reasons, bids = status["idle_reasons"], status["bids"]
    if bids:
        job, standing = next(iter(sorted(bids.items())))
        return f"waiting on {job[:12]}: {standing}{_and_more(bids)}"
    if not reasons:
        return "waiting for jobs"
    job, reason = next(iter(sorted(reasons.items())))
    return f"idle: {reason}" if job == "*" else f"no bid on {job[:12]}: {reason}{_and_more(reasons)}"


def _and_more(jobs: dict[str, str]) -> str:
    more = len(jobs) - 1
    return f" (and {more} more job{'s' if more > 1 else ''}: gdf-market status)" if more else ""


async def show_shift(app: App, node: Any) -> None:
    """Show it until cancelled: a line that changes on a terminal, a new line for each change elsewhere."""
    with app.progress("starting") as say:
        while True:
            say(read_shift(node, steps=app.err.is_terminal).sentence())
            await trio.sleep(EVERY_S)
