"""Read-only access to the folder's ledger for commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from contracts.records import Job
from gdf_market.commands.common import App
from gdf_market.errors import UsageError
from ledger.reading import records_of
from ledger.store import LedgerStore


@contextmanager
def open_ledger(app: App) -> Iterator[LedgerStore]:
    """Open the folder's ledger read-only.  Raises UsageError when there is none yet."""
    app.data.genesis()
    if not app.data.ledger.exists():
        raise UsageError(f"{app.data.root} has no ledger yet; run `gdf-market node run` until it has joined")
    store = LedgerStore(app.data.ledger, read_only=True)
    try:
        yield store
    finally:
        store.close()


def resolve_job(store: LedgerStore, prefix: str) -> str:
    """Return the id of the one job whose id starts with ``prefix``.  Raises UsageError."""
    found = [job.id for job in records_of(store, Job) if job.id.startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no job starts with {prefix!r}; `gdf-market jobs ls` lists them")
    raise UsageError(f"{len(found)} jobs start with {prefix!r}; give more characters of the id")
