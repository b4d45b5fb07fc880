"""``Job``: what an owner's file declares, ``job = Job(model=..., data=...)``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gdf_market.errors import UsageError, ensure
from gdf_market.messages import MAX_STEPS, Recipe
from gdf_market.train.data import MAX_CONTEXT
from gdf_market.train.source import Dataset, read_source
from gdf_market.units import MAX_INT, PPM

_E9 = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to train, the data to train it on, and how.

    ``model(inputs, targets)`` returns the loss; with ``loss`` given, it is
    ``loss(model(inputs), targets)``.  Inputs and targets are int64[batch,
    context], targets one token ahead.  ``data`` is a text (tokens are its sorted
    characters), the path of a .txt file, or a flat array of integer tokens; the
    last tenth is for validation.  Raises UsageError for a value out of range.
    """

    model: nn.Module
    data: Any = field(repr=False)
    loss: Callable[..., torch.Tensor] | None = None
    title: str = ""
    context: int = 64  # tokens in one sample
    steps: int = 20  # H: steps of the inner optimizer in one unit
    batch: int = 8  # samples in one step
    optimizer: str = "adamw"  # or "sgd"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 1.0  # limit of the gradient's norm; 0 for none
    rewarm: int | None = None  # steps of learning-rate warm-up in each unit; steps / 2 unless given
    outer_lr: float = 1.0
    outer_momentum: float = 0.0  # Nesterov; 0.5 for 30 rounds and more, 0.9 with outer_lr=0.7 for 100 and more
    codec_bits: int = 4  # bits per value of an update
    codec_block: int = 64  # values that share a scale

    def __post_init__(self) -> None:
        _check(isinstance(self.model, nn.Module), "model", self.model, "a torch.nn.Module")
        _check(self.loss is None or callable(self.loss), "loss", self.loss, "a function of (outputs, targets)")
        _check(isinstance(self.title, str) and len(self.title) <= 80, "title", self.title, "at most 80 characters")
        _check(self.optimizer in ("adamw", "sgd"), "optimizer", self.optimizer, '"adamw" or "sgd"')
        self._check_integers()
        self._check_numbers()
        smallest = min(self.dataset.train, len(self.dataset.tokens) - self.dataset.train)
        ensure(
            smallest > self.context,
            UsageError(
                f"data has {len(self.dataset.tokens)} tokens, {smallest} in its smaller part, which holds no window of "
                f"context={self.context}; give more data"
            ),
        )

    def _check_integers(self) -> None:
        warm = 0 if self.rewarm is None else self.rewarm
        limits = {
            "context": (self.context, 1, MAX_CONTEXT),
            "steps": (self.steps, 1, MAX_STEPS),
            "batch": (self.batch, 1, 65_536),
            "rewarm": (warm, 0, self.steps),
            "codec_bits": (self.codec_bits, 2, 8),
            "codec_block": (self.codec_block, 16, 4_096),
        }
        for name, (value, low, high) in limits.items():
            good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            _check(good, name, value, f"a whole number from {low} to {high}")

    def _check_numbers(self) -> None:
        _check(_within(self.lr, 1e-9, 1_000), "lr", self.lr, "a number from 1e-9 to 1000")
        both = isinstance(self.betas, tuple | list) and len(self.betas) == 2
        _check(both and all(_within(beta, 0, 0.999999) for beta in self.betas), "betas", self.betas, "two below 1")
        _check(_within(self.weight_decay, 0, 1), "weight_decay", self.weight_decay, "a number from 0 to 1")
        _check(_within(self.clip, 0, MAX_INT // PPM), "clip", self.clip, "a number from 0 (no clipping)")
        _check(_within(self.outer_lr, 1e-6, 1_000), "outer_lr", self.outer_lr, "a number from 1e-6 to 1000")
        _check(_within(self.outer_momentum, 0, 0.999999), "outer_momentum", self.outer_momentum, "0 or more, below 1")

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The tokens of ``data``, read once."""
        return read_source(self.data)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The same settings as integers, as they are signed."""
        return Recipe(
            inner=self.optimizer,
            steps=self.steps,
            batch=self.batch,
            lr_e9=round(self.lr * _E9),
            beta1_ppm=round(self.betas[0] * PPM),
            beta2_ppm=round(self.betas[1] * PPM),
            weight_decay_ppm=round(self.weight_decay * PPM),
            clip_ppm=round(self.clip * PPM),
            rewarm_steps=self.steps // 2 if self.rewarm is None else self.rewarm,
            outer_lr_ppm=round(self.outer_lr * PPM),
            outer_momentum_ppm=round(self.outer_momentum * PPM),
            codec_bits=self.codec_bits,
            codec_block=self.codec_block,
        )


def _check(good: bool, name: str, value: object, expected: str) -> None:
    ensure(good, UsageError(f"{name}={str(value)[:60]!r} is not usable; it has to be {expected}"))


def _within(value: object, low: float, high: float) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]
