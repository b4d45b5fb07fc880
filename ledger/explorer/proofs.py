"""Proof files handed out to browsers: the bytes that ``gdf-market ledger prove`` writes (docs/proofs.md)."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gdf_market.errors import GdfError
from ledger.prove import prove_entry
from ledger.store import LedgerStore

AT_ONCE = 2  # proofs made at a time; a ledger of thousands of epochs takes seconds for one
WAIT_S = 20


class NoProofError(Exception):
    """This ledger cannot prove an entry; the message says why and what to do."""


@dataclass(frozen=True)
class VerifyPage:
    """The page that checks any proof file; everything on it happens in the browser."""

    steps: tuple[str, ...] = (
        *("file", "genesis", "validators", "epochs", "headers", "certificate"),
        *("proposer", "inclusion", "entry"),
    )


class Proofs:
    """Makes proofs of one ledger file, a few at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room = threading.Semaphore(AT_ONCE)

    def make(self, entry_id: str) -> bytes:
        """Return an entry's proof file.  Raises NoProofError."""
        if not self._room.acquire(timeout=WAIT_S):
            raise NoProofError("other proofs are being made; ask again in a moment")
        try:
            with closing(LedgerStore(self._path, read_only=True)) as store:
                return prove_entry(store, entry_id)
        except GdfError as error:
            raise NoProofError(str(error)) from error
        finally:
            self._room.release()
