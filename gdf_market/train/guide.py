"""What measurements say about the choices in a recipe: advice for owners, nothing that nodes agree on.

Losses are validation losses in nats; a *loss cost* is how many percent a job's loss lies above that of data-parallel
training with an all-reduce in every step, at equal tokens.
"""

from __future__ import annotations

from gdf_market.messages import Recipe
from gdf_market.train.codec import Codec
from gdf_market.train.protocol import DEFAULT_MEMORY_BYTES
from gdf_market.units import PPM

STEPS = (20, 50, 100, 200)  # values of H that are compared
CALIBRATED_STEPS = 20  # fewer steps than this have no calibrated verdicts
MAX_BF16_STEPS = 100
MANY_UNITS = 4
GOOD_ENOUGH_PERCENT = 0.5  # differences in loss cost below this are within the spread between seeds
MAX_MEASURED_STEPS = 100  # sketches and verdicts were measured up to here

# benchmarks/results/train_loss.md: byte-level GPT of 190k parameters, context 128, 4 workers, dense 4-bit updates,
# optimizer state fresh in every unit; against data-parallel training with the same optimizer at the best of its rates.
# From a model trained before (Muon, H = 100: three seeds, the others one):
WARM_LOSS_COST = {"adamw": {20: 1.0, 100: 0.9}, "muon": {20: 0.6, 50: 0.3, 100: 0.2, 200: 0.0}}
# From random weights without warm rounds, at the best of three rates (AdamW: an earlier measurement, 235k parameters).
# With a quarter of the tokens in warm rounds Muon at H = 20 costs 1.8 (three seeds).
SCRATCH_LOSS_COST = {"adamw": {20: 9.0, 50: 9.6}, "muon": {20: 12.0}}

# Bytes of an update after Zstandard (level 3) per thousand before it, by bits per value.  Pseudo-gradients of
# examples/char_gpt.py (160,768 values, H = 20, AdamW, rounds 1 and 3; blocks of 64 and 128), rounded up: 4 bits in
# blocks of 64 are 4.5 bits per value before and 4.0 to 4.2 after, 2 bits 2.5 before and 1.5 to 1.8 after.
COMPRESSED_PERMILLE = {2: 730, 3: 930, 4: 920, 5: 980, 6: 980, 7: 980, 8: 980}
SPARSE_PERMILLE = 650  # at 3% to 25% density, 2 and 4 bits: 376 to 650


def loss_cost_percent(steps: int, inner: str, *, warm: bool) -> float | None:
    """Return the measured loss cost of H = ``steps``, from a trained model or from random weights; None if unknown."""
    return (WARM_LOSS_COST if warm else SCRATCH_LOSS_COST).get(inner, {}).get(steps)


def recommended_steps(precision: str, inner: str) -> int:
    """Return the H with the fewest bytes whose loss cost from a warm start is as good as any."""
    costs = WARM_LOSS_COST.get(inner, WARM_LOSS_COST["adamw"])
    most = min(MAX_MEASURED_STEPS, MAX_BF16_STEPS if precision == "bf16" else max(STEPS))
    best = min(cost for h, cost in costs.items() if h <= most)
    return max(h for h, cost in costs.items() if cost <= best + GOOD_ENOUGH_PERCENT and h <= most)


def compressed_bytes(codec: Codec, n: int) -> int:
    """Return about how many bytes an update of ``n`` values has when it is sent."""
    permille = COMPRESSED_PERMILLE[codec.bits] if codec.dense else SPARSE_PERMILLE
    return codec.expected_bytes(n) * permille // 1_000


def all_reduce_bytes(n: int, workers: int) -> float:
    """Return the bytes that a worker sends and receives in one step of data-parallel training in float32.

    A ring all-reduce moves 2 (K - 1) / K times the gradient each way (Patarasuk and Yuan 2009).
    """
    return 2 * 2 * (workers - 1) / workers * 4 * n


def warnings(recipe: Recipe, *, units: int, warm_rounds: int, memory_bytes: int = 0) -> list[str]:
    """Return what an owner should think about before posting, one sentence each."""
    found = []
    if recipe.steps < CALIBRATED_STEPS:
        found.append(
            f"steps={recipe.steps}: audits are calibrated for {CALIBRATED_STEPS} steps and more; fewer cost more bytes "
            "and may leave honest units without a clear verdict"
        )
    if recipe.precision == "bf16" and recipe.steps > MAX_BF16_STEPS:
        found.append(
            f"steps={recipe.steps} in bf16: honest runs drift apart beyond {MAX_BF16_STEPS} steps; use at most "
            f"{MAX_BF16_STEPS}, or fp32"
        )
    if units >= MANY_UNITS and not warm_rounds:
        found.append(
            f"{units} units per round without --warm-rounds: a model that starts from random weights gains little from "
            "averaging at first; give some warm rounds unless it was trained before"
        )
    if recipe.codec_density_ppm < PPM:
        found.append(
            f"codec_density of {recipe.codec_density_ppm / 10_000:g}%: sparse updates lose more than dense ones of few "
            "bits, and attacks on them are harder to tell apart"
        )
    if memory_bytes > DEFAULT_MEMORY_BYTES:
        found.append(
            f"a step takes up to {memory_bytes / 2**30:.1f} GiB; workers give {DEFAULT_MEMORY_BYTES >> 30} GiB unless "
            "they were told otherwise, and compute a batch in parts where they can"
        )
    return found
