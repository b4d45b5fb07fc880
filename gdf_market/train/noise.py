"""Dropout that anybody can repeat: each mask is a pure function of the unit, the step, the node and the row.

Rows are drawn one after the other from one stream of raw 64-bit words (PCG64, which NumPy keeps stable, NEP 19), a
whole number of words a row.  So a part of a batch gets the masks that its rows have in the whole batch, and neither the
device nor the size of micro-batches changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gdf_market.codec import digest
from gdf_market.errors import MalformedError, ensure
from gdf_market.train.random import pcg64

_PER_WORD = 4  # 16 bits decide about one value
_LEVELS = 1 << 16


@dataclass(frozen=True)
class Noise:
    """The masks of one step; ``first_row`` is the place of the samples' first row in the unit's batch."""

    seed: bytes  # 32 bytes, of the unit
    step: int
    batch: int  # rows of the samples that are computed now
    first_row: int = 0

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return ``tensor`` with a share ``p`` (rounded to 2**-16) of its values zero and the others scaled up.

        Rows are those of the batch: dimension 0 has to be a multiple of it.
        """
        ensure(0.0 <= p < 1.0, MalformedError(f"dropout with p={p}"))
        cut = round(p * _LEVELS)
        if tensor.device.type == "meta" or cut == 0:
            return tensor.clone()
        keep = torch.from_numpy(self._keep(node, tuple(tensor.shape), cut)).to(tensor.device)
        return tensor * (keep.to(tensor.dtype) * (_LEVELS / (_LEVELS - cut)))

    def _keep(self, node: int, shape: tuple[int, ...], cut: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        ensure(
            len(shape) > 0 and shape[0] % self.batch == 0,
            MalformedError(f"dropout of a tensor {list(shape)} whose first dimension is not the batch of {self.batch}"),
        )
        per_row = int(np.prod(shape, dtype=np.int64)) // self.batch
        words = -(-per_row // _PER_WORD)
        place = self.step.to_bytes(8, "big") + node.to_bytes(8, "big")
        generator = pcg64(digest("gdf/dropout", self.seed, place))
        generator.advance(words * self.first_row)
        drawn = generator.random_raw(words * self.batch).astype("<u8").view("<u2").reshape(self.batch, -1)
        return np.ascontiguousarray(drawn[:, :per_row] >= cut).reshape(shape)


class _NoNoise:
    """For programs without dropout, and for shapes alone."""

    def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
        ensure(tensor.device.type == "meta", MalformedError("dropout outside a training step"))
        ensure(0.0 <= p < 1.0, MalformedError(f"dropout with p={p}"))
        return tensor.clone()


NO_NOISE: Noise | _NoNoise = _NoNoise()
