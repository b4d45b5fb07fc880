"""The outer step of DiLoCo (Douillard et al. 2023, algorithm 1), bit-exact on every machine.

Every operation below is one NumPy ufunc over IEEE-754 float32 or float64,
rounded once and stored; nothing is fused and nothing is reduced.
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
    assert divisor >= 1
    assert int(np.abs(aggregate).max(initial=0)) <= MAX_AGGREGATE
    rate = np.float32(recipe.outer_lr_ppm / PPM)
    mu = np.float32(recipe.outer_momentum_ppm / PPM)
    mean = np.divide(aggregate.astype(np.float64), np.float64(divisor))
    gradient = np.multiply(mean, np.float64(2.0**-GRID_BITS)).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # found below
        if recipe.outer_momentum_ppm == 0:
            velocity, direction = np.zeros_like(momentum), gradient
        else:
            velocity = np.add(np.multiply(mu, momentum), gradient)
            direction = np.add(gradient, np.multiply(mu, velocity))
        moved = np.subtract(parameters, np.multiply(rate, direction))
    finite = bool(np.isfinite(moved).all() and np.isfinite(velocity).all())
    ensure(finite, DivergedError("the outer step left the range of float32; lower the outer learning rate"))
    return moved, velocity
