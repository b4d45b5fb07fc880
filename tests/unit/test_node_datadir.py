"""The data folder: atomic files, one node at a time, and what a killed node leaves."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gdf_market.codec import encode
from gdf_market.errors import KeyLockedError, StorageError, UsageError
from gdf_market.node import datadir
from gdf_market.node.datadir import DataDir, write_atomic
from tests.contracts_world import make_world

posix = pytest.mark.skipif(os.name != "posix", reason="modes and deleting open files are POSIX's")


def address(data: DataDir) -> None:
    data.create()
    data.node_file.write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "t"}), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "node")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@posix
def test_a_private_file_is_its_owners_only(tmp_path: Path) -> None:
    write_atomic(tmp_path / "private", b"x", private=True)
    write_atomic(tmp_path / "public", b"x")
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datadir.os, fails, refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "node").write_bytes(b"")
    with pytest.raises(StorageError, match="--data-dir"):
        DataDir(tmp_path / "node").create()


def test_genesis_missing_damaged_or_of_another_network(data: DataDir) -> None:
    with pytest.raises(UsageError, match="belongs to no network"):
        data.genesis()
    one, other = make_world().genesis, make_world(audit_bond=7).genesis
    data.save_genesis(one)
    data.save_genesis(one)
    assert data.genesis() == one
    with pytest.raises(UsageError, match="already belongs to network"):
        data.save_genesis(other)
    assert data.genesis() == one
    data.genesis_file.write_bytes(encode(one)[:-1])
    with pytest.raises(UsageError, match="damaged"):
        data.genesis()
    data.genesis_file.unlink()
    data.genesis_file.mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        data.genesis()


def test_a_key_is_required(data: DataDir) -> None:
    with pytest.raises(KeyLockedError, match="gdf-market init"):
        data.require_key()


def test_one_node_at_a_time_and_nothing_is_left(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datadir, "LOCK_WAIT_S", 0)
    with data.lock():
        with pytest.raises(UsageError, match="another gdf-market node"), data.lock():
            raise AssertionError("the folder was given twice")
        address(data)
        assert data.running() == ("http://127.0.0.1:1", "t")
    assert not data.lock_file.exists()
    assert not data.node_file.exists()
    with data.lock():
        pass


def test_a_second_process_is_refused_and_a_killed_one_frees_the_folder(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datadir, "LOCK_WAIT_S", 0)
    code = (
        "import sys; from pathlib import Path; from gdf_market.node.datadir import DataDir\n"
        "with DataDir(Path(sys.argv[1])).lock():\n    print('held', flush=True); sys.stdin.read()"
    )
    root = str(Path(datadir.__file__).parents[2])
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(data.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        address(data)
        with pytest.raises(UsageError, match="another gdf-market node"), data.lock():
            raise AssertionError("two processes have the folder")
        assert data.running() is not None
    finally:
        holder.kill()
        holder.communicate()
    assert data.lock_file.exists()  # it had no time to remove it
    assert data.running() is None
    assert not data.node_file.exists()
    assert not data.lock_file.exists()


def test_the_next_node_removes_what_a_killed_one_was_writing(data: DataDir) -> None:
    address(data)
    (data.units / "unit-00-0-0.jsonabc.tmp").write_bytes(b"half")
    (data.root / "neighbours.jsonabc.tmp").write_bytes(b"half")
    (data.root / "mine.tmp").write_bytes(b"a person's")
    with data.lock():
        assert not data.node_file.exists()
        assert list(data.units.iterdir()) == []
        assert not (data.root / "neighbours.jsonabc.tmp").exists()
        assert (data.root / "mine.tmp").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": "x"}', b"\xff", b" " * 10_000])
def test_a_damaged_address_is_no_node(data: DataDir, content: bytes) -> None:
    data.create()
    data.node_file.write_bytes(content)
    with data.lock():
        data.node_file.write_bytes(content)
        assert data.running() is None


def test_a_lock_that_cannot_be_made_is_a_storage_error(data: DataDir) -> None:
    data.create()
    data.lock_file.mkdir()
    with pytest.raises(StorageError, match="cannot lock"), data.lock():
        raise AssertionError("a folder was locked")
