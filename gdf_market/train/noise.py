"""Dropout that anybody can repeat: each mask is a pure function of the unit, the step, the node and the row.

Rows are drawn one after the other from one stream of raw 64-bit words (PCG64, which NumPy keeps stable, NEP 19), a
whole number of words a row.  So a part of a batch gets the masks that its rows have in the whole batch, and neither the
device nor the size of micro-batches changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gdf_market.codec import digest
from gdf_market.errors import MalformedError, ensure
from gdf_market.train.random import pcg64

_PER_WORD = 4  # 16 bits decide about one value
_LEVELS = 1 << 16


class Source(Protocol):
    """What computes ``noise.dropout`` for the interpreter."""

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return ``tensor`` after dropout with probability ``p``; ``node`` is the number of the value."""
        ...


@dataclass(frozen=True)
class Noise:
    """The masks of one step; ``first_row`` is the place of the samples' first row in the unit's batch."""

    seed: bytes  # 32 bytes, of the unit
    step: int
    batch: int  # rows of the samples that are computed now
    first_row: int = 0

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return ``tensor`` with a share ``p`` (rounded to 2**-16) of its values zero and the others scaled up.

        Where dimension 0 is a multiple of the batch, each row of the batch has masks of its own.  Any other tensor is
        drawn as a whole; the program of such a one is not separable.
        """
        cut = cut_of(p)
        if tensor.device.type == "meta" or cut == 0:
            return tensor.clone()
        keep = torch.from_numpy(self._keep(node, tuple(tensor.shape), cut)).to(tensor.device)
        return tensor * (keep.to(tensor.dtype) * (_LEVELS / (_LEVELS - cut)))

    def _keep(self, node: int, shape: tuple[int, ...], cut: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        by_rows = len(shape) > 0 and shape[0] % self.batch == 0
        rows, first = (self.batch, self.first_row) if by_rows else (1, 0)
        per_row = int(np.prod(shape, dtype=np.int64)) // rows
        words = -(-per_row // _PER_WORD)
        place = self.step.to_bytes(8, "big") + node.to_bytes(8, "big")
        generator = pcg64(digest("gdf/dropout", self.seed, place))
        generator.advance(words * first)
        drawn = generator.random_raw(words * rows).astype("<u8").view("<u2").reshape(rows, -1)
        return np.ascontiguousarray(drawn[:, :per_row] >= cut).reshape(shape)


def cut_of(p: object) -> int:
    """Return how many of 2**16 levels are dropped.  Raises MalformedError unless ``p`` is a float in [0, 1)."""
    ensure(isinstance(p, float) and 0.0 <= p < 1.0, MalformedError(f"dropout with p={str(p)[:40]}; it is in [0, 1)"))
    assert isinstance(p, float)
    return min(round(p * _LEVELS), _LEVELS - 1)


class _NoNoise:
    """For programs without dropout, and for shapes alone."""

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        ensure(tensor.device.type == "meta", MalformedError("dropout outside a training step"))
        return tensor.clone()


class _Identity:
    """Nothing is dropped: evaluation, and passes that gather the statistics of batch norm."""

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        return tensor


NO_NOISE: Source = _NoNoise()
IDENTITY: Source = _Identity()
