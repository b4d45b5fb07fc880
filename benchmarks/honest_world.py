"""Machines and kinds of units for the benchmark of honest audits: small programs, so that a thousand take minutes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812  (the field's habit)
from torch import nn

from benchmarks.train_world import Attention
from gdf_market import Job
from gdf_market.codec import encode
from gdf_market.messages import Recipe
from gdf_market.train.dry_run import dry_run
from gdf_market.train.prepare import prepare
from gdf_market.train.program import Program
from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES

JOB = "5a" * 32
WIDTHS = (8, 4, 2)
BATCH = 8
PARTS = (0, 1, 2, 4)  # rows of a batch at a time; 0 is all of them


@dataclass(frozen=True)
class Machine:
    """How one honest participant computes; ``rows`` follows from the memory that it gives."""

    name: str
    threads: int = 1
    rows: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    rejoins: bool = False  # is interrupted, and opens from its journal

    def variables(self) -> dict[str, str]:
        """Return the environment of its runner, as a node sets it for so many threads."""
        threads = {"GDF_THREADS": str(self.threads), "OMP_NUM_THREADS": str(self.threads)}
        # threads that wait without spinning: on a busy machine two of them would only hold each other up
        return threads | {"OMP_WAIT_POLICY": "PASSIVE"} | self.environment


MACHINES = (
    Machine("one thread"),
    Machine("two threads", threads=2),
    Machine("no vector instructions in ATen", environment={"ATEN_CPU_CAPABILITY": "default"}),
    Machine("AVX2 in ATen and oneDNN", environment={"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Machine(
        "SSE4.1 and compatible BLAS",
        environment={"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "NEHALEM"},
    ),
    Machine("one row at a time", rows=1),
    Machine("two rows at a time, two threads", rows=2, threads=2),
    Machine("four rows at a time, no vectors", rows=4, environment={"ATEN_CPU_CAPABILITY": "default"}),
    Machine("rejoined after an interruption", rejoins=True),
)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of unit and its files; ``memory_bytes`` by the rows that just fit into it."""

    name: str
    bits: int
    recipe: Recipe
    program: Path
    data: Path
    content: Path
    checkpoint: Path
    memory_bytes: dict[int, int]


class Text(nn.Module):
    """A character model of one transformer block."""

    def __init__(self, vocab: int, context: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2, bias=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Images(nn.Module):
    """Two convolutions with group norm, whose batches can be computed in parts, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(16 * 3 * 3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images).flatten(1))
        return logits


def _text_job(inner: str) -> Job:
    text = "\n".join(topics[name] for name in sorted(topics))[:200_000]
    model = Text(len(set(text)), 32)
    return Job(title="text", model=model, data=text, context=32, batch=BATCH, optimizer=inner, lr=2e-3)


def _image_job(inner: str) -> Job:
    labels = torch.randint(10, (2_000,))
    shapes = F.interpolate(torch.rand(10, 1, 6, 6), size=(12, 12))
    images = (0.5 + 0.3 * (shapes[labels] - 0.5) + 0.2 * torch.randn(2_000, 1, 12, 12)).clamp(0, 1)
    data = ((255 * images).round() / 255, labels)
    return Job(title="images", model=Images(), data=data, loss=F.cross_entropy, batch=BATCH, optimizer=inner, lr=2e-3)


def kinds(folder: Path) -> list[Kind]:
    """Write the files of two programs under AdamW and Muon, and return the kinds of units at 8, 4 and 2 bits."""
    found: list[Kind] = []
    for inner in ("adamw", "muon"):
        for make in (_text_job, _image_job):
            torch.manual_seed(7)
            job = make(inner)
            found += _written(folder, f"{job.title} {inner}", job)
    return found


def _written(folder: Path, name: str, job: Job) -> list[Kind]:
    prepared = prepare(job)
    files = {part: folder / f"{name.replace(' ', '-')}-{part}" for part in ("program", "data", "content", "checkpoint")}
    files["program"].write_bytes(prepared.program)
    files["data"].write_bytes(encode(prepared.manifest("0" * 64)))
    files["content"].write_bytes(prepared.dataset.to_bytes())
    files["checkpoint"].write_bytes(prepared.checkpoint)
    program = Program.from_bytes(prepared.program)
    assert program.graph.separable, f"the batches of {name} cannot be computed in parts"
    memory = {rows: _memory(program, job.optimizer, rows) for rows in PARTS}
    made = Kind(name, 0, prepared.recipe, **files, memory_bytes=memory)
    return [
        dataclasses.replace(
            made, name=f"{name} {bits}", bits=bits, recipe=msgspec.structs.replace(made.recipe, codec_bits=bits)
        )
        for bits in WIDTHS
    ]


def _memory(program: Program, inner: str, rows: int) -> int:
    """Return how little memory makes a machine compute so many rows of a batch at a time."""
    return dry_run(program, rows, inner=inner).expected_bytes if rows else DEFAULT_MEMORY_BYTES
