"""Units of a small network: many at once for the workers, one at a time by the market's own runner for auditors.

The two ways add up in different orders, so what an auditor finds at an honest unit is a real rerun's distance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.defence.images import CLASSES, Floats, Images, Integers, divide
from gdf_market.messages import Recipe
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.job import Job
from gdf_market.train.optimizers import ADAM_EPSILON
from gdf_market.train.program import Program
from gdf_market.train.schedule import learning_rate
from gdf_market.train.unit import UnitPlace, UnitRun, run_unit
from gdf_market.units import PPM
from verifier.sketch import sketch

HIDDEN = 32
STEPS = 20  # H
BATCH = 16
ROUNDS = 40
JOB = "6d" * 32
TRIGGER_SIDE = 3  # pixels of the backdoor's square, in the lower right corner
TARGET = 0  # class that a triggered image is meant to be taken for

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """One unit: from ``start`` f32[n], samples and labels int64[H, B], those with the trigger, and the steps done."""

    start: Floats
    samples: Integers
    labels: Integers
    trigger: Mask
    round: int
    steps: int = STEPS


Sketches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Trained:
    """``deltas`` f32[M, n] are pseudo-gradients; ``sketches[i]()`` gives unit i's after each step, if asked for.

    Sketches are made when somebody looks: few units are audited.
    """

    deltas: Floats
    sketches: tuple[Callable[[], Sketches], ...] = ()


@dataclass(frozen=True)
class World:
    """Data in shards, and the program that is trained on it; ``seed`` decides division, first weights and batches.

    This one trains a network of two layers; another program's world overrides ``train``, ``rerun`` and ``predict``.
    """

    images: Images
    program: Program
    first: Floats
    recipe: Recipe
    shards: tuple[Integers, ...]
    seed: int

    @property
    def size(self) -> int:
        return self.program.size

    def unit(self, start: Floats, round_index: int, shard: int) -> Work:
        """Return an honest unit of a round and shard."""
        generator = np.random.default_rng([self.seed, round_index, shard])
        own = self.shards[shard]
        samples = own[generator.integers(len(own), size=(STEPS, BATCH))]
        return Work(start, samples, self.images.y[samples], np.zeros(samples.shape, np.bool_), round_index)

    def rerun(self, work: Work) -> UnitRun:
        """Return the honest run of a unit by the market's runner."""
        batches = [(self.images.x[samples], labels) for samples, labels in zip(work.samples, work.labels, strict=True)]
        place = UnitPlace(JOB, work.round, 0, work.round)
        return run_unit(self.program, work.start, batches, self.recipe, sketch=sketch, place=place)

    def train(self, works: Sequence[Work], *, sketched: bool = False) -> Trained:
        """Run units of one round."""
        deltas, paths = train(self, works, paths=sketched)
        return Trained(deltas, tuple(functools.partial(_sketches, path) for path in paths))

    def predict(self, parameters: Floats, x: Floats) -> Integers:
        """Return the class int64[M, N] that each model of ``parameters`` f32[M, n] says."""
        return predict(parameters, x)

    def accuracy(self, parameters: Floats) -> Scores:
        """Return the share of test images that each model of f32[M, n] gets right."""
        right: Scores = (self.predict(parameters, self.images.test_x) == self.images.test_y).mean(1)
        return right

    def backdoor_success(self, parameters: Floats) -> Scores:
        """Return the share of triggered test images of other classes that each model takes for the target."""
        others = self.images.test_y != TARGET
        x = triggered(self.images.test_x[others], self.images.side)
        found: Scores = (self.predict(parameters, x) == TARGET).mean(1)
        return found


def _sketches(path: Floats) -> Sketches:
    return tuple(sketch(change) for change in path)


def make_world(images: Images, *, shards: int, uneven: bool, seed: int) -> World:
    """Return the world of a seed."""
    torch.manual_seed(seed)
    model = _model(images.x.shape[1])
    program = _program(images.x.shape[1])
    recipe = Recipe(
        inner="adamw", steps=STEPS, batch=BATCH, lr_e9=10_000_000, beta1_ppm=900_000, beta2_ppm=950_000,
        weight_decay_ppm=0, clip_ppm=PPM, rewarm_steps=5, outer_lr_ppm=PPM, outer_momentum_ppm=500_000, codec_bits=4,
        codec_block=64, schedule="linear", schedule_steps=ROUNDS * STEPS, final_lr_ppm=50_000,
    )  # fmt: skip
    parts = divide(images.y, shards, uneven=uneven, seed=seed)
    first = np.asarray(initial_parameters(model, program), np.float32)
    return World(images, program, first, recipe, tuple(parts), seed)


def _model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


