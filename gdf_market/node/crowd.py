"""Who gives way when all places are taken, so that many identities of one holder cannot keep everybody else out.

What is worth keeping, in this order: an account that the ledger knows (a validator most, then whoever has credits),
a peer from an address that holds few other places, and one that has been here longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Present:
    """A peer that holds a place; ``worth`` is what the ledger makes of it, ``since`` a time."""

    account: str
    address: str
    worth: int
    since: float


def who_gives_way(present: Iterable[Present], account: str, address: str, worth: int) -> str | None:
    """Return who of those present is worth less than a newcomer; None if all of them are worth as much."""
    everybody = [one for one in present if one.account != account]
    if not everybody:
        return None
    crowd = Counter(one.address for one in everybody)
    least = min(everybody, key=lambda one: (one.worth, -crowd[one.address], -one.since, one.account))
    mine = (worth, -crowd[address] - 1)
    return least.account if (least.worth, -crowd[least.address]) < mine else None
