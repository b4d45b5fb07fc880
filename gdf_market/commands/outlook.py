"""What a job will cost and how that compares, before it is posted: bytes, time, credits, loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from gdf_market.commands.common import table
from gdf_market.commands.watch import duration
from gdf_market.messages import JobPost
from gdf_market.train import guide
from gdf_market.train.codec import Codec
from gdf_market.train.sizing import WORK_SHARE, suggest
from gdf_market.units import PPM, SECOND_MS, format_credits

LINE_BITS_PER_S = 100_000_000  # of the line that round times are shown for
MOST_STEPS = guide.STEPS[-1]
FLEETS = (4, 8, 16)  # numbers of workers that sizes are suggested for


def outlook(spec: JobPost, measured: Mapping[str, float], prices: Sequence[int]) -> dict[str, Any]:
    """Return the figures as JSON values.

    ``measured`` holds step_s and memory_bytes of this machine; ``prices`` are those at which jobs were cleared before,
    ascending.  A worker is taken to do one unit per round.  Every update goes to every other worker, which checks and
    averages it, and those that have it pass it on: on average a worker sends as much as it receives.
    """
    codec, step_s = Codec.of(spec.recipe), measured.get("step_s", 0.0)
    each_way = guide.compressed_bytes(codec, spec.parameters) * (spec.units_per_round - 1)
    unit, per_unit = ("token", spec.tokens_per_unit) if spec.tokens_per_unit else ("sample", _samples(spec))
    per_step = per_unit / spec.recipe.steps
    all_reduce = guide.all_reduce_bytes(spec.parameters, spec.units_per_round) / per_step
    steps = sorted({*guide.STEPS, spec.recipe.steps})
    value: dict[str, Any] = {
        "unit": unit,
        "update_bytes": codec.expected_bytes(spec.parameters),
        "sent_update_bytes": guide.compressed_bytes(codec, spec.parameters),
        "bits_per_value": _bits(codec.expected_bytes(spec.parameters), spec),
        "sent_bits_per_value": _bits(guide.compressed_bytes(codec, spec.parameters), spec),
        "up_bytes_per_round": each_way,
        "down_bytes_per_round": each_way,
        "bytes_per_unit": round(2 * each_way / per_unit, 3),
        "all_reduce_bytes_per_unit": round(all_reduce, 3),
        "times_fewer": round(all_reduce * per_unit / (2 * each_way), 1) if each_way else None,
        "memory_bytes": int(measured.get("memory_bytes", 0)),
        "recommended_steps": guide.recommended_steps(spec.recipe.precision, spec.recipe.inner),
        "steps": [_choice(spec, h, step_s, each_way, per_step) for h in steps],
        "line_bits_per_s": LINE_BITS_PER_S,
        "suggested": [_fleet(spec, step_s, workers) for workers in FLEETS],
    }
    value["warnings"] = _warnings(spec, value["memory_bytes"], step_s)
    return value | _totals(spec, prices, step_s, each_way)


def _choice(spec: JobPost, h: int, step_s: float, each_way: int, per_step: float) -> dict[str, Any]:
    inner = spec.recipe.inner
    return {
        "steps": h,
        "chosen": h == spec.recipe.steps,
        "bytes_per_unit": round(2 * each_way / (per_step * h), 3),
        "round_seconds": round(_round_s(h, step_s, each_way), 2),
        "loss_cost_warm_percent": guide.loss_cost_percent(h, inner, warm=True),
        "loss_cost_scratch_percent": guide.loss_cost_percent(h, inner, warm=False),
    }


def _fleet(spec: JobPost, step_s: float, workers: int) -> dict[str, Any]:
    """Return sizes for so many workers of speeds up to eight times apart, in rounds as long as this job's."""
    # rounds as long as this job's, but units of no more steps than the loss was measured for
    round_s = WORK_SHARE * spec.work_ms / SECOND_MS
    sizes = suggest(step_s, workers, round_s, precision=spec.recipe.precision)
    if sizes.steps > MOST_STEPS:
        sizes = suggest(step_s, workers, round_s * MOST_STEPS / sizes.steps, precision=spec.recipe.precision)
    return {"workers": workers, "steps": sizes.steps, "units": sizes.units_per_round, "work_seconds": sizes.work_s}


