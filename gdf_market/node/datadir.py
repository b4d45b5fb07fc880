"""Layout of a data folder, its genesis, and the lock that lets one node at a time use it.

::

    key.json       the identity (sealed when it has a passphrase)
    genesis.json   canonical bytes of the network's genesis
    config.toml    settings (flags and GDF_* variables win over it)
    ledger.sqlite  the replica
    blobs/         content-addressed chunks
    units/         what this worker and auditor must remember about its own units and audits
    neighbours.json  own port and peers' addresses of the last run
    node.json      address and token of the running node's local API (only while it runs)
    node.lock      held by the running node; the operating system frees it if the node dies
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from contracts.records import Genesis
from contracts.state import network_id
from gdf_market.codec import decode, encode
from gdf_market.errors import KeyLockedError, PeerError, StorageError, UsageError

MAX_GENESIS_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace ``path`` by ``data`` so that a crash leaves the old or the new content, durably.

    Raises StorageError when the disk refuses.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not private and os.name == "posix":
                os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free some space or choose another --data-dir"
        ) from None


@dataclass(frozen=True)
class DataDir:
    """Paths of one data folder."""

    root: Path

    @property
    def key(self) -> Path:
        return self.root / "key.json"

    @property
    def genesis_file(self) -> Path:
        return self.root / "genesis.json"

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def units(self) -> Path:
        return self.root / "units"

    @property
    def node_file(self) -> Path:
        return self.root / "node.json"

    @property
    def neighbours(self) -> Path:
        return self.root / "neighbours.json"

    def create(self) -> None:
        """Make the folder and its subfolders.  Raises StorageError."""
        try:
            for folder in (self.root, self.blobs, self.units):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot create {self.root}: {error.strerror}; choose another --data-dir") from None

    def genesis(self) -> Genesis:
        """Return the network's genesis.  Raises UsageError when the folder has none."""
        try:
            data = self.genesis_file.read_bytes()
        except FileNotFoundError:
            raise UsageError(
                f"{self.root} belongs to no network; run `gdf-market init --new-network NAME` or "
                "`gdf-market init --join INVITE` with this --data-dir"
            ) from None
        try:
            return decode(data, Genesis, max_bytes=MAX_GENESIS_BYTES)
        except PeerError as error:
            raise UsageError(f"{self.genesis_file} is damaged ({error}); restore it from an invite") from None

    def require_key(self) -> None:
        """Raise KeyLockedError unless the folder has a key."""
        if not self.key.exists():
            raise KeyLockedError(f"{self.root} has no key; run `gdf-market init` with this --data-dir first")

    def save_genesis(self, genesis: Genesis) -> str:
        """Write the genesis and return its network id; refuse to replace another network's."""
        self.create()
        if self.genesis_file.exists():
            present = network_id(self.genesis())
            if present != network_id(genesis):
                raise UsageError(
                    f"{self.root} already belongs to network {present[:16]}, not {network_id(genesis)[:16]}; "
                    "use another --data-dir"
                )
        else:
            write_atomic(self.genesis_file, encode(genesis))
        return network_id(genesis)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one node.  Raises UsageError when another process holds it."""
        self.create()
        lock = filelock.FileLock(self.root / "node.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"another gdf-market node uses {self.root}; stop it, or give this one another --data-dir"
            ) from None
        try:
            yield
        finally:
            lock.release()
            with contextlib.suppress(OSError):
                (self.root / "node.lock").unlink()

    def running(self) -> tuple[str, str] | None:
        """Return (url, token) of the node that runs on this folder, or None."""
        try:
            info = json.loads(self.node_file.read_text(encoding="utf-8"))
            url, token = str(info["url"]), str(info["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        lock = filelock.FileLock(self.root / "node.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            return url, token
        lock.release()  # nobody holds it: the file is left over from a node that was killed
        with contextlib.suppress(OSError):
            self.node_file.unlink()
        return None
