"""The key file: one Ed25519 seed as JSON, sealed with argon2id and secretbox when it has a passphrase.

Rules kept here:
1. A key is never overwritten: losing one loses its credits.
2. A file appears whole or not at all (temporary file, fsync, then a publish that fails if the name is taken).
3. What a file claims is checked: the seed must be that of the account, and its costs are bounded before use.
4. A backup is as sealed as its key: no copy is weaker than the original.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import nacl.exceptions
import nacl.pwhash.argon2id as argon2id
import nacl.secret
import nacl.utils

from gdf_market.codec import AccountId, Hash, Record, encode
from gdf_market.errors import KeyLockedError, StorageError, UsageError, ensure
from gdf_market.identity import Identity

MAX_FILE_BYTES = 4_096
MAX_OPS = 16
MAX_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class Cost:
    """What one guess of the passphrase costs: argon2id passes and bytes of memory."""

    ops: int = argon2id.OPSLIMIT_MODERATE
    memory_bytes: int = argon2id.MEMLIMIT_MODERATE


class PlainKey(Record, frozen=True, kw_only=True, tag_field="kind", tag="plain"):
    """Key file without a passphrase."""

    version: Literal[1] = 1
    account: AccountId
    seed: Hash


class SealedKey(Record, frozen=True, kw_only=True, tag_field="kind", tag="argon2id-secretbox"):
    """Key file with a passphrase; ``box`` is nonce (24), tag (16) and the seed (32) in hex."""

    version: Literal[1] = 1
    account: AccountId
    ops: Annotated[int, msgspec.Meta(ge=argon2id.OPSLIMIT_MIN, le=MAX_OPS)]
    # argon2 works in blocks of 1,024 bytes
    memory_bytes: Annotated[int, msgspec.Meta(ge=argon2id.MEMLIMIT_MIN, le=MAX_MEMORY_BYTES, multiple_of=1_024)]
    salt: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    box: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{144}\Z")]


_decoder = msgspec.json.Decoder(PlainKey | SealedKey)


def create(path: Path, passphrase: str | None, *, seed: bytes | None = None, cost: Cost | None = None) -> Identity:
    """Write a new key file and return its identity; ``seed`` (32 bytes) is drawn if not given.

    Raises UsageError when a file is in the way or the passphrase is empty, StorageError when the disk refuses.
    """
    identity = Identity.generate() if seed is None else Identity(seed)
    _publish(path, _to_bytes(identity, passphrase, cost or Cost()))
    return identity


def load(path: Path, passphrase: str | None) -> Identity:
    """Return the identity in a key file; the passphrase is not used if the file is not sealed.

    Raises KeyLockedError when the file is missing, damaged or sealed, or the passphrase is wrong.
    """
    return _open(path, _parse(path, _read(path)), passphrase)


def is_sealed(path: Path) -> bool:
    """Say whether a key file needs a passphrase; raises KeyLockedError when it is missing or damaged."""
    return isinstance(_parse(path, _read(path)), SealedKey)


def backup(path: Path, target: Path, passphrase: str | None, *, cost: Cost | None = None) -> Identity:
    """Write a copy of a key that was proved to open.

    A sealed key keeps its seal; a plain one is sealed in the copy when a passphrase is given.
    Raises KeyLockedError as ``load`` does, UsageError when ``target`` exists.
    """
    data = _read(path)
    key = _parse(path, data)
    identity = _open(path, key, passphrase)
    if isinstance(key, PlainKey) and passphrase is not None:
        data = _to_bytes(identity, passphrase, cost or Cost())
    _publish(target, data)
    return identity


def restore(source: Path, path: Path, passphrase: str | None) -> Identity:
    """Put a backup in place after proving that it opens; never replaces a key."""
    data = _read(source)
    identity = _open(source, _parse(source, data), passphrase)
    _publish(path, data)
    return identity


def _to_bytes(identity: Identity, passphrase: str | None, cost: Cost) -> bytes:
    if passphrase is None:
        return encode(PlainKey(account=identity.account, seed=identity.seed.hex())) + b"\n"
    ensure(passphrase != "", UsageError("the passphrase is empty; type one, or leave the key without a passphrase"))
    salt = nacl.utils.random(argon2id.SALTBYTES)
    box = nacl.secret.SecretBox(_derive(passphrase, salt, cost)).encrypt(identity.seed)
    return (
        encode(
            SealedKey(
                account=identity.account,
                ops=cost.ops,
                memory_bytes=cost.memory_bytes,
                salt=salt.hex(),
                box=bytes(box).hex(),
            )
        )
        + b"\n"
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise KeyLockedError(f"no key at {path}; create one, or restore one from a backup") from None
    except OSError as error:
        raise KeyLockedError(f"the key at {path} cannot be read ({error.strerror}); check the file's owner") from None


def _parse(path: Path, data: bytes) -> PlainKey | SealedKey:
    try:
        ensure(len(data) <= MAX_FILE_BYTES, _damaged(path, f"longer than {MAX_FILE_BYTES} bytes"))
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def _open(path: Path, key: PlainKey | SealedKey, passphrase: str | None) -> Identity:
    identity = Identity(bytes.fromhex(key.seed) if isinstance(key, PlainKey) else _unseal(path, key, passphrase))
    ensure(identity.account == key.account, _damaged(path, f"its seed is not that of {key.account}"))
    return identity


def _unseal(path: Path, key: SealedKey, passphrase: str | None) -> bytes:
    if passphrase is None:
        raise KeyLockedError(f"the key at {path} is sealed; give its passphrase")
    secret = _derive(passphrase, bytes.fromhex(key.salt), Cost(key.ops, key.memory_bytes))
    try:
        return nacl.secret.SecretBox(secret).decrypt(bytes.fromhex(key.box))
    except nacl.exceptions.CryptoError:
        raise KeyLockedError(
            f"the passphrase does not open the key at {path}; try again, "
            "or restore a backup if the passphrase is right and the file was damaged"
        ) from None


def _derive(passphrase: str, salt: bytes, cost: Cost) -> bytes:
    # one spelling for what keyboards of different systems type for the same text
    text = unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogatepass")
    try:
        return argon2id.kdf(nacl.secret.SecretBox.KEY_SIZE, text, salt, cost.ops, cost.memory_bytes)
    except (nacl.exceptions.RuntimeError, MemoryError):
        needed = cost.memory_bytes >> 20
        raise KeyLockedError(
            f"opening the key takes {needed} MiB of memory for a moment; free some and retry"
        ) from None


def _damaged(path: Path, why: str) -> KeyLockedError:
    return KeyLockedError(f"the key file {path} is damaged ({why}); restore it from a backup")


def _publish(path: Path, data: bytes) -> None:
    """Write ``data`` to a new file that only its owner may read, durable on return."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600 where there are modes
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _move_new(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except FileExistsError:
        raise UsageError(f"{path} exists and keys are never overwritten; move it away or choose another name") from None
    except OSError as error:
        raise StorageError(f"cannot write the key file {path}: {error.strerror}") from None


def _move_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name; raises FileExistsError if the name is taken."""
    if os.name == "nt":
        temporary.rename(path)  # refuses an existing target on Windows only
        return
    try:
        os.link(temporary, path)  # unlike rename, fails if the target exists
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES):
            raise
        # a file system without hard links (FAT, some network mounts): take the name first, then fill it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    if os.name != "nt":  # Windows cannot open folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