def _totals(spec: JobPost, prices: Sequence[int], step_s: float, each_way: int) -> dict[str, Any]:
    """Return time and credits of the whole job, if all goes well."""
    units = spec.warm_rounds + (spec.rounds - spec.warm_rounds) * spec.units_per_round
    price = min(spec.reserve_price, prices[len(prices) // 2]) if prices else spec.reserve_price
    pay = units * price
    audits = min(_audits(spec) * min(spec.audit_fee, price), spec.audit_budget)
    merit = pay * spec.merit_ppm // PPM
    waits_s = (spec.bid_ms + spec.hold_ms) / SECOND_MS
    return {
        "units": units,
        "total_seconds": round(waits_s + spec.rounds * _round_s(spec.recipe.steps, step_s, each_way), 1),
        "likely_price": price,
        "likely_credits": pay + merit + audits,
        "likely_pay": pay,
        "likely_merit": merit,
        "likely_audit_fees": audits,
    }


def _audits(spec: JobPost) -> int:
    """Return how many audits workers without a record get: one is drawn in each round, and the lottery's.

    A unit's chance is 1 / (1 + valid units before it), and no less than the floor (docs/rules.md).
    """
    chances = [max(spec.audit_floor_ppm, PPM // (1 + before)) for before in range(spec.rounds)]
    full = sum(chances[: spec.rounds - spec.warm_rounds]) * spec.units_per_round
    units = spec.warm_rounds + (spec.rounds - spec.warm_rounds) * spec.units_per_round
    return min(units, spec.rounds + full // PPM)


def _round_s(h: int, step_s: float, each_way: int) -> float:
    return h * step_s + each_way * 8 / LINE_BITS_PER_S


def _samples(spec: JobPost) -> int:
    return spec.recipe.steps * spec.recipe.batch


def _bits(size: int, spec: JobPost) -> float:
    return round(size * 8 / spec.parameters, 2)


def _warnings(spec: JobPost, memory_bytes: int, step_s: float) -> list[str]:
    found = guide.warnings(
        spec.recipe, units=spec.units_per_round, warm_rounds=spec.warm_rounds, memory_bytes=memory_bytes
    )
    unit_s, given_s = step_s * spec.recipe.steps, spec.work_ms / SECOND_MS
    if unit_s > given_s * WORK_SHARE:
        found.append(
            f"a unit takes {unit_s:.0f} s on this machine, and --work-seconds gives {given_s:.0f} s; a slower worker "
            "would miss it: give more time, or fewer steps"
        )
    return found


def cost_rows(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return an outlook as (what, value) texts."""
    fewer = "" if value["times_fewer"] is None else f", {value['times_fewer']:,.0f} times fewer"
    memory = f"{value['memory_bytes'] / 2**20:,.1f} MiB at most in one step" if value["memory_bytes"] else "unknown"
    return [
        (
            "update",
            f"{value['update_bytes']:,} bytes, about {value['sent_update_bytes']:,} as sent "
            f"({value['bits_per_value']:g} -> {value['sent_bits_per_value']:g} bits per value)",
        ),
        (
            "per round",
            f"a worker sends and receives about {value['up_bytes_per_round']:,} bytes each",
        ),
        (
            f"per {value['unit']}",
            f"{value['bytes_per_unit']:,.2f} bytes per worker; an fp32 all-reduce in every step takes "
            f"{value['all_reduce_bytes_per_unit']:,.2f}{fewer}",
        ),
        ("memory", memory),
        (
            "sizes for",
            "; ".join(
                f"{each['workers']} workers: {each['units']} units of {each['steps']} steps"
                for each in value["suggested"]
            )
            + " (fast workers take several, none waits long for a slow one)",
        ),
        (
            "in all",
            f"about {duration(value['total_seconds'])} and {format_credits(value['likely_credits'])} credits of the "
            f"escrow: {value['units']} units at {format_credits(value['likely_price'])} are "
            f"{format_credits(value['likely_pay'])}, merit {format_credits(value['likely_merit'])}, the audits that "
            f"workers without a record get {format_credits(value['likely_audit_fees'])}",
        ),
    ]


def steps_table(value: Mapping[str, Any]) -> Table:
    """Return the comparison of steps per unit."""
    line = value["line_bits_per_s"] // 1_000_000
    shown = table(
        f"steps per unit (recommended: {value['recommended_steps']})",
        "steps",
        f"bytes per {value['unit']}",
        f"round at {line} Mbit/s",
        "loss cost, trained before",
        "loss cost, from scratch",
    )
    for row in value["steps"]:
        costs = (row["loss_cost_warm_percent"], row["loss_cost_scratch_percent"])
        shown.add_row(
            f"{row['steps']}{' (this job)' if row['chosen'] else ''}",
            f"{row['bytes_per_unit']:,.2f}",
            duration(row["round_seconds"]) if row["round_seconds"] >= 10 else f"{row['round_seconds']:.1f} s",
            *("not measured" if cost is None else f"+{cost:g}%" for cost in costs),
        )
    return shown
