"""Opening a ledger's SQLite file for reading, by a process that is not its node.

Rules kept here:
1. The file is opened with ``mode=ro``; a copied file on read-only media is opened as immutable.
2. One page is one read transaction, so all its figures belong to the same block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from gdf_market.errors import StorageError, UsageError, ensure
from ledger.explorer.queries import Reader


def open_ledger(path: Path) -> Ledger:
    """Return the ledger of ``path``.

    Raises UsageError when there is no file or it holds no ledger, StorageError
    when it is damaged or cannot be read.
    """
    ensure(path.is_file(), UsageError(f"no ledger file at {path}; start a node first, or name a copy with --db FILE"))
    immutable = not _opens(path, "mode=ro") and not path.with_name(path.name + "-wal").exists()
    ledger = Ledger(path, "mode=ro&immutable=1" if immutable else "mode=ro")
    with ledger.read() as reader:
        reader.genesis()
    return ledger


def _connect(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{options}", uri=True, check_same_thread=False, isolation_level=None, timeout=5
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _opens(path: Path, options: str) -> bool:
    """Say whether SQLite can read the file this way (a write-ahead log needs a writable folder)."""
    try:
        connection = _connect(path, options)
    except sqlite3.Error:
        return False
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error:
        return False
    finally:
        connection.close()
    return True


class Ledger:
    """A ledger file; ``read`` gives one consistent view of it.  Threads may share it."""

    def __init__(self, path: Path, options: str) -> None:
        self.path = path
        self._engine: Engine = create_engine(
            "sqlite://", creator=lambda: _connect(path, options), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Yield a Reader over one snapshot.  Raises StorageError when SQLite refuses."""
        try:
            with Session(self._engine) as session:
                session.connection().exec_driver_sql("BEGIN")
                try:
                    yield Reader(session, self.path)
                finally:
                    session.connection().exec_driver_sql("ROLLBACK")
        except (DatabaseError, sqlite3.Error) as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(
                f"{self.path} cannot be read as a ledger ({cause}); copy it again, or run `gdf-market ledger verify`"
            ) from error
