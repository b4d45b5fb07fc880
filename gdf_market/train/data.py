"""Training data of a job: one file of tokens, how it is divided, and which windows a unit trains on.

Rules kept here:
1. Tokens are uint16 little-endian; the first ``train`` of them are for training, the rest for validation.
2. Shard i of s is a contiguous range of the training part; the windows of a unit lie inside its shard.
3. Windows are a pure function of (job, round, shard): PCG64 seeded with a SHA-256, raw 64-bit outputs only,
   which NumPy guarantees to be stable (NEP 19).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from gdf_market.codec import Hash, Positive, Record, digest
from gdf_market.errors import MalformedError, OversizedError, ensure

MAX_CONTEXT = 65_536
MAX_VOCAB = 65_536  # tokens are uint16
MAX_TOKENS = 2**40
MAX_EVALUATION_WINDOWS = 256

Tokens = npt.NDArray[np.uint16]
Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


class DataManifest(Record, frozen=True, kw_only=True):
    """What the blob named in ``JobPost.data`` says about a job's data."""

    kind: Annotated[str, msgspec.Meta(pattern=r"\Atokens\Z")]
    tokens: Hash  # blob id of the token file
    dtype: Annotated[str, msgspec.Meta(pattern=r"\Auint16\Z")]
    count: Annotated[int, msgspec.Meta(ge=2, le=MAX_TOKENS)]
    train: Positive  # tokens of the training part, from the front
    vocab: Annotated[int, msgspec.Meta(ge=1, le=MAX_VOCAB)]
    context: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT)]  # tokens a sample holds


def check_manifest(manifest: DataManifest, shards: int) -> None:
    """Raise MalformedError unless the training part fills ``shards`` shards of at least one window."""
    ensure(
        manifest.train <= manifest.count,
        MalformedError(f"training part of {manifest.train} tokens in a file of {manifest.count}"),
    )
    smallest = manifest.train // shards
    ensure(
        smallest > manifest.context,
        MalformedError(f"a shard of {smallest} tokens holds no window of {manifest.context}; use fewer shards"),
    )


def load_tokens(path: Path, manifest: DataManifest) -> Tokens:
    """Map the token file read-only and check it; uint16[count].

    Raises OversizedError or MalformedError when the file is not what the
    manifest says, or holds a token outside the vocabulary.
    """
    size = path.stat().st_size
    ensure(size <= 2 * manifest.count, OversizedError(f"token file of {size} bytes for {manifest.count} tokens"))
    ensure(size == 2 * manifest.count, MalformedError(f"token file of {size} bytes for {manifest.count} tokens"))
    tokens = np.memmap(path, dtype="<u2", mode="r")
    for start in range(0, len(tokens), 1 << 24):
        largest = int(tokens[start : start + (1 << 24)].max())
        ensure(largest < manifest.vocab, MalformedError(f"token {largest} in a vocabulary of {manifest.vocab}"))
    return tokens


def shard_range(manifest: DataManifest, shard: int, shards: int) -> tuple[int, int]:
    """Return (first, end) of a shard in the training part."""
    ensure(0 <= shard < shards, MalformedError(f"shard {shard} of {shards}"))
    check_manifest(manifest, shards)
    return manifest.train * shard // shards, manifest.train * (shard + 1) // shards


def unit_batches(
    manifest: DataManifest,
    tokens: Tokens,
    *,
    job: str,
    round_index: int,
    shard: int,
    shards: int,
    steps: int,
    batch: int,
) -> Iterator[Batch]:
    """Yield (inputs, targets) int64[batch, context] for each step of one unit; ``job`` is its id in hex.

    Targets are the inputs moved on by one token.  Raises MalformedError for a
    shard that does not exist or is too small.
    """
    first, end = shard_range(manifest, shard, shards)
    position = round_index.to_bytes(8, "big") + shard.to_bytes(4, "big")
    generator = _pcg64(digest("gdf/windows", bytes.fromhex(job), position))
    span = np.uint64(end - first - manifest.context)
    for _ in range(steps):
        starts = first + (generator.random_raw(batch) % span).astype(np.int64)
        yield _windows(tokens, starts, manifest.context)


def evaluation_batches(manifest: DataManifest, tokens: Tokens, batch: int) -> list[Batch]:
    """Return at most MAX_EVALUATION_WINDOWS windows, evenly spread over the validation part, in batches.

    Every batch has ``batch`` rows: a captured program may be fixed to them.
    """
    span = manifest.count - manifest.train - manifest.context
    ensure(span > 0, MalformedError(f"the validation part holds no window of {manifest.context} tokens"))
    windows = max(1, min(MAX_EVALUATION_WINDOWS, span // manifest.context) // batch) * batch
    starts = manifest.train + np.arange(windows, dtype=np.int64) * span // windows
    return [_windows(tokens, starts[i : i + batch], manifest.context) for i in range(0, windows, batch)]


def _pcg64(seed: bytes) -> np.random.PCG64:
    """Return PCG64 whose 128-bit state and (odd) increment are the halves of a 32-byte seed."""
    generator = np.random.PCG64(0)
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(seed[:16], "big"), "inc": int.from_bytes(seed[16:], "big") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return generator


def _windows(tokens: Tokens, starts: npt.NDArray[np.int64], context: int) -> Batch:
    both = tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64)  # [batch, context + 1]
    return np.ascontiguousarray(both[:, :-1]), np.ascontiguousarray(both[:, 1:])
