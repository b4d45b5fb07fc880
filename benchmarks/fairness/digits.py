"""A small federated job on scikit-learn's handwritten digits, trained as the market trains: units, codec, outcome.

Workers have data of differing quality, which assigned shards would not give them: it is what merit should tell apart.
"""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  (the field's habit)
from torch import nn

from gdf_market import Job
from gdf_market.errors import UsageError
from gdf_market.messages import Recipe
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.program import Floats, Program
from gdf_market.train.unit import run_unit
from verifier.outcome import OutcomeResult, compute_outcome

CLASSES = 10
PIXELS = 64
BRIGHTEST = 16.0
TEST = 597  # the last images
STEPS = 10
BATCH = 16
HIDDEN = 32
LR = 4e-3

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Images f32[n, 64] from 0 to 1 and their labels int64[n]."""

    images: Array
    labels: Labels

    def part(self, chosen: npt.NDArray[np.int64]) -> Data:
        return Data(self.images[chosen], self.labels[chosen])


def load_digits(path: Path | None) -> tuple[Data, Data]:
    """Return training and test images, from ``path`` (digits.csv.gz of scikit-learn) or from scikit-learn itself.

    Raises UsageError where neither is there.
    """
    rows = _rows(path)
    images, labels = (rows[:, :PIXELS] / BRIGHTEST).astype(np.float32), rows[:, PIXELS].astype(np.int64)
    return Data(images[:-TEST], labels[:-TEST]), Data(images[-TEST:], labels[-TEST:])


def _rows(path: Path | None) -> npt.NDArray[np.float64]:
    if path is not None:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return np.array([[float(cell) for cell in row] for row in csv.reader(file)])
    try:
        from sklearn import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UsageError("the digits come with scikit-learn: pip install scikit-learn, or give --digits FILE") from None
    found = datasets.load_digits()
    return np.column_stack([found.data, found.target])


class Perceptron(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(images)
        return found


Spoil = Callable[[Data, np.random.Generator], Data]


def clean(data: Data, random: np.random.Generator) -> Data:
    return data


def few(data: Data, random: np.random.Generator) -> Data:
    """Keep a tenth of the images."""
    return data.part(random.permutation(len(data.labels))[: len(data.labels) // 10])


def flipped(share: float) -> Spoil:
    """Give a share of the images another label."""

    def spoil(data: Data, random: np.random.Generator) -> Data:
        wrong = random.random(len(data.labels)) < share
        others = (data.labels + random.integers(1, CLASSES, len(data.labels))) % CLASSES
        return Data(data.images, np.where(wrong, others, data.labels))

    return spoil


def narrow(data: Data, random: np.random.Generator) -> Data:
    """Keep the images of three classes."""
    kept = random.permutation(CLASSES)[:3]
    return data.part(np.flatnonzero(np.isin(data.labels, kept)))


def noisy(data: Data, random: np.random.Generator) -> Data:
    """Add noise as strong as the images."""
    noise = random.standard_normal(data.images.shape).astype(np.float32)
    return Data(data.images + noise, data.labels)


WORKERS: Mapping[str, Spoil] = {
    "clean": clean,
    "a tenth of the images": few,
    "noise on the images": noisy,
    "30% of labels wrong": flipped(0.3),
    "three classes of ten": narrow,
    "90% of labels wrong": flipped(0.9),
}


@dataclass(frozen=True)
class Trained:
    """A round: the encoded updates by worker, and their outcome."""

    updates: dict[int, bytes]
    outcome: OutcomeResult


@dataclass(frozen=True)
class Federation:
    """A program, where it starts, and what each worker trains on."""

    program: Program
    recipe: Recipe
    start: Floats
    parts: tuple[Data, ...]
    test: Data
    seed: int

    def update(self, worker: int, parameters: Floats, index: int) -> bytes:
        """Return a worker's encoded update of a round."""
        return Codec.of(self.recipe).encode(self.delta(worker, parameters, index))

    def delta(self, worker: int, parameters: Floats, index: int) -> Floats:
        """Return a worker's pseudo-gradient f32[n] of a round."""
        data = self.parts[worker]
        random = np.random.default_rng((self.seed, worker, index))
        chosen = random.integers(0, len(data.labels), (self.recipe.steps, self.recipe.batch))
        batches = [(data.images[rows], data.labels[rows]) for rows in chosen]
        return run_unit(self.program, parameters, batches, self.recipe, sketch=_no_sketch).delta

    def train(self, coalition: Collection[int], rounds: int) -> tuple[Floats, list[Trained]]:
        """Train with a coalition's updates alone; return the weights and what happened in each round."""
        checkpoint, n = pack(self.start, np.zeros_like(self.start)), self.program.size
        done = []
        for index in range(rounds if coalition else 0):
            parameters, _ = unpack(checkpoint, n)
            updates = {worker: self.update(worker, parameters, index) for worker in sorted(coalition)}
            shards = {worker: worker for worker in updates}
            outcome = compute_outcome(checkpoint, updates, shards, self.recipe, n)
            done.append(Trained(updates, outcome))
            checkpoint = outcome.checkpoint
        return unpack(checkpoint, n)[0], done

    def score(self, parameters: Floats) -> tuple[float, float]:
        """Return the negative loss (nats) and the accuracy on the test images."""
        first, second, *others = self.program.unflatten(parameters)
        images, labels = torch.from_numpy(self.test.images), torch.from_numpy(self.test.labels)
        logits = F.linear(torch.tanh(F.linear(images, first, second)), *others)
        right = (logits.argmax(1) == labels).float().mean()
        return -float(F.cross_entropy(logits, labels)), float(right)


def federation(train: Data, test: Data, workers: Collection[Spoil], seed: int) -> Federation:
    """Deal the training images to workers and spoil each part as its worker's is."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    dealt = np.array_split(random.permutation(len(train.labels)), len(workers))
    parts = tuple(spoil(train.part(rows), random) for spoil, rows in zip(workers, dealt, strict=True))
    program, recipe = _program()
    return Federation(program, recipe, initial_parameters(Perceptron(), program), parts, test, seed)


@functools.cache
def _program() -> tuple[Program, Recipe]:
    data = (torch.rand(2 * BATCH, PIXELS), torch.randint(CLASSES, (2 * BATCH,)))
    job = Job(model=Perceptron(), data=data, loss=F.cross_entropy, batch=BATCH, steps=STEPS, lr=LR)
    return capture(job), job.recipe


def _no_sketch(delta: Floats) -> tuple[int, ...]:
    return ()
