"""The graph of a program as canonical data: records, and the encoding of operator arguments.

An argument is null, a boolean, an integer, a short text, a list of arguments,
or one of ``{"value": i}`` (an earlier value), ``{"float": hex}`` (exact, as
``float.hex`` writes it), ``{"dtype": name}``, ``{"device": 0}`` (wherever the
program runs) and ``{"format": name}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch

from gdf_market.codec import Record, UInt
from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.units import MAX_INT, PPM

MAX_GRAPH_BYTES = 4 * 2**20
MAX_NODES = 20_000
MAX_TENSORS = 10_000  # parameters, and constants
MAX_ARGUMENTS = 32
MAX_LIST = 4_096
MAX_DEPTH = 3  # lists within lists
MAX_RANK = 8
MAX_TEXT = 64
MAX_GROUPS = 64

DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8")
} | {"bool": torch.bool}
FORMATS = {name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last")}

TensorName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,200}\Z")]
OperatorName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9_.A-Z]{1,80}\Z")]
DtypeName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{1,16}\Z")]
Shape = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)], ...], msgspec.Meta(max_length=MAX_RANK)]


class Group(Record, frozen=True, kw_only=True):
    """How the optimizer treats some of the parameters; scales are relative to the recipe's values."""

    lr_ppm: Annotated[int, msgspec.Meta(ge=0, le=1_000 * PPM)] = PPM
    decay_ppm: Annotated[int, msgspec.Meta(ge=0, le=1_000 * PPM)] = PPM
    muon: bool = False  # hidden matrices: Muon, where the recipe's inner optimizer is Muon


class Parameter(Record, frozen=True, kw_only=True):
    """One trained float32 tensor; the flat vector holds them in the order of ``Graph.parameters``."""

    name: TensorName
    shape: Shape
    group: UInt


class Sample(Record, frozen=True, kw_only=True):
    """One input of the program: its dtype and shape without the leading batch dimension."""

    dtype: DtypeName
    shape: Shape


class GraphInput(Record, frozen=True, kw_only=True):
    """Value number i of the graph: ``kind`` and the index into parameters, constants or samples."""

    kind: Annotated[str, msgspec.Meta(pattern=r"\A(parameter|constant|sample)\Z")]
    index: UInt


class Node(Record, frozen=True, kw_only=True):
    """One operator call; its value follows those of the inputs and of the nodes before it."""

    op: OperatorName
    args: Annotated[list[Any], msgspec.Meta(max_length=MAX_ARGUMENTS)]
    kwargs: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_ARGUMENTS)]


class Forward(Record, frozen=True, kw_only=True):
    """One forward pass: the values of ``inputs``, then one value a node.

    ``updates`` maps constants (running statistics of batch norm) to the value that replaces them in a statistics pass;
    in training they are ignored.
    """

    inputs: Annotated[tuple[GraphInput, ...], msgspec.Meta(max_length=2 * MAX_TENSORS)]
    nodes: Annotated[tuple[Node, ...], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    output: UInt  # the value that is the loss
    updates: Annotated[dict[TensorName, UInt], msgspec.Meta(max_length=MAX_TENSORS)]


class Graph(Record, frozen=True, kw_only=True):
    """Forward pass and loss.  ``batch`` is the only leading dimension it takes, or 0 for any.

    ``evaluate`` is the pass in evaluation mode, where it differs from ``train``.  ``separable``: the loss of a batch
    is the mean of the losses of its rows, so that a batch may be computed in parts.
    """

    version: Annotated[int, msgspec.Meta(ge=2, le=2)]
    batch: Annotated[int, msgspec.Meta(ge=0, le=65_536)]
    separable: bool
    samples: Annotated[tuple[Sample, ...], msgspec.Meta(min_length=1, max_length=16)]
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(min_length=1, max_length=MAX_TENSORS)]
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
    constants: Annotated[tuple[TensorName, ...], msgspec.Meta(max_length=MAX_TENSORS)]
    state: Annotated[dict[TensorName, TensorName], msgspec.Meta(max_length=MAX_TENSORS)]  # state_dict key -> tensor
    train: Forward
    evaluate: Forward | None


@dataclass(frozen=True)
class Value:
    """Reference to an earlier value of the graph."""

    index: int


class Device:
    """Placeholder for the device a program runs on."""


DEVICE = Device()


def write_argument(argument: Any) -> Any:
    """Return the data form of a Python argument of an operator; TypeError for what has none."""
    if argument is None or isinstance(argument, bool | str):
        return argument
    if isinstance(argument, int):
        return argument
    if isinstance(argument, float):
        return {"float": argument.hex()}
    if isinstance(argument, Value):
        return {"value": argument.index}
    if isinstance(argument, list | tuple):
        return [write_argument(item) for item in argument]
    if isinstance(argument, torch.dtype) and str(argument).removeprefix("torch.") in DTYPES:
        return {"dtype": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": 0}
    if isinstance(argument, torch.memory_format) and str(argument).removeprefix("torch.") in FORMATS:
        return {"format": str(argument).removeprefix("torch.")}
    raise TypeError(f"an argument of type {type(argument).__name__}: {argument!r}")


def read_argument(data: Any, values: int, depth: int = 0) -> Any:
    """Return the Python form of an argument in which only values below ``values`` may be named.

    Raises MalformedError or OversizedError for anything that ``write_argument`` does not write.
    """
    if data is None or isinstance(data, bool):
        return data
    if isinstance(data, int):
        ensure(abs(data) <= MAX_INT, OversizedError("integer argument beyond 2**53"))
        return data
    if isinstance(data, str):
        ensure(len(data) <= MAX_TEXT, OversizedError(f"text argument of {len(data)} characters"))
        return data
    if isinstance(data, list):
        ensure(len(data) <= MAX_LIST and depth < MAX_DEPTH, OversizedError("list argument too long or too deep"))
        return [read_argument(item, values, depth + 1) for item in data]
    ensure(isinstance(data, dict) and len(data) == 1, MalformedError(f"{str(data)[:60]!r} is no argument"))
    ((kind, content),) = data.items()
    return _read_tagged(kind, content, values)


def _read_tagged(kind: str, content: Any, values: int) -> Any:
    if kind == "value" and type(content) is int:
        ensure(0 <= content < values, MalformedError(f"value {content} is used before it is computed"))
        return Value(content)
    if kind == "float" and isinstance(content, str):
        return _read_float(content)
    if kind == "dtype" and isinstance(content, str) and content in DTYPES:
        return DTYPES[content]
    if kind == "device" and content == 0 and type(content) is int:
        return DEVICE
    if kind == "format" and isinstance(content, str) and content in FORMATS:
        return FORMATS[content]
    raise MalformedError(f"{kind[:20]!r} is no kind of argument, or does not hold {str(content)[:40]!r}")


def _read_float(text: str) -> float:
    ensure(len(text) <= 32, OversizedError("float argument too long"))
    try:
        number = float.fromhex(text)
    except (ValueError, OverflowError):
        raise MalformedError(f"{text!r} is not a float in hexadecimal form") from None
    ensure(number.hex() == text, MalformedError(f"{text!r} is not how {number!r} is written"))
    return number


def referenced(argument: Any) -> set[int]:
    """Return the values that a Python-form argument (or a list or dict of them) names."""
    if isinstance(argument, Value):
        return {argument.index}
    if isinstance(argument, dict):
        argument = list(argument.values())
    if isinstance(argument, list | tuple):
        return set().union(*(referenced(item) for item in argument))
    return set()
