"""Layout of a data folder, its genesis, and the lock that lets one node at a time use it.

::

    key.json       the identity (sealed when it has a passphrase)
    genesis.json   canonical bytes of the network's genesis
    config.toml    settings (flags and GDF_* variables win over it)
    ledger.sqlite  the replica
    blobs/         content-addressed chunks
    units/         what this worker and auditor must remember about its own units and audits
    calibration.json  how far this machine's reruns are apart, and so which units it can audit
    controls.json  pause or finish, as it was said last
    orders.json    own orders that the ledger does not have yet
    neighbours.json  own port and peers' addresses of the last run
    node.json      address and token of the running node's local API (only while it runs)
    node.log       what the node noted, JSON lines; older ones in node.log.1 and so on
    node.lock      held by the running node; the operating system frees it if the node dies
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from contracts.records import Genesis
from contracts.state import network_id
from gdf_market.codec import decode, encode
from gdf_market.errors import KeyLockedError, PeerError, StorageError, UsageError

MAX_GENESIS_BYTES = 1 << 20
MAX_NODE_FILE_BYTES = 4_096
LOCK_WAIT_S = 1.0  # a command that looks whether a node runs holds the lock for a moment
REPLACE_TRIES = 20  # Windows refuses to replace a file that somebody reads at that moment
REPLACE_PAUSE_S = 0.02


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
            _replace(name, path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free some space or choose another --data-dir"
        ) from None


def _replace(name: str, path: Path) -> None:
    for _ in range(REPLACE_TRIES if os.name == "nt" else 0):
        try:
            os.replace(name, path)
            return
        except PermissionError:
            time.sleep(REPLACE_PAUSE_S)
    os.replace(name, path)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    """Delete a file if it is there and the system lets us; a leftover is found and handled by the next reader."""
    with contextlib.suppress(OSError):
        path.unlink()


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
    def lock_file(self) -> Path:
        return self.root / "node.lock"

    @property
    def calibration(self) -> Path:
        return self.root / "calibration.json"

    @property
    def log(self) -> Path:
        return self.root / "node.log"

    @property
    def controls(self) -> Path:
        return self.root / "controls.json"

    @property
    def orders(self) -> Path:
        return self.root / "orders.json"

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
        """Return the network's genesis.  Raises UsageError when the folder has none, StorageError."""
        try:
            with self.genesis_file.open("rb") as file:
                data = file.read(MAX_GENESIS_BYTES + 1)
        except FileNotFoundError:
            raise UsageError(
                f"{self.root} belongs to no network; run `gdf-market init --new-network NAME` or "
                "`gdf-market init --join INVITE` with this --data-dir"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot read {self.genesis_file}: {error.strerror}; check its owner") from None
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
        """Hold the folder for one node.  Raises UsageError when another process holds it, StorageError."""
        self.create()
        lock = filelock.FileLock(self.lock_file)
        try:
            lock.acquire(timeout=LOCK_WAIT_S)
        except filelock.Timeout:
            raise UsageError(
                f"another gdf-market node uses {self.root}; stop it, or give this one another --data-dir"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot lock {self.root}: {error.strerror}; choose another --data-dir") from None
        try:
            self.clean()
            yield
        finally:
            self._unlock(lock)

    def _unlock(self, lock: filelock.BaseFileLock) -> None:
        """Give the lock back and remove what only a running node leaves in the folder."""
        _remove(self.node_file)
        if os.name == "posix":  # before the release: afterwards it could be the next node's file
            _remove(self.lock_file)
        lock.release()
        if os.name != "posix":
            _remove(self.lock_file)  # an open file cannot be deleted there, so this is nobody's

    def clean(self) -> None:
        """Remove what a killed node left: its address, and files that it was writing."""
        _remove(self.node_file)
        for folder, pattern in (
            (self.root, "node.json*.tmp"),
            (self.root, "neighbours.json*.tmp"),
            (self.units, "*.json*.tmp"),
        ):
            for path in folder.glob(pattern):
                _remove(path)

    def running(self) -> tuple[str, str] | None:
        """Return (url, token) of the node that runs on this folder, or None."""
        try:
            with self.node_file.open("rb") as file:
                info = json.loads(file.read(MAX_NODE_FILE_BYTES))
            url, token = str(info["url"]), str(info["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        lock = filelock.FileLock(self.lock_file)
        try:
            lock.acquire(timeout=0)
        except (filelock.Timeout, OSError):  # a folder that we may not write: whether the node lives, its API tells
            return url, token
        self._unlock(lock)  # nobody held it: the file was left by a node that was killed
        return None
