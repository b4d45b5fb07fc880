"""Every table of a page as CSV: the lists in the page's typed value, one column per field.

Rules kept here:
1. A table is a list or tuple of records in the page's value, named by its path (``rounds``, ``statements.0.steps``).
2. Strangers' text never becomes a formula: a cell that a spreadsheet would compute gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ledger.explorer.charts import LineChart
from ledger.explorer.plots import Plot

MAX_DEPTH = 4
MAX_TABLES = 40  # of one page
FORMULA = ("=", "+", "-", "@", "\t", "\r")
_DRAWINGS = (Plot, LineChart)  # geometry; what they show is in another table


def tables(page: object) -> dict[str, Sequence[object]]:
    """Return the tables of a page's value by name; empty lists are none."""
    return dict(itertools.islice(_tables(page, "", 0), MAX_TABLES))


def _tables(value: object, name: str, depth: int) -> Iterator[tuple[str, Sequence[object]]]:
    if depth > MAX_DEPTH or isinstance(value, _DRAWINGS):
        return
    if isinstance(value, list | tuple) and value and all(_is_record(item) for item in value):
        yield name, value
        return
    for key, item in _children(value):
        yield from _tables(item, f"{name}.{key}" if name else key, depth + 1)


def _children(value: object) -> list[tuple[str, object]]:
    if isinstance(value, msgspec.Struct):
        return [(field, getattr(value, field)) for field in value.__struct_fields__]
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(str(index), item) for index, item in enumerate(value)]
    return []


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct)


def to_csv(records: Sequence[object]) -> bytes:
    """Return records as CSV in UTF-8 (RFC 4180), with a heading; amounts are micro-credits."""
    rows = [_flat(record, "") for record in msgspec.to_builtins(list(records))]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _flat(row: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Return a record as columns: nested records by dotted names, lists of names as words, other lists as JSON."""
    flat: dict[str, object] = {}
    for key, item in row.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{name}.")
        elif isinstance(item, list):
            plain = all(isinstance(each, str | int) for each in item)
            flat[name] = " ".join(map(str, item)) if plain else json.dumps(item, ensure_ascii=False)
        else:
            flat[name] = item
    return flat


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
