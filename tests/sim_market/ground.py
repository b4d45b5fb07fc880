"""What all checks of a run share: what was said, what really happened, and how they fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.records import Event, Unit
from tests.sim.memory import InvariantError
from tests.sim_market.said import Said, Where


class Truth(Protocol):
    """What only the simulation knows."""

    def is_cheat(self, where: Where) -> bool: ...

    def is_honest(self, account: str) -> bool: ...

    def is_steady(self, account: str) -> bool: ...

    def maker_of(self, where: Where) -> str: ...

    @property
    def is_calm(self) -> bool: ...

    @property
    def posted(self) -> Mapping[int, str]: ...


@dataclass
class Ground:
    """The facts of one run so far."""

    truth: Truth
    said: Said = field(default_factory=Said)
    height: int = 0
    time_ms: int = 0
    held: dict[Where, int] = field(default_factory=dict)  # what was ever held for a unit: pay and merit
    paid: Counter[Where] = field(default_factory=Counter)
    convicts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by job
    seen: Counter[str] = field(default_factory=Counter)  # what happened, for those who ask whether anything did


def require(condition: bool, message: str) -> None:
    """Raise InvariantError unless the condition holds."""
    if not condition:
        raise InvariantError(message)


def unit_of(event: Event) -> Where:
    """Return which unit an event is about."""
    return event.job, event.round, event.slot


def unit_key(unit: Unit) -> Where:
    """Return where a unit is."""
    return unit.job, unit.round, unit.slot
