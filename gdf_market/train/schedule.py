"""The learning rate of a step: the recipe's rate, times the job's schedule, times the unit's re-warm-up."""

from __future__ import annotations

import math

from gdf_market.messages import Recipe
from gdf_market.units import PPM


def learning_rate(recipe: Recipe, step: int, done: int = 0) -> float:
    """Return the learning rate of step ``step`` of a unit that ``done`` rounds were completed before."""
    full = recipe.lr_e9 / 1e9 * scheduled(recipe, done * recipe.steps + step)
    return full * min(1.0, (step + 1) / recipe.rewarm_steps) if recipe.rewarm_steps else full


def scheduled(recipe: Recipe, position: int) -> float:
    """Return the share of the full rate at step ``position`` of the whole job.

    Linear from 1/warmup_steps of it; then constant, or down to ``final_lr_ppm`` of it (linearly, or as half a cosine:
    Loshchilov and Hutter 2017) until step ``schedule_steps``, and constant from there.
    """
    if position < recipe.warmup_steps:
        return (position + 1) / recipe.warmup_steps
    span = recipe.schedule_steps - recipe.warmup_steps
    if recipe.schedule == "constant" or span <= 0:
        return 1.0
    done = min(1.0, (position - recipe.warmup_steps) / span)
    left = 1.0 - done if recipe.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    final = recipe.final_lr_ppm / PPM
    return final + (1.0 - final) * left
