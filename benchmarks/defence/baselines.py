"""Defences without a package of their own: the plain mean, FLTrust, and similarity used as a judge."""

from __future__ import annotations

import numpy as np

from benchmarks.defence.attacks import leave_one_out
from benchmarks.defence.images import Floats
from verifier.similarity import DUPLICATE_COSINE_PPM

_ALIKE = DUPLICATE_COSINE_PPM / 1e6


def mean(updates: Floats) -> Floats:
    """Return the mean f32[n] of ``updates`` f32[w, n]."""
    found: Floats = updates.mean(0, dtype=np.float32)
    return found


def fltrust(updates: Floats, server: Floats) -> Floats:
    """Return the mean of updates rescaled to the server's norm, weighted by relu(cosine) with it.

    Cao et al. 2021, "FLTrust", equations 2 to 4.  ``server`` f32[n] is an update on clean data that the server keeps.
    """
    norms = np.linalg.norm(updates, axis=1)
    size = float(np.linalg.norm(server))
    trust = np.maximum(0.0, updates @ server / np.maximum(norms * size, 1e-12))
    total = float(trust.sum())
    if not total > 0.0:
        return np.zeros_like(server)
    found: Floats = ((trust * size / np.maximum(norms, 1e-12)) @ updates / total).astype(np.float32)
    return found


def similarity_reject(updates: Floats) -> Floats:
    """Return the mean of the updates that look like the others: the market's flags, if they decided by themselves.

    Left out: whose cosine with the sum of the others is below half the median of those, and all but the first of a
    group with pairwise cosines above 0.9.
    """
    finite = np.isfinite(updates).all(axis=1)
    rows = updates[finite]
    cosines = leave_one_out(rows)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    copies = (np.tril(unit @ unit.T, -1) > _ALIKE).any(axis=1)
    kept = rows[(cosines >= np.median(cosines) / 2) & ~copies]
    return mean(kept if len(kept) else rows)
