"""The codec of updates: all values or the largest ones, as blockwise 2..8-bit integers, compressed where it gains.

Layout, little-endian: ``GDFU``, version u8, bits u8, block u16, density_ppm u32, form u32, n u64;
then the body (form 0) or one Zstandard frame of it (form 1).  The body is: the gaps between the held
places, if not all are held; the scales, one per block of held values, as four planes of bytes;
the codes, ``bits`` each in two's complement, packed from the least significant bit.
A value is code * scale on the grid ``2**-GRID_BITS``, so decoded values are exact integers and sums of
them are the same everywhere.

Rules kept here:
1. One update has one body, every bit of it means something, and its size follows from (n, bits, block,
   density) or is bounded by them before anything is allocated.
2. |value| <= MAX_VALUE; a block whose scale is 0 holds only zeros.
3. Only integers and correctly rounded float64 operations, no reductions in floating point.
4. Compressed bytes may differ between versions of Zstandard, and one body has several encodings.  Nothing
   may conclude anything from the bytes, or the blob ids, of two updates being equal or different.
   Nothing does: twins and copies are found by the Gram matrix of decoded values (verifier/similarity.py),
   audits compare values (verifier/verdict.py), and a commit binds its author's own bytes to its own reveal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.messages import Recipe
from gdf_market.train import codec_blocks as blocks
from gdf_market.train import codec_support as support
from gdf_market.train.codec_blocks import GRID_BITS, MAX_VALUE, Codes, Floats, Integers
from gdf_market.train.codec_frame import compress, decompress
from gdf_market.train.codec_support import Places
from gdf_market.units import PPM

__all__ = ["GRID_BITS", "MAX_PARAMETERS", "MAX_VALUE", "Codec", "Quantised"]

MAX_PARAMETERS = 2**31

_HEADER = struct.Struct("<4sBBHIIQ")
_MAGIC = b"GDFU"
_VERSION = 2
_PLAIN, _COMPRESSED = 0, 1


@dataclass(frozen=True)
class Quantised:
    """An update before it is bytes, or after: ``codes`` int8[k], ``scales`` int32[blocks], and whose values these are.

    ``places`` are int64[k], ascending, of ``n`` values; None means all.
    """

    n: int
    block: int
    places: Places | None
    codes: Codes
    scales: Integers

    def values(self) -> Integers:
        """Return int32[k]: the held values on the grid."""
        return blocks.values_of(self.codes, self.scales, self.block)

    def steps(self) -> Integers:
        """Return int32[k]: the quantisation step, on the grid, that each held value was rounded with."""
        return blocks.steps_of(self.scales, self.codes.size, self.block)

    def spread(self, held: Integers) -> Integers:
        """Return int32[n]: ``held`` int32[k] in their places, 0 elsewhere."""
        if self.places is None:
            return held
        everywhere = np.zeros(self.n, np.int32)
        everywhere[self.places] = held
        return everywhere


@dataclass(frozen=True)
class Codec:
    """How a job's updates are encoded.  Raises MalformedError for parameters that no recipe may have."""

    bits: int
    block: int
    density_ppm: int = PPM  # share of the values that an update holds; PPM: all

    def __post_init__(self) -> None:
        ensure(2 <= self.bits <= 8, MalformedError(f"{self.bits} bits; 2 to 8 are possible"))
        ensure(16 <= self.block <= 4_096, MalformedError(f"blocks of {self.block}; 16 to 4096 are possible"))
        ensure(0 <= self.density_ppm <= PPM, MalformedError(f"a density of {self.density_ppm} ppm; 0 to {PPM} exist"))

    @classmethod
    def of(cls, recipe: Recipe) -> Codec:
        """Return the codec of a recipe."""
        return cls(recipe.codec_bits, recipe.codec_block, recipe.codec_density_ppm)

    @property
    def dense(self) -> bool:
        """Say whether updates hold all values."""
        return self.density_ppm == PPM

    def held(self, n: int) -> int:
        """Return how many of ``n`` values an update holds."""
        return n if self.dense else support.support_size(n, self.density_ppm)

    def max_bytes(self, n: int) -> int:
        """Return the most bytes of an update of ``n`` values."""
        return _HEADER.size + self._body_limits(n)[1]

    def expected_bytes(self, n: int) -> int:
        """Return about how many bytes an update has before compression, for estimates; exact if dense."""
        places = 0 if self.dense else support.gaps_expected(self.held(n), n)
        return _HEADER.size + places + self._coded_size(n)

    def encode(self, delta: npt.NDArray[Any]) -> bytes:
        """Return the bytes of ``delta`` f32[n], each held value within half a step of its block.

        Raises DivergedError when a value is not finite or beyond the grid.
        """
        return self.write(self.quantise(delta))

    def encode_with_feedback(self, delta: Floats, residual: Floats) -> tuple[bytes, Floats]:
        """Return (bytes of delta + residual, what they leave out: the next ``residual`` f32[n]).

        Error feedback (Seide et al. 2014; Karimireddy et al. 2019).  For experiments only: a unit that depends on
        the residual of earlier rounds cannot be repeated by an auditor, so no verified job uses it (adr/0011).
        """
        wanted = np.add(delta, residual, dtype=np.float32)
        made = self.quantise(wanted)
        sent = made.spread(made.values()).astype(np.float32) * np.float32(2.0**-GRID_BITS)
        return self.write(made), wanted - sent

    def quantise(self, delta: npt.NDArray[Any]) -> Quantised:
        """Return what ``encode`` writes.  Raises DivergedError as it does."""
        values = np.ascontiguousarray(delta, dtype=np.float32).ravel()
        self._check_count(values.size)
        blocks.check_finite(values)
        places = None if self.dense else support.largest(values, self.held(values.size))
        held = values if places is None else values[places]
        return Quantised(values.size, self.block, places, *blocks.quantise(held, self.bits, self.block))

    def decode(self, data: bytes, n: int) -> Integers:
        """Return int32[n] on the grid, 0 where nothing is held.

        Raises MalformedError for anything but an update of ``n`` values of this codec.
        """
        read = self.read(data, n)
        return read.spread(read.values())

    def steps(self, data: bytes, n: int) -> Integers:
        """Return int32[n]: the step, on the grid, that each value was rounded with, 0 where nothing is held.

        Raises MalformedError as ``decode`` does.
        """
        read = self.read(data, n)
        return read.spread(read.steps())

    def read(self, data: bytes, n: int) -> Quantised:
        """Return what an update holds.  Raises MalformedError as ``decode`` does."""
        body = np.frombuffer(self._body(data, n), np.uint8)
        k = self.held(n)
        coded = body.size - self._coded_size(n)
        places = None if self.dense else support.gaps_from_bytes(body[:coded], k, n)
        codes_at = coded + 4 * blocks.block_count(k, self.block)
        scales = blocks.scales_from_bytes(body[coded:codes_at])
        codes = blocks.unpack(body[codes_at:], k, self.bits)
        blocks.check_codes(codes, scales, self.bits, self.block)
        return Quantised(n, self.block, places, codes, scales)

    def write(self, made: Quantised) -> bytes:
        """Return the bytes of what was quantised with this codec."""
        places = b"" if made.places is None else support.gaps_to_bytes(made.places)
        body = places + blocks.scales_to_bytes(made.scales) + blocks.pack(made.codes, self.bits)
        frame = compress(body)
        if len(frame) < len(body):
            return self._header(_COMPRESSED, made.n) + frame
        return self._header(_PLAIN, made.n) + body

    def _body(self, data: bytes, n: int) -> bytes:
        self._check_count(n)
        least, most = self._body_limits(n)
        ensure(
            len(data) <= _HEADER.size + most,
            MalformedError(f"update of {len(data)} bytes; {n} values take at most {_HEADER.size + most}"),
        )
        header, rest = data[: _HEADER.size], data[_HEADER.size :]
        if header == self._header(_PLAIN, n):
            ensure(least <= len(rest), MalformedError(f"update's body of {len(rest)} bytes; at least {least} expected"))
            return rest
        ensure(
            header == self._header(_COMPRESSED, n), MalformedError(f"update's header is not that of {n} values: {self}")
        )
        body = decompress(rest, least, most)
        ensure(len(rest) < len(body), MalformedError("update is compressed without a gain"))
        return body

    def _header(self, form: int, n: int) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, self.bits, self.block, self.density_ppm, form, n)

    def _body_limits(self, n: int) -> tuple[int, int]:
        """Return the fewest and the most bytes of a body, which are the same if dense."""
        k, coded = self.held(n), self._coded_size(n)
        return (coded, coded) if self.dense else (k + coded, support.gaps_limit(k, n) + coded)

    def _coded_size(self, n: int) -> int:
        """Return the bytes of scales and codes."""
        k = self.held(n)
        return 4 * blocks.block_count(k, self.block) + blocks.packed_size(k, self.bits)

    def _check_count(self, n: int) -> None:
        ensure(1 <= n <= MAX_PARAMETERS, MalformedError(f"{n} values; 1 to {MAX_PARAMETERS} can be encoded"))
