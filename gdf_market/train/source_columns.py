"""Columns of an owner's data: which type a program gets, and which smaller one the file may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gdf_market.errors import UsageError, ensure
from gdf_market.train.data import Field
from gdf_market.units import MAX_INT

MAX_RANK = 7  # dimensions of one row's value
PIXEL = 255

Array = npt.NDArray[Any]
Tokenizer = str | Callable[[str], Any]

# what a program gets for what the owner gave: torch's own types, and float32 for float64, as models are float32
_PROGRAM = {
    "bool": "bool", "uint8": "uint8", "int8": "int64", "int16": "int64", "uint16": "int64", "uint32": "int64",
    "int32": "int32", "int64": "int64", "uint64": "int64", "float16": "float16", "float32": "float32",
    "float64": "float32",
}  # fmt: skip
_SMALLER = {"int64": ("uint8", "int16", "uint16", "int32"), "int32": ("uint8", "int16", "uint16")}
_SCAN = 1 << 22  # values looked at in one go
_LABEL = "label"


@dataclass(frozen=True)
class Options:
    """How a source is read: those keywords of ``Job`` that say something about its data."""

    tokenizer: Tokenizer = "characters"
    columns: tuple[str, ...] = ()
    image_size: tuple[int, int] | None = None  # (height, width)
    grayscale: bool = False
    context: int = 64  # what token lists of different lengths are padded to
    accepts: tuple[str, ...] = ()  # names that the model takes; others are left out, where no columns are chosen

    def choose(self, names: Iterable[Any]) -> tuple[str, ...]:
        """Return which of the named fields are used, in order; those that a model does not take need no mention."""
        if self.columns:
            return self.columns
        return tuple(str(name) for name in names if not self.accepts or name in (*self.accepts, _LABEL))

    def rename(self, name: str) -> str:
        """Return the name under which a model takes a field: Hugging Face's ``label`` is its ``labels``."""
        return "labels" if name == _LABEL and self.accepts and _LABEL not in self.accepts else name


@dataclass(frozen=True)
class Text:
    """Documents, one after another."""

    documents: Sequence[str]


@dataclass(frozen=True)
class Tokens:
    """Integers from 0; ``vocab`` where it is more than the largest one says."""

    values: Array
    vocab: int = 0


@dataclass(frozen=True)
class Column:
    """``values`` [n, ...]; with a divisor they are bytes, of which a program gets float32(byte) / divisor."""

    values: Array
    divisor: int = 0

    @property
    def dtype(self) -> str:
        """What a program gets; empty for what it cannot get."""
        return "float32" if self.divisor else _PROGRAM.get(self.values.dtype.name, "")

    def describe(self) -> str:
        """Return dtype and shape of one row, for messages."""
        return f"{self.dtype}{list(self.values.shape[1:])}"


@dataclass(frozen=True)
class Rows:
    """Named columns of equal length; ``classes`` are the names of the labels of a folder of images."""

    columns: dict[str, Column]
    classes: tuple[str, ...] = ()


Raw = Text | Tokens | Rows


def as_array(value: Any, name: str) -> Array:
    """Return an array of ``value``: an array, a tensor, or nested lists of numbers.

    Raises UsageError for ragged lists and for values that are no numbers.
    """
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        ensure(plain.layout is torch.strided, UsageError(f"{name!r} is a sparse tensor; give a dense one: .to_dense()"))
        return np.asarray((plain.float() if plain.dtype is torch.bfloat16 else plain).numpy())
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise UsageError(
            f"{name!r} holds rows of different lengths, or no numbers; give one array of numbers, padded to one length"
        ) from None
    ensure(
        array.dtype.name in _PROGRAM,
        UsageError(
            f"{name!r} holds values of type {_kind(value, array)}; give numbers, or name the fields that are: "
            "columns=[...]"
        ),
    )
    return array


def _kind(value: Any, array: Array) -> str:
    return type(value).__name__ if array.ndim == 0 else array.dtype.name


