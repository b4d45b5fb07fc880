"""Cheats, for test networks: what a worker would hand in that saves work or does harm.

The sketches are those the cheat would plausibly commit to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from gdf_market.codec import sha256
from gdf_market.messages import Recipe
from gdf_market.train.data import Array, Batch, DataManifest
from gdf_market.train.unit import Sketch, UnitRun

Floats = npt.NDArray[np.float32]
Run = Callable[[Iterable[Batch]], UnitRun]


@dataclasses.dataclass(frozen=True)
class Labels:
    """The range of the last sample's values, where they are integers."""

    low: int
    high: int

    @classmethod
    def of(cls, manifest: DataManifest) -> Labels:
        if manifest.kind == "tokens":
            return cls(0, manifest.vocab - 1)
        field = manifest.fields[-1]
        return cls(0, 255) if field.dtype == "uint8" else cls(field.low, field.high)

    def flip(self, labels: Array) -> Array:
        """Return other labels: the range turned round, truth for falsehood, or the other sign."""
        if labels.dtype == np.bool_:
            return ~labels
        return -labels if labels.dtype.kind == "f" else (self.low + self.high - labels).astype(labels.dtype)


def run_poisoned(
    kind: str, run: Run, batches: Iterable[Batch], n: int, recipe: Recipe, labels: Labels, sketch: Sketch
) -> UnitRun:
    """Return what a cheat of ``kind`` hands in; ``run`` does an honest unit on the batches it is given."""
    if kind == "label-flip":
        return run((*batch[:-1], labels.flip(batch[-1])) for batch in batches)
    if kind == "noise":
        return _noise(batches, n, recipe, sketch)
    if kind == "lazy":
        return _half(run, batches, recipe)
    assert kind == "sign-flip"
    honest = run(batches)
    negated = tuple(tuple(-value for value in sketch) for sketch in honest.sketches)  # a sketch is linear
    return dataclasses.replace(honest, delta=-honest.delta, sketches=negated)


def _half(run: Run, batches: Iterable[Batch], recipe: Recipe) -> UnitRun:
    """Do half of the steps and repeat the last sketch for those left out."""
    kept = [batch for step, batch in enumerate(batches) if step < max(1, recipe.steps // 2)]
    done = run(kept)
    missing = recipe.steps - len(done.sketches)
    return dataclasses.replace(done, sketches=done.sketches + missing * done.sketches[-1:])


def _noise(batches: Iterable[Batch], n: int, recipe: Recipe, sketch: Sketch) -> UnitRun:
    """Compute nothing: a random update about as large as an honest one, growing evenly over the steps."""
    scale = recipe.lr_e9 / 1e9 * recipe.steps / 4
    seed = sha256(next(iter(batches))[0].tobytes())  # another one for each unit
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
    delta = (generator.standard_normal(n) * scale).astype(np.float32)
    parts = (np.float32((step + 1) / recipe.steps) * delta for step in range(recipe.steps))
    return UnitRun(delta, tuple(sketch(part) for part in parts), 0.0, 0.0)
