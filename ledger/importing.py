"""A ledger file from an export: everything is verified on the way in, and nothing appears before all of it was.

The file is written under a temporary name beside its place and renamed when the last line of the export held.  A crash
leaves the old content or the new, and perhaps a temporary file, which the next import removes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from contracts.records import Genesis
from gdf_market.errors import PeerError, StorageError, UsageError, VerificationFailedError, ensure
from ledger.effects import SaveBlocks
from ledger.export import Report, genesis_of, verify
from ledger.rules import MARKET, Rules
from ledger.store import LedgerStore

BATCH_BLOCKS = 256  # blocks of one transaction: the disk is waited for once per batch
_BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite keeps beside a database


def read_genesis(source: Path, *, rules: Rules = MARKET) -> Genesis:
    """Return the genesis of an export, before anything else of it is believed.  Raises VerificationFailedError."""
    try:
        with source.open("rb") as file:
            return genesis_of(file, rules)
    except PeerError as error:
        raise VerificationFailedError(f"{source} is no exported ledger ({error})") from None
    except OSError as error:
        raise VerificationFailedError(f"cannot read {source}: {error}") from error


def check_empty(target: Path) -> None:
    """Raise UsageError when a ledger file holds blocks or votes; StorageError when it is no ledger."""
    if not target.exists() or not target.stat().st_size:
        return  # a node that was killed at its first start leaves a file of no bytes
    store = LedgerStore(target, read_only=True)
    try:
        restored, head = store.restored(), store.head()
    finally:
        store.close()
    ensure(
        head is None,
        UsageError(f"{target} holds {head.height if head else 0} blocks already; import into another --data-dir"),
    )
    ensure(
        restored is None or not (restored.votes or restored.candidates),
        # whoever forgets its votes may vote again, and differently
        UsageError(f"{target} holds votes of this node; import into another --data-dir"),
    )


def build(
    source: Path, target: Path, network: str, *, rules: Rules = MARKET, progress: Callable[[int], None] | None = None
) -> Report:
    """Verify an export and write its ledger beside ``target``; ``publish`` puts it there.

    ``progress`` is told the height after each batch.  Raises VerificationFailedError naming the height at which the
    file stops being a valid ledger of ``network``, StorageError; both leave nothing behind.
    """
    partial = _partial(target)
    _remove(partial)
    writer = _Writer(partial, network, rules, progress or (lambda height: None))
    try:
        report = verify(source, rules=rules, follower=writer)
        writer.finish(report)
    except BaseException:  # an interrupt, too
        writer.close()
        _remove(partial)
        raise
    return report


def publish(target: Path) -> None:
    """Rename what ``build`` has written to ``target``, durably.  Raises StorageError."""
    try:
        for suffix in _BESIDE:  # of an empty ledger that is replaced: they would be read as part of the new one
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        os.replace(_partial(target), target)
        if os.name == "posix":  # elsewhere folders cannot be opened
            handle = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        _remove(_partial(target))
        raise StorageError(f"cannot write {target}: {error.strerror}; close what uses it and import again") from error


class _Writer:
    """Writes verified blocks in batches."""

    def __init__(self, partial: Path, network: str, rules: Rules, progress: Callable[[int], None]) -> None:
        self._partial = partial
        self._network = network
        self._rules = rules
        self._progress = progress
        self._store: LedgerStore | None = None
        self._batch: list[SaveBlocks] = []
        self._held = 0

    def started(self, genesis: Genesis) -> None:
        found = self._rules.network_id(genesis)
        ensure(
            found == self._network,
            VerificationFailedError(f"the file is a ledger of network {found}, not of {self._network}"),
        )
        self._store = LedgerStore(self._partial, rules=self._rules)
        self._store.create(genesis)

    def finalized(self, blocks: SaveBlocks) -> None:
        self._batch.append(blocks)
        self._held += len(blocks.blocks)
        if self._held >= BATCH_BLOCKS:
            self._flush()

    def _flush(self) -> None:
        assert self._store is not None
        if self._batch:
            self._store.save(self._batch)
            self._progress(self._batch[-1].blocks[-1].tip.height)
        self._batch, self._held = [], 0

    def finish(self, report: Report) -> None:
        """Write the rest and read it back as a node would; afterwards everything is in the one file."""
        assert self._store is not None
        self._flush()
        restored = self._store.restored()
        assert restored is not None
        ensure(
            (restored.tip.height, restored.tip.sum.root()) == (report.height, report.state_root),
            StorageError(f"{self._partial} does not hold what was written; check the disk"),
        )
        self.close()
        log = self._partial.with_name(self._partial.name + "-wal")
        ensure(
            not log.exists() or not log.stat().st_size, StorageError(f"cannot finish {self._partial}; check the disk")
        )

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".import")


def _remove(partial: Path) -> None:
    for suffix in ("", *_BESIDE):
        with contextlib.suppress(OSError):  # what stays is removed by the next import
            partial.with_name(partial.name + suffix).unlink(missing_ok=True)
