"""Founding a network with its validators, and showing, joining and leaving them at the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.fees import compute_fee
from contracts.records import Genesis
from gdf_market import keystore
from gdf_market.codec import decode, encode
from gdf_market.commands import main
from gdf_market.commands import validator as commands
from gdf_market.messages import ValidatorJoin, ValidatorLeave
from gdf_market.node.datadir import DataDir
from gdf_market.units import CREDIT
from tests.ledger_kit import BOND, ENTRY_FEE, Cli, Maker, epochs_genesis, make_epochs
from tests.simulator import key


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path / "node"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("GDF_PASSPHRASE", raising=False)
    return Cli(capsys, monkeypatch)


def genesis_of(tmp_path: Path) -> Genesis:
    return decode((tmp_path / "node" / "genesis.json").read_bytes(), Genesis, max_bytes=1 << 20)


# ---- the genesis


def test_a_new_network_has_epochs_bonds_and_fees(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", "--new-network", "home").code == 0
    genesis = genesis_of(tmp_path)
    assert (genesis.staking.epoch_blocks, genesis.staking.bond, genesis.staking.floor) == (720, 100 * CREDIT, 1)
    assert genesis.entry_fee == 1_000
    (allocation,) = genesis.allocations
    assert (allocation.stake, allocation.balance + allocation.stake) == (100 * CREDIT, 1_000_000 * CREDIT)


@pytest.mark.parametrize(("count", "floor"), [(1, 1), (3, 3), (4, 4), (7, 4)])
def test_the_floor_follows_the_number_of_validators(cli: Cli, tmp_path: Path, count: int, floor: int) -> None:
    options = [text for n in range(1, count + 1) for text in ("--validator", key(n).account)]
    assert cli("init", "--new-network", "home", "--validator-bond", "2.5", *options).code == 0
    genesis = genesis_of(tmp_path)
    assert genesis.staking.floor == floor
    assert len(genesis.validators) == count
    stakes = {each.account: each.stake for each in genesis.allocations}
    assert all(stakes[account] == genesis.staking.bond == 2_500_000 for account in genesis.validators)


def test_what_a_network_costs_can_be_chosen(cli: Cli, tmp_path: Path) -> None:
    options = ("--epoch-blocks", 12, "--validator-floor", 2, "--entry-fee", "0.5", "--validator-bond", "1")
    assert cli("init", "--new-network", "home", *options).code == 0
    genesis = genesis_of(tmp_path)
    assert (genesis.staking.epoch_blocks, genesis.staking.floor, genesis.entry_fee) == (12, 2, 500_000)


def test_a_test_network_takes_no_fee_unless_asked_to(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("init", "--new-network", "home", "--test-network", "--validator-bond", "0").code == 0
    assert (genesis_of(tmp_path).entry_fee, genesis_of(tmp_path).staking.bond) == (0, 0)
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path / "other"))
    assert cli("init", "--new-network", "home", "--test-network", "--entry-fee", "0.001").code == 0
    assert decode((tmp_path / "other" / "genesis.json").read_bytes(), Genesis, max_bytes=1 << 20).entry_fee == 1_000


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--validator-bond", "0"), "--validator-bond 0 is for test networks only"),
        (("--entry-fee", "0"), "--entry-fee 0 is for test networks only"),
        (("--entry-fee", "much"), "is not an amount of credits"),
        (("--validator-bond", "-1"), "is not an amount of credits"),
        (("--validator-bond", "1000001"), "exceed the supply"),
        (("--validator", "12D3KooWnobody"), "12D3KooWnobody"),
    ],
)
def test_bad_options_are_usage_errors(cli: Cli, tmp_path: Path, options: tuple[str, ...], word: str) -> None:
    refused = cli("init", "--new-network", "home", *options)
    assert refused.code == 2
    assert word in refused.err
    assert not (tmp_path / "node" / "genesis.json").exists()


@pytest.mark.parametrize(
    ("option", "value"), [("--epoch-blocks", "0"), ("--validator-floor", "0"), ("--validator-floor", "101")]
)
def test_numbers_out_of_range_name_their_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, value: str
) -> None:
    command = ["gdf-market", "--data-dir", str(tmp_path / "node"), "init", "--new-network", "home", option, value]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "node" / "genesis.json").exists()


# ---- list, join, leave


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Maker]:
    """Return a maker of the node's folder: the ledger of five epochs up to a height, and somebody's key."""

    def make(owner: int, blocks: int = 19) -> Maker:
        data = DataDir(tmp_path / "node")
        data.create()
        keystore.create(data.key, None, seed=key(owner).seed)
        data.genesis_file.write_bytes(encode(epochs_genesis()))
        return make_epochs(data.ledger, blocks)

    return make


class Node:
    """Stands for the running node: an entry that is submitted is final in the next block."""

    def __init__(self, maker: Maker, owner: int) -> None:
        self.maker, self.owner = maker, owner
        self.submitted: list[tuple[str, dict[str, Any]]] = []

    def submit(self, kind: str, **fields: Any) -> str:
        self.submitted.append((kind, fields))
        body = {"validator_join": ValidatorJoin, "validator_leave": ValidatorLeave}[kind]
        entry = self.maker.entry(body, key(self.owner), **fields)
        self.maker.block([entry])
        return entry.id


def running(monkeypatch: pytest.MonkeyPatch, maker: Maker, owner: int) -> Node:
    node = Node(maker, owner)
    monkeypatch.setattr(commands, "with_client", lambda app, use: use(node))
    return node


def test_list_shows_the_epoch_and_everybody_with_a_bond(cli: Cli, folder: Callable[..., Maker]) -> None:
    maker = folder(1)
    value = cli("validator", "list", "--json").value
    assert (value["height"], value["epoch"], value["blocks_left"], value["quorum"]) == (19, 4, 1, 3)
    assert (value["bond"], value["floor"], value["candidates"]) == (BOND, 1, [])
    assert [line["account"] for line in value["members"]] == [key(n).account for n in (1, 4, 101)]
    assert [line["status"] for line in value["members"]] == ["member"] * 3
    assert sum(line["proposed"] for line in value["members"]) == 3  # blocks 17 to 19
    assert [(line["account"], line["status"], line["stake"]) for line in value["unlocking"]] == [
        (key(2).account, "unlocking", BOND),
        (key(3).account, "convicted", 0),
    ]
    text = cli("validator", "list").out
    for line in ("epoch 4", "unlocks in epoch 5", "convicted", key(101).account, "blocks left in the epoch: 1"):
        assert line in text
    maker.block([maker.entry(ValidatorJoin, key(102)), maker.entry(ValidatorLeave, key(4))])  # the last of the epoch
    value = cli("validator", "list", "--json").value
    assert (value["epoch"], value["blocks_left"]) == (5, 4)


def test_a_candidate_and_a_leaver_are_shown(cli: Cli, folder: Callable[..., Maker]) -> None:
    maker = folder(1, 9)
    maker.block([maker.entry(ValidatorJoin, key(102)), maker.entry(ValidatorLeave, key(4))])
    value = cli("validator", "list", "--json").value
    assert [line["status"] for line in value["members"]] == ["member", "member", "leaving", "member"]
    assert [(line["account"], line["status"]) for line in value["candidates"]] == [(key(102).account, "candidate")]
    assert "waits for a seat" in cli("validator", "list").out
    maker.block([maker.evidence(key(1), key(3), 2)])
    value = cli("validator", "list", "--json").value
    assert [line["status"] for line in value["members"]] == ["member", "convicted", "leaving", "member"]


def test_join_locks_the_bond(cli: Cli, folder: Callable[..., Maker], monkeypatch: pytest.MonkeyPatch) -> None:
    maker = folder(102, 9)
    node = running(monkeypatch, maker, 102)
    before = maker.chain.head.state.account(key(102).account).balance
    joined = cli("validator", "join")
    assert joined.code == 0
    assert node.submitted == [("validator_join", {})]
    for part in ("50 credits locked", "place 1 in the queue", "end of epoch 2", "never run this key on two machines"):
        assert part in joined.out
    account = maker.chain.head.state.account(key(102).account)
    entry = maker.chain.head
    assert (account.stake, account.balance) == (BOND, before - BOND - ENTRY_FEE)
    assert entry.height == 10
    again = cli("validator", "join")
    assert (again.code, len(node.submitted)) == (2, 1)
    assert "waits for a seat already" in again.err
    while maker.chain.epoch.number < 3:
        maker.block()
    assert "is a validator already" in cli("validator", "join").err


def test_join_needs_the_bond_and_the_fee(
    cli: Cli, folder: Callable[..., Maker], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = folder(104, 9)
    node = running(monkeypatch, maker, 104)
    rest = maker.chain.head.state.account(key(104).account).balance - BOND - ENTRY_FEE
    maker.block([maker.pay(key(104), key(1), rest)])  # and its fee: one short of bond and fee
    refused = cli("validator", "join")
    assert (refused.code, node.submitted) == (6, [])
    assert "bond and fee are 50.001 credits, the balance is 50" in refused.err


def test_the_size_of_a_join_is_what_is_checked(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "ledger.sqlite", epochs_genesis())
    for kind in (ValidatorJoin, ValidatorLeave):
        entry = maker.entry(kind, key(101))
        assert len(entry.raw) <= commands._JOIN_BYTES
        assert compute_fee(ENTRY_FEE, entry) == ENTRY_FEE


def test_leave_gives_up_the_seat(cli: Cli, folder: Callable[..., Maker], monkeypatch: pytest.MonkeyPatch) -> None:
    maker = folder(4, 9)
    node = running(monkeypatch, maker, 4)
    left = cli("validator", "leave")
    assert left.code == 0
    assert node.submitted == [("validator_leave", {})]
    assert "the seat ends with epoch 2, in about 3 blocks" in left.out
    assert "the bond returns 3 epochs later" in left.out
    assert "is leaving" in cli("validator", "leave").err
    while maker.chain.epoch.number < 3:
        maker.block()
    assert key(4).account not in maker.validators
    assert "left, and its bond unlocks in epoch 6" in cli("validator", "leave").err
    assert "left, and its bond unlocks in epoch 6" in cli("validator", "join").err
    assert len(node.submitted) == 1


def test_leave_the_queue(cli: Cli, folder: Callable[..., Maker], monkeypatch: pytest.MonkeyPatch) -> None:
    maker = folder(102, 9)
    running(monkeypatch, maker, 102)
    assert "is no validator and waits for no seat" in cli("validator", "leave").err
    assert cli("validator", "join").code == 0
    left = cli("validator", "leave", "--json").value
    assert (left["was"], left["account"]) == ("candidate", key(102).account)
    assert maker.chain.head.state.account(key(102).account).stake == 0


def test_without_a_node_or_a_ledger(cli: Cli, folder: Callable[..., Maker], tmp_path: Path) -> None:
    assert cli("validator", "list").code == 2  # no network yet
    assert cli("validator", "join").code == 3  # no key
    folder(102, 2)
    assert cli("validator", "list").code == 0
