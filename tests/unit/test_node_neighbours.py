"""What a node remembers of the network: a convenience that may be missing or damaged."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gdf_market.node import neighbours
from gdf_market.node.neighbours import MAX_PEERS, Neighbours, choose_port, load, save
from tests.contracts_world import key_of

PEER = f"/ip4/10.0.0.1/tcp/4001/p2p/{key_of('peer').account}"


def test_round_trip(tmp_path: Path) -> None:
    known = Neighbours(port=4001, peers=(PEER,) * MAX_PEERS)
    save(tmp_path / "n", known)
    assert load(tmp_path / "n") == known


def test_missing_is_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "n") == Neighbours()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b'{"peers":[],"port":65536}',
        b'{"peers":["nowhere"],"port":1}',
        b'{"peers":[],"port": 1}',
        b'{"peers":[' + b",".join([b'"' + PEER.encode() + b'"'] * (MAX_PEERS + 1)) + b'],"port":1}',
        b" " * (neighbours.MAX_BYTES + 1),
    ],
)
def test_damaged_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "n").write_bytes(content)
    assert load(tmp_path / "n") == Neighbours()


def test_a_folder_in_its_place_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    assert load(tmp_path / "n") == Neighbours()


def test_the_port_that_was_asked_for_wins() -> None:
    assert choose_port("127.0.0.1", 4001, 5001) == 4001
    assert choose_port("127.0.0.1", 0, 0) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_remembered_port_is_taken_if_it_is_free(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_port(host, 0, port) == 0
    assert choose_port(host, 0, port) == port
