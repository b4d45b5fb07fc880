"""The images that are trained on, and their division into shards, evenly or unevenly over the classes."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdf_market.errors import UsageError, ensure

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

CLASSES = 10
DIRICHLET = 0.3  # concentration of a shard's class shares in the uneven division
TEST_PART = 0.3  # of the digits
IMAGES = "/usr/share/datasets/fashion-mnist"


@dataclass(frozen=True)
class Images:
    """Pixels f32[N, d] within 0..1 and labels int64[N], to train on and to test with."""

    name: str
    x: Floats
    y: Integers
    test_x: Floats
    test_y: Integers
    side: int


def digits(x: Floats, y: Integers) -> Images:
    """Return scikit-learn's digits (8 x 8, values 0..16), of which a fixed 30% are for the test."""
    order = np.random.default_rng(0).permutation(len(x))
    cut = round(len(x) * TEST_PART)
    scaled = (x / 16).astype(np.float32)
    test, train = order[:cut], order[cut:]
    return Images("digits", scaled[train], y[train], scaled[test], y[test], 8)


def fashion(folder: Path, *, pooled: bool) -> Images:
    """Return Fashion-MNIST from its four files; ``pooled``: means of 2 x 2 pixels.  Raises UsageError without them."""
    (x, y), (test_x, test_y) = (_read(folder, name, pooled) for name in ("train", "t10k"))
    return Images("fashion-mnist", x, y, test_x, test_y, 14 if pooled else 28)


def _read(folder: Path, name: str, pooled: bool) -> tuple[Floats, Integers]:
    files = [folder / f"{name}-images-idx3-ubyte.gz", folder / f"{name}-labels-idx1-ubyte.gz"]
    missing = [str(path) for path in files if not path.is_file()]
    ensure(
        not missing,
        UsageError(f"no {missing[0] if missing else ''}: install Debian's dataset-fashion-mnist or give --images"),
    )
    pixels, labels = (gzip.decompress(path.read_bytes()) for path in files)
    images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28).astype(np.float32) / np.float32(255)
    if pooled:
        images = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4), dtype=np.float32)
    return images.reshape(len(images), -1), np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


def divide(labels: Integers, shards: int, *, uneven: bool, seed: int) -> list[Integers]:
    """Return for each shard the samples in it, all shards of one size.

    Uneven: a shard's class shares are drawn from Dirichlet(0.3), its samples from those classes, with repetition.
    """
    generator = np.random.default_rng([seed, 1])
    size = len(labels) // shards
    if not uneven:
        return [part[:size] for part in np.array_split(generator.permutation(len(labels)), shards)]
    by_class = [np.flatnonzero(labels == label) for label in range(CLASSES)]
    found = []
    for _ in range(shards):
        drawn = generator.choice(CLASSES, size, p=generator.dirichlet([DIRICHLET] * CLASSES))
        found.append(np.array([generator.choice(by_class[label]) for label in drawn], np.int64))
    return found
