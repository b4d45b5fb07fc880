"""The bytes of a checkpoint: trained parameters and outer momentum as flat float32 vectors.

Layout, little-endian: ``GDFC``, version u8, momentum flag u8, u16 zero, n u64,
parameters f32[n], and momentum f32[n] only if any of it is not zero.  One pair
of vectors has one encoding, because its hash is agreed on.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.train.errors import DivergedError

_HEADER = struct.Struct("<4sBBHQ")
_MAGIC = b"GDFC"
_VERSION = 1

Floats = npt.NDArray[np.float32]


def pack(parameters: Floats, momentum: Floats) -> bytes:
    """Return the bytes of ``parameters`` f32[n] and ``momentum`` f32[n].

    Raises DivergedError when a value is not finite.
    """
    assert parameters.shape == momentum.shape
    assert parameters.ndim == 1
    both_finite = bool(np.isfinite(parameters).all() and np.isfinite(momentum).all())
    ensure(both_finite, DivergedError("the checkpoint holds values that are not finite"))
    moving = bool(momentum.any())
    data = _HEADER.pack(_MAGIC, _VERSION, moving, 0, parameters.size) + parameters.astype("<f4").tobytes()
    return data + momentum.astype("<f4").tobytes() if moving else data


def unpack(data: bytes, n: int) -> tuple[Floats, Floats]:
    """Return (parameters f32[n], momentum f32[n]) of a packed checkpoint.  Raises MalformedError."""
    for moving in (False, True):
        if data[: _HEADER.size] == _HEADER.pack(_MAGIC, _VERSION, moving, 0, n):
            break
    else:
        raise MalformedError(f"not a checkpoint of {n} parameters")
    expected = _HEADER.size + 4 * n * (1 + moving)
    ensure(len(data) == expected, MalformedError(f"checkpoint of {len(data)} bytes; {expected} expected"))
    values = np.frombuffer(data, "<f4", offset=_HEADER.size).astype(np.float32)
    ensure(bool(np.isfinite(values).all()), MalformedError("checkpoint holds values that are not finite"))
    parameters = values[:n]
    momentum = values[n:] if moving else np.zeros(n, np.float32)
    ensure(not moving or bool(momentum.any()), MalformedError("checkpoint stores a momentum that is all zero"))
    return parameters, momentum


def packed_size(n: int) -> int:
    """Return the most bytes that a checkpoint of ``n`` parameters has."""
    return _HEADER.size + 8 * n
