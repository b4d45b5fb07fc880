"""A blob that is still arriving: checked chunks on disk, and a map of those that are there.

Rules kept here:
1. A chunk is marked after it is written; one byte per chunk, so that two processes
   which write to the same partial blob never undo each other's marks.
2. Marks may outlive unsynced data after a power cut, so opening re-hashes what is marked.
3. Nothing is visible in the store before every chunk is there and durable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gdf_market.blobs.disk import Disk, file_size, storing
from gdf_market.blobs.manifest import Manifest, check_chunk
from gdf_market.codec import sha256
from gdf_market.errors import LocalError, ensure


class IncompleteError(LocalError):
    """``finish`` was called while chunks were missing."""


class Partial:
    """Made by ``BlobStore.open_partial``; ``base`` is the path of its files without suffix.

    ``visible`` is the path that the blob gets once complete.  When another
    process completes it first, every method here behaves as if this one had.
    """

    def __init__(
        self,
        root: str,
        manifest: Manifest,
        *,
        base: Path,
        visible: Path,
        disk: Disk,
        publish: Callable[[str, Path], Path],
    ) -> None:
        self.root = root
        self.manifest = manifest
        self._visible = visible
        self._data = base.with_suffix(".data")
        self._have = base.with_suffix(".have")
        self._disk = disk
        self._publish = publish
        if not visible.exists():
            self._prepare()
            self._forget_damaged()

    def missing(self) -> list[int]:
        """Return the indices of the chunks that are still to come, ascending."""
        if self._visible.exists():
            return []
        return [index for index, mark in enumerate(self._marks()) if mark != 1]

    def write_chunk(self, index: int, data: bytes) -> None:
        """Keep chunk ``index``; the same chunk twice is fine.

        Raises ContentMismatchError or MalformedError (the sender's fault) or StorageError.
        """
        check_chunk(self.root, self.manifest, index, data)
        if self._visible.exists():
            return
        self._put(self._data, index * self.manifest.chunk, data)
        self._put(self._have, index, b"\1")

    def finish(self) -> Path:
        """Make the blob visible in the store and return its path.

        Raises IncompleteError while chunks are missing, or StorageError.
        """
        missing = self.missing()
        ensure(not missing, IncompleteError(f"{len(missing)} chunks of blob {self.root} are missing"))
        if not self._visible.exists():
            with storing(self._data), self._data.open("r+b") as file:
                self._disk.sync(file)
        return self._publish(self.root, self._data)

    def _marks(self) -> bytes:
        with storing(self._have):
            return self._have.read_bytes()[: len(self.manifest.hashes)]

    def _put(self, path: Path, offset: int, data: bytes) -> None:
        with storing(path), path.open("r+b") as file:
            file.seek(offset)
            self._disk.write(file, data)

    def _prepare(self) -> None:
        for path, size in ((self._data, self.manifest.size), (self._have, len(self.manifest.hashes))):
            if file_size(path) != size:  # setting the right size keeps content that is there
                with storing(path), path.open("ab") as file:
                    file.truncate(size)

    def _forget_damaged(self) -> None:
        marks = self._marks()
        with storing(self._data), self._data.open("rb") as file:
            for index, expected in enumerate(self.manifest.hashes):
                if marks[index] != 1:
                    continue
                file.seek(index * self.manifest.chunk)
                if sha256(file.read(self.manifest.chunk_size(index))).hex() != expected:
                    self._put(self._have, index, b"\0")
