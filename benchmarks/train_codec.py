"""How fast are codec, robust aggregate and outer step on one core, how small are updates, and are results the same?

    python -m benchmarks.train_codec                       # about two minutes; prints Markdown
    python -m benchmarks.train_codec --values 1000000      # shorter

Speeds are MB of float32 input a second of processor time (all threads counted), the best of several laps; in brackets
how many times longer than copying the same float32 in memory, the physical limit.  The update is a real one: 20 steps
of AdamW on a small byte-level transformer over this project's documents, repeated to the wanted length.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
import zstandard

from gdf_market.messages import Recipe
from gdf_market.train.codec import Codec
from gdf_market.train.outer import outer_step
from verifier.aggregate import nnm_trimmed_mean
from verifier.gram import Update, gram

Floats = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parent.parent
CODECS = {
    "dense, 8 bits": Codec(8, 64),
    "dense, 4 bits": Codec(4, 64),
    "dense, 3 bits": Codec(3, 64),
    "dense, 2 bits": Codec(2, 64),
    "top 12.5%, 4 bits": Codec(4, 64, 125_000),
    "top 3.1%, 2 bits": Codec(2, 64, 31_250),
}
ROUNDS = (4, 8, 20, 64)  # updates of a round
LAPS = 3
WIDTH, CONTEXT, BATCH, STEPS = 128, 64, 16, 20  # of the small model and its unit
RECIPE = Recipe(
    inner="adamw",
    steps=STEPS,
    batch=BATCH,
    lr_e9=1_000_000,
    beta1_ppm=900_000,
    beta2_ppm=999_000,
    weight_decay_ppm=0,
    clip_ppm=0,
    rewarm_steps=10,
    outer_lr_ppm=700_000,
    outer_momentum_ppm=900_000,
    codec_bits=4,
    codec_block=64,
)


class Model(torch.nn.Module):
    """Two layers of a byte-level transformer that predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(256, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.tokens(tokens) + self.places(torch.arange(CONTEXT))  # [batch, context, width]
        result: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return result


@cache
def trained_update(steps_before: int = 60) -> Floats:
    """Return the pseudo-gradient of one unit, after some steps that bring the model off its first values."""
    torch.manual_seed(0)
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
    data, model = torch.tensor(list(text)), Model()
    start = _flat(model)
    for steps in (steps_before, STEPS):
        start = _flat(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.0)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (step + 1) / 10)
            places = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
            rows = torch.stack([data[place : place + CONTEXT + 1] for place in places.tolist()])
            loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return start - _flat(model)


def _flat(model: torch.nn.Module) -> Floats:
    return np.concatenate([each.detach().numpy().ravel().copy() for each in model.parameters()])


def heavy_tailed(n: int, seed: int = 0) -> Floats:
    """Return Student's t with four degrees of freedom, f32[n]."""
    return (np.random.default_rng(seed).standard_t(4, n) * 1e-3).astype(np.float32)


def seconds(run: Callable[[], object]) -> float:
    """Return the least processor time of a run, after one that warms up."""
    run()
    laps = []
    for _ in range(LAPS):
        begun = time.process_time()
        run()
        laps.append(time.process_time() - begun)
    return min(laps)


def copy_seconds(values: Floats) -> float:
    """Return the time of a copy of ``values`` in memory."""
    target = np.empty_like(values)
    return seconds(lambda: np.copyto(target, values))


def speed(values: int, taken: float, copied: float) -> str:
    """Return MB/s of ``values`` float32, and how many copies would have taken as long."""
    return f"{4 * values / taken / 1e6:,.0f} ({taken / copied:.1f})"


def codec_table(values: int) -> Iterator[str]:
    """Yield the lines about each codec."""
    update = trained_update()
    delta, noise = np.resize(update, values), heavy_tailed(update.size)
    copied = copy_seconds(delta)
    heads = ("encode MB/s", "decode MB/s", "bits a value before zstd", "after", "after, heavy-tailed noise")
    yield "| codec | " + " | ".join(heads) + " |"
    yield "|---" * 6 + "|"
    for name, codec in CODECS.items():
        data = codec.encode(delta)
        encoding = seconds(lambda codec=codec: codec.encode(delta))  # type: ignore[misc]
        decoding = seconds(lambda codec=codec, data=data: codec.decode(data, values))  # type: ignore[misc]
        sizes = [len(codec.encode(each)) * 8 / update.size for each in (update, noise)]
        before = codec.expected_bytes(update.size) * 8 / update.size
        yield (
            f"| {name} | {speed(values, encoding, copied)} | {speed(values, decoding, copied)} | {before:.2f} "
            f"| {sizes[0]:.2f} | {sizes[1]:.2f} |"
        )


