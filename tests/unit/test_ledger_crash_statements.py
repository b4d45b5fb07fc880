"""A Save whose disk fails at any one statement: the transaction leaves nothing, and the same Save works afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdf_market.errors import StorageError
from ledger.effects import SaveBlocks, Write
from ledger.store import LedgerStore
from tests.crash_net import NEWCOMER, Net, QuickStore
from tests.simulator import cached_crypto


class _Disk:
    """Fails at one of the calls that reach the database, before or after it took effect; counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails_at: int | None = None
        self.afterwards = False
        self.commits: list[int] = []  # which calls were commits

    def arm(self, fails_at: int | None, *, afterwards: bool = False) -> None:
        self.calls, self.fails_at, self.afterwards, self.commits = 0, fails_at, afterwards, []

    def before(self, *, commit: bool = False) -> None:
        self.calls += 1
        if commit:
            self.commits.append(self.calls)
        self._fail(afterwards=False)

    def after(self) -> None:
        self._fail(afterwards=True)

    def _fail(self, *, afterwards: bool) -> None:
        if self.calls == self.fails_at and self.afterwards == afterwards:
            raise sqlite3.OperationalError("disk I/O error")


def failing_store(path: Path, disk: _Disk) -> LedgerStore:
    """Return a store on a file whose every statement and commit passes by ``disk``."""

    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments: object) -> sqlite3.Cursor:
            disk.before()
            super().execute(*arguments)  # type: ignore[arg-type]
            disk.after()
            return self

        def executemany(self, *arguments: object) -> sqlite3.Cursor:
            disk.before()
            super().executemany(*arguments)  # type: ignore[arg-type]
            disk.after()
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, *_: object) -> sqlite3.Cursor:
            return super().cursor(Cursor)

        def commit(self) -> None:
            disk.before(commit=True)
            super().commit()
            disk.after()

    store = LedgerStore(path)
    store._engine.dispose()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, factory=Connection)
        sqlite3.Cursor(connection).execute("PRAGMA synchronous=OFF")
        return connection

    store._engine = store.make_engine(connect)
    return store


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table, as another process sees them."""
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    rows = {name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr) for name in sorted(tables)}
    connection.close()
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with cached_crypto():
        net = Net(tmp_path_factory.mktemp("run"), record=True)
        net.live()
        yield net
        net.close()


def shape(writes: tuple[Write, ...]) -> tuple[object, ...]:
    """Return what decides which statements a Save needs."""
    return tuple(
        (type(write), isinstance(write, SaveBlocks) and (len(write.closing), write.next is not None))
        for write in writes
    )


def fails(store: LedgerStore, writes: tuple[Write, ...]) -> None:
    with pytest.raises(StorageError, match="disk I/O error"):
        store.save(writes)


@pytest.mark.parametrize("number", [1, NEWCOMER])
def test_a_failure_at_any_statement_leaves_nothing(run: Net, number: int, tmp_path: Path) -> None:
    disk, path = _Disk(), tmp_path / "ledger.sqlite"
    store = failing_store(path, disk)
    reference = QuickStore(tmp_path / "reference.sqlite")
    for each in (store, reference):
        each.create(run.genesis)
    tried: dict[tuple[object, ...], int] = {}
    for writes in (writes for who, writes in run.recorded if who == number):
        reference.save(writes)
        if shape(writes) in tried:
            disk.arm(None)
            store.save(writes)
            continue
        before, calls = content(path), 0
        while not disk.commits or not calls:  # the commit is the last call
            calls += 1
            disk.arm(calls)
            fails(store, writes)
            assert content(path) == before
        for call in range(1, calls):
            disk.arm(call, afterwards=True)
            fails(store, writes)
            assert content(path) == before
        tried[shape(writes)] = calls
        disk.arm(calls, afterwards=True)
        fails(store, writes)  # but it is on disk
        assert content(path) == content(reference.path)
    reference.close()
    assert max(tried.values()) >= 10
    assert len(tried) >= 6
    restored = store.restored()
    assert restored is not None
    assert (restored.tip.hash, restored.tip.sum.root()) == run.agreed.blocks[restored.tip.height]
    assert restored.tip.height == run.heights()[number]
    store.close()


def test_a_failure_while_the_genesis_is_written_leaves_an_empty_ledger(run: Net, tmp_path: Path) -> None:
    disk, path = _Disk(), tmp_path / "ledger.sqlite"
    store = failing_store(path, disk)
    before, calls = content(path), 0
    while not disk.commits or not calls:
        calls += 1
        disk.arm(calls)
        with pytest.raises(StorageError, match="disk I/O error"):
            store.create(run.genesis)
        assert content(path) == before
        disk.fails_at = None
        assert store.restored() is None
    disk.arm(None)
    store.create(run.genesis)
    restored = store.restored()
    assert restored is not None
    assert restored.tip.height == 0
    store.close()
