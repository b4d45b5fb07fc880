"""Arriving blobs: checks of what peers send, resuming after a kill, two processes on one download."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from gdf_market.blobs.disk import Disk
from gdf_market.blobs.manifest import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_MANIFEST_BYTES,
    ContentMismatchError,
    Manifest,
    parse_manifest,
    root_of,
)
from gdf_market.blobs.partial import IncompleteError, Partial
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import encode
from gdf_market.errors import MalformedError, OversizedError, StorageError

DATA = bytes(range(251)) * 10_000  # 2.4 chunks
CHUNKS = [DATA[start : start + CHUNK_BYTES] for start in range(0, len(DATA), CHUNK_BYTES)]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    store = BlobStore(tmp_path / "source")
    return store.manifest(store.put_bytes(DATA))


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "target")


def fill(partial: Partial) -> None:
    for index in partial.missing():
        partial.write_chunk(index, CHUNKS[index])


def test_chunks_in_any_order_become_the_blob(store: BlobStore, manifest: Manifest) -> None:
    root = root_of(manifest)
    partial = store.open_partial(root, manifest)
    for index in (2, 0, 2):
        partial.write_chunk(index, CHUNKS[index])
    assert partial.missing() == [1]
    assert not store.has(root)
    with pytest.raises(IncompleteError, match="1 chunks"):
        partial.finish()
    partial.write_chunk(1, CHUNKS[1])
    assert partial.finish().read_bytes() == DATA
    assert (store.roots(), store.partial_roots()) == ([root], [])
    store.verify(root)


def test_a_chunk_with_other_content_is_the_senders_fault(store: BlobStore, manifest: Manifest) -> None:
    partial = store.open_partial(root_of(manifest), manifest)
    for bad in (CHUNKS[1], CHUNKS[0][:-1], CHUNKS[0] + b"\0", b""):
        with pytest.raises(ContentMismatchError, match="chunk 0"):
            partial.write_chunk(0, bad)
    for index in (3, -1):
        with pytest.raises(MalformedError, match="has no chunk"):
            partial.write_chunk(index, CHUNKS[0])
    assert partial.missing() == [0, 1, 2]


def test_a_peers_manifest_is_checked(manifest: Manifest) -> None:
    root, data = root_of(manifest), encode(manifest)
    assert parse_manifest(root, data) == manifest
    with pytest.raises(ContentMismatchError):
        parse_manifest("0" * 64, data)
    with pytest.raises(OversizedError, match="at most 100"):
        parse_manifest(root, data, max_bytes=100)
    with pytest.raises(OversizedError):
        parse_manifest(root, b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(MalformedError):
        parse_manifest(root, data.replace(b"1048576", b"1048577"))
    with pytest.raises(MalformedError):
        parse_manifest("../x", data)


@pytest.mark.parametrize("size", [len(DATA) + CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_a_manifest_whose_size_and_chunks_disagree_is_refused(store: BlobStore, manifest: Manifest, size: int) -> None:
    lying = Manifest(chunk=CHUNK_BYTES, hashes=manifest.hashes, size=size)
    with pytest.raises(MalformedError, match="3 chunks"):
        store.open_partial(root_of(lying), lying)
    assert store.partial_roots() == []


def test_the_largest_manifest_fits_its_limit_and_one_more_chunk_does_not() -> None:
    largest = Manifest(chunk=CHUNK_BYTES, hashes=("0" * 64,) * MAX_CHUNKS, size=MAX_CHUNKS * CHUNK_BYTES)
    assert parse_manifest(root_of(largest), encode(largest)) == largest
    beyond = Manifest(chunk=CHUNK_BYTES, hashes=("0" * 64,) * (MAX_CHUNKS + 1), size=(MAX_CHUNKS + 1) * CHUNK_BYTES)
    with pytest.raises((OversizedError, MalformedError)):
        parse_manifest(root_of(beyond), encode(beyond))


def test_a_download_survives_the_death_of_its_process(store: BlobStore, manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "chunk").write_bytes(CHUNKS[1])
    program = (
        "import os, sys; from pathlib import Path; from gdf_market.blobs.store import BlobStore\n"
        "base, root = Path(sys.argv[1]), sys.argv[2]\n"
        "partial = BlobStore(base / 'target').open_partial(root, BlobStore(base / 'source').manifest(root))\n"
        "partial.write_chunk(1, (base / 'chunk').read_bytes())\n"
        "os._exit(9)\n"
    )
    root = root_of(manifest)
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path), root], check=False).returncode == 9
    partial = store.resume(root)
    assert partial is not None
    assert partial.missing() == [0, 2]
    fill(partial)
    partial.finish()
    store.verify(root)


def test_resuming_rehashes_what_a_power_cut_may_have_lost(store: BlobStore, manifest: Manifest, tmp_path: Path) -> None:
    root = root_of(manifest)
    fill(store.open_partial(root, manifest))
    with (tmp_path / "target" / "partial" / f"{root}.data").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(bytes(100))
    assert store.open_partial(root, manifest).missing() == [1]


def test_files_of_a_wrong_size_are_mended(store: BlobStore, manifest: Manifest, tmp_path: Path) -> None:
    root = root_of(manifest)
    fill(store.open_partial(root, manifest))
    folder = tmp_path / "target" / "partial"
    os.truncate(folder / f"{root}.data", CHUNK_BYTES + 7)
    os.truncate(folder / f"{root}.have", 2)
    partial = store.open_partial(root, manifest)
    assert partial.missing() == [1, 2]
    fill(partial)
    partial.finish()
    store.verify(root)


def test_two_processes_may_fetch_one_blob(store: BlobStore, manifest: Manifest, tmp_path: Path) -> None:
    root, other = root_of(manifest), BlobStore(tmp_path / "target")
    one, two = store.open_partial(root, manifest), other.open_partial(root, manifest)
    one.write_chunk(0, CHUNKS[0])
    two.write_chunk(1, CHUNKS[1])
    assert one.missing() == two.missing() == [2]
    two.write_chunk(2, CHUNKS[2])
    path = one.finish()
    assert two.missing() == []
    two.write_chunk(2, CHUNKS[2])  # late: it is there already
    assert two.finish() == path
    assert other.open_partial(root, manifest).finish() == path
    assert store.partial_roots() == []
    store.verify(root)


def test_nothing_to_resume_and_delete_of_a_partial(store: BlobStore, manifest: Manifest) -> None:
    root = root_of(manifest)
    assert store.resume(root) is None
    store.open_partial(root, manifest)
    assert (store.partial_roots(), store.total_bytes()) == ([root], len(DATA))
    store.delete(root)
    assert (store.partial_roots(), store.total_bytes()) == ([], 0)


class FullOnce(Disk):
    """Full at the given write, half of which reaches the disk."""

    def __init__(self, fail_at: int) -> None:
        self.left = fail_at

    def write(self, file: BinaryIO, data: bytes) -> None:
        self.left -= 1
        if self.left == -1:
            super().write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space")
        super().write(file, data)


@pytest.mark.parametrize("fail_at", range(8))
def test_a_full_disk_while_downloading_is_one_sentence_and_resumes(
    tmp_path: Path, manifest: Manifest, fail_at: int
) -> None:
    root, store = root_of(manifest), BlobStore(tmp_path / "target", disk=FullOnce(fail_at))
    with pytest.raises(StorageError, match=r"The disk is full: .* was not written"):
        _download(store, root, manifest)
    assert store.roots() == []
    _download(store, root, manifest)
    store.verify(root)


def _download(store: BlobStore, root: str, manifest: Manifest) -> None:
    partial = store.open_partial(root, manifest)
    fill(partial)
    partial.finish()
