"""The attacks' formulas, on pseudo-gradients: what colluding workers hand in who know every honest update.

``honest`` is f32[h, n], ``own`` f32[n] what the bad worker's unit would honestly be.  In the market nobody sees
another's update before its own is committed; here the bad ones do, which is the worst case and that of the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from benchmarks.defence.images import Floats

Generator = np.random.Generator

_HALVINGS = 40
COPY_NOISE = 0.1  # of a copy's norm: its cosine with the original stays above 0.99
JITTER = 0.01
_LARGEST = 1.9  # times the median norm: below the two that the form check allows
_LEAST_GAP = 0.01  # by which the adaptive attack stays more similar to the others than the least similar honest unit
_MOST_ALIKE = 0.89  # below the cosine of 0.9 from which two updates are flagged as duplicates
_WIDEST = 8.0


def sign_flip(own: Floats) -> Floats:
    """Return the opposite of the worker's own update."""
    return -own


def inner_product(honest: Floats, strength: float) -> Floats:
    """Return minus ``strength`` times the honest mean (Xie et al. 2020, "Fall of Empires")."""
    found: Floats = np.float32(-strength) * _mean(honest)
    return found


def little_is_enough(honest: Floats, bad: int) -> Floats:
    """Return the honest mean moved by z standard deviations (Baruch et al. 2019, algorithm 1).

    z is the largest for which enough honest values lie beyond it: of n workers with m bad ones, s = floor(n/2 + 1) - m
    honest ones must, so z is the normal quantile of (n - m - s) / (n - m).
    """
    found: Floats = _mean(honest) - np.float32(little_z(len(honest) + bad, bad)) * honest.std(0)
    return found


def little_z(count: int, bad: int) -> float:
    """Return z of ``little_is_enough``; 0 where the quantile does not exist."""
    supporters = count // 2 + 1 - bad
    share = (count - bad - supporters) / (count - bad)
    return max(0.0, NormalDist().inv_cdf(share)) if 0.0 < share < 1.0 else 0.0


def min_max(honest: Floats) -> Floats:
    """Return the farthest point against the spread whose distances stay below the honest ones' largest distance.

    Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine", AGR-agnostic min-max, perturbation -std.
    """
    limit = max(_squares(honest, each).max() for each in honest)
    return _farthest(honest, lambda point: bool(_squares(honest, point).max() <= limit))


def min_sum(honest: Floats) -> Floats:
    """Return the same, the sum of its squared distances staying below the largest of an honest one (ibid.)."""
    limit = max(_squares(honest, each).sum() for each in honest)
    return _farthest(honest, lambda point: bool(_squares(honest, point).sum() <= limit))


def mimic(honest: Floats, generator: Generator) -> Floats:
    """Return the first honest update with a little noise, so that no two are equal (Karimireddy et al. 2022)."""
    return _noisy(honest[0], JITTER, generator)


def copy_with_noise(original: Floats, generator: Generator) -> Floats:
    """Return another's work as one's own, disguised."""
    return _noisy(original, COPY_NOISE, generator)


def within_band(own: Floats, honest: Floats) -> Floats:
    """Return f32[m, n]: updates as far against the honest mean as similarity allows, from ``own`` f32[m, n].

    They know the rules: their norm stays below twice the median, no two are so alike that they are flagged, and each
    one's cosine with the sum of all others stays above that of the least similar honest unit.
    """
    mean = _mean(honest)
    against = -mean / max(float(np.linalg.norm(mean)), 1e-12)
    size = _LARGEST * float(np.median(np.linalg.norm(honest, axis=1)))

    def made(strength: float) -> Floats:
        mixed = _unit_rows(own) + np.float32(strength) * against
        return np.float32(size) * _unit_rows(mixed)

    return made(_largest(lambda strength: _is_unsuspicious(honest, made(strength))))


def _is_unsuspicious(honest: Floats, bad: Floats) -> bool:
    rows = np.concatenate([honest, bad])
    cosines, unit = leave_one_out(rows), _unit_rows(rows)
    alike = float(np.tril(unit @ unit.T, -1)[len(honest) :].max())  # of a bad one with any other
    enough = cosines[len(honest) :].min() >= cosines[: len(honest)].min() + _LEAST_GAP
    return bool(enough and alike < _MOST_ALIKE)


def leave_one_out(updates: Floats) -> npt.NDArray[np.float64]:
    """Return each update's cosine with the sum of all others."""
    gram = (updates @ updates.T).astype(np.float64)
    rows, squares = gram.sum(1), np.diag(gram)
    others = np.sqrt(np.maximum(gram.sum() - 2 * rows + squares, 1e-30))
    found: npt.NDArray[np.float64] = (rows - squares) / (np.sqrt(np.maximum(squares, 1e-30)) * others)
    return found


def flip_labels(labels: npt.NDArray[np.int64], share: float, generator: Generator) -> npt.NDArray[np.int64]:
    """Return labels of which ``share`` are turned round: y becomes 9 - y."""
    return np.where(generator.random(labels.shape) < share, 9 - labels, labels)


def _farthest(honest: Floats, allowed: Callable[[Floats], bool]) -> Floats:
    mean, spread = _mean(honest), honest.std(0)
    direction = -spread / max(float(np.linalg.norm(spread)), 1e-12)
    strength = _largest(lambda gamma: allowed(mean + np.float32(gamma) * direction), 100 * float(np.abs(honest).sum()))
    found: Floats = mean + np.float32(strength) * direction
    return found


def _largest(allowed: Callable[[float], bool], top: float = _WIDEST) -> float:
    """Return about the largest allowed number in 0..top, by halving; 0 if none is."""
    low, high = 0.0, top
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _mean(honest: Floats) -> Floats:
    found: Floats = honest.mean(0, dtype=np.float32)
    return found


def _squares(honest: Floats, point: Floats) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.square(honest - point).sum(1, dtype=np.float64)
    return found


def _noisy(original: Floats, share: float, generator: Generator) -> Floats:
    noise = generator.standard_normal(original.shape).astype(np.float32)
    scale = share * float(np.linalg.norm(original)) / max(float(np.linalg.norm(noise)), 1e-12)
    return original + np.float32(scale) * noise


def _unit_rows(rows: Floats) -> Floats:
    norms = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    found: Floats = (rows / norms).astype(np.float32)
    return found
