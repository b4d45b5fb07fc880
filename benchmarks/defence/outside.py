"""A table that others published, with the market in it: Fashion-MNIST, ten clients, forty rounds, a small CNN.

The recipe of samuele-lolli/Aggregation-Federated-Learning-Analysis (Flower, 15 seeds): clients IID, one local epoch a
round, batch 32, SGD 0.01 with momentum 0.9, convolutions of 16 and 32 channels and a layer of 128, random crops and
flips.  Its accuracies are of the clients' held-out fifth, ours of the test set.  Ours have shards drawn anew in each
round, 4-bit updates and audits.  What its attacks are in detail is not published; ours are the usual ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.defence.adversary import BY_NAME, Attack, Round
from benchmarks.defence.images import Floats, Images, Integers, fashion
from benchmarks.defence.world import JOB, Sketches, Trained, Work, World
from gdf_market.messages import Recipe
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.data import Batch
from gdf_market.train.job import Job
from gdf_market.train.program import Program
from gdf_market.train.unit import Parts, UnitPlace, UnitRun, run_unit
from gdf_market.units import PPM
from verifier.sketch import sketch

WORKERS = 10
STEPS, BATCH = 150, 32  # one epoch of 4,800 samples: four fifths of a client's 6,000
SHARDS = 40
GAUSSIAN = 0.5
_PADDING = 2  # of a random crop
_PARTS = 16  # rows that an auditor computes at once, so that its sums have another order
_CHUNK = 500

# accuracy clean; 2 of 10 Gaussian; 3 of 10 label flip; 2 of 10 backdoor, and its success
PUBLISHED = {
    "FedAvg": (0.868, 0.663, 0.652, 0.868, 0.993),
    "Median": (None, 0.867, 0.793, 0.865, 0.168),
    "TrimmedAvg": (None, 0.865, 0.793, 0.867, 0.389),
    "MultiKrum": (None, 0.869, 0.868, 0.867, 0.002),
}


def _gaussian(round_: Round) -> Floats:
    noise = [round_.generator(worker).standard_normal(round_.bad.shape[1]) for worker in round_.workers]
    found: Floats = round_.bad + np.float32(GAUSSIAN) * np.stack(noise).astype(np.float32)
    return found


# by column: the attack, and how many of the ten
COLUMNS: dict[str, tuple[Attack, int]] = {
    "clean": (BY_NAME["none"], 0),
    "Gaussian": (Attack("Gaussian", forge=_gaussian), 2),
    "label flip": (BY_NAME["label flip 100%"], 3),
    "backdoor": (BY_NAME["backdoor"], 2),
}


class CNN(nn.Module):
    """Two convolutions with pooling, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


@dataclasses.dataclass(frozen=True)
class CnnWorld(World):
    """Units of the CNN, each run by the market's runner."""

    @property
    def steps(self) -> int:
        return STEPS

    def unit(self, start: Floats, round_index: int, shard: int) -> Work:
        """Return one epoch of the shard's samples in a random order."""
        generator = np.random.default_rng([self.seed, round_index, shard])
        samples = generator.permutation(self.shards[shard])[: STEPS * BATCH].reshape(STEPS, BATCH)
        return Work(start, samples, self.images.y[samples], np.zeros(samples.shape, np.bool_), round_index, STEPS)

    def train(self, works: Sequence[Work], *, sketched: bool = False) -> Trained:
        """Run units one after another."""
        runs = [self._run(work, Parts(), sketched) for work in works]
        return Trained(
            np.stack([run.delta for run in runs]), tuple(functools.partial(_known, run.sketches) for run in runs)
        )

    def rerun(self, work: Work) -> UnitRun:
        """Return an auditor's run."""
        return self._run(work, Parts(rows=_PARTS), True)

    def _run(self, work: Work, parts: Parts, sketched: bool) -> UnitRun:
        place = UnitPlace(JOB, work.round, 0, work.round)
        make = sketch if sketched else _no_sketch
        return run_unit(
            self.program, work.start, self._batches(work), self.recipe, sketch=make, place=place, parts=parts
        )

    def _batches(self, work: Work) -> list[Batch]:
        """Return the samples, cropped and flipped at random; the trigger comes last, where it is to be seen."""
        generator = np.random.default_rng([self.seed, work.round, *work.samples[0].tolist()])
        batches: list[Batch] = []
        for samples, labels, trigger in zip(work.samples, work.labels, work.trigger, strict=True):
            x = augment(self.images.x[samples].reshape(-1, 28, 28), generator)
            x[trigger, -3:, -3:] = 1.0
            batches.append((x[:, None], labels))
        return batches

    def predict(self, parameters: Floats, x: Floats) -> Integers:
        """Return the class int64[M, N] that each model says."""
        return np.stack([self._classes(each, x) for each in parameters])

    @torch.no_grad()
    def _classes(self, parameters: Floats, x: Floats) -> Integers:
        model = CNN()
        start = 0
        names = dict(model.named_parameters(prefix=""))
        for wanted in self.program.graph.parameters:
            size = int(np.prod(wanted.shape))
            names[wanted.name].copy_(torch.from_numpy(parameters[start : start + size].reshape(wanted.shape)))
            start += size
        images = torch.from_numpy(x).reshape(-1, 1, 28, 28)
        found: Integers = torch.cat([model(part).argmax(1) for part in torch.split(images, _CHUNK)]).numpy()
        return found


