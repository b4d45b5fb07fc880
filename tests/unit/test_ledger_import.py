"""A ledger file from an export: the same rows as the original's, or nothing at all."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gdf_market.codec import encode
from gdf_market.errors import StorageError, UsageError, VerificationFailedError
from ledger import importing, limits
from ledger.block import SKIP, cast
from ledger.effects import Received, SaveVote, Started
from ledger.export import export, verify
from ledger.importing import build, check_empty, publish, read_genesis
from ledger.prove import prove_entry
from ledger.replica import Replica
from ledger.store import LedgerStore
from tests.ledger_kit import Cli, Maker, make_epochs, make_folder, make_ledger
from tests.simulator import key, make_genesis

TABLES = ("meta", "block", "entry", "event", "record", "undo", "vote", "candidate", "epoch", "closing", "evidence")


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.fixture(scope="module")
def exported(maker: Maker) -> Path:
    target = maker.path.with_name("chain.gdfl")
    export(maker.store, target)
    return target


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())
    finally:
        connection.close()


def altered(exported: Path, target: Path, line: int) -> Path:
    """Write an export of which one line has another digit in a signature or hash."""
    lines = exported.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line][:-40] + bytes([lines[line][-40] ^ 1]) + lines[line][-39:]
    target.write_bytes(b"".join(lines))
    return target


def test_an_imported_ledger_has_the_originals_rows(maker: Maker, exported: Path, tmp_path: Path) -> None:
    target = tmp_path / "ledger.sqlite"
    heights: list[int] = []
    report = build(exported, target, maker.network, progress=heights.append)
    assert not target.exists()
    publish(target)
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert (report.height, report.head, heights) == (12, maker.store.head().hash, [12])
    for table in TABLES:
        assert rows(target, table) == rows(maker.path, table), table


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_epochs_are_imported_with_their_sets_and_closing_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(importing, "BATCH_BLOCKS", batch)
    epochs = make_epochs(tmp_path / "original.sqlite")
    export(epochs.store, tmp_path / "chain.gdfl")
    report = build(tmp_path / "chain.gdfl", tmp_path / "ledger.sqlite", epochs.network)
    publish(tmp_path / "ledger.sqlite")
    assert (report.height, report.head) == (19, epochs.store.head().hash)
    for table in TABLES:
        assert rows(tmp_path / "ledger.sqlite", table) == rows(epochs.path, table), table
    assert [len(rows(epochs.path, table)) for table in ("epoch", "closing")] == [5, 3]
    imported = LedgerStore(tmp_path / "ledger.sqlite")
    entry = imported.block_entries(18)[0].id
    assert prove_entry(imported, entry) == prove_entry(epochs.store, entry)


def test_batches_change_nothing(maker: Maker, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BATCH_BLOCKS", 3)
    heights: list[int] = []
    build(exported, tmp_path / "ledger.sqlite", maker.network, progress=heights.append)
    publish(tmp_path / "ledger.sqlite")
    assert heights == [3, 8, 11, 12]  # 5 to 8 have one certificate
    for table in TABLES:
        assert rows(tmp_path / "ledger.sqlite", table) == rows(maker.path, table), table


def test_a_node_goes_on_from_an_imported_ledger(tmp_path: Path) -> None:
    maker = make_ledger(tmp_path / "original.sqlite")
    export(maker.store, tmp_path / "chain.gdfl")
    build(tmp_path / "chain.gdfl", tmp_path / "ledger.sqlite", maker.network)
    publish(tmp_path / "ledger.sqlite")
    store = LedgerStore(tmp_path / "ledger.sqlite")
    store.create(maker.genesis)
    replica = Replica(maker.genesis, key(1), store.restored())
    assert (replica.height, replica.head) == (12, maker.chain.head.hash)
    replica.step(Started(), maker.chain.head.time_ms)
    # the network has gone on; the next certified block is accepted on top of the imported ones
    executed = maker.block(maker.transfers(2), final=False)
    for message in (executed.block.raw, encode(maker.certificate(executed))):
        for effect in replica.step(Received(key(2).account, message), executed.tip.time_ms):
            if hasattr(effect, "writes"):
                store.save(effect.writes)
    assert replica.height == 13
    assert store.head().hash == executed.block.hash
    export(store, tmp_path / "again.gdfl")
    assert verify(tmp_path / "again.gdfl").height == 13


@pytest.mark.parametrize(("line", "word"), [(0, "height 0"), (1, "height 1"), (7, "height 7"), (13, "height 13")])
def test_a_bad_export_leaves_nothing(maker: Maker, exported: Path, tmp_path: Path, line: int, word: str) -> None:
    bad = altered(exported, tmp_path / "bad.gdfl", line)
    folder = tmp_path / "node"
    folder.mkdir()
    with pytest.raises(VerificationFailedError, match=word):
        build(bad, folder / "ledger.sqlite", maker.network)
    assert not list(folder.iterdir())


def test_a_cut_off_export_leaves_nothing(maker: Maker, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    data = exported.read_bytes()
    for size in (0, 100, len(data) // 2, data.rindex(b"\n", 0, -1) + 1, len(data) - 1):
        (tmp_path / "bad.gdfl").write_bytes(data[:size])
        with pytest.raises(VerificationFailedError):
            build(tmp_path / "bad.gdfl", folder / "ledger.sqlite", maker.network)
    assert not list(folder.iterdir())


def test_an_interrupted_import_leaves_nothing(
    maker: Maker, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_BLOCKS", 2)

    def interrupt(height: int) -> None:
        assert (tmp_path / "ledger.sqlite.import").exists()
        if height >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(exported, tmp_path / "ledger.sqlite", maker.network, progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_import_left_is_no_ledger_and_is_replaced(maker: Maker, exported: Path, tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"ledger.sqlite.import{suffix}").write_bytes(b"half a ledger" * 500)
    check_empty(tmp_path / "ledger.sqlite")
    build(exported, tmp_path / "ledger.sqlite", maker.network)
    publish(tmp_path / "ledger.sqlite")
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_disk_that_refuses_leaves_the_old_state(
    maker: Maker, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "ledger.sqlite"
    target.write_bytes(b"")
    build(exported, target, maker.network)

    def refuse(source: Path, name: Path) -> None:
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="cannot write"):
        publish(target)
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert target.read_bytes() == b""


def test_only_an_empty_ledger_is_replaced(maker: Maker, exported: Path, tmp_path: Path) -> None:
    target = tmp_path / "ledger.sqlite"
    check_empty(target)
    store = LedgerStore(target)
    store.create(maker.genesis)
    check_empty(target)
    build(exported, target, maker.network)
    store.close()
    publish(target)
    with pytest.raises(UsageError, match="holds 12 blocks"):
        check_empty(target)
    voted = LedgerStore(tmp_path / "voted.sqlite")
    voted.create(maker.genesis)
    voted.save([SaveVote(cast(key(1), maker.network, 0, SKIP, 1, ""))])
    with pytest.raises(UsageError, match="holds votes"):
        check_empty(tmp_path / "voted.sqlite")
    (tmp_path / "other").write_bytes(b"no database at all, but long enough to be looked at as one" * 40)
    with pytest.raises(StorageError, match="damaged"):
        check_empty(tmp_path / "other")


def test_another_networks_export_is_refused_before_anything_is_written(
    maker: Maker, exported: Path, tmp_path: Path
) -> None:
    assert read_genesis(exported) == maker.genesis
    with pytest.raises(VerificationFailedError, match="is a ledger of network"):
        build(exported, tmp_path / "ledger.sqlite", "0" * 64)
    assert not list(tmp_path.iterdir())
    with pytest.raises(VerificationFailedError, match="no exported ledger"):
        read_genesis(maker.path)
    with pytest.raises(VerificationFailedError, match="cannot read"):
        read_genesis(tmp_path / "none")


def test_blocks_that_no_certificate_covers_are_bounded(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SYNC_BUFFER_BLOCKS", 4)
    assert verify(exported).height == 12  # 5 to 8
    monkeypatch.setattr(limits, "SYNC_BUFFER_BLOCKS", 3)
    with pytest.raises(VerificationFailedError, match="height 8: 4 blocks without"):
        verify(exported)


# ---- command


def test_command_fills_an_empty_folder(cli: Cli, exported: Path, maker: Maker, tmp_path: Path) -> None:
    node = tmp_path / "node"
    done = cli("--data-dir", node, "ledger", "import", exported, "--json")
    assert done.code == 0
    assert (done.value["height"], done.value["network"]) == (12, maker.network)
    assert (node / "genesis.json").read_bytes() == encode(maker.genesis)
    assert cli("--data-dir", node, "ledger", "show", "--json").value["head"] == done.value["head"]
    assert cli("ledger", "verify", exported, "--json").value == done.value
    again = cli("--data-dir", node, "ledger", "import", exported)
    assert again.code == 2
    assert "holds 12 blocks already" in again.err


def test_command_says_which_network_an_empty_folder_joined(
    cli: Cli, exported: Path, maker: Maker, tmp_path: Path
) -> None:
    done = cli("--data-dir", tmp_path / "node", "ledger", "import", exported)
    assert maker.network in done.err
    trusted = cli("--data-dir", tmp_path / "other", "ledger", "import", exported, "--genesis", maker.network)
    assert "compare" not in trusted.err


def test_command_refuses_another_network(cli: Cli, exported: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    refused = cli("--data-dir", node, "ledger", "import", exported, "--genesis", "0" * 64)
    assert refused.code == 2
    assert not node.exists()
    node.mkdir()
    (node / "genesis.json").write_bytes(encode(make_genesis(1)))
    for arguments in ((), ("--genesis", "0" * 64)):
        refused = cli("--data-dir", node, "ledger", "import", exported, *arguments)
        assert refused.code == 2
        assert [each.name for each in node.iterdir()] == ["genesis.json"]


def test_command_leaves_no_network_behind_when_the_export_is_bad(cli: Cli, exported: Path, tmp_path: Path) -> None:
    bad = altered(exported, tmp_path / "bad.gdfl", 9)
    refused = cli("--data-dir", tmp_path / "node", "ledger", "import", bad)
    assert refused.code == 5
    assert "height 9" in refused.err
    assert not list((tmp_path / "node").glob("*.*"))
    assert cli("--data-dir", tmp_path / "node", "ledger", "import", tmp_path / "none").code == 2


def test_command_keeps_the_folder_locked(cli: Cli, exported: Path, tmp_path: Path) -> None:
    from gdf_market.node.datadir import DataDir

    with DataDir(tmp_path / "node").lock():
        refused = cli("--data-dir", tmp_path / "node", "ledger", "import", exported)
    assert refused.code == 2
    assert "another gdf-market node" in refused.err


def test_an_imported_folder_proves_and_compares(cli: Cli, tmp_path: Path) -> None:
    maker = make_folder(tmp_path / "a")
    for arguments in (
        ("--data-dir", tmp_path / "a", "ledger", "export", tmp_path / "chain.gdfl"),
        ("--data-dir", tmp_path / "b", "ledger", "import", tmp_path / "chain.gdfl"),
    ):
        assert cli(*arguments).code == 0
    entry = maker.store.entries(limit=1)[0].id
    proofs = [cli("--data-dir", tmp_path / name, "ledger", "prove", entry).out for name in "ab"]
    assert proofs[0] == proofs[1] != ""
    assert cli("ledger", "diff", tmp_path / "a", tmp_path / "b").out == "equal: 12 blocks\n"
