"""What an owner gives as ``data``, as tokens: text by characters, or ready integers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.errors import UsageError, ensure
from gdf_market.train.data import MAX_VOCAB, Content, DataManifest

VALIDATION_PERCENT = 10  # the last tenth


@dataclass(frozen=True)
class Dataset:
    """``tokens`` uint16[count] below ``vocab``; the first ``train`` of them are for training."""

    tokens: npt.NDArray[np.uint16]
    vocab: int
    train: int

    def to_bytes(self) -> bytes:
        """Return the content file: uint16 little-endian."""
        return self.tokens.astype("<u2").tobytes()

    @property
    def content(self) -> Content:
        """The same as a worker reads it from the file."""
        return Content((self.tokens,))

    def manifest(self, blob: str, context: int) -> DataManifest:
        """Return the manifest for the content file stored under the blob id ``blob``."""
        return DataManifest(
            kind="tokens",
            content=blob,
            count=len(self.tokens),
            train=self.train,
            vocab=self.vocab,
            context=context,
        )


def read_source(data: Any) -> Dataset:
    """Return the tokens of ``data``: a text, the path of a .txt file, or a flat array or tensor of integers.

    The vocabulary of a text is the sorted set of its characters.  Raises
    UsageError when there is nothing to read or it is something else.
    """
    if isinstance(data, str) and data.endswith(".txt") and "\n" not in data:
        data = Path(data)
    if isinstance(data, Path):
        data = _read_text(data)
    if isinstance(data, str):
        ensure(bool(data), UsageError("data is an empty text; give the text to train on, or the path of a .txt file"))
        return _divide(*_characters(data))
    return _divide(*_integers(data))


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"data file {path.absolute()} does not exist; give the path of a .txt file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"data file {path.absolute()} cannot be read as UTF-8 text: {error}") from None
    ensure(bool(text), UsageError(f"data file {path.absolute()} is empty; give a file with text in it"))
    return text


def _characters(text: str) -> tuple[npt.NDArray[np.int64], int]:
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
    characters, tokens = np.unique(points, return_inverse=True)
    return tokens.astype(np.int64), len(characters)


def _integers(data: Any) -> tuple[npt.NDArray[np.int64], int]:
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, RuntimeError):
        array = np.empty((), np.float64)
    ensure(
        array.ndim == 1 and array.dtype.kind in "iu",
        UsageError(f"data is a {type(data).__name__}; give a text, the path of a .txt file, or a flat integer array"),
    )
    ensure(len(array) > 0, UsageError("data is an empty array; give the tokens to train on"))
    ensure(int(array.min()) >= 0, UsageError(f"data holds the token {array.min()}; tokens start at 0"))
    return array.astype(np.int64), int(array.max()) + 1


def _divide(tokens: npt.NDArray[np.int64], vocab: int) -> Dataset:
    ensure(vocab <= MAX_VOCAB, UsageError(f"data has a vocabulary of {vocab}; at most {MAX_VOCAB} tokens are possible"))
    return Dataset(tokens.astype(np.uint16), vocab, len(tokens) - len(tokens) * VALIDATION_PERCENT // 100)
