"""Blockwise quantisation: 2..8-bit symmetric codes with one scale per block, and their packed bytes.

A value is code * scale on the grid ``2**-GRID_BITS``.  Only NumPy's elementwise
integer and correctly rounded float64 operations and integer reductions are used,
on pieces that stay in a core's cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.train.errors import DivergedError

GRID_BITS = 28  # decoded integers are multiples of 2**-28 (3.7e-9)
MAX_VALUE = 2**30 - 1  # of a decoded integer: |pseudo-gradient| < 4

_CHUNK = 1 << 15  # values at a time: their float64 take a quarter of a MiB
_WORDS = {2: "<u2", 4: "<u4", 8: "<u8"}  # eight codes of so many bits are one machine word
_INFINITY = 0x7F80_0000  # bits of the smallest float32 that is not finite, without its sign

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]
Integers = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


def block_count(n: int, block: int) -> int:
    """Return how many blocks ``n`` values make."""
    return -(-n // block)


def packed_size(n: int, bits: int) -> int:
    """Return the bytes of ``n`` packed codes."""
    return -(-n * bits // 8)


def top_code(bits: int) -> int:
    """Return the largest code; the smallest is its opposite."""
    return (1 << (bits - 1)) - 1


def magnitudes(values: Floats) -> Integers:
    """Return int32[n] that order as |values| do: the bits without the sign; from _INFINITY on none is finite."""
    return np.bitwise_and(values.view(np.int32), np.int32(0x7FFF_FFFF))


def check_finite(delta: Floats) -> None:
    """Raise DivergedError when a value is not finite."""
    wrong = sum(
        int(np.count_nonzero(magnitudes(delta[start : start + _CHUNK]) >= _INFINITY))
        for start in range(0, delta.size, _CHUNK)
    )
    ensure(wrong == 0, DivergedError(f"the update holds {wrong} values that are not finite"))


def quantise(delta: Floats, bits: int, block: int) -> tuple[Codes, Integers]:
    """Return (codes int8[n], scales int32[blocks]) of finite ``delta`` f32[n].

    A scale is rounded up, so that no value is clipped; codes are rounded half to even.
    Raises DivergedError when a value is beyond the grid.
    """
    codes, scales = np.empty(delta.size, np.int8), np.empty(block_count(delta.size, block), np.int32)
    full = delta.size // block
    rows_per_chunk = max(1, _CHUNK // block)
    rows, row_codes = delta[: full * block].reshape(-1, block), codes[: full * block].reshape(-1, block)
    for start in range(0, full, rows_per_chunk):
        part = slice(start, min(start + rows_per_chunk, full))
        row_codes[part], scales[part] = _quantise_rows(rows[part], bits)
    if full < scales.size:
        last = np.zeros((1, block), np.float32)
        last[0, : delta.size - full * block] = delta[full * block :]
        rounded, scales[full:] = _quantise_rows(last, bits)
        codes[full * block :] = rounded[0, : delta.size - full * block]
    return codes, scales


def _quantise_rows(rows: Floats, bits: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return codes and scales of blocks f32[r, block], as whole float64."""
    largest = magnitudes(rows).max(axis=1).view(np.float32).astype(np.float64)
    top = top_code(bits)
    scales = np.ceil(largest * 2.0**GRID_BITS / top)
    reach = float(scales.max()) * top
    ensure(
        reach <= MAX_VALUE,
        DivergedError(f"the update holds a value of {reach / 2**GRID_BITS:.3g}; lower the learning rate"),
    )
    on_grid = np.multiply(rows, 2.0**GRID_BITS, dtype=np.float64)  # exact: a power of two
    np.divide(on_grid, np.maximum(scales, 1.0)[:, None], out=on_grid)
    return np.rint(on_grid, out=on_grid), scales


def values_of(codes: Codes, scales: Integers, block: int) -> Integers:
    """Return int32[n]: code * scale."""
    values = np.empty(codes.size, np.int32)
    full = codes.size // block
    whole = slice(0, full * block)
    column = scales[:full, None]
    np.multiply(codes[whole].reshape(-1, block), column, out=values[whole].reshape(-1, block), dtype=np.int32)
    if full < scales.size:
        np.multiply(codes[full * block :], scales[full], out=values[full * block :], dtype=np.int32)
    return values


def steps_of(scales: Integers, n: int, block: int) -> Integers:
    """Return int32[n]: the scale of each value's block."""
    return np.repeat(scales, block)[:n]


