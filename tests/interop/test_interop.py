"""A client on js-libp2p that was written from docs/protocol.md takes part in a real network: the wire is libp2p.

`make test-interop` installs the client's packages and runs this.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ledger.store import LedgerStore
from tests.interop.driver import HERE, JsClient, node_path
from tests.interop.network import EPOCH_BLOCKS, PROGRAM, TITLE, Network

pytestmark = pytest.mark.interop

OWN_TITLE = "An order from JavaScript"
BORNE = 128  # refused orders that cost a peer nothing but not being relayed (docs/protocol.md, Orders)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    node_path()  # before anything is started in vain
    found = Network(tmp_path_factory.mktemp("interop"))
    try:
        found.open()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def client(network: Network) -> JsClient:
    """A client that is connected to ann, linked with it, and reads the order book."""
    client = network.client()
    client.ask("connect")
    client.ask("link")
    client.ask("join")
    return client


@pytest.fixture(scope="module")
def heard(network: Network, client: JsClient) -> dict[str, Any]:
    """Cleo's order as the client heard and verified it, with the id that cleo's node gave it."""
    order = network.publish()
    return client.ask("order", title=TITLE) | {"published": order, "again": client.ask("again")}


@pytest.fixture(scope="module")
def job_height(network: Network, heard: dict[str, Any]) -> int:
    """The height at which that order became a job."""
    return network.post(heard["id"])


def test_the_documented_bytes_are_those_of_the_client() -> None:
    command = [node_path(), str(HERE / "vectors.mjs"), str(HERE.parent / "vectors" / "wire.json")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert "none that was altered" in run.stdout


def test_the_connection_is_libp2p(network: Network) -> None:
    client = network.client()
    agreed = client.ask("connect")
    assert agreed == {"peer": network.ann.account, "encryption": "/noise", "muxer": "/yamux/1.0.0"}
    said = client.ask("identify")
    assert said["peer"] == network.ann.account
    documented = {"/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/meshsub/1.1.0", "/gdf/ledger/1"}
    assert documented == set(said["protocols"])
    assert 0 < client.ask("ping")["ms"] < 5_000
    joined = client.ask("join")
    assert joined == {"topic": f"/gdf/{client.network[:16]}/orders/1", "protocol": "/meshsub/1.1.0"}
    hello = client.ask("link")
    assert hello["account"] == network.ann.account
    network.wait("ann counts the client as a peer", lambda: client.account in (network.ann.status() or {})["peers"])


def test_a_real_order_arrives_and_its_signature_verifies(
    network: Network, client: JsClient, heard: dict[str, Any]
) -> None:
    assert heard["id"] == heard["published"]
    assert heard["body"]["author"] == network.cleo.account
    assert heard["from"] == network.cleo.account
    assert heard["via"] == network.ann.account  # relayed
    assert heard["again"] == {"idBytes": 46, "bytes": heard["bytes"]}  # IHAVE and IWANT name messages alike
    assert client.ask("state")["refused"] == []  # nothing else came that it could not verify


def test_a_blob_arrives_from_the_bulk_host_that_its_owner_vouches_for(network: Network, heard: dict[str, Any]) -> None:
    visitor = network.client()
    visitor.ask("connect", invite=network.cleo.run("node", "invite")["invite"])
    hello = visitor.ask("link")
    blob = visitor.ask("blob", root=heard["body"]["program"])
    assert blob == {"peer": hello["bulk"]["peer"], "bytes": len(PROGRAM)}
    assert blob["peer"] != network.cleo.account


def test_blocks_chain_from_the_genesis_and_are_certified(network: Network, client: JsClient, job_height: int) -> None:
    wanted = max(2 * EPOCH_BLOCKS + 1, job_height)
    network.wait("two epochs ended", lambda: network.height(network.ann) >= wanted)
    height = network.height(network.ann)
    verified = client.ask("sync", height=height)
    assert verified["height"] >= height
    assert verified["certificates"] >= 3  # at least each epoch has one
    assert verified["epoch"] >= 2
    with closing(LedgerStore(network.ann.data.ledger, read_only=True)) as store:
        assert [row.hash for row in store.blocks_from(1, height)] == verified["hashes"][:height]
    assert verified["statuses"] > 0  # heard without asking, as every peer does


def test_a_job_is_found_in_its_verified_block(
    network: Network, client: JsClient, heard: dict[str, Any], job_height: int
) -> None:
    client.ask("sync", height=job_height)
    assert client.ask("find", id=heard["id"]) == {"height": job_height}
    assert client.ask("find", id="00" * 32) == {"height": None}


def test_its_own_order_enters_the_books_and_becomes_a_job(
    network: Network, client: JsClient, heard: dict[str, Any]
) -> None:
    network.pay(client.account)
    own = client.ask("publish", title=OWN_TITLE)
    assert network.ann.account in own["recipients"]
    for member in (network.ann, network.ben):  # ben has it from ann
        network.wait(f"{member.name} lists it", lambda member=member: network.order(member, own["id"]) is not None)
    row = next(row for row in network.ann.run("market", "ls")["orders"] if row["id"] == own["id"])
    assert (row["owner"], row["title"], row["state"]) == (client.account, OWN_TITLE, "announced")

    client.ask("submit")
    network.wait("it is a job", lambda: network.order_state(network.ben, own["id"]) == "bidding")
    client.ask("sync", height=network.height(network.ann))
    assert client.ask("find", id=own["id"])["height"] is not None


def test_orders_changed_after_they_were_signed_cost_their_sender_its_connection(
    network: Network, client: JsClient, heard: dict[str, Any]
) -> None:
    forger = network.client()
    forger.ask("connect")
    forger.ask("join")
    forger.ask("tamper", count=1, template=heard["body"])
    network.wait("the order is refused", lambda: network.refused(network.ann).get("signature") == 1)
    assert forger.ask("ping")["ms"] > 0  # one is borne
    sent = forger.ask("tamper", count=5 * BORNE, template=heard["body"])["sent"]
    forger.ask("closes")
    assert BORNE < network.refused(network.ann)["signature"] <= 1 + sent
    forger.ask("turnedAway")
    assert "signature" not in network.refused(network.ben)  # none was relayed
    assert client.ask("ping")["ms"] > 0  # others go on


@pytest.mark.parametrize("length", [0, 65_538])
def test_a_frame_of_a_forbidden_length_closes_the_connection(network: Network, client: JsClient, length: int) -> None:
    visitor = network.client()
    visitor.ask("connect")
    visitor.ask("link")
    visitor.ask("badFrame", length=length)
    visitor.ask("closes")
    visitor.ask("turnedAway")
    assert client.ask("ping")["ms"] > 0


def test_a_hello_of_another_network_closes_the_connection(network: Network, client: JsClient) -> None:
    visitor = network.client()
    visitor.ask("connect")
    visitor.ask("link", network="ff" * 32)
    visitor.ask("closes")
    visitor.ask("turnedAway")
    assert client.ask("ping")["ms"] > 0
