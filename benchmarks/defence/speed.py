"""Robust aggregation of 20 updates of a million values on one thread: ours, exact in integers, and the peers'."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.defence.images import Floats
from benchmarks.defence.peers import Peers
from gdf_market.train.codec import GRID_BITS, Codec
from verifier.aggregate import nnm_trimmed_mean, tolerated
from verifier.gram import gram

COUNT = 20
VALUES = 1_000_000
_SAME_RULE = ("ByzFL NNM + TrMean", "ByzPy NNM + trimmed mean")
_OTHERS = (
    "ByzFL Median", "ByzFL TrMean", "ByzFL MultiKrum", "ByzPy median", "ByzPy trimmed mean", "ByzPy MultiKrum",
    "ByzPy GeometricMedian",
)  # fmt: skip


def measure(peers: Peers, repeat: int, values: int = VALUES) -> dict[str, Any]:
    """Return the best CPU seconds of each, and how far the peers' aggregates are from ours, relative to its norm."""
    generator = np.random.default_rng(0)
    common = generator.standard_normal(values)
    floats = np.stack([0.01 * (common + generator.standard_normal(values)) for _ in range(COUNT)]).astype(np.float32)
    codec = Codec(bits=4, block=64)
    decoded = [codec.quantise(row).values() for row in floats]
    rows: Floats = np.stack(decoded).astype(np.float32) * np.float32(2.0**-GRID_BITS)
    total, divisor = nnm_trimmed_mean(decoded, gram(decoded))
    ours = total / (divisor * 2.0**GRID_BITS)
    found: dict[str, Any] = {
        "Gram matrix, exact": {"seconds": _best(lambda: gram(decoded), repeat)},
        "NNM + trimmed mean from it, exact": {"seconds": 0.0},
    }
    matrix = gram(decoded)
    found["NNM + trimmed mean from it, exact"]["seconds"] = _best(lambda: nnm_trimmed_mean(decoded, matrix), repeat)
    for rule in (*_SAME_RULE, *_OTHERS):
        if rule not in peers.rules:
            continue
        answer = peers.aggregate([rule], rows[None], tolerated(COUNT), repeat=repeat)
        entry: dict[str, Any] = {"seconds": min(answer.seconds[0], default=0.0), "error": answer.errors[0]}
        if rule in _SAME_RULE:
            entry["difference"] = float(np.linalg.norm(answer.aggregates[0] - ours) / np.linalg.norm(ours))
        found[rule] = entry
    return found


def _best(run: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds)