def _known(sketches: Sketches) -> Sketches:
    return sketches


def _no_sketch(_: Floats) -> tuple[int, ...]:
    return ()


def augment(x: Floats, generator: np.random.Generator) -> Floats:
    """Return f32[B, 28, 28] moved by up to two pixels each way, half of them turned left to right."""
    padded = np.pad(x, ((0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING)))
    found = np.empty_like(x)
    for i, (down, right) in enumerate(generator.integers(2 * _PADDING + 1, size=(len(x), 2))):
        found[i] = padded[i, down : down + 28, right : right + 28]
    turned = generator.random(len(x)) < 0.5
    found[turned] = found[turned, :, ::-1]
    return found


@functools.lru_cache(maxsize=1)
def make_world(folder: Path, seed: int) -> CnnWorld:
    """Return the world of a seed; a shard is 4,800 of the 48,000 samples that are for training, drawn at random."""
    torch.manual_seed(seed)
    images, model = fashion(folder, pooled=False), CNN()
    program = _program(images, model)
    recipe = Recipe(
        inner="sgd", steps=STEPS, batch=BATCH, lr_e9=10_000_000, beta1_ppm=900_000, beta2_ppm=0, weight_decay_ppm=0,
        clip_ppm=0, rewarm_steps=0, outer_lr_ppm=PPM, outer_momentum_ppm=0, codec_bits=4, codec_block=64,
    )  # fmt: skip
    generator = np.random.default_rng([seed, 23])
    training = generator.permutation(len(images.y))[: 4 * len(images.y) // 5]
    shards = tuple(generator.choice(training, STEPS * BATCH, replace=False) for _ in range(SHARDS))
    return CnnWorld(images, program, np.asarray(initial_parameters(model, program), np.float32), recipe, shards, seed)


def _program(images: Images, model: CNN) -> Program:
    data = (images.x[: 2 * BATCH].reshape(-1, 1, 28, 28), images.y[: 2 * BATCH])
    return capture(Job(model=model, data=data, loss=nn.CrossEntropyLoss(), batch=BATCH))


def table(found: Mapping[Any, Mapping[str, Any]]) -> str:
    """Return the published table with our row, or "" before anything was run."""
    ours: dict[str, list[dict[str, Any]]] = {}
    for task, line in found.items():
        if task.kind == "outside":
            ours.setdefault(task.attack, []).append(line["found"])
    if not ours:
        return ""
    lines = ["## A table of others", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines += [
        "| defence | clean | 2 of 10 Gaussian | 3 of 10 label flip | 2 of 10 backdoor | its success | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in PUBLISHED.items():
        lines.append(f"| {name} | " + " | ".join("-" if each is None else f"{each:.3f}" for each in row) + " | 15 |")
    cells = [_mean(ours.get(column, []), "accuracy") for column in COLUMNS]
    cells.append(_mean(ours.get("backdoor", []), "backdoor"))
    seeds = "/".join(str(len(ours.get(column, []))) for column in COLUMNS)
    lines.append("| **this market** | " + " | ".join(cells) + f" | {seeds} |")
    return "\n".join(lines)


def _mean(stories: Sequence[Mapping[str, Any]], field: str) -> str:
    return f"{np.mean([story[field] for story in stories]):.3f}" if stories else "not run"
