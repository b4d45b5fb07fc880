"""Sources by their form: files by their ending, folders, arrays, sequences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from gdf_market.errors import UsageError, ensure
from gdf_market.train.source_columns import Column, Options, Raw, Rows, Text, Tokens, as_array
from gdf_market.train.source_images import read_images
from gdf_market.train.source_items import read_items

_ENDINGS = (".txt", ".npy", ".npz", ".safetensors", ".jsonl", ".ndjson")
FORMS = (
    "give a text, the path of a .txt, .npy, .npz, .safetensors or .jsonl file or of a folder of images, arrays or "
    "tensors, or a data set"
)


def read_any(data: Any, options: Options) -> Raw:
    """Return what ``data`` holds.  Raises UsageError naming what is wrong and what to give."""
    if isinstance(data, str):
        return _read_path(Path(data), options) if _is_path(data) else Text([data])
    if isinstance(data, Path):
        return _read_path(data, options)
    if isinstance(data, bytes | bytearray):
        return Tokens(np.frombuffer(bytes(data), np.uint8), 256)
    if isinstance(data, np.ndarray | torch.Tensor):
        return _from_array(data)
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple):  # a TensorDataset: no need to ask for its rows one by one
        data = tensors
    if isinstance(data, dict):
        return _from_columns(data, options)
    if isinstance(data, tuple) and data and not isinstance(data[0], tuple | dict):
        return _from_columns({str(number): value for number, value in enumerate(data)}, Options())
    if isinstance(data, list) and not (data and isinstance(data[0], tuple | dict)):
        return _from_list(data)
    if hasattr(data, "__getitem__") or hasattr(data, "__iter__"):
        return read_items(data, options)
    raise UsageError(f"data is a {type(data).__name__}; {FORMS}")


def _is_path(text: str) -> bool:
    if not text or "\n" in text or "\0" in text or len(text) > 1_024:
        return False
    path = Path(text)
    try:
        return text.endswith(_ENDINGS) or path.is_dir() or path.is_file()
    except OSError:  # a name that this system does not take is a text
        return False


def _read_path(path: Path, options: Options) -> Raw:
    if path.is_dir():
        return read_images(path, options)
    ensure(
        path.is_file(),
        UsageError(f"data file {path.absolute()} does not exist; give the path of a {', '.join(_ENDINGS)} file"),
    )
    ensure(path.stat().st_size > 0, UsageError(f"data file {path.absolute()} is empty; give a file with data in it"))
    readers: dict[str, Callable[[Path, Options], Raw]] = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".jsonl": _read_json_lines,
        ".ndjson": _read_json_lines,
    }
    return readers.get(path.suffix, _read_text)(path, options)


def _read_text(path: Path, _options: Options) -> Text:
    try:
        return Text([path.read_text(encoding="utf-8")])
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"data file {path.absolute()} cannot be read as UTF-8 text: {error}") from None


def _load_numpy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "it holds Python objects" if "pickle" in str(error) else str(error)
        raise UsageError(f"data file {path.absolute()} cannot be read: {reason}; save arrays of numbers") from None


def _read_npy(path: Path, _options: Options) -> Raw:
    return _from_array(_load_numpy(path))


def _read_npz(path: Path, options: Options) -> Rows:
    with _load_numpy(path) as archive:
        names = options.columns or tuple(archive.files)
        try:
            return _from_columns({name: archive[name] for name in names if name in archive.files}, options)
        except ValueError:
            raise UsageError(
                f"data file {path.absolute()} holds Python objects; name the arrays of numbers: columns=[...]"
            ) from None


def _read_safetensors(path: Path, options: Options) -> Rows:
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise UsageError(f"data file {path.absolute()} cannot be read as safetensors: {error}") from None
    return _from_columns(tensors, options)


def _read_json_lines(path: Path, options: Options) -> Raw:
    """Return the texts of a JSON-lines file (its field ``text``, or the one named), or its numeric fields."""
    first = next(_json_lines(path), None)
    if first is None:
        raise UsageError(f"data file {path.absolute()} holds no line; give one JSON object a line")
    name = options.columns[0] if len(options.columns) == 1 else "text" if not options.columns else ""
    if isinstance(first.get(name), str):
        return Text([_text_field(path, number, line, name) for number, line in enumerate(_json_lines(path), 1)])
    return read_items(_json_lines(path), options)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                value = json.loads(line)
                ensure(isinstance(value, dict), UsageError(f"{path.absolute()}:{number}: not a JSON object"))
                yield value
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"data file {path.absolute()} cannot be read as JSON lines: {error}") from None


def _text_field(path: Path, number: int, line: dict[str, Any], name: str) -> str:
    text = line.get(name)
    if not isinstance(text, str):
        raise UsageError(f"{path.absolute()}: object {number} has no text in {name!r}; correct or leave out the line")
    return text


def _from_array(data: Any) -> Raw:
    array = as_array(data, "data")
    ensure(array.ndim > 0, UsageError(f"data is the single value {array}; {FORMS}"))
    if array.ndim == 1 and array.dtype.kind in "iu":
        return Tokens(array)
    return Rows({"0": Column(array)})


def _from_list(data: list[Any]) -> Tokens:
    integers = all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in data)
    ensure(
        integers, UsageError(f"data is a list; a list has to hold integer tokens, or rows as tuples or dicts; {FORMS}")
    )
    return Tokens(as_array(data, "data").astype(np.int64))


def _from_columns(data: dict[str, Any], options: Options) -> Rows:
    missing = [name for name in options.columns if name not in data]
    ensure(
        not missing,
        UsageError(f"data has no field {', '.join(missing)}; its fields are {', '.join(map(str, data))[:300]}"),
    )
    return Rows({options.rename(name): _column(data[name], name) for name in options.choose(data)})


def _column(value: Any, name: str) -> Column:
    if isinstance(value, str | Path):
        ensure(
            Path(value).suffix == ".npy",
            UsageError(f"field {name!r} is {str(value)[:60]!r}; give an array, or the path of a .npy file"),
        )
        ensure(Path(value).is_file(), UsageError(f"data file {Path(value).absolute()} does not exist"))
        value = _load_numpy(Path(value))
    array = as_array(value, name)
    ensure(array.ndim > 0, UsageError(f"field {name!r} is the single value {array}; give one value for each row"))
    return Column(array)
