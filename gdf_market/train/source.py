"""What an owner gives as ``data``, as the two kinds of content that a job has: tokens, or rows of fields.

Rules kept here:
1. Rows are shuffled once, with a fixed seed, before they are divided, so that the shards are alike; tokens are not.
2. Without validation data the last tenth is for validation.
3. A program gets what the owner's data gave: a smaller type in the file is widened again (see data.Field).
4. A source is held once: large files stay mapped, and the content file is written column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gdf_market.errors import UsageError, ensure
from gdf_market.train.data import MAX_FIELDS, MAX_ROW_BYTES, MAX_VOCAB, Content, DataManifest, Field
from gdf_market.train.source_columns import Column, Options, Raw, Rows, Text, Tokens, check_rows, choose_field
from gdf_market.train.source_files import read_any
from gdf_market.train.source_text import tokenize

VALIDATION_PERCENT = 10  # the last tenth
MAX_CONTENT_BYTES = 16 * 2**30  # what a blob holds
_SHUFFLE_SEED = 20_240_229
_CHUNK_BYTES = 1 << 24

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """``columns`` of ``count`` tokens or rows, the first ``train`` of them for training.

    Each column is a list of parts, one after another: the training data, and the validation data if there is any.
    ``order`` is how the rows of the first part are shuffled, None for tokens.
    """

    kind: str
    columns: tuple[tuple[Array, ...], ...]
    count: int
    train: int
    vocab: int = 0
    fields: tuple[Field, ...] = ()
    names: tuple[str, ...] = ()
    order: npt.NDArray[np.int64] | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of the content file."""
        return self.count * (sum(field.row_bytes for field in self.fields) or 2)

    def write(self, path: Path) -> None:
        """Write the content file: column after column, without a second copy in memory.

        Raises UsageError when the disk refuses.
        """
        try:
            with path.open("wb") as file:
                self._write(file)
        except OSError as error:
            raise UsageError(f"the data cannot be written to {path}: {error.strerror}; free some space") from None

    def to_bytes(self) -> bytes:
        """Return the content file, for data that is small."""
        return b"".join(column.tobytes() for column in self.content.columns)

    @cached_property
    def content(self) -> Content:
        """The same as a worker reads it from the file, in memory."""
        return Content(tuple(np.concatenate(list(self._pieces(number))) for number in range(len(self.columns))))

    @property
    def tokens(self) -> npt.NDArray[np.uint16]:
        """All tokens, uint16[count]."""
        assert self.kind == "tokens"
        return self.content.columns[0]

    def manifest(self, blob: str, context: int) -> DataManifest:
        """Return the manifest for the content file stored under the blob id ``blob``; rows have no context."""
        return DataManifest(
            kind=self.kind,
            content=blob,
            count=self.count,
            train=self.train,
            vocab=self.vocab,
            context=context if self.kind == "tokens" else 0,
            fields=self.fields,
        )

    def example(self, batch: int, context: int) -> tuple[Array, ...]:
        """Return one batch as a program gets it; the largest token, or integer of each field, is in it."""
        if self.kind == "tokens":
            tokens = np.arange(batch * context, dtype=np.int64).reshape(batch, context) % self.vocab
            tokens[0, 0] = self.vocab - 1  # the largest token has to be in the model's vocabulary
            return tokens, np.roll(tokens, 1, 0)
        first = [parts[0] for parts in self.columns]
        largest = [
            int(part.reshape(len(part), -1).max(axis=1).argmax())
            for part, field in zip(first, self.fields, strict=True)
            if field.high > field.low
        ]
        rows = np.resize(np.array([*dict.fromkeys([*largest, *range(min(batch, len(first[0])))])]), batch)
        pairs = zip(first, self.fields, strict=True)
        return tuple(field.restore(_convert(part[rows], field)) for part, field in pairs)

    def _write(self, file: BinaryIO) -> None:
        for number in range(len(self.columns)):
            for piece in self._pieces(number):
                file.write(piece.tobytes())

    def _pieces(self, number: int) -> Iterator[Array]:
        """Yield a column as it is stored, in pieces of a few megabytes."""
        field = self.fields[number] if self.fields else None
        for position, part in enumerate(self.columns[number]):
            order = self.order if position == 0 else None
            step = max(1, _CHUNK_BYTES // max(1, part[:1].nbytes))
            for start in range(0, len(part), step):
                rows = slice(start, start + step) if order is None else order[start : start + step]
                yield _convert(part[rows], field)


def read_source(data: Any, validation: Any = None, options: Options | None = None) -> Dataset:
    """Return what ``data`` and ``validation`` hold; what they may be is told in docs/migrate.md.

    Raises UsageError, in one sentence with what to do, when there is nothing to read or it cannot be used.
    """
    options = options or Options()
    parts = [read_any(data, options)]
    if validation is not None:
        parts.append(read_any(validation, options))
    _check_alike(parts)
    if isinstance(parts[0], Rows):
        return _from_rows([part for part in parts if isinstance(part, Rows)])
    texts = [part for part in parts if isinstance(part, Text)]
    tokens = tokenize(texts, options.tokenizer) if texts else [p for p in parts if isinstance(p, Tokens)]
    return _from_tokens(tokens)


def _check_alike(parts: list[Raw]) -> None:
    kinds = [type(part).__name__.lower() for part in parts]
    ensure(
        len(set(kinds)) == 1,
        UsageError(f"data is {kinds[0]} and validation is {kinds[-1]}; give both in the same form"),
    )


def _from_tokens(parts: list[Tokens]) -> Dataset:
    arrays = tuple(part.values for part in parts)
    for array in arrays:
        ensure(len(array) > 0, UsageError("data is an empty array; give the tokens to train on"))
        ensure(int(array.min()) >= 0, UsageError(f"data holds the token {array.min()}; tokens start at 0"))
    vocab = max(part.vocab or int(part.values.max()) + 1 for part in parts)
    ensure(
        vocab <= MAX_VOCAB,
        UsageError(
            f"data has a vocabulary of {vocab}; at most {MAX_VOCAB} tokens are possible; give windows of larger "
            "integers as rows: data=(inputs, targets), each [N, length]"
        ),
    )
    count = sum(len(array) for array in arrays)
    data = Dataset("tokens", (arrays,), count, _train(arrays), vocab=vocab)
    return _check_size(data)


def _from_rows(parts: list[Rows]) -> Dataset:
    for part in parts:
        check_rows(part)
    columns = _matching(parts)
    names = tuple(parts[0].columns)
    ensure(
        len(names) <= MAX_FIELDS,
        UsageError(
            f"data has {len(names)} fields; at most {MAX_FIELDS} are possible; name those to use: columns=[...]"
        ),
    )
    fields = tuple(choose_field(name, column) for name, column in zip(names, columns, strict=True))
    row_bytes = sum(field.row_bytes for field in fields)
    ensure(row_bytes <= MAX_ROW_BYTES, UsageError(f"one row has {row_bytes:,} bytes; at most {MAX_ROW_BYTES:,}"))
    arrays = tuple(tuple(part.values for part in column) for column in columns)
    order = np.random.Generator(np.random.PCG64(_SHUFFLE_SEED)).permutation(len(arrays[0][0]))
    train = _train(arrays[0])
    count = sum(len(part) for part in arrays[0])
    ensure(
        0 < train < count,
        UsageError(f"data has {count} rows, too few to keep a tenth for validation; give 10, or give validation=..."),
    )
    return _check_size(Dataset("rows", arrays, count, train, fields=fields, names=names, order=order))


def _train(parts: tuple[Array, ...]) -> int:
    first = len(parts[0])
    return first if len(parts) > 1 else first - first * VALIDATION_PERCENT // 100


def _matching(parts: list[Rows]) -> list[list[Column]]:
    """Return each field's columns of all parts.  Raises UsageError where validation data has other fields."""
    first = parts[0]
    for other in parts[1:]:
        ensure(
            list(other.columns) == list(first.columns) and other.classes == first.classes,
            UsageError(f"validation has {_contents(other)}, data has {_contents(first)}; they have to be the same"),
        )
        for name, column in first.columns.items():
            here, there = column.describe(), other.columns[name].describe()
            ensure(
                here == there, UsageError(f"{name!r} is {here} in data and {there} in validation; make them the same")
            )
    return [[part.columns[name] for part in parts] for name in first.columns]


def _contents(rows: Rows) -> str:
    fields = f"the fields {', '.join(rows.columns)}"
    return f"{fields} and the classes {', '.join(rows.classes)[:200]}" if rows.classes else fields


def _convert(values: Array, field: Field | None) -> Array:
    """Return values as the file holds them; ``choose_field`` has seen that nothing is lost."""
    if field is None:
        return values.astype("<u2")
    if field.divisor and values.dtype.kind == "f":
        values = np.rint(values.astype(np.float32) * np.float32(field.divisor))
    stored: Array = values.astype(field.file_dtype)
    return stored


def _check_size(data: Dataset) -> Dataset:
    ensure(
        data.size_bytes <= MAX_CONTENT_BYTES,
        UsageError(
            f"data has {data.size_bytes:,} bytes; at most {MAX_CONTENT_BYTES:,} are possible; give a part of it, or "
            "smaller samples"
        ),
    )
    return data


__all__ = ["VALIDATION_PERCENT", "Dataset", "Options", "read_source"]