def check_codes(codes: Codes, scales: Integers, bits: int, block: int) -> None:
    """Raise MalformedError for codes and scales that no encoder writes."""
    top = top_code(bits)
    ensure(int(scales.view(np.uint32).max()) * top <= MAX_VALUE, MalformedError("update holds a scale beyond the grid"))
    ensure(int(codes.min()) >= -top, MalformedError("update holds an unused code"))
    for empty in np.flatnonzero(scales == 0).tolist():
        used = codes[empty * block : (empty + 1) * block].any()
        ensure(not used, MalformedError("update holds codes in a block whose scale is 0"))


def scales_to_bytes(scales: Integers) -> bytes:
    """Return four planes: the lowest byte of every scale, then the next ones.  They compress better than u32."""
    return scales.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def scales_from_bytes(data: Bytes) -> Integers:
    """Return int32[len(data) / 4]; a scale of 2**31 or more comes out negative, and ``check_codes`` refuses it."""
    return np.ascontiguousarray(data.reshape(4, -1).T).view("<u4").ravel().astype(np.uint32).view(np.int32)


def pack(codes: Codes, bits: int) -> bytes:
    """Return the codes in two's complement of ``bits`` each, packed from the least significant bit."""
    packed = np.zeros(-(-codes.size // 8) * bits, np.uint8)
    for start in range(0, codes.size, _CHUNK):
        part = codes[start : start + _CHUNK]
        if part.size % 8:
            part = np.concatenate([part, np.zeros(-part.size % 8, np.int8)])
        words = _gather(part.view("<u8").astype(np.uint64), bits)
        target = packed[start // 8 * bits :][: words.size * bits]
        if bits in _WORDS:
            target.view(_WORDS[bits])[:] = words.astype(_WORDS[bits])  # drops the high bytes, which are zero
        else:
            octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)
            for i in range(bits):
                target[i::bits] = octets[:, i]
    return packed[: packed_size(codes.size, bits)].tobytes()


def unpack(packed: Bytes, n: int, bits: int) -> Codes:
    """Return int8[n].  Raises MalformedError when unused last bits are set."""
    padded = -(-n // 8) * 8
    codes = np.empty(padded, np.int8)
    for start in range(0, padded, _CHUNK):
        target = codes[start : start + _CHUNK]
        part = packed[start // 8 * bits :][: target.size // 8 * bits]
        if part.size % bits:
            part = np.concatenate([part, np.zeros(-part.size % bits, np.uint8)])
        words = _scatter(_to_words(part, bits), bits)
        octets = target.view(np.uint8)
        octets.view("<u8")[:] = words
        sign = np.uint8(1 << (bits - 1))
        np.bitwise_xor(octets, sign, out=octets)
        np.subtract(octets, sign, out=octets)  # wraps around: two's complement of eight bits
    ensure(not codes[n:].any(), MalformedError("update's unused last bits are not zero"))
    return codes[:n]


def _to_words(part: Bytes, bits: int) -> Words:
    """Return u64[len / bits], each of ``bits`` bytes."""
    if bits in _WORDS:
        if part.ctypes.data % bits:
            part = part.copy()
        return part.view(_WORDS[bits]).astype(np.uint64)
    octets = np.zeros((part.size // bits, 8), np.uint8)
    for i in range(bits):
        octets[:, i] = part[i::bits]
    return octets.view("<u8").ravel().astype(np.uint64)


def _gather(words: Words, bits: int) -> Words:
    """Move the low ``bits`` of each of a word's eight bytes together, in three rounds of neighbours."""
    if bits == 8:
        return words
    words &= _lanes(8, bits)
    for lane in (16, 32, 64):
        width = bits * lane // 16  # bits that each half of a lane holds
        low = _lanes(lane, width)
        words = (words & low) | ((words >> np.uint64(lane // 2 - width)) & (low << np.uint64(width)))
    return words


def _scatter(words: Words, bits: int) -> Words:
    """The inverse of ``_gather``; every byte's high bits are zero."""
    if bits == 8:
        return words
    for lane in (64, 32, 16):
        width = bits * lane // 16
        low = _lanes(lane, width)
        words = (words & low) | ((words << np.uint64(lane // 2 - width)) & (low << np.uint64(lane // 2)))
    return words


def _lanes(lane: int, width: int) -> np.uint64:
    """Return a mask of the low ``width`` bits of every ``lane`` bits."""
    return np.uint64(sum(((1 << width) - 1) << start for start in range(0, 64, lane)))
