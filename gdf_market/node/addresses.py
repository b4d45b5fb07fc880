"""Multiaddrs: checking those of peers, and finding those that others can reach this node by."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence

import psutil
from multiaddr import Multiaddr

from gdf_market.errors import MalformedError, PeerError, UsageError, ensure
from gdf_market.identity import public_key
from gdf_market.node import limits

_HOSTS = ("ip4", "ip6", "dns4", "dns6", "dns")


def multiaddr_of(host: str, port: int) -> str:
    """Return the TCP multiaddr of an IP address and port; UsageError if they are none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"{host!r} is not an IP address to listen on; use 0.0.0.0 or one of this machine's") from None
    if not 0 <= port <= 65_535:
        raise UsageError(f"{port} is not a port; use 0 (any free one) to 65535")
    return f"/ip{address.version}/{host}/tcp/{port}"


def split_peer(address: str) -> tuple[str, str]:
    """Return (account, transport address) of ``/ip4/…/tcp/…/p2p/<account>``.

    Raises MalformedError for anything else (peers send these too, so relays,
    other transports and other suffixes are refused).
    """
    wrong = MalformedError(f"{address[:80]!r} is not an address like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…")
    ensure(len(address) <= limits.MAX_ADDRESS_TEXT, wrong)
    parts = address.split("/")
    ensure(len(parts) == 7 and parts[0] == "" and parts[1] in _HOSTS and parts[3] == "tcp" and parts[5] == "p2p", wrong)
    transport = "/".join(parts[:5])
    try:
        Multiaddr(transport)
        public_key(parts[6])
        usable = parts[4].isdecimal() and int(parts[4]) > 0
    except (PeerError, ValueError):
        usable = False
    ensure(usable, wrong)
    return parts[6], transport


def check_transports(account: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the usable transport addresses of a peer, checked to name ``account``; others are left out."""
    found = []
    for address in addresses:
        try:
            owner, transport = split_peer(address)
        except MalformedError:
            continue
        if owner == account and transport not in found:
            found.append(transport)
    return tuple(found[: limits.MAX_ADDRESSES])


def advertised(bound: Sequence[str], account: str, announce: Sequence[str]) -> tuple[str, ...]:
    """Return full multiaddrs for what a host is bound to: announced ones first, real ones in place of 0.0.0.0 and ::.

    Raises UsageError for an ``announce`` that is no multiaddr of this node.
    """
    found = [_announced(address, account) for address in announce]
    for address in bound:
        _, family, host, _, port = address.split("/")[:5]
        hosts = _interfaces(family) if ipaddress.ip_address(host).is_unspecified else [host]
        found += [f"/{family}/{one}/tcp/{port}/p2p/{account}" for one in hosts]
    return tuple(dict.fromkeys(found))


def _announced(address: str, account: str) -> str:
    full = address if "/p2p/" in address else f"{address}/p2p/{account}"
    try:
        owner, _ = split_peer(full)
    except MalformedError as error:
        raise UsageError(f"cannot announce {address!r}: {error}") from None
    if owner != account:
        raise UsageError(f"cannot announce {address!r}: it names another node than {account}")
    return full


def _interfaces(family: str) -> list[str]:
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    found = []
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == wanted and not ipaddress.ip_address(entry.address.partition("%")[0]).is_link_local:
                found.append(entry.address)
    return sorted(found, key=lambda host: (ipaddress.ip_address(host).is_loopback, host))  # loopback is the last resort


def is_loopback(host: str) -> bool:
    """Say whether an IP address (or name) of a peer is this very machine."""
    return host == "::1" or host.startswith("127.")


def observed(transports: Iterable[str], remote: tuple[str, int] | None) -> list[str]:
    """Return addresses to try besides ``transports``: their ports at the IP address that a connection comes from.

    Behind a router that forwards a port, a node knows only its inner address.
    """
    if remote is None:
        return []
    family = "ip6" if ":" in remote[0] else "ip4"
    return [f"/{family}/{remote[0]}/tcp/{port}" for port in sorted({one.split("/")[4] for one in transports})]
