"""The few disk operations under the blob store, in one place so that tests can make each of them fail."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gdf_market.errors import StorageError

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class Disk:
    """Operations that may raise OSError; after ``replace`` returns, the new name survives a power cut."""

    def write(self, file: BinaryIO, data: bytes) -> None:
        """Append or overwrite at the file's position."""
        file.write(data)

    def sync(self, file: BinaryIO) -> None:
        """Make what was written durable."""
        file.flush()
        os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target`` in one step, and make that durable."""
        os.replace(source, target)
        if os.name == "posix":  # Windows has no handle on a folder to flush
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def remove(self, path: Path) -> None:
        """Delete a file if it is there."""
        path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Note in the file's modification time that it was used now; not worth an error."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def free(self, path: Path) -> int:
        """Return the bytes that a file on the disk of ``path`` may take."""
        return shutil.disk_usage(path).free


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError of one sentence that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(f"The disk is full: {path} was not written; free some space and try again.") from error
        raise StorageError(f"Cannot use {path}: {error.strerror or error}.") from error


def file_size(path: Path) -> int | None:
    """Return the bytes of the file at ``path``, or None if there is none."""
    with storing(path):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
