"""Who can be dialled where, and when to try again: the core of the redial loop, without clock or network.

What one peer tells of others is bounded (``MAX_TOLD``), and a full book gives up first what the most talkative
peers told: nobody fills it alone.  Hearsay that answered nowhere is forgotten, and not believed again for a while.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gdf_market.node import limits

FORGET_AFTER = 8  # failures in a row of a peer that was never reached and is no bootstrap peer
FORGOTTEN_S = 900.0  # so long it stays forgotten, whoever tells of it
MAX_TOLD = 64  # peers known by the word of one peer alone
MAX_LAN_ADDRESSES = 2


@dataclass
class _Known:
    addresses: tuple[str, ...]
    lan: tuple[str, ...] = ()  # as heard on the local network
    teller: str = ""  # who told of it first; "" once it was reached, or said so itself
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
        self._forgotten: dict[str, float] = {}

    def learn(
        self,
        account: str,
        addresses: Iterable[str],
        *,
        bootstrap: bool = False,
        replace: bool = False,
        teller: str = "",
        now: float = 0.0,
    ) -> bool:
        """Add addresses (``replace``: these only); say whether the peer was unknown or has new addresses.

        ``teller`` is the peer that tells of another one; what it says of a peer that was never reached comes before
        what others said, so that each gets its turn.
        """
        known = self._get(account, teller, now)
        if known is None:
            return False
        before, new = known.addresses, list(addresses)
        merged = new if replace else [*before, *new] if known.reached or bootstrap else [*new, *before]
        known.addresses = tuple(dict.fromkeys(merged))[: limits.MAX_ADDRESSES]
        known.bootstrap = known.bootstrap or bootstrap
        return set(known.addresses) != set(before)

    def learn_lan(self, account: str, addresses: Iterable[str], now: float) -> bool:
        """Take the addresses that a peer has on the local network, in place of earlier ones; say whether they are new.

        They come first: a relay is of no use between neighbours.
        """
        known = self._get(account, "lan", now)
        if known is None:
            return False
        before, known.lan = known.lan, tuple(dict.fromkeys(addresses))[:MAX_LAN_ADDRESSES]
        return known.lan != before

    def _get(self, account: str, teller: str, now: float) -> _Known | None:
        """Return what is known of a peer, newly if need be; None if there is no room for it."""
        if account == self._own:
            return None
        known = self._known.get(account)
        if known is not None:
            return known
        if teller and (self._forgotten.get(account, now) > now or self._told()[teller] >= MAX_TOLD):
            return None
        if len(self._known) >= limits.MAX_KNOWN_PEERS and not self._evict():
            return None
        self._known[account] = _Known((), teller=teller)
        return self._known[account]

    def addresses(self, account: str) -> tuple[str, ...]:
        """Return the transport addresses of a peer, best first; none if it is unknown."""
        known = self._known.get(account)
        return tuple(dict.fromkeys([*known.lan, *known.addresses])) if known else ()

    def is_hearsay(self, account: str) -> bool:
        """Say whether only others told of the peer: it never answered, and nobody here asked for it."""
        known = self._known.get(account)
        return known is None or not (known.reached or known.bootstrap)

    def is_bootstrap(self, account: str) -> bool:
        """Say whether somebody at this node named the peer, or an invite did."""
        known = self._known.get(account)
        return known is not None and known.bootstrap

    def put_off(self, account: str, until: float) -> None:
        """Do not dial the peer before then."""
        self._known[account].next_s = until

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
                if account not in skip and not known.dialing and (known.addresses or known.lan)
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
            self._forget(account, now)
            return
        wait = min(limits.REDIAL_MAX_S, limits.REDIAL_FIRST_S * 2 ** min(known.failures, 10))
        known.next_s = now + wait * (0.5 + jitter)

    def linked(self, account: str) -> None:
        """A link with the peer is up."""
        known = self._known.get(account)
        if known is not None:
            known.reached, known.failures, known.next_s, known.teller = True, 0, 0.0, ""

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
        return bool(known.addresses or known.lan) and not known.dialing and not self.is_banned(account, now)

    def _told(self) -> Counter[str]:
        """Return by peer how many others are known by its word alone."""
        return Counter(known.teller for known in self._known.values() if known.teller)

    def _forget(self, account: str, now: float) -> None:
        del self._known[account]
        if len(self._forgotten) >= limits.MAX_KNOWN_PEERS:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[account] = now + FORGOTTEN_S

    def _evict(self) -> bool:
        told = self._told()
        worst = max(
            (account for account, known in self._known.items() if not known.reached and not known.bootstrap),
            key=lambda account: (told[self._known[account].teller], self._known[account].failures),
            default=None,
        )
        if worst is None:
            return False
        del self._known[worst]
        return True
