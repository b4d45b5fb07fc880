"""Reaching nodes behind home routers, and finding those on the same LAN: real nodes on the test internet.

Ann and Ben sit behind routers that let nobody in and take another port for every target, so that holes cannot be
punched; Paula has a public address.  Carl is in Ann's LAN and was told no address at all.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdf_market.blobs.store import BlobStore
from gdf_market.demo.processes import stop_all, wait_until
from gdf_market.node.invite import make_invite
from tests.e2e.netns import Internet, Machine, internet

pytestmark = [pytest.mark.e2e, pytest.mark.internet]

WAIT_S = 240.0  # of what takes seconds on an idle machine
BLOB_BYTES = 3_000_000
FETCH = (
    "import json,sys,urllib.request as r;"
    "print(r.urlopen(r.Request(sys.argv[1]+'/fetch',data=json.dumps({'root':sys.argv[3]}).encode(),"
    "headers={'Authorization':'Bearer '+sys.argv[2]}),timeout=200).read().decode())"
)


@pytest.fixture
def net() -> Iterator[Internet]:
    with internet(seed=21) as made:
        yield made


def found(founder: Machine, *others: Machine, lost: Machine | None = None) -> None:
    """Make a network; all know where its founder is, but the one that is ``lost``."""
    founder.account = founder.run("init", "--new-network", "town", "--test-network")["account"]
    where = f"/ip4/{founder.host.address}/tcp/4001/p2p/{founder.account}"
    genesis = founder.data.genesis()
    for one in filter(None, (*others, lost)):
        invite = make_invite(genesis, [] if one is lost else [where])
        one.account = one.run("init", "--join", invite)["account"]


def reach(machine: Machine) -> dict[str, Any]:
    status = machine.status()
    return {} if status is None else status["reach"] | {"peers": status["peers"], "height": status["height"]}


def fetch(machine: Machine, root: str) -> Path:
    """Have a node fetch a blob; return where it put it."""
    running = machine.data.running()
    assert running is not None
    command = machine.host.inside([sys.executable, "-I", "-S", "-c", FETCH, *running, root])
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["path"])


def test_holes_are_punched_through_routers_that_keep_ports(net: Internet, tmp_path: Path) -> None:
    net.router("left")
    net.router("right")
    paula = Machine(net.host("paula"), tmp_path)
    ann, ben = (
        Machine(net.host(name, router=router), tmp_path) for name, router in (("ann", "left"), ("ben", "right"))
    )
    everybody = [paula, ann, ben]
    found(paula, ann, ben)
    net.path("ann", "ben", delay_ms=20)

    def direct(one: Machine, other: Machine) -> bool:
        shown = reach(one)
        return bool(shown) and other.account in shown["peers"] and shown["over_relays"] == 0

    try:
        for one in everybody:
            one.start("node", "run", "--listen", "0.0.0.0:4001")
        wait_until(
            "ann and ben have a direct link",
            lambda: direct(ann, ben) and direct(ben, ann),
            timeout_s=WAIT_S,
            members=everybody,
        )
    finally:
        stop_all(everybody)


def test_who_is_behind_a_router_is_reached_through_a_public_member(net: Internet, tmp_path: Path) -> None:
    net.router("left", symmetric=True)
    net.router("right", symmetric=True)
    paula = Machine(net.host("paula"), tmp_path)
    ann, ben, carl = (
        Machine(net.host(name, router=router), tmp_path)
        for name, router in (("ann", "left"), ("ben", "right"), ("carl", "left"))
    )
    everybody = [paula, ann, ben, carl]
    found(paula, ann, ben, lost=carl)
    content = tmp_path / "content"
    content.write_bytes(secrets.token_bytes(BLOB_BYTES))
    root = BlobStore(ann.data.blobs).put_file(content)

    def until(what: str, holds: Callable[[], object]) -> None:
        wait_until(what, lambda: bool(holds()), timeout_s=WAIT_S, members=everybody)

    try:
        for one in everybody:
            one.start("node", "run", "--listen", "0.0.0.0:4001")
        until("carl finds ann on their LAN", lambda: ann.account in reach(carl).get("peers", ()))
        until("ann and ben are linked", lambda: ann.account in reach(ben).get("peers", ()))
        shown = reach(ann)
        assert shown["inbound"] == "no"
        assert shown["relays"] == [paula.account]
        assert reach(paula)["inbound"] == "yes"

        start = reach(paula)
        until("ledger frames pass", lambda: reach(paula)["relayed_bytes"] > start["relayed_bytes"])
        until("ben follows the ledger", lambda: reach(ben)["height"] >= start["height"])

        until("ann's blobs have a relay", lambda: reach(ann)["bulk_relayed"])
        assert fetch(ben, root).read_bytes() == content.read_bytes()
        assert not paula.data.blobs.joinpath(root).exists(), "the relay passed it on and kept nothing"
    finally:
        stop_all(everybody)
