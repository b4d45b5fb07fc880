"""Validation loss at equal tokens: rounds of averaged units against synchronous data parallelism.

``python -m benchmarks.train_loss`` runs every setting for every seed in all cores and prints a Markdown table;
``--fast`` runs a few settings with fewer steps.  Results are appended to ``--cache`` as they come, so that a run that
was stopped goes on where it was; ``--write`` puts the table into benchmarks/results/train_loss.md.

The baseline of each optimizer is data parallelism with that optimizer, its rate the better of two.  Units, codec,
robust aggregate and outer step are the market's own.  An fp32 ring all-reduce sends 2 (W - 1) / W x 4 bytes a
parameter and step and worker; a worker's update counts once, and as sent to each of the other workers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.train_world import CONTEXT, IMAGES, Averaging, Task, averaged, corpus, image_task, plain, text_task
from gdf_market.messages import Recipe
from gdf_market.units import PPM

RESULTS = Path(__file__).parent / "results" / "train_loss.md"
BATCH = 8  # samples of one worker's step
RATES = (1.0, 2.0)  # of a baseline, relative to the units' rate: its batches are larger
LR = {"adamw": 2e-3, "muon": 4e-3}
IMAGE_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is trained: ``steps`` are those of data parallelism with four workers."""

    warm_start: int = 4_000
    steps: int = 400
    scratch_steps: int = 600


FULL, FAST = Size(), Size(300, 60, 60)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row: ``start`` is warm or scratch (text), or images; ``workers`` 0 means ``batch`` workers' plain steps."""

    name: str
    start: str
    inner: str
    workers: int = 4
    every: int = 100  # H
    bits: int = 4
    block: int = 64
    density_ppm: int = PPM
    outer: tuple[float, float] = (1.0, 0.0)  # rate, momentum
    warm_share: float = 0.0  # of the tokens, in warm rounds
    robust: bool = True
    exact: bool = False
    feedback: bool = False
    batch: int = 0  # in batches of one worker
    rate: float = 1.0
    tokens: float = 1.0  # share of the tokens that the others train on

    @property
    def is_baseline(self) -> bool:
        return self.batch == 4


def baselines(start: str, inner: str) -> list[Setting]:
    """Return data parallelism of four workers at several rates."""
    return [
        Setting(f"data-parallel {inner}, rate x {rate:g}", start, inner, workers=0, batch=4, rate=rate)
        for rate in RATES
    ]


def settings(fast: bool) -> list[Setting]:
    """Return the rows of the table."""
    if fast:
        return [
            *baselines("warm", "muon"),
            Setting("H = 20, 4 bits", "warm", "muon", every=20),
            Setting("H = 60, 4 bits", "warm", "muon", every=60),
        ]
    rows: list[Setting] = []
    for inner in ("muon", "adamw"):
        rows += baselines("warm", inner)
        rows.append(Setting("H = 100, 4 bits", "warm", inner))
        rows.append(Setting("H = 100, 4 bits, rate x 2", "warm", inner, rate=2.0))
        rows.append(Setting("H = 100, 4 bits, outer momentum 0.5", "warm", inner, outer=(1.0, 0.5)))
        rows.append(Setting("H = 100, 2 bits", "warm", inner, bits=2, block=128))
    rows += baselines("scratch", "muon")
    rows.append(Setting("H = 20, 4 bits", "scratch", "muon", every=20, outer=(1.0, 0.5)))
    rows.append(Setting("H = 20, 4 bits, warm rounds for a quarter of the tokens", "scratch", "muon", every=20,
                        outer=(1.0, 0.5), warm_share=0.25))  # fmt: skip
    rows += [
        *(
            Setting(f"data-parallel muon, rate x {rate:g}", "scratch", "muon", workers=0, batch=4, rate=rate)
            for rate in (4.0, 8.0)
        ),
        *(
            Setting(
                f"H = 20, 4 bits, {name}rate x {rate:g}",
                "scratch",
                "muon",
                every=20,
                outer=(1.0, 0.5),
                rate=rate,
                warm_share=share,
            )
            for name, share in (("", 0.0), ("a quarter warm, ", 0.25))
            for rate in (2.0, 4.0, 8.0)[: 3 if share else 2]
        ),
    ]
    rows += [
        *(Setting(f"H = {every}, 4 bits", "warm", "muon", every=every) for every in (20, 50, 200)),
        Setting("H = 20, 4 bits", "warm", "adamw", every=20),
        Setting("one worker, all tokens", "warm", "muon", workers=0, batch=1),
        Setting("one worker, a quarter of the tokens", "warm", "muon", workers=0, batch=1, tokens=0.25),
        Setting("H = 100, updates in fp32, plain mean", "warm", "muon", exact=True),
        Setting("H = 100, 8 bits", "warm", "muon", bits=8),
        Setting("H = 100, 4 bits, plain mean", "warm", "muon", robust=False),
        Setting("H = 100, 4 bits, 2 workers", "warm", "muon", workers=2),
        Setting("H = 50, 4 bits, 8 workers", "warm", "muon", workers=8, every=50),
        Setting("H = 25, 4 bits, 16 workers", "warm", "muon", workers=16, every=25),
        Setting("H = 100, largest 3.1%, 2 bits, no state", "warm", "adamw", bits=2, density_ppm=31_000),
        Setting("H = 100, largest 3.1%, 2 bits, error feedback", "warm", "adamw", bits=2, density_ppm=31_000,
                feedback=True),
    ]  # fmt: skip
    return rows