def check_rows(rows: Rows) -> None:
    """Raise UsageError unless the columns have rows, the same number of them, and usable shapes."""
    ensure(bool(rows.columns), UsageError("data has no fields; give at least one array"))
    lengths = {name: len(column.values) if column.values.ndim else 0 for name, column in rows.columns.items()}
    ensure(
        len(set(lengths.values())) == 1,
        UsageError(f"the fields have different numbers of rows ({_listed(lengths)}); give one value for each row"),
    )
    ensure(next(iter(lengths.values())) > 0, UsageError("data has no rows; give the rows to train on"))
    for name, column in rows.columns.items():
        shape = column.values.shape[1:]
        good = len(shape) <= MAX_RANK and 0 not in shape
        ensure(good, UsageError(f"one row of {name!r} has the shape {list(shape)}; at most {MAX_RANK} sizes, none 0"))


def choose_field(name: str, parts: list[Column]) -> Field:
    """Return how the column ``name`` is stored: in the smallest type that loses nothing.

    Raises UsageError for values that are not finite or too large.
    """
    first = parts[0]
    arrays = [part.values for part in parts]
    shape = first.values.shape[1:]
    if first.divisor:
        return Field(dtype="float32", shape=shape, stored="uint8", divisor=first.divisor)
    if first.dtype in ("uint8", "bool"):
        return Field(dtype=first.dtype, shape=shape)
    if first.dtype in _SMALLER:
        low, high = _limits(arrays)
        ensure(
            low >= -MAX_INT and high <= MAX_INT,
            UsageError(f"{name!r} holds {low if low < -MAX_INT else high}; integers up to 2**53 are possible"),
        )
        _ensure_fits(name, first.dtype, low, high)
        stored = next((kind for kind in _SMALLER[first.dtype] if _holds(kind, low, high)), "")
        return Field(dtype=first.dtype, shape=shape, low=low, high=high, stored=stored)
    _check_finite(name, first.dtype, arrays)
    if first.dtype == "float32" and all(_are_pixels(array) for array in arrays):
        return Field(dtype="float32", shape=shape, stored="uint8", divisor=PIXEL)
    return Field(dtype=first.dtype, shape=shape)


def _ensure_fits(name: str, dtype: str, low: int, high: int) -> None:
    ensure(_holds(dtype, low, high), UsageError(f"{name!r} holds {high}, which is no {dtype}; give smaller integers"))


def _holds(dtype: str, low: int, high: int) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= low and high <= limits.max)


def _limits(arrays: list[Array]) -> tuple[int, int]:
    extremes = [(int(part.min()), int(part.max())) for array in arrays for part in _parts(array)]
    return min(low for low, _ in extremes), max(high for _, high in extremes)


def _check_finite(name: str, dtype: str, arrays: list[Array]) -> None:
    for array in arrays:
        row = 0
        for part in _parts(array):
            with np.errstate(over="ignore"):
                finite = np.isfinite(part.astype(dtype))
            if not finite.all():
                place = np.argwhere(~finite)[0]
                raise UsageError(
                    f"{name!r} holds {part[tuple(place)]} in row {row + int(place[0])}, which is no finite {dtype}; "
                    "replace or leave out such rows"
                )
            row += len(part)


def _are_pixels(array: Array) -> bool:
    """Say whether every value is exactly float32(k) / 255, k a byte: then a byte stores it."""
    return all(_pixels(part) for part in _parts(array))


def _pixels(part: Array) -> bool:
    if part.size == 0 or part.min() < 0 or part.max() > 1:
        return False
    values = part.astype(np.float32)
    codes = np.rint(values * np.float32(PIXEL)).astype(np.uint8)
    return bool((np.divide(codes, np.float32(PIXEL), dtype=np.float32) == values).all())


def _parts(array: Array) -> Iterator[Array]:
    step = max(1, _SCAN // max(1, array[:1].size))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def _listed(lengths: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in lengths.items())
