"""Four replicas on real ledger files under the market's rules: run, restart from disk, export, verify, tamper."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.records import Genesis
from gdf_market.errors import StorageError, VerificationFailedError
from ledger.block import SKIP, cast
from ledger.effects import Restored, SaveCandidate, SaveVote, Write
from ledger.export import Report, export, verify
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.store import LedgerStore
from tests.simulator import Cluster, MemoryStore, cached_crypto, key, make_genesis, transfer

BLOCKS = 12


class DiskStore(MemoryStore):
    """Writes to a real file; memory is kept beside it for the simulation's invariants."""

    def __init__(self, genesis: Genesis, path: Path) -> None:
        super().__init__(genesis, MARKET)
        self.disk = LedgerStore(path)
        self.disk.create(genesis)

    def save(self, writes: Sequence[Write]) -> None:
        super().save(writes)
        self.disk.save(writes)

    def restored(self) -> Restored:
        restored = self.disk.restored()
        assert restored is not None
        return restored

    def sync_messages(self, height: int) -> list[bytes]:
        return self.disk.sync_messages(height)


def disk_cluster(folder: Path, *, observers: int = 0) -> Cluster:
    genesis = make_genesis(4, block_ms=100, heartbeat_ms=400)
    return Cluster(
        1,
        4,
        observers,
        rules=MARKET,
        genesis=genesis,
        stores=lambda name: DiskStore(genesis, folder / f"{name}.sqlite"),
    )


def disk_of(cluster: Cluster, index: int) -> LedgerStore:
    store = list(cluster.nodes.values())[index].store
    assert isinstance(store, DiskStore)
    return store.disk