def image_settings() -> list[Setting]:
    """Return the rows of images, from a random start."""
    return [
        *baselines("images", "adamw"),
        *(
            Setting(f"data-parallel adamw, rate x {rate:g}", "images", "adamw", workers=0, batch=4, rate=rate)
            for rate in (4.0, 8.0)
        ),
        Setting("H = 20, 4 bits", "images", "adamw", every=20),
        *(
            Setting(f"H = 20, 4 bits, rate x {rate:g}", "images", "adamw", every=20, rate=rate)
            for rate in (2.0, 4.0, 8.0)
        ),
        Setting("H = 100, 4 bits", "images", "adamw"),
        Setting("H = 100, 4 bits, rate x 2", "images", "adamw", rate=2.0),
        Setting("H = 100, 2 bits", "images", "adamw", bits=2, block=128),
    ]


def recipe_of(row: Setting, total: int) -> Recipe:
    """Return the recipe of a row whose units or steps make up ``total`` steps one after another."""
    return Recipe(
        inner=row.inner,
        steps=row.every,
        batch=BATCH if row.start != "images" else IMAGE_BATCH,
        lr_e9=round(LR[row.inner] * row.rate * 1e9),
        beta1_ppm=900_000,
        beta2_ppm=950_000,
        weight_decay_ppm=0,
        clip_ppm=PPM,
        rewarm_steps=min(row.every // 2, 40),
        outer_lr_ppm=round(row.outer[0] * PPM),
        outer_momentum_ppm=round(row.outer[1] * PPM),
        codec_bits=row.bits,
        codec_block=row.block,
        codec_density_ppm=row.density_ppm,
        schedule="linear",
        schedule_steps=total,
        warmup_steps=20 if row.start == "scratch" else 0,
        final_lr_ppm=50_000,
    )


def run(row: Setting, seed: int, size: Size, starts: Path, images: str) -> dict[str, Any]:
    """Train one row and return its figures."""
    torch.set_num_threads(1)
    task = image_task(images) if row.start == "images" else text_task()
    began = time.perf_counter()
    start = warm_start(task, row.inner, size, starts) if row.start == "warm" else task.first
    steps = size.scratch_steps if row.start == "scratch" else size.steps
    if not row.workers:
        own = round(steps * row.tokens * 4 / row.batch)
        found = plain(task, start, recipe_of(row, own), own, row.batch * task.batch, seed)
        sent = 0.0
    else:
        how = _rounds(row, steps)
        found = averaged(task, start, recipe_of(row, how.rounds * row.every), how, seed)
        sent = found.update_bytes / (how.rounds * row.every) / (4 * task.program.size)
    return {
        "row": row.name, "start": row.start, "inner": row.inner, "seed": seed, "loss": found.loss,
        "share_sent": sent, "seconds": time.perf_counter() - began, "size": dataclasses.astuple(size),
    }  # fmt: skip


def _rounds(row: Setting, steps: int) -> Averaging:
    """Return rounds in which all units together have the tokens of ``steps`` data-parallel steps of four workers."""
    units = 4 * steps // row.every
    warm = round(units * row.warm_share)
    rounds = warm + max(1, round((units - warm) / row.workers))
    return Averaging(row.workers, rounds, warm, row.robust, row.exact, row.feedback)


def warm_start(task: Task, inner: str, size: Size, folder: Path) -> Any:
    """Return weights after ``size.warm_start`` ordinary steps of one worker, from a file if they are known."""
    path = folder / f"warm-{inner}-{size.warm_start}.npy"
    if not path.exists():
        row = Setting("", "scratch", inner)
        recipe = msgspec.structs.replace(recipe_of(row, size.warm_start), schedule="constant", schedule_steps=0)
        made = plain(task, task.first, recipe, size.warm_start, BATCH, 11).parameters
        temporary = path.with_suffix(f".{time.time_ns()}.npy")
        np.save(temporary, made)
        temporary.replace(path)
    return np.load(path)


def table(rows: Sequence[Setting], found: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table: mean loss over seeds, its range, and the gap to the best baseline.

    Bytes are relative: how many times fewer than a ring all-reduce in fp32 the worker's own update has, sent once; and
    how many times fewer when every other worker is sent it, as here.
    """
    lines = ["| start | optimizer | setting | loss | gap | fewer bytes, update once | fewer bytes, to each |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        losses = _losses(found, row)
        if not losses:
            continue
        mean = statistics.fmean(losses)
        base = [statistics.fmean(_losses(found, other)) for other in rows if _compares(other, row, found)]
        gap = f"{100 * (mean / min(base) - 1):+.1f}%" if base else ""
        sent = statistics.fmean(each["share_sent"] for each in found if _is(each, row))
        ring = 2 * (row.workers - 1) / max(1, row.workers)
        once = f"{ring / sent:,.0f} x" if sent else "1 x" if row.is_baseline else ""
        each_way = f"{ring / (sent * (row.workers - 1)):,.0f} x" if sent else "1 x" if row.is_baseline else ""
        spread = f"{len(losses)} seeds: {min(losses):.3f} to {max(losses):.3f}" if len(losses) > 1 else "1 seed"
        lines.append(
            f"| {row.start} | {row.inner} | {row.name} | {mean:.3f} ({spread}) | {gap} | {once} | {each_way} |"
        )
    return "\n".join(lines)


def _compares(other: Setting, row: Setting, found: Iterable[dict[str, Any]]) -> bool:
    same = (other.start, other.inner) == (row.start, row.inner)
    return other.is_baseline and same and bool(_losses(found, other))


def _losses(found: Iterable[dict[str, Any]], row: Setting) -> list[float]:
    return [each["loss"] for each in found if _is(each, row)]


def _is(found: dict[str, Any], row: Setting) -> bool:
    return (found["row"], found["start"], found["inner"]) == (row.name, row.start, row.inner)


def _read(path: Path, size: Size) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [each for each in map(json.loads, lines) if tuple(each["size"]) == dataclasses.astuple(size)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="few settings, few steps, one seed: minutes")
    parser.add_argument("--seeds", type=int, default=0, help="seeds per setting (default: 3, or 1 if fast)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--cache", type=Path, default=Path("artifacts") / "train_loss.jsonl")
    parser.add_argument("--only", default="", help="only rows whose start, optimizer and name match")
    parser.add_argument("--write", action="store_true", help=f"store the table as {RESULTS.name}")
    parser.add_argument("--images", default=IMAGES, help="folder of Fashion-MNIST; without it, no rows of images")
    given = parser.parse_args(arguments)
    size, seeds = (FAST, given.seeds or 1) if given.fast else (FULL, given.seeds or 3)
    rows = settings(given.fast)
    if Path(given.images).is_dir():
        rows += image_settings()
    rows = [row for row in rows if re.search(given.only, f"{row.start} {row.inner} {row.name}")]
    given.cache.parent.mkdir(parents=True, exist_ok=True)
    known = _read(given.cache, size)
    todo = [
        (row, seed)
        for seed in range(seeds)
        for row in rows
        if not any(_is(each, row) and each["seed"] == seed for each in known)
    ]
    began = time.perf_counter()
    for inner in sorted({row.inner for row, _ in todo if row.start == "warm"}):
        warm_start(text_task(), inner, size, given.cache.parent)
    with (
        concurrent.futures.ProcessPoolExecutor(given.jobs, _spawn()) as pool,
        given.cache.open("a", encoding="utf-8") as file,
    ):
        pending = [pool.submit(run, row, seed, size, given.cache.parent, given.images) for row, seed in todo]
        for done in concurrent.futures.as_completed(pending):
            result = done.result()
            known.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(f"{len(known)}: {result['start']} {result['inner']} {result['row']}: {result['loss']:.4f} "
                  f"(seed {result['seed']}, {result['seconds']:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
    text, name = corpus()
    words = (
        f"`python -m benchmarks.train_loss{' --fast' if given.fast else ''} --seeds {seeds}`, torch "
        f"{torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{time.perf_counter() - began:.0f} s for what was not known before.\n\n"
        f"Byte-level GPT of {text_task().program.size:,} parameters, context {CONTEXT}; text: {len(text):,} bytes of "
        f"Python's standard library, SHA-256 {name[:16]}…; {BATCH} samples a step and worker.  Warm start: "
        f"{size.warm_start} ordinary steps of one worker, then the tokens of {size.steps} data-parallel steps of four "
        f"workers; from scratch: of {size.scratch_steps}.  Rates fall linearly to 5%.  Images: Fashion-MNIST, a CNN "
        f"with batch norm, {IMAGE_BATCH} samples a step and worker, {size.steps} data-parallel steps.\n\n"
    )
    report = words + table(rows, known) + "\n"
    print(report)
    if given.write:
        RESULTS.write_text(f"# Loss at equal tokens\n\n{report}", encoding="utf-8")


def _spawn() -> Any:
    import multiprocessing

    return multiprocessing.get_context("spawn")


if __name__ == "__main__":
    main()
