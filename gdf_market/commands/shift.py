"""What `gdf-market work` shows while it runs: the step at hand, settled and pending earnings, or why it is idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio

from contracts.views import my_units
from gdf_market.commands.common import App
from gdf_market.units import format_credits

EVERY_S = 1.0


@dataclass(frozen=True)
class Shift:
    """A node's work at one moment; amounts in micro-credits."""

    settled: int
    pending: int
    trained: int
    audited: int
    peers: int
    activity: str

    def sentence(self) -> str:
        """Return it as one line."""
        money = f"settled {format_credits(self.settled)}, pending {format_credits(self.pending)} credits"
        peers = f"{self.peers} peer{'' if self.peers == 1 else 's'}"
        return f"{self.activity} · {money} · {self.trained} trained, {self.audited} audited · {peers}"


def read_shift(node: Any, *, steps: bool) -> Shift:
    """Return what a node does now; ``steps``: with the number of the step, which changes all the time."""
    status, context = node.status(), node.context
    units = my_units(context.state, context.account)
    return Shift(
        settled=status["balance"],
        pending=sum(unit.held_pay + unit.held_merit for unit in units),
        trained=status["trained"],
        audited=status["audited"],
        peers=len(status["peers"]),
        activity=_activity(status, [unit.round for unit in units if unit.status == "assigned"], steps),
    )


def _activity(status: dict[str, Any], rounds: list[int], steps: bool) -> str:
    if status["step"]:
        where = f"round {rounds[0]}: " if rounds else ""
        return where + ("step {} of {}".format(*status["step"]) if steps else "at work")
    reasons = status["idle_reasons"]
    if not reasons:
        return "waiting for the round"
    job, reason = next(iter(sorted(reasons.items())))
    more = (
        f" (and {len(reasons) - 1} more job{'s' if len(reasons) > 2 else ''}: gdf-market status)"
        if len(reasons) > 1
        else ""
    )
    return f"idle: {reason}{more}" if job == "*" else f"no bid on {job[:12]}: {reason}{more}"


async def show_shift(app: App, node: Any) -> None:
    """Show it until cancelled: a line that changes on a terminal, a new line for each change elsewhere."""
    with app.progress("starting") as say:
        while True:
            say(read_shift(node, steps=app.err.is_terminal).sentence())
            await trio.sleep(EVERY_S)
