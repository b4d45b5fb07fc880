"""Typed reading of current records from a store, for commands and reports."""

from __future__ import annotations

from typing import TypeVar

from contracts.records import StateRecord
from gdf_market.errors import StorageError
from ledger.store import LedgerStore

R = TypeVar("R", bound=StateRecord)


def records_of(store: LedgerStore, kind: type[R], prefix: str = "") -> list[R]:
    """Return the current records of one kind whose key starts with ``prefix``, in key order."""
    found = store.records(prefix, kind=kind.__name__.lower())
    return [record for record in found.values() if isinstance(record, kind)]


def record_of(store: LedgerStore, kind: type[R], key: str) -> R | None:
    """Return the record under ``key``, or None.  Raises StorageError when it is of another kind."""
    record = store.record(key)
    if record is not None and not isinstance(record, kind):
        raise StorageError(f"{store.path}: {key} is a {type(record).__name__}, not a {kind.__name__}")
    return record
