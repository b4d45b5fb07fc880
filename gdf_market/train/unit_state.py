"""The state of a unit between two of its steps, as one canonical safetensors file.

Tensors, all float32 and flat, in this order: ``parameters``, then each kind of optimizer state (see
``optimizers.state_layout``), over the parameters that have it in the program's order; the number of steps done is
metadata.  The header follows from the program, the recipe and the step, so it is compared, not parsed: nothing that
a stranger wrote decides what is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.train.errors import DivergedError
from gdf_market.units import MAX_INT, PPB

PARAMETERS = "parameters"
ADAM_FIRST, ADAM_SECOND = "adam.first", "adam.second"
MUON_AVERAGE, SGD_AVERAGE = "muon.momentum", "sgd.momentum"

_MOST_COPIES = 3  # AdamW: the parameters and two moments of each
_MOST_HEADER = 1_024
_CHUNK = 1 << 16  # values at a time; fixed, because the order of additions is part of the value

Floats = npt.NDArray[np.float32]
Layout = Mapping[str, int]  # values of each kind of optimizer state, in the file's order


class StateError(MalformedError):
    """A file that is no state of this unit after this step, or one that no unit can reach."""

    reason = "unit-state"


@dataclass(frozen=True)
class UnitState:
    """After ``step`` steps: ``parameters`` f32[n], and f32 of each kind of optimizer state."""

    step: int
    parameters: Floats
    optimizer: Mapping[str, Floats]


def most_state_bytes(n: int) -> int:
    """Return the most bytes that a state of ``n`` parameters has under any recipe."""
    return _MOST_HEADER + _MOST_COPIES * 4 * n


def state_bytes(layout: Layout, n: int, step: int) -> int:
    """Return the bytes of the state of ``n`` parameters after ``step`` steps."""
    return len(_header(layout, n, step)) + 4 * (n + sum(layout.values()))


def pack_state(state: UnitState) -> bytes:
    """Return the one encoding of a state.  Raises DivergedError when a value is not finite."""
    tensors = (state.parameters, *state.optimizer.values())
    finite = all(bool(np.isfinite(tensor).all()) for tensor in tensors)
    ensure(finite, DivergedError(f"the state after step {state.step} holds values that are not finite"))
    layout = {name: tensor.size for name, tensor in state.optimizer.items()}
    header = _header(layout, state.parameters.size, state.step)
    return header + b"".join(tensor.astype("<f4").tobytes() for tensor in tensors)


def unpack_state(data: bytes, layout: Layout, n: int, step: int) -> UnitState:
    """Return the state of ``n`` parameters after ``step`` steps.

    Raises OversizedError or StateError for anything that ``pack_state`` does not write for this layout and step, and
    for a second moment below zero.
    """
    header = _header(layout, n, step)
    expected = len(header) + 4 * (n + sum(layout.values()))
    ensure(len(data) <= expected, OversizedError(f"a state of {len(data)} bytes; this unit's has {expected}"))
    same = data[: len(header)] == header
    ensure(same, StateError(f"not the state of this unit after step {step}; it begins with {data[:80]!r}"))
    ensure(len(data) == expected, StateError(f"a state of {len(data)} bytes; this unit's has {expected}"))
    values = np.frombuffer(data, "<f4", offset=len(header)).astype(np.float32)
    ensure(bool(np.isfinite(values).all()), StateError("the state holds values that are not finite"))
    tensors: dict[str, Floats] = {}
    start = n
    for name, size in layout.items():
        tensors[name] = values[start : start + size]
        start += size
    if ADAM_SECOND in tensors:
        lowest = float(tensors[ADAM_SECOND].min())
        ensure(lowest >= 0.0, StateError(f"a mean of squared gradients is {lowest}; none is below zero"))
    return UnitState(step, values[:n], tensors)


def _header(layout: Layout, n: int, step: int) -> bytes:
    """Return the safetensors header: its length, JSON, and spaces up to a multiple of eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"step": str(step)}}
    start = 0
    for name, size in ((PARAMETERS, n), *layout.items()):
        entries[name] = {"dtype": "F32", "shape": [size], "data_offsets": [start, start + 4 * size]}
        start += 4 * size
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    assert len(header) <= _MOST_HEADER
    return header


def state_distance_ppb(start: Floats, reference: UnitState, other: UnitState) -> int:
    """Return the distance of two states of one unit in ppb, at most MAX_INT; ``start`` f32[n] is the checkpoint.

    It is the largest relative L2 distance, |other - reference| / |reference|, over the change of the parameters
    and each kind of optimizer state: all that the next step depends on.
    """
    assert (reference.step, set(reference.optimizer)) == (other.step, set(other.optimizer))
    parts = [_relative_ppb(reference.parameters, other.parameters, start)]
    for name, values in reference.optimizer.items():
        parts.append(_relative_ppb(values, other.optimizer[name], np.zeros_like(values)))
    return max(parts)


def _relative_ppb(reference: Floats, other: Floats, origin: Floats) -> int:
    square = norm = 0.0
    for first in range(0, reference.size, _CHUNK):
        part = slice(first, first + _CHUNK)
        own = reference[part].astype(np.float64)
        square += float(np.square(other[part] - own).sum())
        norm += float(np.square(own - origin[part]).sum())
    if square == 0.0:
        return 0
    return min(MAX_INT, round(sqrt(square / norm) * PPB)) if norm else MAX_INT
