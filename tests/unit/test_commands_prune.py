"""Deleting old epochs at the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gdf_market.node.datadir import DataDir
from ledger.store import LedgerStore
from tests.ledger_kit import Cli, make_epochs, make_folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


def test_old_epochs_are_deleted_and_the_node_would_go_on(cli: Cli, tmp_path: Path) -> None:
    maker = make_folder(tmp_path / "node", make_epochs)
    head, root, boundary = maker.store.head(), maker.chain.head.sum.root(), maker.store.boundary()
    assert head is not None
    maker.store.close()
    told = cli("--json", "--data-dir", tmp_path / "node", "ledger", "prune", "--keep-epochs", 1)
    blocks = maker.genesis.staking.epoch_blocks
    assert told.code == 0, told.err
    oldest = boundary + 1 - blocks
    assert oldest > 1
    assert (told.value["oldest"], told.value["deleted"]) == (oldest, oldest - 1)
    with contextlib.closing(LedgerStore(tmp_path / "node" / "ledger.sqlite")) as store:
        restored = store.restored()
        assert restored is not None
        assert (restored.tip.hash, restored.tip.sum.root(), restored.oldest) == (head.hash, root, oldest)
    again = cli("--data-dir", tmp_path / "node", "ledger", "prune", "--keep-epochs", 1)
    assert (again.code, "nothing to delete" in again.out) == (0, True)
    assert cli("--data-dir", tmp_path / "node", "ledger", "export", tmp_path / "x").code == 2


def test_what_a_running_node_uses_is_left_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdf_market.node.datadir.LOCK_WAIT_S", 0.1)
    maker = make_folder(tmp_path / "node", make_epochs)
    maker.store.close()
    with DataDir(tmp_path / "node").lock():
        refused = cli("--data-dir", tmp_path / "node", "ledger", "prune", "--keep-epochs", 1)
    assert (refused.code, "another gdf-market node uses" in refused.err) == (2, True)
    with contextlib.closing(LedgerStore(tmp_path / "node" / "ledger.sqlite", read_only=True)) as store:
        assert store.oldest() == 1


def test_a_folder_without_a_network_and_a_useless_number_are_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli("--data-dir", tmp_path / "none", "ledger", "prune", "--keep-epochs", 1).code == 2
    assert cli("--data-dir", tmp_path / "none", "ledger", "prune", "--keep-epochs", 0).code == 2
