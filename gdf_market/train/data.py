"""Training data of a job: one file of content, how it is divided, and which samples a unit trains on.

Kinds:
* ``tokens``: uint16 little-endian, one after another.  A sample is a window of ``context`` tokens and the same window
  moved on by one.
* ``rows``: ``count`` rows of the same fields, stored column after column, little-endian, each column row after row.
  A field may be stored in fewer bytes than a program gets: integers in a smaller type, images as bytes.

Rules kept here:
1. The first ``train`` tokens or rows are for training, the rest for validation.
2. Shard i of s is a contiguous range of the training part; the samples of a unit lie inside its shard.
3. Samples are a pure function of (job, round, shard): PCG64 seeded with a SHA-256, raw 64-bit outputs only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gdf_market.codec import Hash, Int, Positive, Record, digest
from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.train.random import pcg64

MAX_CONTEXT = 65_536
MAX_VOCAB = 65_536  # tokens are uint16
MAX_COUNT = 2**40
MAX_ROW_BYTES = 2**28
MAX_FIELDS = 16
MAX_EVALUATION_SAMPLES = 256
STATISTICS_BATCHES = 64  # of a pass that gathers the running statistics of batch norm

FIELD_DTYPES = {
    "uint8": "|u1", "bool": "|b1", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4",
    "int16": "<i2", "uint16": "<u2",  # stored only
}  # fmt: skip
# of what a program gets, the smaller types that it may be stored in; float32 of bytes needs a divisor
STORED_AS = {
    "int64": ("uint8", "int16", "uint16", "int32"),
    "int32": ("uint8", "int16", "uint16"),
    "float32": ("uint8",),
}
_ROW_BATCH = 64  # rows of an evaluation batch, where the program does not say

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]


class Field(Record, frozen=True, kw_only=True):
    """One column: the dtype that a program gets, and the shape of one row's value.  Integers lie within [low, high].

    ``stored`` is the dtype in the file where that is another one.  A float32 stored as uint8 is
    float32(byte) / float32(``divisor``), one correctly rounded division.
    """

    dtype: Annotated[str, msgspec.Meta(pattern=r"\A(uint8|bool|int32|int64|float16|float32)\Z")]
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=2**31)], ...], msgspec.Meta(max_length=7)]
    low: Int = 0
    high: Int = 0
    stored: Annotated[str, msgspec.Meta(pattern=r"\A(uint8|int16|uint16|int32)?\Z")] = ""
    divisor: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0

    @property
    def file_dtype(self) -> np.dtype[Any]:
        """The dtype of the column in the file."""
        return np.dtype(FIELD_DTYPES[self.stored or self.dtype])

    @property
    def row_bytes(self) -> int:
        """The bytes of one row's value in the file."""
        return int(self.file_dtype.itemsize) * _product(self.shape)

    def restore(self, stored: Array) -> Array:
        """Return what a program gets for values read from the file."""
        if self.divisor:
            return np.divide(stored, np.float32(self.divisor), dtype=np.float32)
        return np.ascontiguousarray(stored, dtype=FIELD_DTYPES[self.dtype])


class DataManifest(Record, frozen=True, kw_only=True):
    """What the blob named in ``JobPost.data`` says about a job's data.

    ``vocab`` and ``context`` (tokens in a sample) are 0 for rows; ``fields`` is empty for tokens.
    """

    kind: Annotated[str, msgspec.Meta(pattern=r"\A(tokens|rows)\Z")]
    content: Hash  # blob id of the content file
    count: Annotated[int, msgspec.Meta(ge=2, le=MAX_COUNT)]  # tokens or rows
    train: Positive  # those of the training part, from the front
    vocab: Annotated[int, msgspec.Meta(ge=0, le=MAX_VOCAB)] = 0
    context: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT)] = 0
    fields: Annotated[tuple[Field, ...], msgspec.Meta(max_length=MAX_FIELDS)] = ()


@dataclass(frozen=True)
class Content:
    """The columns of a content file, mapped read-only: [count, *shape] each, or the tokens uint16[count]."""

    columns: tuple[Array, ...]


def check_manifest(manifest: DataManifest, shards: int) -> None:
    """Raise MalformedError unless the manifest is sound and the training part fills ``shards`` shards."""
    tokens = manifest.kind == "tokens"
    sound = (manifest.vocab > 0) == (manifest.context > 0) == tokens == (not manifest.fields)
    ensure(sound, MalformedError(f"a manifest of {manifest.kind} with fields of another kind"))
    ensure(
        manifest.train <= manifest.count,
        MalformedError(f"training part of {manifest.train} {manifest.kind} in a file of {manifest.count}"),
    )
    for number, field in enumerate(manifest.fields):
        fits = not field.stored or field.stored in STORED_AS.get(field.dtype, ())
        scaled = bool(field.divisor) == (field.dtype == "float32" and field.stored == "uint8")
        ensure(fits and scaled, MalformedError(f"field {number}: {field.dtype} stored as {field.stored or 'itself'}"))
    row_bytes = sum(field.row_bytes for field in manifest.fields)
    ensure(row_bytes <= MAX_ROW_BYTES, OversizedError(f"rows of {row_bytes} bytes"))
    smallest, least = manifest.train // shards, manifest.context + 1
    ensure(
        smallest >= least,
        MalformedError(f"a shard of {smallest} {manifest.kind} holds no sample of {least}; use fewer shards"),
    )


