"""Key files: created once, sealed or not, backed up, restored; every failure says what to do."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import nacl.pwhash.argon2id as argon2id
import pytest

from gdf_market import keystore
from gdf_market.errors import KeyLockedError, StorageError, UsageError
from gdf_market.identity import Identity

CHEAP = keystore.Cost(argon2id.OPSLIMIT_MIN, argon2id.MEMLIMIT_MIN)
SEED = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


def test_plain_key_round_trip(path: Path) -> None:
    identity = keystore.create(path, None)
    assert keystore.load(path, None) == identity
    assert keystore.load(path, "not needed") == identity
    assert not keystore.is_sealed(path)


def test_sealed_key_round_trip(path: Path) -> None:
    identity = keystore.create(path, "correct horse", cost=CHEAP)
    assert keystore.load(path, "correct horse") == identity
    assert keystore.is_sealed(path)
    assert identity.seed.hex() not in path.read_text("utf-8")


def test_a_given_seed_is_kept(path: Path) -> None:
    assert keystore.create(path, None, seed=SEED).account == Identity(SEED).account


def test_two_new_keys_differ(tmp_path: Path) -> None:
    assert keystore.create(tmp_path / "a", None) != keystore.create(tmp_path / "b", None)


def test_default_cost_is_at_least_moderate() -> None:
    assert keystore.Cost().ops >= argon2id.OPSLIMIT_MODERATE
    assert keystore.Cost().memory_bytes >= argon2id.MEMLIMIT_MODERATE


def test_the_cost_in_the_file_is_the_one_used(path: Path) -> None:
    keystore.create(path, "p", cost=CHEAP)
    fields = json.loads(path.read_text("utf-8"))
    assert (fields["ops"], fields["memory_bytes"]) == (CHEAP.ops, CHEAP.memory_bytes)
    path.write_text(json.dumps(fields | {"ops": CHEAP.ops + 1}), "utf-8")
    with pytest.raises(KeyLockedError, match="does not open"):
        keystore.load(path, "p")


def test_equal_text_typed_differently_opens(path: Path) -> None:
    keystore.create(path, "cafe\u0301", cost=CHEAP)  # e and a combining accent, as macOS may send it
    assert keystore.load(path, "caf\u00e9")


def test_any_text_can_be_a_passphrase(path: Path) -> None:
    keystore.create(path, "\udce9 \U0001f511", cost=CHEAP)  # a byte that the terminal could not decode
    assert keystore.load(path, "\udce9 \U0001f511")


def test_an_empty_passphrase_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        keystore.create(path, "", cost=CHEAP)
    assert not path.exists()


def test_missing_key_says_what_to_do(path: Path) -> None:
    with pytest.raises(KeyLockedError, match=r"no key at .*create one, or restore"):
        keystore.load(path, None)


def test_sealed_key_asks_for_its_passphrase(path: Path) -> None:
    keystore.create(path, "right", cost=CHEAP)
    with pytest.raises(KeyLockedError, match="is sealed; give its passphrase"):
        keystore.load(path, None)


def test_wrong_passphrase_is_refused(path: Path) -> None:
    keystore.create(path, "right", cost=CHEAP)
    for wrong in ("Right", "right ", ""):
        with pytest.raises(KeyLockedError, match="try again"):
            keystore.load(path, wrong)


@pytest.mark.parametrize("passphrase", [None, "right"])
def test_every_altered_byte_is_noticed(path: Path, passphrase: str | None) -> None:
    keystore.create(path, passphrase, cost=CHEAP)
    original = path.read_bytes()
    for position in range(len(original) - 1):  # the last byte is a line feed
        altered = bytearray(original)
        altered[position] ^= 1
        path.write_bytes(bytes(altered))
        with pytest.raises(KeyLockedError, match="restore"):
            keystore.load(path, passphrase)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"kind":"plain"}', b"[" * 4_000, b" " * (keystore.MAX_FILE_BYTES + 1)],
)
def test_damaged_files_are_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(KeyLockedError, match="damaged"):
        keystore.load(path, None)
    with pytest.raises(KeyLockedError, match="damaged"):
        keystore.is_sealed(path)


def test_a_truncated_file_is_refused(path: Path) -> None:
    keystore.create(path, None)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(KeyLockedError, match="damaged"):
        keystore.load(path, None)


def test_a_file_that_goes_on_after_its_key_is_refused(path: Path) -> None:
    keystore.create(path, None)
    path.write_bytes(path.read_bytes() + b" " * keystore.MAX_FILE_BYTES)
    with pytest.raises(KeyLockedError, match="longer than"):
        keystore.load(path, None)


def test_a_key_of_another_account_is_refused(path: Path) -> None:
    keystore.create(path, None, seed=SEED)
    fields = json.loads(path.read_text("utf-8")) | {"account": Identity.generate().account}
    path.write_text(json.dumps(fields), "utf-8")
    with pytest.raises(KeyLockedError, match="its seed is not that of"):
        keystore.load(path, None)


@pytest.mark.parametrize(("field", "value"), [("ops", 17), ("memory_bytes", (4 << 30) + 1), ("ops", 0)])
def test_costs_beyond_the_limits_are_refused_before_they_are_paid(path: Path, field: str, value: int) -> None:
    keystore.create(path, "p", cost=CHEAP)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {field: value}), "utf-8")
    with pytest.raises(KeyLockedError, match="damaged"):
        keystore.load(path, "p")


def test_too_little_memory_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keystore.create(path, "p", cost=CHEAP)

    def no_memory(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(argon2id, "kdf", no_memory)
    with pytest.raises(KeyLockedError, match="MiB of memory"):
        keystore.load(path, "p")


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(KeyLockedError, match="cannot be read"):
        keystore.load(tmp_path, None)  # a folder


def test_a_key_is_never_overwritten(path: Path) -> None:
    identity = keystore.create(path, None)
    with pytest.raises(UsageError, match="never overwritten"):
        keystore.create(path, None)
    assert keystore.load(path, None) == identity
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file is left


@pytest.mark.skipif(os.name == "nt", reason="Windows has no file modes")
def test_only_the_owner_may_read_it(path: Path) -> None:
    keystore.create(path, None)
    keystore.backup(path, path.with_name("copy"), None)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name == "nt", reason="Windows publishes by rename")
def test_file_systems_without_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    identity = keystore.create(path, None)
    assert keystore.load(path, None) == identity
    with pytest.raises(UsageError, match="never overwritten"):
        keystore.create(path, None)
    assert keystore.load(path, None) == identity


def test_a_full_disk_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        keystore.create(path, None)
    assert list(path.parent.iterdir()) == []


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "key.json"
    assert keystore.create(path, None) == keystore.load(path, None)


@pytest.mark.parametrize("passphrase", [None, "right"])
def test_backup_and_restore(path: Path, passphrase: str | None) -> None:
    identity = keystore.create(path, passphrase, cost=CHEAP)
    copy = path.with_name("copy.json")
    assert keystore.backup(path, copy, passphrase) == identity
    path.unlink()
    assert keystore.restore(copy, path, passphrase) == identity
    assert keystore.load(path, passphrase) == identity


def test_a_plain_key_can_be_sealed_in_its_backup(path: Path) -> None:
    identity = keystore.create(path, None)
    copy = path.with_name("copy.json")
    keystore.backup(path, copy, "travel", cost=CHEAP)
    assert keystore.is_sealed(copy)
    assert not keystore.is_sealed(path)
    assert keystore.restore(copy, path.with_name("other.json"), "travel") == identity


def test_backup_proves_that_the_key_opens(path: Path) -> None:
    keystore.create(path, "right", cost=CHEAP)
    copy = path.with_name("copy.json")
    for wrong in (None, "wrong"):
        with pytest.raises(KeyLockedError):
            keystore.backup(path, copy, wrong)
    assert not copy.exists()


def test_backup_and_restore_never_overwrite(path: Path) -> None:
    first = keystore.create(path, None)
    other = path.with_name("other.json")
    second = keystore.create(other, None)
    with pytest.raises(UsageError):
        keystore.backup(path, other, None)
    with pytest.raises(UsageError):
        keystore.restore(other, path, None)
    assert (keystore.load(path, None), keystore.load(other, None)) == (first, second)


def test_restore_of_a_damaged_backup_writes_nothing(path: Path) -> None:
    copy = path.with_name("copy.json")
    copy.write_bytes(b"{}")
    with pytest.raises(KeyLockedError, match="damaged"):
        keystore.restore(copy, path, None)
    assert not path.exists()
