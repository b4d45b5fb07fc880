"""Who can be dialled where, and when to try again: the core of the redial loop, without clock or network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gdf_market.node import limits

FORGET_AFTER = 8  # failures in a row of a peer that was never reached and is no bootstrap peer


@dataclass
class _Known:
    addresses: tuple[str, ...]
    bootstrap: bool = False
    reached: bool = False  # at least once
    failures: int = 0
    next_s: float = 0.0
    dialing: bool = False


class AddressBook:
    """Known peers by account id; ``own`` is never dialled.  Times are seconds of one monotonic clock."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._known: dict[str, _Known] = {}
        self._banned: dict[str, float] = {}

    def learn(self, account: str, addresses: Iterable[str], *, bootstrap: bool = False, replace: bool = False) -> bool:
        """Add addresses (``replace``: these only); say whether the peer was unknown or has new addresses."""
        if account == self._own:
            return False
        known = self._known.get(account)
        if known is None:
            if len(self._known) >= limits.MAX_KNOWN_PEERS and not self._evict():
                return False
            known = self._known[account] = _Known(())
        before = known.addresses
        merged = list(addresses) if replace else [*before, *addresses]
        known.addresses = tuple(dict.fromkeys(merged))[: limits.MAX_ADDRESSES]
        known.bootstrap = known.bootstrap or bootstrap
        return known.addresses != before

    def addresses(self, account: str) -> tuple[str, ...]:
        """Return the transport addresses of a peer, best first; none if it is unknown."""
        known = self._known.get(account)
        return known.addresses if known else ()

    def due(self, now: float, connected: Iterable[str]) -> list[str]:
        """Return the peers to dial now: bootstrap peers first, then those with the fewest failures."""
        skip = set(connected)
        ready = [
            (not known.bootstrap, known.failures, account)
            for account, known in self._known.items()
            if account not in skip and known.next_s <= now and self._may(account, known, now)
        ]
        return [account for _, _, account in sorted(ready)]

    def next_due(self, now: float, connected: Iterable[str]) -> float:
        """Return when the next peer becomes due (infinity: none will)."""
        skip = set(connected)
        return min(
            (
                max(known.next_s, self._banned.get(account, 0.0))
                for account, known in self._known.items()
                if account not in skip and not known.dialing and known.addresses
            ),
            default=math.inf,
        )

    def dialing(self, account: str) -> None:
        """Mark a dial as under way."""
        self._known[account].dialing = True

    def dialed(self, account: str, now: float, jitter: float) -> None:
        """A dial ended, one way or the other: unless a link comes of it, the next try is later each time.

        ``jitter`` in [0, 1) spreads the tries of many nodes.
        """
        known = self._known.get(account)
        if known is None:
            return
        known.dialing = False
        known.failures += 1
        if known.failures >= FORGET_AFTER and not known.reached and not known.bootstrap:
            del self._known[account]
            return
        wait = min(limits.REDIAL_MAX_S, limits.REDIAL_FIRST_S * 2 ** min(known.failures, 10))
        known.next_s = now + wait * (0.5 + jitter)

    def linked(self, account: str) -> None:
        """A link with the peer is up."""
        known = self._known.get(account)
        if known is not None:
            known.reached, known.failures, known.next_s = True, 0, 0.0

    def lost(self, account: str, now: float, jitter: float) -> None:
        """A connection ended: try again soon, not at the same instant as the other side."""
        known = self._known.get(account)
        if known is not None:
            known.next_s = max(known.next_s, now + limits.REDIAL_FIRST_S * (0.5 + jitter))

    def ban(self, account: str, until: float) -> None:
        """Neither dial nor accept ``account`` until then."""
        if len(self._banned) >= limits.MAX_BANNED:
            del self._banned[min(self._banned, key=lambda one: self._banned[one])]
        self._banned[account] = max(until, self._banned.get(account, 0.0))

    def is_banned(self, account: str, now: float) -> bool:
        """Say whether ``account`` is not welcome now."""
        until = self._banned.get(account)
        if until is not None and until <= now:
            del self._banned[account]
            until = None
        return until is not None

    def __len__(self) -> int:
        return len(self._known)

    def _may(self, account: str, known: _Known, now: float) -> bool:
        return bool(known.addresses) and not known.dialing and not self.is_banned(account, now)

    def _evict(self) -> bool:
        worst = max(
            (account for account, known in self._known.items() if not known.reached and not known.bootstrap),
            key=lambda account: self._known[account].failures,
            default=None,
        )
        if worst is None:
            return False
        del self._known[worst]
        return True