def sample_types(manifest: DataManifest) -> list[tuple[str, tuple[int, ...]]]:
    """Return (dtype, shape without the batch) of each sample that the data gives to a program."""
    if manifest.kind == "tokens":
        return [("int64", (manifest.context,))] * 2
    return [(field.dtype, field.shape) for field in manifest.fields]


def load_content(path: Path, manifest: DataManifest) -> Content:
    """Map the content file read-only and check it.

    Raises OversizedError or MalformedError when the file is not what the manifest says, or holds an integer outside
    its range.
    """
    check_manifest(manifest, 1)
    tokens = manifest.kind == "tokens"
    row_bytes = 2 if tokens else sum(field.row_bytes for field in manifest.fields)
    size, wanted = path.stat().st_size, row_bytes * manifest.count
    ensure(size <= wanted, OversizedError(f"content file of {size} bytes for {manifest.count} {manifest.kind}"))
    ensure(size == wanted, MalformedError(f"content file of {size} bytes for {manifest.count} {manifest.kind}"))
    if tokens:
        column = np.memmap(path, dtype="<u2", mode="r")
        _check_range(column, 0, manifest.vocab - 1, "token")
        return Content((column,))
    columns, offset = [], 0
    for number, field in enumerate(manifest.fields):
        column = np.memmap(path, field.file_dtype, "r", offset, (manifest.count, *field.shape))
        _check_column(column, field, number)
        columns.append(column)
        offset += field.row_bytes * manifest.count
    return Content(tuple(columns))


def _check_column(column: Array, field: Field, number: int) -> None:
    if field.dtype in ("int32", "int64"):
        _check_range(column, field.low, field.high, f"field {number}:")
    elif field.dtype in ("float16", "float32") and not field.divisor:
        flat = column.reshape(-1)
        for start in range(0, len(flat), 1 << 24):
            finite = bool(np.isfinite(flat[start : start + (1 << 24)]).all())
            ensure(finite, MalformedError(f"field {number} holds values that are not finite"))
    elif field.dtype == "bool":
        ensure(int(column.view("|u1").max()) <= 1, MalformedError(f"field {number} holds bytes that are no booleans"))


def _check_range(column: Array, low: int, high: int, what: str) -> None:
    flat = column.reshape(-1)
    for start in range(0, len(flat), 1 << 24):
        part = flat[start : start + (1 << 24)]
        for place in (int(part.argmin()), int(part.argmax())):
            if not low <= int(part[place]) <= high:
                row = (start + place) * len(column) // len(flat)
                raise MalformedError(f"{what} {int(part[place])} is outside {low} to {high} (row {row})")


def shard_range(manifest: DataManifest, shard: int, shards: int) -> tuple[int, int]:
    """Return (first, end) of a shard in the training part."""
    ensure(0 <= shard < shards, MalformedError(f"shard {shard} of {shards}"))
    check_manifest(manifest, shards)
    return manifest.train * shard // shards, manifest.train * (shard + 1) // shards


def unit_batches(
    manifest: DataManifest,
    content: Content,
    *,
    job: str,
    round_index: int,
    shard: int,
    shards: int,
    steps: int,
    batch: int,
) -> Iterator[Batch]:
    """Yield the samples, [batch, ...] each, of every step of one unit; ``job`` is its id in hex.

    Raises MalformedError for a shard that does not exist or is too small.
    """
    first, end = shard_range(manifest, shard, shards)
    position = round_index.to_bytes(8, "big") + shard.to_bytes(4, "big")
    generator = pcg64(digest("gdf/windows", bytes.fromhex(job), position))
    span = np.uint64(end - first - manifest.context)
    for _ in range(steps):
        places = first + (generator.random_raw(batch) % span).astype(np.int64)
        yield _samples(manifest, content, places)


def evaluation_batches(manifest: DataManifest, content: Content, batch: int) -> list[Batch]:
    """Return at most MAX_EVALUATION_SAMPLES samples, evenly spread over the validation part, in batches.

    Every batch has ``batch`` samples (0: a usual number): a captured program may be fixed to them.
    """
    batch = batch or (8 if manifest.kind == "tokens" else _ROW_BATCH)
    span = manifest.count - manifest.train - manifest.context
    ensure(span > 0, MalformedError(f"the validation part holds no sample of {manifest.context + 1} {manifest.kind}"))
    most = min(MAX_EVALUATION_SAMPLES, span // manifest.context if manifest.context else span)
    samples = max(1, most // batch) * batch
    places = manifest.train + np.arange(samples, dtype=np.int64) * span // samples
    return [_samples(manifest, content, places[i : i + batch]) for i in range(0, samples, batch)]


def statistics_batches(manifest: DataManifest, content: Content, batch: int) -> Iterator[Batch]:
    """Yield STATISTICS_BATCHES batches from all of the training part, the same ones for everybody."""
    return unit_batches(
        manifest, content, job="", round_index=0, shard=0, shards=1, steps=STATISTICS_BATCHES, batch=batch
    )


def _samples(manifest: DataManifest, content: Content, places: npt.NDArray[np.int64]) -> Batch:
    if manifest.kind == "tokens":
        windows = content.columns[0][places[:, None] + np.arange(manifest.context + 1)].astype(np.int64)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])
    pairs = zip(manifest.fields, content.columns, strict=True)
    return tuple(field.restore(column[places]) for field, column in pairs)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