def grow(cluster: Cluster, height: int, first_nonce: int = 0) -> list[str]:
    """Submit transfers until every running node has finalized ``height`` blocks; return the entries' ids."""
    ids = []
    nonce = first_nonce
    while min(cluster.nodes[name].store.tip.height for name in cluster.up()) < height:
        name = cluster.up()[nonce % len(cluster.up())]
        entry = transfer(cluster.network, key(101 + nonce % 4), key(1).account, nonce, cluster.clock(name))
        cluster.submit(name, entry)
        ids.append(entry.id)
        nonce += 1
        cluster.run(cluster.now_ms + 300)
    cluster.run(cluster.now_ms + 2_000)
    assert cluster.finalized_everywhere(ids) or len(cluster.up()) < len(cluster.nodes)
    return ids


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A network of four that has finalized some blocks; tests may read it and go on with it."""
    with cached_crypto():
        cluster = disk_cluster(tmp_path_factory.mktemp("ledgers"))
        cluster.run(1_000)
        grow(cluster, BLOCKS)
    return cluster


@pytest.fixture(scope="module")
def exported(grown: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "ledger.jsonl"
    assert export(disk_of(grown, 0), path) == disk_of(grown, 0).head().height
    return path


def test_rows_say_what_happened(grown: Cluster) -> None:
    store = disk_of(grown, 0)
    head = store.head()
    assert head is not None
    assert head.height >= BLOCKS
    assert [row.height for row in store.blocks(3)] == [head.height - step for step in range(3)]
    assert store.blocks(2, before=3)[0].height == 2
    assert store.block(2).hash == store.block_by_hash(store.block(2).hash).hash
    entry = store.entries(kind="transfer", limit=1)[0]
    assert store.entry(entry.id).raw == entry.raw
    assert entry in store.block_entries(entry.height)
    assert all(row.author == entry.author for row in store.entries(author=entry.author))
    assert {row.kind for row in store.events(limit=5)} == {"transfer"}
    assert store.events(account=key(1).account, limit=1)
    assert store.record(f"account/{key(1).account}").balance > 1_000_000_000
    accounts = store.records("account/")
    assert accounts == store.records(kind="account")
    assert store.state().supply_check() == store.state().network().supply


def test_restart_goes_on_where_it_stopped(grown: Cluster) -> None:
    before = grown.heights()
    with cached_crypto():
        for name in list(grown.nodes):
            grown.crash(name)
        for name in list(grown.nodes):
            grown.start(name)
            assert grown.nodes[name].replica.height == grown.nodes[name].store.tip.height
        grown.run(grown.now_ms + 1_000)
        grow(grown, max(before) + 2, first_nonce=1_000)
    assert min(grown.heights()) >= max(before) + 2


def test_late_observer_syncs_and_stays_behind_nobody(tmp_path: Path) -> None:
    with cached_crypto():
        cluster = disk_cluster(tmp_path, observers=1)
        observer = list(cluster.nodes)[4]
        cluster.run(60)
        cluster.crash(observer)
        grow(cluster, 5)
        cluster.start(observer)
        cluster.run(cluster.now_ms + 2_000)
        assert cluster.nodes[observer].store.tip.height >= 5
        ids = grow(cluster, 8, first_nonce=500)
        assert cluster.finalized_everywhere(ids)
    assert not cluster.nodes[observer].replica.is_validator
    common = min(cluster.heights()[4], cluster.heights()[0])
    assert disk_of(cluster, 4).block(common).state_root == disk_of(cluster, 0).block(common).state_root
    assert not disk_of(cluster, 4).restored().votes


def test_verify_reports_what_the_store_holds(grown: Cluster, exported: Path) -> None:
    report = verify(exported)
    assert isinstance(report, Report)
    row = disk_of(grown, 0).block(report.height)
    assert (report.head, report.state_root) == (row.hash, row.state_root)
    assert report.supply == 8 * 1_000_000_000
    assert report.entries > 3


def test_any_altered_byte_is_noticed_at_its_height(exported: Path, tmp_path: Path) -> None:
    data = exported.read_bytes()
    starts = [0] + [index + 1 for index, byte in enumerate(data) if byte == 10]
    altered = tmp_path / "altered.jsonl"
    for line in (0, 1, 3, len(starts) - 3):
        length = starts[line + 1] - starts[line]
        for at in (1, length // 3, length // 2, length - 30, length - 1):
            position = starts[line] + at
            altered.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with pytest.raises(VerificationFailedError, match=f"height {line}:"):
                verify(altered)


def test_cut_or_joined_files_are_refused(exported: Path, tmp_path: Path) -> None:
    lines = exported.read_bytes().splitlines(keepends=True)
    altered = tmp_path / "altered.jsonl"
    for kept in (
        lines[:-1],  # no last line
        lines[:-2] + lines[-1:],  # a block is missing
        lines[:1] + lines[2:],
        [*lines, lines[-1]],
        [lines[0]],
        [],
    ):
        altered.write_bytes(b"".join(kept))
        with pytest.raises(VerificationFailedError, match="height"):
            verify(altered)
    with pytest.raises(VerificationFailedError, match="cannot read"):
        verify(tmp_path / "absent")


def test_read_only_works_on_a_copy_and_never_writes(grown: Cluster, tmp_path: Path) -> None:
    source = disk_of(grown, 1)
    for suffix in ("", "-wal"):
        part = source.path.with_name(source.path.name + suffix)
        shutil.copy(part, tmp_path / ("copy.sqlite" + suffix))
    copy = LedgerStore(tmp_path / "copy.sqlite", read_only=True)
    assert copy.head() == source.head()
    assert copy.restored().tip.hash == source.head().hash
    with pytest.raises(StorageError, match="cannot be written"):
        copy.save([SaveCandidate("x", "certificate", 10**6, b"x")])
    copy.close()


def test_a_closed_ledger_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    store.create(make_genesis(1))
    store.close()
    shutil.copy(path, tmp_path / "alone.sqlite")
    with_others = LedgerStore(tmp_path / "alone.sqlite", read_only=True)
    assert with_others.genesis() == make_genesis(1)
    assert with_others.head() is None
    with_others.close()


def test_an_empty_store_restores_nothing(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    assert store.restored() is None
    with pytest.raises(StorageError, match="holds no ledger"):
        store.genesis()
    store.create(make_genesis(1))
    store.create(make_genesis(1))
    with pytest.raises(StorageError, match="another network"):
        store.create(make_genesis(2))
    restored = store.restored()
    assert restored is not None
    assert Replica(make_genesis(1), None, restored).height == 0
    store.close()
    with pytest.raises(StorageError, match="no ledger at"):
        LedgerStore(tmp_path / "absent", read_only=True)


def test_damage_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"this is no database, but long enough to be read as one" * 40)
    with pytest.raises(StorageError, match="damaged"):
        LedgerStore(path)


def test_an_altered_record_is_found_on_restart(grown: Cluster, tmp_path: Path) -> None:
    disk_of(grown, 2).close()
    path = tmp_path / "altered.sqlite"
    shutil.copy(disk_of(grown, 2).path, path)
    connection = sqlite3.connect(path)
    with connection:
        value = connection.execute("SELECT value FROM record WHERE kind = 'account' LIMIT 1").fetchone()[0]
        richer = value.replace(b'"balance":', b'"balance":1')
        assert connection.execute("UPDATE record SET value = ? WHERE value = ?", (richer, value)).rowcount
    connection.close()
    with pytest.raises(StorageError, match="state is damaged"):
        LedgerStore(path).restored()


def test_a_full_disk_keeps_the_last_state(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    store.create(make_genesis(1))
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    original = store._connect

    def limited() -> object:
        connection = original()
        connection.execute(f"PRAGMA max_page_count={pages}")
        return connection

    store._engine.dispose()
    store._engine = store.make_engine(limited)
    with pytest.raises(StorageError, match="disk is full"):
        store.save([SaveCandidate("big", "block", 1, bytes(1_000_000))])
    assert store.restored().candidates == ()


def test_one_transaction_per_save(tmp_path: Path, grown: Cluster) -> None:
    """A vote that exists already makes the whole Save fail: nothing of it stays."""
    store = LedgerStore(tmp_path / "ledger.sqlite")
    store.create(make_genesis(4))
    vote = cast(key(1), grown.network, 0, SKIP, 1, "")
    store.save([SaveVote(vote)])
    with pytest.raises(StorageError):
        store.save([SaveCandidate("x", "certificate", 1, b"x"), SaveVote(vote)])
    restored = store.restored()
    assert len(restored.votes) == 1
    assert restored.candidates == ()
