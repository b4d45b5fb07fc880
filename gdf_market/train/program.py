"""A training program as data: what strangers run instead of the owner's Python code.

Layout: ``GDFP``, version u32 and graph length u32 little-endian; the graph as
canonical JSON; the constants (buffers, frozen weights, literals) as
safetensors.  Trained parameters are not in the program: they are the flat
vector of a checkpoint.

Rules kept here:
1. Nothing in a program is executed or unpickled to read it; operators come from an allow-list by name.
2. ``from_bytes`` returns only programs that a dry run without data (meta device) accepts within a memory budget.
3. One program has one encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch
import torch

from gdf_market.codec import decode, encode
from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.train.checkpoint import unpack
from gdf_market.train.codec import MAX_PARAMETERS
from gdf_market.train.graph import DTYPES, MAX_GRAPH_BYTES, MAX_RANK, Forward, Graph, read_argument
from gdf_market.train.operators import is_allowed

MAX_PROGRAM_BYTES = 2**30
_HEADER = struct.Struct("<4sII")
_MAGIC = b"GDFP"
_VERSION = 2

Floats = npt.NDArray[np.float32]
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Program:
    """A graph and the constants it uses, by name."""

    graph: Graph
    constants: Tensors

    @cached_property
    def size(self) -> int:
        """The number of trained values, n of the flat vector."""
        return sum(_numel(parameter.shape) for parameter in self.graph.parameters)

    def to_bytes(self) -> bytes:
        """Return the program's one encoding."""
        graph = encode(self.graph)
        tensors = {name: tensor.contiguous() for name, tensor in sorted(self.constants.items())}
        stored: bytes = safetensors.torch.save(tensors)
        return _HEADER.pack(_MAGIC, _VERSION, len(graph)) + graph + stored

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Return the program in ``data``.

        Raises a PeerError (malformed, oversized) for anything that is not the
        encoding of a program that passes the dry run.
        """
        from gdf_market.train.dry_run import dry_run

        ensure(len(data) <= MAX_PROGRAM_BYTES, OversizedError(f"program of {len(data)} bytes"))
        ensure(len(data) > _HEADER.size, MalformedError("not a program: too short"))
        magic, version, length = _HEADER.unpack_from(data)
        ensure((magic, version) == (_MAGIC, _VERSION), MalformedError("not a program of this version"))
        graph = decode(data[_HEADER.size :][:length], Graph, max_bytes=MAX_GRAPH_BYTES)
        program = cls(graph, _read_constants(data[_HEADER.size + length :]))
        check_structure(program)
        ensure(program.to_bytes() == data, MalformedError("not the canonical encoding of its program"))
        dry_run(program, graph.batch or 2)
        return program

    def flatten(self, tensors: list[torch.Tensor]) -> Floats:
        """Return f32[n]: the parameters, in the program's order, one after the other."""
        parts = [tensor.detach().to("cpu", torch.float32).numpy().ravel() for tensor in tensors]
        return np.concatenate(parts)

    def unflatten(self, flat: Floats) -> list[torch.Tensor]:
        """Return fresh tensors, in the program's order, holding a copy of ``flat`` f32[n]."""
        assert flat.shape == (self.size,)
        tensors, start = [], 0
        for parameter in self.graph.parameters:
            count = _numel(parameter.shape)
            part = flat[start : start + count].astype(np.float32)  # a copy
            tensors.append(torch.from_numpy(part).reshape(parameter.shape))
            start += count
        return tensors


def to_safetensors(program: Program, checkpoint: bytes, statistics: Tensors | None = None) -> bytes:
    """Return a checkpoint as a safetensors file that ``load_state_dict`` of the owner's module accepts.

    ``statistics`` replace the running statistics of batch norm that the program holds.  Tied weights appear under each
    of their names.  Raises MalformedError if the
    checkpoint is not one of this program.
    """
    parameters, _ = unpack(checkpoint, program.size)
    names = [parameter.name for parameter in program.graph.parameters]
    tensors = (
        dict(zip(names, program.unflatten(parameters), strict=True)) | dict(program.constants) | dict(statistics or {})
    )
    stored: bytes = safetensors.torch.save({key: tensors[name].clone() for key, name in program.graph.state.items()})
    return stored


def check_structure(program: Program) -> None:
    """Raise a PeerError unless names, references, operators and sizes fit together (nothing is computed)."""
    graph = program.graph
    names = [parameter.name for parameter in graph.parameters]
    ensure(len(set(names) | set(graph.constants)) == len(names) + len(graph.constants), MalformedError("a name twice"))
    ensure(program.size <= MAX_PARAMETERS, OversizedError(f"{program.size} trained values"))
    ensure(all(_numel(p.shape) for p in graph.parameters), MalformedError("a parameter without values"))
    ensure(set(graph.constants) == set(program.constants), MalformedError("constants are not those of the graph"))
    known = set(names) | set(graph.constants)
    ensure(known >= set(graph.state.values()), MalformedError("the state names an unknown tensor"))
    ensure(all(sample.dtype in DTYPES for sample in graph.samples), MalformedError("a sample of unknown dtype"))
    ensure(all(p.group < len(graph.groups) for p in graph.parameters), MalformedError("a parameter of no group"))
    limits = {"parameter": len(names), "constant": len(graph.constants), "sample": len(graph.samples)}
    for forward in filter(None, (graph.train, graph.evaluate)):
        for position, entry in enumerate(forward.inputs):
            ensure(entry.index < limits[entry.kind], MalformedError(f"input {position} is no {entry.kind}"))
        _check_nodes(forward)
        ensure(set(graph.constants) >= set(forward.updates), MalformedError("statistics of an unknown constant"))


def _check_nodes(forward: Forward) -> None:
    values = len(forward.inputs)
    for node in forward.nodes:
        ensure(is_allowed(node.op), MalformedError(f"operator {node.op!r} is not on the list of allowed operators"))
        for argument in (*node.args, *node.kwargs.values()):
            read_argument(argument, values)
        values += 1
    ensure(forward.output < values, MalformedError("the loss is a value that does not exist"))
    ensure(all(value < values for value in forward.updates.values()), MalformedError("statistics that do not exist"))


def _read_constants(data: bytes) -> Tensors:
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, UnicodeError, OverflowError) as error:
        raise MalformedError(f"constants are not safetensors: {str(error)[:100]}") from None
    for name, tensor in tensors.items():
        usable = tensor.dtype in DTYPES.values() and tensor.ndim <= MAX_RANK
        ensure(usable, MalformedError(f"constant {name[:60]!r} has dtype {tensor.dtype} and {tensor.ndim} dimensions"))
    return dict(tensors)


def _numel(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
