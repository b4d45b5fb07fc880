"""A text of several megabytes that every reader of this file has, a small GPT, and training of it in two ways.

The text is the source of Python's own standard library, read as bytes: the files directly in it and in its packages,
sorted by path, up to 6 MB.  ``corpus()`` also returns its SHA-256, because versions of Python differ.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's habit)
from torch import nn

from gdf_market.messages import Recipe
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.data import Batch, Content, DataManifest, statistics_batches, unit_batches
from gdf_market.train.evaluate import evaluate
from gdf_market.train.job import Job
from gdf_market.train.outer import outer_step
from gdf_market.train.program import Floats, Program
from gdf_market.train.unit import UnitPlace, run_unit
from gdf_market.units import PPM
from verifier.outcome import compute_outcome

CORPUS_BYTES = 6_000_000
CONTEXT = 128
VALIDATION_WINDOWS = 256
IMAGES = "/usr/share/datasets/fashion-mnist"
JOB = "6c" * 32


def corpus() -> tuple[bytes, str]:
    """Return the text and its SHA-256."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [*root.glob("*.py"), *root.glob("*/*.py")]
    skipped = {"site-packages", "test", "idlelib", "lib2to3"}
    parts: list[bytes] = []
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if path.relative_to(root).parts[0] not in skipped:
            parts.append(path.read_bytes())
    text = b"".join(parts)[:CORPUS_BYTES]
    return text, hashlib.sha256(text).hexdigest()


class Attention(nn.Module):
    """Causal attention; with ``bias`` the keys have one, whose true gradient is zero."""

    def __init__(self, width: int, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = split.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """A byte-level GPT whose forward returns the loss (nats per byte)."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[_Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, 256), targets.reshape(-1))


@dataclass(frozen=True)
class Task:
    """What is trained: a captured program, its first weights, and the data."""

    program: Program
    first: Floats
    manifest: DataManifest
    content: Content
    validation: tuple[Batch, ...]
    batch: int = 8  # samples of one worker's step
    statistics: tuple[Batch, ...] = ()  # for batch norm


@functools.cache
def text_task(seed: int = 1) -> Task:
    """Return the small GPT on the text."""
    torch.manual_seed(seed)
    text, _ = corpus()
    job = Job(model=GPT(), data=np.frombuffer(text, np.uint8).astype(np.int64), context=CONTEXT)
    program = capture(job)
    manifest, content = job.dataset.manifest("0" * 64, CONTEXT), job.dataset.content
    held_out = msgspec.structs.replace(manifest, train=manifest.count - manifest.train)
    tail = Content((content.columns[0][manifest.train :],))
    drawn = unit_batches(
        held_out, tail, job=JOB, round_index=0, shard=0, shards=1, steps=VALIDATION_WINDOWS // 32, batch=32
    )
    return Task(program, initial_parameters(job.model, program), manifest, content, tuple(drawn))


class CNN(nn.Module):
    """Two convolutions with batch norm and a linear layer, for 28 x 28 grey images of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(32 * 7 * 7, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images).flatten(1))
        return logits


@functools.cache
def image_task(folder: str = IMAGES) -> Task:
    """Return the small CNN on Fashion-MNIST (Debian's package dataset-fashion-mnist, or its four files elsewhere)."""
    torch.manual_seed(1)
    data, validation = (_images(Path(folder), name) for name in ("train", "t10k"))
    job = Job(model=CNN(), data=data, validation=validation, loss=nn.CrossEntropyLoss(), batch=32)
    program = capture(job)
    manifest, content = job.dataset.manifest("0" * 64, 0), job.dataset.content
    held_out = msgspec.structs.replace(
        manifest, count=manifest.count - manifest.train, train=manifest.count - manifest.train
    )
    tail = Content(tuple(column[manifest.train :] for column in content.columns))
    drawn = unit_batches(held_out, tail, job=JOB, round_index=0, shard=0, shards=1, steps=16, batch=256)
    gathered = tuple(statistics_batches(manifest, content, 64))
    return Task(program, initial_parameters(job.model, program), manifest, content, tuple(drawn), 32, gathered)


def _images(folder: Path, name: str) -> tuple[Any, Any]:
    pixels = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return images.astype(np.float32) / np.float32(255), np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


@dataclass(frozen=True)
class Result:
    """Weights after training, their validation loss, and the bytes that one worker's updates had."""

    parameters: Floats
    loss: float
    update_bytes: int


def plain(task: Task, start: Floats, recipe: Recipe, steps: int, batch: int, seed: int) -> Result:
    """Train ``steps`` ordinary steps on batches of ``batch``: one worker, or synchronous data parallelism in fp32.

    The gradient of a batch is the mean of its workers' gradients, so both are the same computation.
    """
    recipe = msgspec.structs.replace(recipe, steps=steps, batch=batch, rewarm_steps=0)
    done = run_unit(task.program, start, _batches(task, recipe, seed, 0, 0, 1), recipe, sketch=_no_sketch)
    parameters = start - done.delta
    return Result(parameters, _loss(task, parameters), 0)


@dataclass(frozen=True)
class Averaging:
    """How the updates of a round are made, sent and combined."""

    workers: int
    rounds: int
    warm_rounds: int = 0
    robust: bool = True  # the market's aggregate; otherwise the mean
    exact: bool = False  # updates in float32 instead of the recipe's codec
    feedback: bool = False  # error feedback kept by each worker, for sparse codecs: not possible in verified jobs


def averaged(task: Task, start: Floats, recipe: Recipe, how: Averaging, seed: int) -> Result:
    """Train in rounds as the market does: units, encoded updates, the round's outcome, the outer step."""
    codec, n = Codec.of(recipe), task.program.size
    checkpoint = pack(start, np.zeros_like(start))
    residuals = [np.zeros_like(start) for _ in range(how.workers)]
    sent = 0
    for index in range(how.rounds):
        warm = index < how.warm_rounds
        rule = msgspec.structs.replace(recipe, outer_lr_ppm=PPM, outer_momentum_ppm=0) if warm else recipe
        parameters, momentum = unpack(checkpoint, n)
        deltas = [
            _unit(task, parameters, recipe, seed, index, worker, how.workers)
            for worker in range(1 if warm else how.workers)
        ]
        if how.exact:
            checkpoint = pack(*_float_step(parameters, momentum, np.mean(deltas, axis=0, dtype=np.float64), rule))
            sent += 4 * n
            continue
        updates = {}
        for worker, delta in enumerate(deltas):
            if how.feedback:
                updates[worker], residuals[worker] = codec.encode_with_feedback(delta, residuals[worker])
            else:
                updates[worker] = codec.encode(delta)
        sent += len(updates[0])
        if how.robust and not how.feedback:
            shards = {worker: worker for worker in updates}
            checkpoint = compute_outcome(checkpoint, updates, shards, rule, n).checkpoint
        else:
            total = np.sum([codec.decode(data, n) for data in updates.values()], axis=0, dtype=np.int64)
            checkpoint = pack(*outer_step(parameters, momentum, total, len(updates), rule))
    parameters, _ = unpack(checkpoint, n)
    return Result(parameters, _loss(task, parameters), sent)


def _unit(task: Task, parameters: Floats, recipe: Recipe, seed: int, index: int, shard: int, shards: int) -> Floats:
    batches = _batches(task, recipe, seed, index, shard, shards)
    place = UnitPlace(JOB, index, shard, index)
    return run_unit(task.program, parameters, batches, recipe, sketch=_no_sketch, place=place).delta


def _batches(task: Task, recipe: Recipe, seed: int, index: int, shard: int, shards: int) -> Any:
    job = hashlib.sha256(seed.to_bytes(8, "big")).hexdigest()
    return unit_batches(
        task.manifest,
        task.content,
        job=job,
        round_index=index,
        shard=shard,
        shards=shards,
        steps=recipe.steps,
        batch=recipe.batch,
    )


def _float_step(parameters: Floats, momentum: Floats, mean: Any, recipe: Recipe) -> tuple[Floats, Floats]:
    gradient = mean.astype(np.float32)
    velocity = np.float32(recipe.outer_momentum_ppm / PPM) * momentum + gradient
    direction = gradient + np.float32(recipe.outer_momentum_ppm / PPM) * velocity
    moving = velocity if recipe.outer_momentum_ppm else np.zeros_like(velocity)
    return parameters - np.float32(recipe.outer_lr_ppm / PPM) * direction, moving


def _loss(task: Task, parameters: Floats) -> float:
    return evaluate(task.program, parameters, task.validation, statistics=task.statistics)


def _no_sketch(delta: Floats) -> tuple[int, ...]:
    return ()
