"""How addresses behaved: who connects too often, and whose identities were thrown out too often.  No clock, no network.

An identity costs nothing, an address something.  So what an identity did wrong also counts against the address that it
came from, and less against the address's neighbourhood (IPv4 /24, IPv6 /48), which one holder may have all of.  The
address of this machine's own programs, 127.0.0.1 or ::1, is allowed more, as nobody else can have it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from gdf_market.node import limits
from gdf_market.node.addresses import block

LOOPBACK = ("127.0.0.1", str(ipaddress.ip_network(("::1", 64), strict=False)))


def source(host: str) -> str:
    """Return what one holder of addresses is counted under: the IPv4 address, or the /64 of an IPv6 address."""
    return block(host, 32, 64).removesuffix("/32")


def group(host: str) -> str:
    """Return the neighbourhood of an address: its IPv4 /24 or IPv6 /48; that of loopback is loopback."""
    if source(host) in LOOPBACK:
        return source(host)
    return block(host, 24, 48)


@dataclass
class _Past:
    dials: limits.Bucket
    faults: limits.Bucket
    banned_until: float = 0.0


@dataclass
class Standing:
    """The past of addresses and their groups; bounded, the one heard of longest ago is forgotten first."""

    _known: dict[str, _Past] = field(default_factory=dict)

    def refuse(self, host: str, now: float) -> str:
        """Count a connection from ``host``; return why it is not welcome: "address-banned", "hasty", or ""."""
        pasts = self._pasts(host)
        if any(past.banned_until > now for past in pasts):
            return "address-banned"
        if not all([past.dials.take(1.0, now) for past in pasts]):  # a list: each of them counts
            return "hasty"
        return ""

    def blame(self, host: str, now: float) -> None:
        """A peer that came from ``host`` was thrown out for what it did."""
        for past in self._pasts(host):
            if not past.faults.take(1.0, now):
                past.banned_until = now + limits.ADDRESS_BAN_S

    def is_banned(self, host: str, now: float) -> bool:
        """Say whether connections from ``host`` are refused for what was done from there."""
        return any(past.banned_until > now for past in self._pasts(host))

    def __len__(self) -> int:
        return len(self._known)

    def _pasts(self, host: str) -> list[_Past]:
        own, around = source(host), group(host)
        if own in LOOPBACK:
            return [self._past(own, limits.LOOPBACK_TIMES)]
        return [self._past(own, 1), self._past(around, limits.GROUP_TIMES)]

    def _past(self, name: str, times: int) -> _Past:
        past = self._known.pop(name, None)
        if past is None:
            past = _Past(
                limits.Bucket(limits.DIALS_PER_S * times, limits.DIALS_BURST * times),
                limits.Bucket(limits.FAULTS_PER_S * times, limits.FAULTS_BURST * times),
            )
            if len(self._known) >= limits.MAX_SOURCES_KNOWN:
                del self._known[next(iter(self._known))]
        self._known[name] = past
        return past
