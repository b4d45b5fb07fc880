"""The outer step of DiLoCo (Douillard et al. 2023, algorithm 1), bit-exact on every machine.

Every operation below is one NumPy ufunc over IEEE-754 float32 or float64,
rounded once and stored; nothing is fused and nothing is reduced.  It goes
through the vectors in pieces that stay in a core's cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdf_market.errors import ensure
from gdf_market.messages import Recipe
from gdf_market.train.codec import GRID_BITS
from gdf_market.train.errors import DivergedError
from gdf_market.units import PPM

MAX_AGGREGATE = 2**53  # float64 holds every integer up to here
_CHUNK = 1 << 14  # values at a time

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def outer_step(
    parameters: Floats, momentum: Floats, aggregate: Integers, divisor: int, recipe: Recipe
) -> tuple[Floats, Floats]:
    """Return (parameters, momentum) f32[n] after one Nesterov SGD step (PyTorch's form, no dampening).

    The pseudo-gradient is ``aggregate`` int64[n] / ``divisor`` on the grid
    2**-GRID_BITS.  Raises DivergedError when the result is not finite.
    """
    assert parameters.dtype == momentum.dtype == np.float32
    assert aggregate.dtype == np.int64
    assert parameters.shape == momentum.shape == aggregate.shape
    assert divisor >= 1
    moved, velocity = np.empty_like(parameters), np.empty_like(momentum)
    finite = True
    for start in range(0, parameters.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        gradient = _gradient(aggregate[part], divisor)
        with np.errstate(over="ignore", invalid="ignore"):  # found below
            _step(parameters[part], momentum[part], gradient, recipe, moved[part], velocity[part])
        finite = finite and bool(np.isfinite(moved[part]).all() and np.isfinite(velocity[part]).all())
    ensure(finite, DivergedError("the outer step left the range of float32; lower the outer learning rate"))
    return moved, velocity


def _gradient(aggregate: Integers, divisor: int) -> Floats:
    """Return the mean f32[n] that ``aggregate`` / ``divisor`` stands for."""
    assert -MAX_AGGREGATE <= int(aggregate.min()) <= int(aggregate.max()) <= MAX_AGGREGATE
    mean = aggregate.astype(np.float64)
    np.divide(mean, np.float64(divisor), out=mean)
    np.multiply(mean, np.float64(2.0**-GRID_BITS), out=mean)
    return mean.astype(np.float32)


def _step(
    parameters: Floats, momentum: Floats, gradient: Floats, recipe: Recipe, moved: Floats, velocity: Floats
) -> None:
    """Write the step into ``moved`` and ``velocity``."""
    rate = np.float32(recipe.outer_lr_ppm / PPM)
    mu = np.float32(recipe.outer_momentum_ppm / PPM)
    if recipe.outer_momentum_ppm == 0:
        velocity.fill(0)
        direction = gradient
    else:
        np.multiply(mu, momentum, out=velocity)
        np.add(velocity, gradient, out=velocity)
        direction = np.multiply(mu, velocity)
        np.add(gradient, direction, out=direction)
    np.multiply(rate, direction, out=direction)
    np.subtract(parameters, direction, out=moved)
