"""What a runner reads and writes: whole files within limits, and those that stay the same from unit to unit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gdf_market.codec import decode
from gdf_market.errors import OversizedError, StorageError, ensure
from gdf_market.train.checkpoint import packed_size, unpack
from gdf_market.train.data import Content, DataManifest, load_content
from gdf_market.train.program import MAX_PROGRAM_BYTES, Program

MAX_MANIFEST_BYTES = 65_536

T = TypeVar("T")


class Kept(Generic[T]):
    """Remembers the result for the last paths it was asked for, while the files stay as they are."""

    def __init__(self, load: Callable[..., T]) -> None:
        self._load = load
        self._last: tuple[object, T] | None = None

    def __call__(self, *paths: str) -> T:
        key = tuple((path, _stat(path).st_size, _stat(path).st_mtime_ns) for path in paths)
        if self._last is None or self._last[0] != key:
            self._last = None  # two large programs need not be in memory at once
            self._last = (key, self._load(*paths))
        return self._last[1]


def load_program(path: str) -> Program:
    return Program.from_bytes(read(path, MAX_PROGRAM_BYTES))


def load_data(manifest_path: str, content_path: str) -> tuple[DataManifest, Content]:
    manifest = decode(read(manifest_path, MAX_MANIFEST_BYTES), DataManifest)
    return manifest, load_content(Path(content_path), manifest)


def load_parameters(path: str, program: Program) -> npt.NDArray[np.float32]:
    parameters, _ = unpack(read(path, packed_size(program.size)), program.size)
    return parameters


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


def read(path: str, limit: int, *, cut: bool = False) -> bytes:
    """Return the file's bytes; beyond ``limit`` raise OversizedError, or leave the rest out if ``cut``."""
    size = _stat(path).st_size
    ensure(cut or size <= limit, OversizedError(f"{path} has {size} bytes; at most {limit} are read"))
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


def write(path: str, data: bytes) -> None:
    """Write under a temporary name, then rename: a file under its own name is complete."""
    temporary = f"{path}.partial"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