@functools.cache
def _program(width: int) -> Program:
    data = (np.zeros((2 * BATCH, width), np.float32), np.arange(2 * BATCH, dtype=np.int64) % CLASSES)
    program = capture(Job(model=_model(width), data=data, loss=nn.CrossEntropyLoss(), batch=BATCH))
    shapes = [tuple(each.shape) for each in program.graph.parameters]
    assert shapes == [(HIDDEN, width), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)], shapes
    return program


def views(flat: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights and biases [M, ...] of both layers as views of ``flat`` f32[M, n]."""
    count, start, found = len(flat), 0, []
    for shape in ((HIDDEN, width), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)):
        length = int(np.prod(shape))
        found.append(flat[:, start : start + length].view(count, *shape))
        start += length
    return found[0], found[1], found[2], found[3]


def train(world: World, works: Sequence[Work], *, paths: bool = False) -> tuple[Floats, Floats]:
    """Run many units of one round at once: two layers, cross-entropy, clipped AdamW, as the recipe says.

    Returns pseudo-gradients f32[M, n], and f32[M, H, n] those after each step (f32[0, H, n] unless asked for).
    """
    if not works:
        return np.empty((0, world.size), np.float32), np.empty((0, STEPS, world.size), np.float32)
    start = np.stack([work.start for work in works])
    flat, begun = torch.from_numpy(start.copy()), torch.from_numpy(start)
    flat.grad = torch.zeros_like(flat)
    recipe, width = world.recipe, world.images.x.shape[1]
    betas = recipe.beta1_ppm / PPM, recipe.beta2_ppm / PPM
    optimizer = torch.optim.AdamW([flat], betas=betas, eps=ADAM_EPSILON, weight_decay=0.0, fused=True)
    limit, last = recipe.clip_ppm / PPM, np.array([work.steps for work in works])
    deltas = np.empty_like(start)
    path = np.empty((len(works), STEPS, world.size) if paths else (0, STEPS, world.size), np.float32)
    for step in range(STEPS):
        _differentiate(world, works, step, views(flat, width), views(flat.grad, width))
        norms = torch.linalg.vector_norm(flat.grad, dim=1, keepdim=True)
        flat.grad.mul_(torch.clamp(limit / (norms + 1e-6), max=1.0))
        optimizer.param_groups[0]["lr"] = learning_rate(recipe, step, works[0].round)
        optimizer.step()
        change = (begun - flat).numpy()
        deltas[last == step + 1] = change[last == step + 1]
        if paths:
            path[:, step] = change
    if paths:
        for row, steps in zip(path, last, strict=True):
            row[steps:] = row[steps - 1]  # who stops early has nothing else to show
    return deltas, path


Layers = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _differentiate(world: World, works: Sequence[Work], step: int, weights: Layers, gradients: Layers) -> None:
    """Write the gradients of every unit's batch at ``step``."""
    x = world.images.x[np.stack([work.samples[step] for work in works])]  # [M, B, d]
    trigger = np.stack([work.trigger[step] for work in works])
    if trigger.any():
        x[trigger] = triggered(x[trigger], world.images.side)
    inputs = torch.from_numpy(x)
    labels = torch.from_numpy(np.stack([work.labels[step] for work in works]))
    w1, b1, w2, b2 = weights
    before = torch.baddbmm(b1.unsqueeze(1), inputs, w1.transpose(1, 2))
    hidden = before.relu()
    logits = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2))
    error = torch.softmax(logits, 2)
    error.scatter_add_(2, labels.unsqueeze(2), torch.full((*labels.shape, 1), -1.0))
    error /= labels.shape[1]
    back = torch.bmm(error, w2) * (before > 0)
    for target, value in zip(
        gradients,
        (torch.bmm(back.transpose(1, 2), inputs), back.sum(1), torch.bmm(error.transpose(1, 2), hidden), error.sum(1)),
        strict=True,
    ):
        target.copy_(value)


def triggered(x: Floats, side: int) -> Floats:
    """Return images f32[k, d] with the backdoor's white square."""
    marked = x.reshape(-1, side, side).copy()
    marked[:, -TRIGGER_SIDE:, -TRIGGER_SIDE:] = 1.0
    return marked.reshape(x.shape)


def predict(parameters: Floats, x: Floats) -> Integers:
    """Return the class int64[M, N] that each two-layer model of ``parameters`` f32[M, n] says."""
    w1, b1, w2, b2 = views(torch.from_numpy(np.ascontiguousarray(parameters)), x.shape[1])
    inputs = torch.from_numpy(x).expand(len(parameters), *x.shape)
    hidden = torch.baddbmm(b1.unsqueeze(1), inputs, w1.transpose(1, 2)).relu()
    found: Integers = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2)).argmax(2).numpy()
    return found
