"""Dense blockwise codec of updates: 2..8-bit symmetric integers with one scale per block.

Layout, little-endian: ``GDFU``, version u8, bits u8, block u16, n u64; then one
u32 scale per block; then the codes, ``bits`` each in two's complement, packed from the least
significant bit.  A value is code * scale on the grid ``2**-GRID_BITS``, so
decoded values are exact integers and sums of them are the same everywhere.

Rules kept here:
1. One (n, bits, block) has one size, and every bit of it means something.
2. |value| <= MAX_VALUE; a block whose scale is 0 holds only zeros.
3. Only NumPy integer and correctly rounded float64 operations, no reductions in floating point.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.train.errors import DivergedError

GRID_BITS = 28  # decoded integers are multiples of 2**-28 (3.7e-9)
MAX_VALUE = 2**30 - 1  # of a decoded integer: |pseudo-gradient| < 4
MAX_PARAMETERS = 2**31

_HEADER = struct.Struct("<4sBBHQ")
_MAGIC = b"GDFU"
_VERSION = 1

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def encoded_size(n: int, bits: int, block: int) -> int:
    """Return the exact number of bytes of an update of ``n`` values."""
    return _HEADER.size + 4 * _blocks(n, block) + _packed_size(n, bits)


def encode_update(delta: npt.NDArray[Any], bits: int, block: int) -> bytes:
    """Return the bytes of ``delta`` f32[n], each value within half a step of its block.

    Raises DivergedError when a value is not finite or its block's largest
    magnitude is beyond the grid.
    """
    _check_shape(delta.size, bits, block)
    codes, scales = _quantise(np.ascontiguousarray(delta, dtype=np.float32).ravel(), bits, block)
    header = _HEADER.pack(_MAGIC, _VERSION, bits, block, delta.size)
    return header + scales.astype("<u4").tobytes() + _pack(codes, bits)


def decode_update(data: bytes, n: int, bits: int, block: int) -> Integers:
    """Return int64[n] on the grid.  Raises MalformedError for anything but an encoding of (n, bits, block)."""
    codes, scales = _decode(data, n, bits, block)
    return codes * np.repeat(scales, block)[:n]


def decode_steps(data: bytes, n: int, bits: int, block: int) -> Integers:
    """Return int64[n]: the quantisation step, on the grid, that each value was rounded with.

    Raises MalformedError as ``decode_update`` does.
    """
    _, scales = _decode(data, n, bits, block)
    return np.repeat(scales, block)[:n]


def _quantise(delta: Floats, bits: int, block: int) -> tuple[Integers, Integers]:
    """Return codes int64[n] and scales int64[blocks]."""
    top = _top_code(bits)
    finite = np.isfinite(delta)
    ensure(bool(finite.all()), DivergedError(f"the update holds {int((~finite).sum())} values that are not finite"))
    on_grid = np.zeros(_blocks(delta.size, block) * block, np.float64)
    on_grid[: delta.size] = delta.astype(np.float64) * 2.0**GRID_BITS  # exact: a power of two
    rows = on_grid.reshape(-1, block)
    scales = np.ceil(np.abs(rows).max(axis=1) / top)  # rounded up, so that no value is clipped
    largest = scales.max() * top
    ensure(
        largest <= MAX_VALUE,
        DivergedError(f"the update holds a value of {largest / 2**GRID_BITS:.3g}; lower the learning rate"),
    )
    # np.rint rounds half to even
    codes = np.rint(rows / np.maximum(scales, 1.0)[:, None]).astype(np.int64)
    return codes.ravel()[: delta.size], scales.astype(np.int64)


def _decode(data: bytes, n: int, bits: int, block: int) -> tuple[Integers, Integers]:
    _check_shape(n, bits, block)
    expected = encoded_size(n, bits, block)
    ensure(len(data) == expected, MalformedError(f"update of {len(data)} bytes; {n} values take {expected}"))
    ensure(
        data[: _HEADER.size] == _HEADER.pack(_MAGIC, _VERSION, bits, block, n),
        MalformedError(f"update's header is not that of {n} values of {bits} bits in blocks of {block}"),
    )
    blocks, top = _blocks(n, block), _top_code(bits)
    scales = np.frombuffer(data, "<u4", blocks, _HEADER.size).astype(np.int64)
    ensure(int(scales.max()) * top <= MAX_VALUE, MalformedError("update holds a scale beyond the grid"))
    codes = _unpack(np.frombuffer(data, np.uint8, offset=_HEADER.size + 4 * blocks), n, bits)
    ensure(int(codes.min()) >= -top, MalformedError("update holds an unused code"))
    empty = np.repeat(scales == 0, block)[:n]
    ensure(not codes[empty].any(), MalformedError("update holds codes in a block whose scale is 0"))
    return codes, scales


def _pack(codes: Integers, bits: int) -> bytes:
    unsigned = (codes & ((1 << bits) - 1)).astype(np.uint8)
    planes = np.unpackbits(unsigned[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(planes.ravel(), bitorder="little").tobytes()


def _unpack(packed: npt.NDArray[np.uint8], n: int, bits: int) -> Integers:
    stream = np.unpackbits(packed, bitorder="little")
    ensure(not stream[n * bits :].any(), MalformedError("update's unused last bits are not zero"))
    unsigned = np.packbits(stream[: n * bits].reshape(n, bits), axis=1, bitorder="little")[:, 0].astype(np.int64)
    return np.where(unsigned >= 1 << (bits - 1), unsigned - (1 << bits), unsigned)


def _check_shape(n: int, bits: int, block: int) -> None:
    ensure(1 <= n <= MAX_PARAMETERS, MalformedError(f"{n} values; 1 to {MAX_PARAMETERS} can be encoded"))
    ensure(2 <= bits <= 8, MalformedError(f"{bits} bits; 2 to 8 are possible"))
    ensure(16 <= block <= 4_096, MalformedError(f"blocks of {block}; 16 to 4096 are possible"))


def _top_code(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _blocks(n: int, block: int) -> int:
    return -(-n // block)


def _packed_size(n: int, bits: int) -> int:
    return -(-n * bits // 8)