def round_table(values: int) -> Iterator[str]:
    """Yield the lines about aggregation and the outer step."""
    yield "| step | MB/s of all updates |"
    yield "|---|---|"
    for count in ROUNDS:
        n = max(100_000, 4 * values // max(count, 4))
        updates = round_updates(count, n)
        copied = copy_seconds(np.zeros(count * n, np.float32))
        matrix = gram(updates)
        products, mean = seconds(lambda: gram(updates)), seconds(lambda: nnm_trimmed_mean(updates, matrix))  # noqa: B023
        yield f"| Gram matrix, {count} updates | {speed(count * n, products, copied)} |"
        yield f"| mixing and trimmed mean, {count} updates | {speed(count * n, mean, copied)} |"
        yield f"| **aggregate: both, {count} updates** | {speed(count * n, products + mean, copied)} |"
    parameters, momentum = heavy_tailed(values, 1), heavy_tailed(values, 2)
    total, divisor = round_updates(1, values)[0].astype(np.int64) * 15, 15
    stepping = seconds(lambda: outer_step(parameters, momentum, total, divisor, RECIPE))
    yield f"| outer step (parameters only are counted) | {speed(values, stepping, copy_seconds(parameters))} |"


def round_updates(count: int, n: int) -> list[Update]:
    """Return decoded updates with a common part, as different shards give."""
    codec, common = Codec(4, 64), heavy_tailed(n, 99)
    return [codec.quantise(common + np.float32(1.2) * heavy_tailed(n, seed)).values() for seed in range(count)]


def feedback_table(rounds: int = 20) -> Iterator[str]:
    """Yield what error feedback recovers, and what auditors would have to fetch for it, in bits a value."""
    update = trained_update()
    state = len(Codec(8, 64).encode(update)) * 8 / update.size
    yield "| codec | left out without feedback | with, over 20 rounds | update | update and 8-bit state |"
    yield "|---" * 5 + "|"
    for name in ("dense, 4 bits", "top 12.5%, 4 bits", "top 3.1%, 2 bits"):
        codec, residual = CODECS[name], np.zeros_like(update)
        size = len(codec.encode(update)) * 8 / update.size
        once = codec.decode(codec.encode(update), update.size) * 2.0**-28
        for _ in range(rounds):
            _, residual = codec.encode_with_feedback(update, residual)
        norm = float(np.linalg.norm(update))
        lost, kept = float(np.linalg.norm(once - update)) / norm, float(np.linalg.norm(residual)) / (rounds * norm)
        yield f"| {name} | {lost:.1%} | {kept:.1%} | {size:.2f} | {size + state:.2f} |"


def agreed_hash() -> str:
    """Return the hash of decoded updates, aggregate and outer step of fixed inputs."""
    spread = [np.sin(np.arange(200_000) * (7 + seed) % 1_009).astype(np.float32) for seed in range(5)]
    codecs = [Codec(4, 64), Codec(2, 64), Codec(3, 17), Codec(4, 64, 125_000), Codec(8, 100)]
    # a factor of 1e-3 stays in int32 and one product; 0.9 takes int64 and limbs
    digest = hashlib.sha256()
    for factor in (1e-3, 0.9):
        deltas = [each * np.float32(factor) for each in spread]
        updates = [codec.decode(codec.encode(each), each.size) for codec, each in zip(codecs, deltas, strict=True)]
        matrix = gram(updates)
        total, divisor = nnm_trimmed_mean(updates, matrix)
        moved, velocity = outer_step(spread[0], deltas[1], total, divisor, RECIPE)
        digest.update(repr(matrix).encode())
        parts: list[npt.NDArray[Any]] = [*updates, total, moved, velocity]
        for part in parts:
            digest.update(part.tobytes())
    return digest.hexdigest()


def vector_features() -> list[str]:
    """Return the names of the vector instructions that NumPy chooses among when it starts."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    return [*simd.get("found", []), *simd.get("not found", [])]


def environments() -> Iterator[dict[str, str]]:
    """Yield what other processors and settings would use."""
    vectors = vector_features()
    for threads in ("1", "2"):
        count = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        for capability in ("default", "avx2"):
            yield {**count, "ATEN_CPU_CAPABILITY": capability}
        for features in (vectors[:1], vectors[1:], vectors):
            yield {**count, "NPY_DISABLE_CPU_FEATURES": " ".join(features)}
        for core in ("Prescott", "Nehalem", "Sandybridge", "Haswell"):
            yield {**count, "OPENBLAS_CORETYPE": core}
        yield {**count, "NPY_DISABLE_CPU_FEATURES": " ".join(vectors), "OPENBLAS_CORETYPE": "Nehalem"}


def same_hash() -> str:
    """Return in how many environments the hash is the one of this process."""
    own, path = agreed_hash(), os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    found = []
    for each in environments():
        environment = {**os.environ, **each, "PYTHONPATH": path}
        command = [sys.executable, "-W", "ignore", __file__, "--hash"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip() == own)
    return f"same hash in {sum(found)} of {len(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=4_000_000, help="length of the vectors (default: 4000000)")
    parser.add_argument("--hash", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.hash:
        print(agreed_hash())
        return
    print("# Updates: speed on one core, size, and sameness\n")
    print(
        f"`python -m benchmarks.train_codec --values {arguments.values}`, NumPy {np.__version__}, Zstandard "
        f"{'.'.join(map(str, zstandard.ZSTD_VERSION))}, {platform.system()} {platform.machine()}. MB of float32 a "
        "second of one core; in brackets, how many memory copies of the same float32 take as long. Blocks of 64. The "
        f"update is that of {STEPS} AdamW steps of a byte-level transformer of {trained_update().size:,} parameters, "
        "repeated for the speeds.\n"
    )
    for table in (codec_table(arguments.values), round_table(arguments.values), feedback_table()):
        for line in table:
            print(line, flush=True)
        print()
    print(f"Decoded updates, Gram matrix, aggregate and outer step: {same_hash()} (subprocesses with one and two")
    print("threads, with NumPy's, ATen's and OpenBLAS's vector instructions of several kinds switched off).")


if __name__ == "__main__":
    main()
