"""Content-addressed blobs on disk, shared by all processes of a node.

Rules kept here:
1. A blob appears under its root in one step (rename), durable and complete, or not at all.
2. Putting what is there changes nothing, or repairs it; two processes may put the same blob at once.
3. A file name is made of a checked root, never of text from a peer.

Folders: ``data`` (visible blobs), ``manifest``, ``partial`` (arriving), ``staging`` (being written).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gdf_market.blobs.disk import Disk, file_size, storing
from gdf_market.blobs.manifest import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    check_manifest,
    check_root,
    root_of,
)
from gdf_market.blobs.partial import Partial
from gdf_market.blobs.room import GRACE_S, Room
from gdf_market.codec import decode, encode, sha256
from gdf_market.errors import LocalError, PeerError, StorageError, UsageError, ensure

_MANIFESTS_KEPT = 64


class MissingBlobError(LocalError):
    """The store does not hold this blob."""


class DamagedBlobError(StorageError):
    """A stored blob is not what its root says: the disk lost or changed it."""


class BlobStore:
    """Blobs under ``path``; ``quota_bytes`` limits visible and arriving blobs together (None: no limit).

    When one does not fit, ``room`` deletes what no job needs and nobody used for ``grace_s``.

    Every method that takes a root raises MalformedError for text that is no root.
    """

    def __init__(
        self,
        path: Path,
        *,
        quota_bytes: int | None = None,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        disk: Disk | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._path = path
        self._max_blob_bytes = min(max_blob_bytes, MAX_BLOB_BYTES)
        self._disk = disk or Disk()
        self.room = Room(path, self._disk, quota_bytes, grace_s=grace_s)
        self._manifests: dict[str, Manifest] = {}  # read before; serving chunks would parse them each time
        for name in ("data", "manifest", "partial", "staging"):
            with storing(path / name):
                (path / name).mkdir(parents=True, exist_ok=True)

    # writing

    def put_bytes(self, data: bytes) -> str:
        """Store ``data`` and return its root.  Raises UsageError (too large), QuotaError, StorageError."""
        pieces = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
        return self._put(pieces, len(data), "the data")

    def put_file(self, path: Path) -> str:
        """Store a copy of the file at ``path`` and return its root; raises what put_bytes raises."""
        size = file_size(path)
        if size is None:
            raise UsageError(f"There is no file {path}.")
        with storing(path), path.open("rb") as source:
            return self._put(_pieces(source), size, str(path))

    def open_partial(self, root: str, manifest: Manifest, *, max_bytes: int | None = None) -> Partial:
        """Return the partial blob ``root``, resumed where an earlier download stopped.

        Raises what check_manifest raises, QuotaError when it does not fit, or StorageError.
        """
        check_manifest(root, manifest, self._max_blob_bytes if max_bytes is None else max_bytes)
        base = self._path / "partial" / root
        visible = self._data(root)
        if not visible.exists() and not base.with_suffix(".data").exists():
            self.room.make(manifest.size)
            self._write(encode(manifest), base.with_suffix(".manifest"))
        return Partial(root, manifest, base=base, visible=visible, disk=self._disk, publish=self._publish_partial)

    def resume(self, root: str) -> Partial | None:
        """Return the partial blob ``root`` from its manifest on disk, or None if there is none to resume."""
        path = self._path / "partial" / f"{check_root(root)}.manifest"
        if not path.exists():
            return None
        return self.open_partial(root, self._read_manifest(root, path))

    def delete(self, root: str) -> None:
        """Remove blob ``root``, visible or partial; nothing happens if there is none."""
        self.room.remove(check_root(root))

    def clean_staging(self, before_s: float) -> int:
        """Remove files that an ended process left half-written, last changed before Unix time ``before_s``."""
        count = 0
        for path in self._files("staging"):
            with storing(path):
                if path.stat().st_mtime < before_s:
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    # reading

    def has(self, root: str) -> bool:
        """Say whether blob ``root`` is here, complete."""
        return file_size(self._data(root)) is not None

    def path(self, root: str) -> Path:
        """Return the read-only file of blob ``root``; MissingBlobError, or DamagedBlobError if its size is wrong.

        This counts as a use of the blob; sending its chunks to others does not.
        """
        path = self._sound(root)
        self._disk.touch(path)
        return path

    def _sound(self, root: str) -> Path:
        path, size = self._data(root), file_size(self._data(root))
        if size is None:
            raise MissingBlobError(f"Blob {root} is not in {self._path}.")
        ensure(size == self.manifest(root).size, _damaged(path))
        return path

    def manifest(self, root: str) -> Manifest:
        """Return the manifest of a blob that is here; MissingBlobError or DamagedBlobError."""
        if not self.has(root):
            raise MissingBlobError(f"Blob {root} is not in {self._path}.")
        if root not in self._manifests:
            if len(self._manifests) >= _MANIFESTS_KEPT:
                self._manifests.clear()
            self._manifests[root] = self._read_manifest(root, self._path / "manifest" / root)
        return self._manifests[root]

    def read_chunk(self, root: str, index: int) -> bytes:
        """Return chunk ``index`` of a blob that is here, re-hashed: a bad disk must not make us send a bad chunk."""
        return self._read_chunk(self._sound(root), self.manifest(root), index)

    def verify(self, root: str) -> None:
        """Re-hash all of blob ``root``; raises MissingBlobError or DamagedBlobError."""
        path, manifest = self._sound(root), self.manifest(root)
        for index in range(len(manifest.hashes)):
            self._read_chunk(path, manifest, index)

    def roots(self) -> list[str]:
        """Return the roots of all visible blobs, ascending."""
        return sorted(path.name for path in self._files("data"))

    def partial_roots(self) -> list[str]:
        """Return the roots of all blobs that are still arriving, ascending."""
        return sorted(path.stem for path in self._files("partial") if path.suffix == ".manifest")

    def total_bytes(self) -> int:
        """Return the bytes of visible blobs, plus the full size of arriving ones."""
        return sum(one.size for one in self.room.held())

    # inside

    def _data(self, root: str) -> Path:
        return self._path / "data" / check_root(root)

    def _files(self, folder: str) -> list[Path]:
        with storing(self._path / folder):
            return list((self._path / folder).iterdir())

    def _put(self, pieces: Iterable[bytes], size: int, name: str) -> str:
        limit = self._max_blob_bytes
        ensure(size <= limit, UsageError(f"{name} has {size} bytes; a blob has at most {limit}."))
        self.room.make(size)
        staged = self._stage()
        try:
            with storing(staged), staged.open("xb") as file:
                manifest = self._copy(pieces, size, name, file)
                self._disk.sync(file)
            root = root_of(manifest)
            self._publish(root, manifest, staged)
        finally:
            _discard(staged)
        return root

    def _copy(self, pieces: Iterable[bytes], expected: int, name: str, target: BinaryIO) -> Manifest:
        hashes, size = [], 0
        for piece in pieces:
            size += len(piece)
            ensure(size <= expected, UsageError(f"{name} grew while it was read; try again when it is complete."))
            hashes.append(sha256(piece).hex())
            self._disk.write(target, piece)
        return Manifest(chunk=CHUNK_BYTES, hashes=tuple(hashes), size=size)

    def _stage(self) -> Path:
        return self._path / "staging" / secrets.token_hex(16)

    def _write(self, data: bytes, target: Path) -> None:
        staged = self._stage()
        try:
            with storing(staged), staged.open("xb") as file:
                self._disk.write(file, data)
                self._disk.sync(file)
            self._rename(staged, target)
        finally:
            _discard(staged)

    def _rename(self, source: Path, target: Path) -> None:
        with storing(target):
            try:
                self._disk.replace(source, target)
            except (PermissionError, FileNotFoundError):
                # Windows keeps an open file's name, and another process may have published first: both mean it is here
                if not target.exists():
                    raise

    def _publish(self, root: str, manifest: Manifest, staged: Path) -> Path:
        self._write(encode(manifest), self._path / "manifest" / root)  # first: a visible blob has its manifest
        self._rename(staged, self._data(root))
        return self._data(root)

    def _publish_partial(self, root: str, data: Path) -> Path:
        if not self.has(root):
            self._publish(root, self._read_manifest(root, data.with_suffix(".manifest")), data)
        self._drop_partial(root)
        return self._data(root)

    def _drop_partial(self, root: str) -> None:
        for suffix in (".data", ".have", ".manifest"):
            path = self._path / "partial" / (root + suffix)
            with storing(path):
                path.unlink(missing_ok=True)

    def _read_manifest(self, root: str, path: Path) -> Manifest:
        with storing(path):
            data = path.read_bytes()
        try:
            manifest = decode(data, Manifest, max_bytes=MAX_MANIFEST_BYTES)
            check_manifest(root, manifest)
        except PeerError:
            raise _damaged(path) from None
        return manifest

    def _read_chunk(self, path: Path, manifest: Manifest, index: int) -> bytes:
        assert 0 <= index < len(manifest.hashes)
        with storing(path), path.open("rb") as file:
            file.seek(index * manifest.chunk)
            data = file.read(manifest.chunk_size(index))
        ensure(sha256(data).hex() == manifest.hashes[index], _damaged(path))
        return data


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(CHUNK_BYTES):
        yield piece


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # clean_staging gets it later
        path.unlink(missing_ok=True)


def _damaged(path: Path) -> DamagedBlobError:
    return DamagedBlobError(f"{path} was damaged on disk; delete it and fetch it again.")
