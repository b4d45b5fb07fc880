"""What names a blob: the canonical manifest of its size and chunk hashes.

A blob's root is SHA-256 over its manifest's canonical bytes.  The chunk size is
fixed, so equal content has one root everywhere.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from gdf_market.codec import Hash, Record, UInt, decode, encode, sha256
from gdf_market.errors import MalformedError, OversizedError, PeerError, ensure

CHUNK_BYTES = 1 << 20
MAX_CHUNKS = 16_384
MAX_BLOB_BYTES = MAX_CHUNKS * CHUNK_BYTES  # 16 GiB
MAX_MANIFEST_BYTES = MAX_CHUNKS * 67 + 64  # 64 hex digits, quotes and a comma each, and the frame

_ROOT = re.compile(r"[0-9a-f]{64}")


class ContentMismatchError(PeerError):
    """A manifest or chunk whose hash is not the one that was asked for."""

    reason = "content"


class Manifest(Record, frozen=True, kw_only=True):
    """``hashes`` are the SHA-256 of the chunks in order; all but the last chunk have ``chunk`` bytes."""

    chunk: Annotated[int, msgspec.Meta(ge=CHUNK_BYTES, le=CHUNK_BYTES)]
    hashes: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MAX_CHUNKS)]
    size: UInt

    def chunk_size(self, index: int) -> int:
        """Return the bytes of chunk ``index``."""
        assert 0 <= index < len(self.hashes)
        return min(self.chunk, self.size - index * self.chunk)


def check_root(root: str) -> str:
    """Return ``root``; MalformedError unless it is 64 lower-case hex digits (so that it can name a file)."""
    ensure(
        isinstance(root, str) and _ROOT.fullmatch(root) is not None,
        MalformedError(f"{root[:80]!r} is not a blob root of 64 lower-case hex digits"),
    )
    return root


def root_of(manifest: Manifest) -> str:
    """Return the root (hex) that names the blob of ``manifest``."""
    return sha256(encode(manifest)).hex()


def check_manifest(root: str, manifest: Manifest, max_bytes: int = MAX_BLOB_BYTES) -> None:
    """Raise unless ``manifest`` is well-formed, of blob ``root``, and of at most ``max_bytes``.

    Raises MalformedError, OversizedError or ContentMismatchError.
    """
    check_root(root)
    limit = min(max_bytes, MAX_BLOB_BYTES)
    ensure(manifest.size <= limit, OversizedError(f"blob {root} has {manifest.size} bytes; at most {limit} are taken"))
    ensure(
        manifest.chunk == CHUNK_BYTES and len(manifest.hashes) == -(-manifest.size // CHUNK_BYTES),
        MalformedError(f"manifest of {root} lists {len(manifest.hashes)} chunks for {manifest.size} bytes"),
    )
    ensure(root_of(manifest) == root, ContentMismatchError(f"the manifest is not that of blob {root}"))


def parse_manifest(root: str, data: bytes, max_bytes: int = MAX_BLOB_BYTES) -> Manifest:
    """Return the manifest of blob ``root`` from a peer's bytes; raises what check_manifest raises."""
    check_root(root)
    manifest = decode(data, Manifest, max_bytes=MAX_MANIFEST_BYTES)
    check_manifest(root, manifest, max_bytes)
    return manifest


def check_chunk(root: str, manifest: Manifest, index: int, data: bytes) -> None:
    """Raise unless ``data`` is chunk ``index`` of the blob (MalformedError or ContentMismatchError)."""
    ensure(
        0 <= index < len(manifest.hashes),
        MalformedError(f"blob {root} has no chunk {index}, only {len(manifest.hashes)} chunks"),
    )
    ensure(
        len(data) == manifest.chunk_size(index) and sha256(data).hex() == manifest.hashes[index],
        ContentMismatchError(f"chunk {index} of blob {root} arrived with other content"),
    )
