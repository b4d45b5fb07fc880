"""What a node remembers of the network between runs: its own port, and where its peers were.

Without it, a node that was started on any free port could not be found again
after a restart, and one whose bootstrap peer moved could find nobody.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import msgspec

from gdf_market.codec import Record, decode, encode
from gdf_market.errors import PeerError
from gdf_market.node.addresses import split_peer
from gdf_market.node.datadir import write_atomic

MAX_PEERS = 64
MAX_BYTES = 64 << 10


class Neighbours(Record, frozen=True, kw_only=True):
    """``port`` is the control port of the last run (0: none yet); ``peers`` are multiaddrs with /p2p/…."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    peers: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PEERS)] = ()


def load(path: Path) -> Neighbours:
    """Return what was remembered; nothing if the file is missing or damaged (it is only a convenience)."""
    try:
        with path.open("rb") as file:
            found = decode(file.read(MAX_BYTES + 1), Neighbours, max_bytes=MAX_BYTES)
        for address in found.peers:
            split_peer(address)
    except (OSError, PeerError):
        return Neighbours()
    return found


def save(path: Path, neighbours: Neighbours) -> None:
    """Remember for the next run.  Raises StorageError."""
    write_atomic(path, encode(neighbours))


def choose_port(host: str, wanted: int, remembered: int) -> int:
    """Return the port to listen on: the one asked for, else the remembered one if it is free, else 0 (any)."""
    if wanted or not remembered:
        return wanted
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # elsewhere the option would let two processes share the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, remembered))
        except OSError:
            return 0
    return remembered
