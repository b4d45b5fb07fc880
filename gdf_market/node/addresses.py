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

CIRCUIT = "/p2p-circuit"
_NOBODY = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"  # stands for an account where none is known yet
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

    The address may lead through one relay: ``/ip4/…/tcp/…/p2p/<relay>/p2p-circuit/p2p/<account>``,
    whose transport address ends with ``p2p-circuit``.  Raises MalformedError for anything
    else (peers send these too, so two relays, other transports and other suffixes are refused).
    """
    wrong = MalformedError(f"{address[:80]!r} is not an address like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…")
    ensure(len(address) <= limits.MAX_ADDRESS_TEXT, wrong)
    transport, _, account = address.rpartition("/p2p/")
    direct = transport
    if transport.endswith(CIRCUIT):
        direct, _, relay = transport.removesuffix(CIRCUIT).rpartition("/p2p/")
        ensure(relay != account and _is_account(relay), wrong)
    parts = direct.split("/")
    ensure(len(parts) == 5 and parts[0] == "" and parts[1] in _HOSTS and parts[3] == "tcp", wrong)
    try:
        Multiaddr(direct)
        usable = parts[4].isascii() and parts[4].isdecimal() and int(parts[4]) > 0
    except ValueError:
        usable = False
    ensure(usable and _is_account(account), wrong)
    return account, transport


def _is_account(text: str) -> bool:
    try:
        public_key(text)
    except PeerError:
        return False
    return True


def is_circuit(transport: str) -> bool:
    """Say whether a transport address leads through a relay."""
    return transport.endswith(CIRCUIT)


def split_circuit(transport: str) -> tuple[str, str]:
    """Return (relay, its direct transport address) of a transport address that ends with ``p2p-circuit``."""
    direct, _, relay = transport.removesuffix(CIRCUIT).rpartition("/p2p/")
    return relay, direct


def block(host: str, bits4: int, bits6: int) -> str:
    """Return the network of so many bits that an IP address lies in; ValueError for a name."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network((address, bits4 if address.version == 4 else bits6), strict=False))


def group(host: str) -> str:
    """Return the network that an IP address is counted under: /24 for IPv4, /48 for IPv6, a name as it is.

    Empty for this machine and for private networks, where many peers at one place are no sign of an attack.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None) or address
    return "" if mapped.is_private or mapped.is_link_local else block(host, 24, 48)


def host_of(transport: str) -> str:
    """Return the IP address or name in a transport address (a relay's, if it leads through one)."""
    return transport.split("/")[2]


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

    An announced address without ``/tcp/…`` gets the port that the host is bound to.
    Raises UsageError for an ``announce`` that is no multiaddr of this node.
    """
    port = bound[0].split("/")[4] if bound else "0"
    found = [_announced(address, port, account) for address in announce]
    for address in bound:
        _, family, host, _, port = address.split("/")[:5]
        hosts = _interfaces(family) if ipaddress.ip_address(host).is_unspecified else [host]
        found += [f"/{family}/{one}/tcp/{port}/p2p/{account}" for one in hosts]
    return tuple(dict.fromkeys(found))


def _announced(address: str, port: str, account: str) -> str:
    transport, _, owner = address.partition("/p2p/")
    if owner not in ("", account):
        raise UsageError(f"cannot announce {address!r}: it names another node than {account}")
    full = transport if "/tcp/" in transport else f"{transport}/tcp/{port}"
    try:
        split_peer(f"{full}/p2p/{account}")
    except MalformedError:
        raise UsageError(
            f"cannot announce {address!r}: it is not an address like /ip4/203.0.113.7/tcp/4001, /ip4/203.0.113.7 "
            "or /dns4/node.example.org"
        ) from None
    return f"{full}/p2p/{account}"


def check_announce(address: str) -> str:
    """Return ``address`` if a node can announce it.  Raises UsageError.

    ``/ip4/…`` or ``/dns4/…``, with the control host's ``/tcp/<port>`` or without a port, and no peer: the
    setting is read before there is a key.
    """
    ensure(
        "/p2p/" not in address,
        UsageError(f"cannot announce {address!r}: leave /p2p/… out, the node adds its own"),
    )
    _announced(address, "1", _NOBODY)
    return address


def announced_elsewhere(announce: Iterable[str]) -> tuple[str, ...]:
    """Return what another host of the same node announces: the same places, without the first one's port."""
    return tuple(dict.fromkeys("/".join(one.split("/")[:3]) for one in announce))


def _interfaces(family: str) -> list[str]:
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    found = []
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == wanted and not ipaddress.ip_address(entry.address.partition("%")[0]).is_link_local:
                found.append(entry.address)
    return sorted(found, key=lambda host: (ipaddress.ip_address(host).is_loopback, host))  # loopback is the last resort


def port_of(address: str) -> str:
    """Return the port in a multiaddr (a relay's, if it leads through one)."""
    return address.split("/")[4]


def own_hosts() -> frozenset[str]:
    """Return the IP addresses of this machine's interfaces."""
    entries = [entry for each in psutil.net_if_addrs().values() for entry in each]
    wanted = (socket.AF_INET, socket.AF_INET6)
    return frozenset(entry.address.partition("%")[0] for entry in entries if entry.family in wanted)


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
    ports = {one.split("/")[4] for one in transports if not is_circuit(one)}
    return [f"/{family}/{remote[0]}/tcp/{port}" for port in sorted(ports)]
