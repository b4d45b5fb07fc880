"""What does a worker's unit cost beside the plain PyTorch loop of the same model?

    python -m benchmarks.train_speed                 # a few minutes; prints Markdown
    python -m benchmarks.train_speed --threads 2 --profile

A worker's unit is the runner's ``train`` request without its process: content, checkpoint and program from files,
H steps with a sketch after each, the encoded update on disk, its SHA-256 and the root of the sketch tree.  The plain
loop is ordinary PyTorch: the owner's module, AdamW with its defaults, a clipped gradient, the same batches, the same
threads.  Units and loops take turns, so that other load on the machine meets both; medians are compared.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gdf_market.codec import encode
from gdf_market.messages import Recipe
from gdf_market.train.data import Batch, load_content, unit_batches
from gdf_market.train.job import Job
from gdf_market.train.job_file import load_job
from gdf_market.train.operations import Operations, Verification
from gdf_market.train.prepare import prepare
from gdf_market.train.protocol import TrainRequest
from verifier.outcome import compute_outcome
from verifier.sketch import sketch, sketch_tree
from verifier.verdict import measure

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "char_gpt.py"
JOB = "ab" * 32
SIZES = {"example": (64, 3), "about a million": (128, 5)}  # width, layers


@dataclass(frozen=True)
class Case:
    """One model, as a plain loop and as a unit."""

    name: str
    parameters: int
    tokens: int  # of one unit
    plain: Callable[[], None]
    unit: Callable[[], None]


def make_case(name: str, width: int, layers: int, folder: Path, threads: int) -> Case:
    """Write the files of a job whose model has this size."""
    job = load_job_of(width, layers)
    prepared = prepare(job)
    recipe = prepared.recipe
    files = {
        "program": prepared.program,
        "data": encode(prepared.manifest("0" * 64)),
        "checkpoint": prepared.checkpoint,
    }
    for file, data in files.items():
        (folder / file).write_bytes(data)
    prepared.dataset.write(folder / "content")
    request = TrainRequest(
        **{file: str(folder / file) for file in (*files, "content")},
        recipe=recipe,
        job=JOB,
        round=0,
        done=0,
        shard=0,
        shards=8,
        out=str(folder / "update"),
        threads=threads,
    )
    operations = Operations(Verification(sketch, measure, compute_outcome), lambda _done, _of: None)
    manifest = prepared.manifest("0" * 64)

    def batches() -> list[Batch]:
        content = load_content(folder / "content", manifest)
        place = {"job": JOB, "round_index": 0, "shard": 0, "shards": 8}
        return list(unit_batches(manifest, content, steps=recipe.steps, batch=recipe.batch, **place))

    def unit() -> None:
        reply: Any = operations.perform(request)
        hashlib.sha256((folder / "update").read_bytes()).hexdigest()
        sketch_tree(reply.sketches).root()

    given = batches()
    return Case(
        name,
        prepared.parameters,
        prepared.tokens_per_unit,
        lambda: plain_loop(job.model, given, recipe, threads),
        unit,
    )


def load_job_of(width: int, layers: int) -> Job:
    """Return the example's job with another width and depth."""
    original = load_job(EXAMPLE)
    module: Any = sys.modules[type(original.model).__module__]
    module.width, module.layers, module.heads = width, layers, max(1, width // 16)
    torch.manual_seed(1)
    return Job(
        title="speed",
        model=module.CharGPT(),
        data=module.text,
        context=original.context,
        batch=original.batch,
        lr=2e-3,
    )


def plain_loop(model: nn.Module, batches: list[Batch], recipe: Recipe, threads: int) -> None:
    """Train as an ordinary script does."""
    torch.set_num_threads(threads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr_e9 / 1e9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = model(torch.from_numpy(inputs), torch.from_numpy(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()


def compare(case: Case, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of every plain loop and of every unit, taken in turns after one of each."""
    case.plain(), case.unit()
    plain, unit = [], []
    for _ in range(repeats):
        plain.append(_seconds(case.plain))
        unit.append(_seconds(case.unit))
    return plain, unit


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(repeats: int, threads: int, profile: bool) -> None:
    """Print a row for each size."""
    print(f"torch {torch.__version__}, {threads} thread(s), {repeats} of each in turns, medians\n")
    print("| model | parameters | plain tokens/s | unit tokens/s | share (median of pairs) |\n|---|---|---|---|---|")
    for name, (width, layers) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            case = make_case(name, width, layers, Path(folder), threads)
            plain, unit = compare(case, repeats)
            rates = [case.tokens / statistics.median(times) for times in (plain, unit)]
            share = statistics.median(p / u for p, u in zip(plain, unit, strict=True))
            print(f"| {name} | {case.parameters:,} | {rates[0]:,.0f} | {rates[1]:,.0f} | {share:.3f} |", flush=True)
            if profile:
                _profile(case.unit)


def _profile(work: Callable[[], None]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    main(arguments.repeats, arguments.threads, arguments.profile)
