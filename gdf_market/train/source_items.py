"""Data sets that give their rows one by one: torch's, Hugging Face's, any sequence of tuples or dicts, iterables.

Every row is asked for once.  Token lists of different lengths, as tokenised data sets have, are padded to the job's
context: ``labels`` with -100, which a cross entropy leaves out, everything else with 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.errors import UsageError, ensure
from gdf_market.train.source_columns import Column, Options, Rows, as_array

MAX_ROWS = 2**31
_BLOCK_ROWS = 1_024
_REPORT_ROWS = 10_000  # a line for every so many rows
_IGNORED = -100  # torch's ignore_index

Array = npt.NDArray[Any]


def read_items(data: Any, options: Options) -> Rows:
    """Return the rows of ``data`` as columns: tuples become the fields 0, 1, …, dicts named fields.

    Raises UsageError for rows that differ in their fields, shapes or types, and for values that are no numbers.
    """
    total = _length(data)
    ensure(total != 0, UsageError("data has no rows; give the rows to train on"))
    fields: dict[str, list[Array]] = {}  # blocks
    waiting: dict[str, list[Array]] = {}
    tokenised = False
    count = 0
    for item in _items(data, total):
        row = _row(item, count, options)
        if not waiting:
            waiting = {name: [] for name in row}
            fields = {name: [] for name in row}
            tokenised = "input_ids" in row
        ensure(
            row.keys() == waiting.keys(),
            UsageError(f"row {count} has the fields {', '.join(row)}; the first has {', '.join(waiting)}"),
        )
        for name, value in row.items():
            waiting[name].append(value)
        count += 1
        ensure(count <= MAX_ROWS, UsageError(f"data has more than {MAX_ROWS:,} rows; give a finite data set"))
        if count % _BLOCK_ROWS == 0:
            _pack(fields, waiting, count, options.context if tokenised else 0)
        if count % _REPORT_ROWS == 0:
            sys.stderr.write(
                f"reading data: {count:,} of {total or 'unknown':,} rows\n" if total else f"{count:,} rows\n"
            )
    ensure(count > 0, UsageError("data has no rows; give the rows to train on"))
    _pack(fields, waiting, count, options.context if tokenised else 0)
    return Rows({name: Column(_join(name, fields[name], count, options, tokenised)) for name in list(fields)})


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _items(data: Any, total: int | None) -> Iterator[Any]:
    """Yield the rows; the owner's code may raise anything on the way."""
    try:
        if total is not None and hasattr(data, "__getitem__"):
            for index in range(total):
                yield data[index]
        else:
            yield from data
    except (UsageError, GeneratorExit):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"the data set raised {type(error).__name__} when it was read: {reason}") from error


def _row(item: Any, number: int, options: Options) -> dict[str, Array]:
    if hasattr(item, "keys"):
        names = options.choose(item.keys())
        missing = [name for name in names if name not in item]
        ensure(
            not missing,
            UsageError(f"row {number} has no field {', '.join(missing)}; it has {', '.join(map(str, item))[:300]}"),
        )
        return {options.rename(name): as_array(item[name], name) for name in names}
    values: Iterable[Any] = item if isinstance(item, tuple | list) else (item,)
    return {str(place): as_array(value, str(place)) for place, value in enumerate(values)}


def _pack(fields: dict[str, list[Array]], waiting: dict[str, list[Array]], end: int, context: int) -> None:
    """Move waiting rows into blocks [rows, ...]; ``context`` is what different lengths are padded to, 0 for never."""
    for name, values in waiting.items():
        if not values:
            continue
        types = {value.dtype.name for value in values}
        ensure(
            len(types) == 1,
            UsageError(f"{name!r} is {' and '.join(sorted(types))} in different rows; give one type"),
        )
        shapes = {value.shape for value in values}
        if len(shapes) > 1:
            ensure(bool(context) and all(len(shape) == 1 for shape in shapes), _ragged(name, shapes, end))
            values = [_padded(value[None], name, context)[0] for value in values]
        fields[name].append(np.stack(values))
        waiting[name].clear()


def _join(name: str, blocks: list[Array], count: int, options: Options, tokenised: bool) -> Array:
    """Return the blocks as one array, letting each go once it is copied."""
    types = {block.dtype.name for block in blocks}
    ensure(len(types) == 1, UsageError(f"{name!r} is {' and '.join(sorted(types))} in different rows; give one type"))
    shapes = {block.shape[1:] for block in blocks}
    if len(shapes) > 1:
        ensure(tokenised and all(len(shape) == 1 for shape in shapes), _ragged(name, shapes, count))
        shapes = {(options.context,)}
    whole = np.empty((count, *shapes.pop()), blocks[0].dtype)
    blocks.reverse()
    start = 0
    while blocks:
        block = blocks.pop()
        whole[start : start + len(block)] = (
            block if block.shape[1:] == whole.shape[1:] else _padded(block, name, whole.shape[1])
        )
        start += len(block)
    return whole


def _padded(block: Array, name: str, length: int) -> Array:
    """Return [rows, length]: the values, then padding."""
    ensure(
        block.shape[1] <= length,
        UsageError(
            f"a row of {name!r} has {block.shape[1]} values, and rows of different lengths are padded to "
            f"context={length}; raise context, or cut the rows"
        ),
    )
    filled = np.full((len(block), length), _IGNORED if name == "labels" else 0, block.dtype)
    filled[:, : block.shape[1]] = block
    return filled


def _ragged(name: str, shapes: set[tuple[int, ...]], end: int) -> UsageError:
    first, second = sorted(shapes, key=str)[:2]
    return UsageError(
        f"{name!r} has the shapes {list(first)} and {list(second)} within the first {end} rows; make them one "
        "(in rows with a field input_ids, token lists are padded to context)"
    )
