"""Invite strings."""

from __future__ import annotations

import base64

import pytest

from contracts.records import Allocation, Genesis
from contracts.state import network_id
from gdf_market.codec import encode
from gdf_market.errors import UsageError
from gdf_market.identity import Identity, account_id
from gdf_market.node.invite import MAX_BOOTSTRAP, PREFIX, check_network, make_invite, parse_invite

OWN = Identity(bytes([1]) * 32).account
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{OWN}"


def genesis(*, accounts: int = 1, name: str = "test-net") -> Genesis:
    holders = [OWN, *(account_id(number.to_bytes(32, "big")) for number in range(1, accounts))]
    return Genesis(
        name=name,
        test_network=True,
        time_ms=1,
        allocations=tuple(Allocation(account=one, balance=1, stake=1) for one in holders),
        validators=(OWN,),
        block_ms=100,
        heartbeat_ms=1_000,
        audit_bond=1,
        max_void_rounds=3,
    )


def test_an_invite_carries_the_genesis_and_the_way_in() -> None:
    invite = parse_invite(f"  {make_invite(genesis(), [ADDRESS])}\n")
    assert invite.genesis == genesis()
    assert (invite.network, invite.name, invite.bootstrap) == (network_id(genesis()), "test-net", (ADDRESS,))


def test_a_large_genesis_is_named_and_not_carried() -> None:
    large = genesis(accounts=200)
    invite = parse_invite(make_invite(large, [ADDRESS] * 20))
    assert invite.genesis is None
    assert invite.network == network_id(large)
    assert len(invite.bootstrap) == MAX_BOOTSTRAP


def test_another_networks_invite_is_refused() -> None:
    invite = parse_invite(make_invite(genesis(), []))
    check_network(invite, network_id(genesis()))
    with pytest.raises(UsageError, match="use another --data-dir"):
        check_network(invite, "00" * 32)


def _packed(body: dict[str, object]) -> str:
    return PREFIX + base64.urlsafe_b64encode(encode(body)).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        PREFIX,
        PREFIX + "!!!",
        PREFIX + "A" * 30_000,
        make_invite(genesis(), [ADDRESS])[:-4],
        _packed({"bootstrap": ["nowhere"], "genesis": "", "name": "x", "network": "00" * 32}),
        _packed({"bootstrap": [], "genesis": "%%%", "name": "x", "network": "00" * 32}),
        _packed({"bootstrap": [], "genesis": "e30=", "name": "x", "network": "00" * 32}),
        _packed({"bootstrap": [], "genesis": "", "name": "x", "network": "00" * 31}),
    ],
)
def test_damage_is_told_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_invite(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_an_invite_whose_genesis_is_another_networks_is_refused() -> None:
    raw = base64.b64encode(encode(genesis())).decode()
    with pytest.raises(UsageError, match="contradicts itself"):
        parse_invite(_packed({"bootstrap": [], "genesis": raw, "name": "test-net", "network": "00" * 32}))
