"""The blob store: naming, idempotence, damage, quotas, and a disk that fails at every possible operation."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from gdf_market.blobs.disk import Disk
from gdf_market.blobs.manifest import CHUNK_BYTES
from gdf_market.blobs.room import QuotaError
from gdf_market.blobs.store import BlobStore, DamagedBlobError, MissingBlobError
from gdf_market.errors import MalformedError, StorageError, UsageError

DATA = bytes(range(251)) * 10_000  # 2.4 chunks


class FailingDisk(Disk):
    """Fails at operation number ``fail_at``; with ``persists`` the operation has happened all the same."""

    def __init__(self, fail_at: int, *, persists: bool, code: int = errno.ENOSPC) -> None:
        self.left = fail_at
        self.persists = persists
        self.code = code
        self.failed = False

    def _fails(self) -> bool:
        self.left -= 1
        self.failed |= self.left == -1
        return self.left == -1

    def _error(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))

    def write(self, file: BinaryIO, data: bytes) -> None:
        fails = self._fails()
        super().write(file, data if not fails or self.persists else data[: len(data) // 2])
        if fails:
            raise self._error()

    def sync(self, file: BinaryIO) -> None:
        if self._fails():
            raise self._error()
        super().sync(file)

    def replace(self, source: Path, target: Path) -> None:
        fails = self._fails()
        if not fails or self.persists:
            super().replace(source, target)
        if fails:
            raise self._error()


def test_root_is_the_hash_of_the_canonical_manifest(tmp_path: Path) -> None:
    root = BlobStore(tmp_path).put_bytes(DATA)
    chunks = [DATA[start : start + 2**20] for start in range(0, len(DATA), 2**20)]
    manifest = {"chunk": 2**20, "hashes": [hashlib.sha256(chunk).hexdigest() for chunk in chunks], "size": len(DATA)}
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    assert root == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_what_is_put_is_what_is_read(tmp_path: Path, size: int) -> None:
    store, data = BlobStore(tmp_path / "store"), DATA[:size]
    source = tmp_path / "source"
    source.write_bytes(data)
    root = store.put_file(source)
    assert root == store.put_bytes(data)
    assert store.path(root).read_bytes() == data
    assert store.roots() == [root]
    assert store.total_bytes() == size
    store.verify(root)
    assert b"".join(store.read_chunk(root, i) for i in range(len(store.manifest(root).hashes))) == data


def test_a_second_process_sees_and_deletes_it(tmp_path: Path) -> None:
    one, two = BlobStore(tmp_path), BlobStore(tmp_path)
    root = one.put_bytes(DATA)
    assert two.has(root)
    two.delete(root)
    two.delete(root)
    assert not one.has(root)
    assert one.total_bytes() == 0
    with pytest.raises(MissingBlobError, match=root):
        one.path(root)
    with pytest.raises(MissingBlobError, match=root):
        one.read_chunk(root, 0)


@pytest.mark.parametrize("root", ["", "..", "../" * 21 + "x", "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 62 + "/x"])
def test_a_root_cannot_name_another_path(tmp_path: Path, root: str) -> None:
    store = BlobStore(tmp_path / "store")
    for call in (store.path, store.has, store.manifest, store.verify, store.delete, store.resume):
        with pytest.raises(MalformedError, match="not a blob root"):
            call(root)


def test_a_truncated_file_is_noticed_at_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    root = store.put_bytes(DATA)
    with store.path(root).open("r+b") as file:
        file.truncate(len(DATA) - 1)
    with pytest.raises(DamagedBlobError, match="was damaged on disk"):
        store.path(root)


def test_an_altered_file_is_noticed_by_verify_and_never_served(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    root = store.put_bytes(DATA)
    with store.path(root).open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"\xff")
    assert store.read_chunk(root, 0) == DATA[:CHUNK_BYTES]
    with pytest.raises(DamagedBlobError, match=root):
        store.read_chunk(root, 1)
    with pytest.raises(DamagedBlobError, match=root):
        store.verify(root)
    assert store.put_bytes(DATA) == root  # putting it again repairs it
    store.verify(root)


def test_an_altered_manifest_is_noticed(tmp_path: Path) -> None:
    root = BlobStore(tmp_path).put_bytes(DATA)
    (tmp_path / "manifest" / root).write_bytes(b'{"chunk":1048576,"hashes":[],"size":0}')
    with pytest.raises(DamagedBlobError, match=root):
        BlobStore(tmp_path).path(root)


def test_quota_counts_visible_and_arriving_blobs(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    other = source.put_bytes(b"other" * 200)
    store = BlobStore(tmp_path / "store", quota_bytes=2_000)
    store.put_bytes(b"x" * 900)
    store.open_partial(other, source.manifest(other))  # 1000 bytes
    with pytest.raises(QuotaError, match="quota of 2000"):
        store.put_bytes(b"y" * 101)
    with pytest.raises(QuotaError, match="quota of 2000"):
        store.open_partial(root := source.put_bytes(b"z" * 101), source.manifest(root))
    store.put_bytes(b"y" * 100)


def test_a_blob_beyond_the_size_limit_is_refused(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_blob_bytes=10)
    store.put_bytes(b"x" * 10)
    with pytest.raises(UsageError, match="11 bytes; a blob has at most 10"):
        store.put_bytes(b"x" * 11)


def test_a_file_that_is_missing_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        BlobStore(tmp_path / "store").put_file(tmp_path / "absent")


def test_a_file_that_grows_while_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(DATA)

    class Growing(Disk):
        def write(self, file: BinaryIO, data: bytes) -> None:
            super().write(file, data)
            with path.open("ab") as log:
                log.write(b"more")

    store = BlobStore(tmp_path / "store", disk=Growing())
    with pytest.raises(UsageError, match="grew while it was read"):
        store.put_file(path)
    assert store.roots() == []


@pytest.mark.parametrize("persists", [False, True])
def test_a_full_disk_leaves_nothing_visible_at_whatever_operation_it_strikes(tmp_path: Path, persists: bool) -> None:
    for fail_at in range(100):
        disk = FailingDisk(fail_at, persists=persists)
        folder = tmp_path / str(fail_at)
        store = BlobStore(folder, disk=disk)
        complaint = _complaint_of_put(store)
        if complaint is None:
            assert not disk.failed
            break
        assert "The disk is full" in complaint
        assert str(folder) in complaint
        assert list((folder / "staging").iterdir()) == []
        again = BlobStore(folder)
        if again.roots():  # the last rename happened before it reported failure
            assert persists
            again.verify(again.roots()[0])
        again.verify(again.put_bytes(DATA))
    assert fail_at == 8  # 3 chunk writes, sync; manifest write, sync, rename; rename


def _complaint_of_put(store: BlobStore) -> str | None:
    try:
        store.put_bytes(DATA)
    except StorageError as error:
        return str(error)
    return None


def test_other_disk_errors_name_path_and_reason(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, disk=FailingDisk(0, persists=False, code=errno.EIO))
    with pytest.raises(StorageError, match=rf"Cannot use .*staging.*: {os.strerror(errno.EIO)}"):
        store.put_bytes(DATA)


def test_files_of_a_killed_process_are_cleaned_by_age(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for name, age_s in (("old", 1_000.0), ("new", 3_000.0)):
        (tmp_path / "staging" / name).write_bytes(b"half")
        os.utime(tmp_path / "staging" / name, (age_s, age_s))
    assert store.clean_staging(before_s=2_000.0) == 1
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["new"]
