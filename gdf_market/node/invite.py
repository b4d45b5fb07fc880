"""Invites: one string that carries a network's genesis and where to find its nodes.

`gdf1-` + base64url (no padding) of the canonical JSON {bootstrap, genesis,
name, network}; ``genesis`` is the canonical genesis record itself (base64) if it
has at most 8 KiB, else empty: then it comes in a file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from contracts.records import Genesis
from contracts.state import network_id
from gdf_market.codec import Hash, Record, decode, encode
from gdf_market.errors import PeerError, UsageError, ensure
from gdf_market.node import limits
from gdf_market.node.addresses import split_peer

PREFIX = "gdf1-"
MAX_GENESIS_BYTES = 8_192
MAX_BOOTSTRAP = 8
MAX_INVITE_CHARS = 24_576


class _Body(Record, frozen=True, kw_only=True):
    bootstrap: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=limits.MAX_ADDRESS_TEXT)], ...],
        msgspec.Meta(max_length=MAX_BOOTSTRAP),
    ]
    genesis: Annotated[str, msgspec.Meta(max_length=MAX_GENESIS_BYTES * 4 // 3 + 4)]
    name: Annotated[str, msgspec.Meta(max_length=40)]
    network: Hash


@dataclass(frozen=True)
class Invite:
    """What an invite says; ``genesis`` is None if it was too large to be carried."""

    network: str
    name: str
    bootstrap: tuple[str, ...]
    genesis: Genesis | None


def make_invite(genesis: Genesis, bootstrap: Sequence[str]) -> str:
    """Return the invite to the network of ``genesis`` through the nodes at these multiaddrs (with /p2p/…)."""
    raw = encode(genesis)
    body = _Body(
        bootstrap=tuple(bootstrap[:MAX_BOOTSTRAP]),
        genesis=base64.b64encode(raw).decode() if len(raw) <= MAX_GENESIS_BYTES else "",
        name=genesis.name,
        network=network_id(genesis),
    )
    return PREFIX + base64.urlsafe_b64encode(encode(body)).decode().rstrip("=")


def parse_invite(text: str) -> Invite:
    """Return what an invite says, its genesis checked against its network id.  Raises UsageError."""
    text = text.strip()
    ensure(
        text.startswith(PREFIX),
        UsageError(f"{text[:20]!r} is not an invite; an invite begins with {PREFIX} (see `gdf-market node invite`)"),
    )
    ensure(len(text) <= MAX_INVITE_CHARS, UsageError(f"an invite of {len(text)} characters is too long to be one"))
    encoded = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        body = decode(data, _Body, max_bytes=MAX_INVITE_CHARS)
        for address in body.bootstrap:
            split_peer(address)
        genesis = _genesis(body.genesis)
    except (PeerError, binascii.Error, ValueError):
        raise UsageError("the invite is damaged; copy it again, complete, from where you got it") from None
    ensure(
        genesis is None or (network_id(genesis) == body.network and genesis.name == body.name),
        UsageError("the invite contradicts itself: its genesis is not that of the network it names; do not use it"),
    )
    return Invite(body.network, body.name, body.bootstrap, genesis)


def check_network(invite: Invite, network: str) -> None:
    """Raise UsageError unless ``invite`` is to the network that a data folder belongs to."""
    ensure(
        invite.network == network,
        UsageError(
            f"the invite is to network {invite.name} ({invite.network[:16]}…), but this data folder belongs to "
            f"{network[:16]}…; use another --data-dir"
        ),
    )


def _genesis(text: str) -> Genesis | None:
    if not text:
        return None
    return decode(base64.b64decode(text, validate=True), Genesis, max_bytes=MAX_GENESIS_BYTES)
