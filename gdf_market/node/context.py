"""What the roles of a node share: who it is, what it can reach, and how it submits entries."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from contracts.records import Job
from contracts.state import State
from gdf_market.blobs.store import BlobStore, MissingBlobError
from gdf_market.codec import decode
from gdf_market.errors import StorageError
from gdf_market.identity import Identity
from gdf_market.messages import Body, Entry, EntryBody, JobPost, seal
from gdf_market.node.bulk import BulkHost
from gdf_market.node.journal import Journal
from gdf_market.node.ledger_service import LedgerService, now_ms
from gdf_market.node.settings import Settings
from gdf_market.node.trainer import Trainer
from gdf_market.train.data import DataManifest

ENTRY_TTL_MS = 30 * 60_000
MAX_PROGRAM_BYTES = 512 << 20
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 1_024  # jobs whose paths are remembered


@dataclass(frozen=True)
class JobFiles:
    """Local paths of what a job's units are computed from."""

    program: Path
    data: Path
    content: Path


@dataclass
class NodeContext:
    """Everything a role may use; built once by the node."""

    identity: Identity
    network: str
    settings: Settings
    ledger: LedgerService
    blobs: BlobStore
    bulk: BulkHost
    trainer: Trainer
    journal: Journal
    scratch: Path
    note: Callable[[str, str], None]  # (topic, sentence): what `status` shows as the reason
    _files: dict[str, JobFiles] = field(default_factory=dict)
    _fetching: dict[str, trio.Lock] = field(default_factory=dict)

    @property
    def account(self) -> str:
        return self.identity.account

    @property
    def state(self) -> State:
        return self.ledger.state

    def seal(
        self, kind: type[Body], *, nonce: int | None = None, expires_ms: int | None = None, **fields: Any
    ) -> Entry:
        """Sign a new entry of this node's account with a fresh nonce and a half-hour life, unless they are given."""
        body: EntryBody = kind(  # type: ignore[assignment]
            author=self.account,
            nonce=secrets.randbits(52) if nonce is None else nonce,
            expires_ms=max(now_ms(), self.ledger.replica.time_ms) + ENTRY_TTL_MS if expires_ms is None else expires_ms,
            **fields,
        )
        return seal(self.identity, self.network, body)

    async def submit(self, kind: type[Body], *, timeout_s: float = 60.0, **fields: Any) -> Entry:
        """Sign and submit an entry; return it once a final block holds it.

        Raises the error it was refused with, and NotFinalError when it is not final in time.
        """
        entry = self.seal(kind, **fields)
        await self.ledger.submit(entry, timeout_s=timeout_s)
        return entry

    async def files(self, spec: JobPost) -> JobFiles:
        """Return the job's program and data, fetched from peers if need be.  Raises GdfError."""
        key = spec.program + spec.data
        lock = self._fetching.setdefault(key, trio.Lock())
        try:
            async with lock:  # two roles that need the same job share one download; another job does not wait for it
                if key not in self._files or not await trio.to_thread.run_sync(self._are_held, self._files[key]):
                    found = await self._fetch_files(spec)
                    if len(self._files) >= MAX_FILES:
                        self._files.clear()
                    self._files[key] = found
                return self._files[key]
        finally:
            if not lock.statistics().tasks_waiting:
                self._fetching.pop(key, None)

    def _are_held(self, files: JobFiles) -> bool:
        """Say whether the files are still there, and note that they are used: they may have made room for others."""
        try:
            for path in (files.program, files.data, files.content):
                self.blobs.path(path.name)  # a blob's file has its root as name
        except (MissingBlobError, StorageError):
            return False
        return True

    async def _fetch_files(self, spec: JobPost) -> JobFiles:
        program = await self.bulk.fetch(spec.program, max_bytes=min(MAX_PROGRAM_BYTES, self.settings.max_blob_bytes))
        data = await self.bulk.fetch(spec.data, max_bytes=MAX_MANIFEST_BYTES)
        try:
            raw = await trio.to_thread.run_sync(data.read_bytes)
        except OSError as error:
            raise StorageError(f"cannot read {data}: {error.strerror}") from None
        manifest = decode(raw, DataManifest, max_bytes=MAX_MANIFEST_BYTES)
        content = await self.bulk.fetch(manifest.content, max_bytes=self.settings.max_blob_bytes)
        return JobFiles(program, data, content)

    async def checkpoint(self, job: Job, root: str) -> Path:
        """Return the path of a checkpoint of ``job`` (parameters and momentum, 8 bytes a value)."""
        return await self.bulk.fetch(root, max_bytes=8 * job.spec.parameters + 4_096)
