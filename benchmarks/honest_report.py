"""What the benchmark of honest audits says about its audits."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.parameters import thresholds
from gdf_market.units import PPB

RESULTS = Path(__file__).parent / "results" / "honest_audits.md"
CONFIDENCE_ZERO = 3.0  # none seen in n: below 3 / n with 95% confidence (the rule of three)


@dataclass(frozen=True)
class Measured:
    """One audit; distances in ppb.  ``sketch_ppb`` is over the opened steps, ``any_step_ppb`` over all."""

    kind: str
    bits: int
    worker: str
    auditor: str
    excess_ppb: int
    decoded_ppb: int
    sketch_ppb: int
    any_step_ppb: int
    verdict: str


def report(
    audits: Sequence[Measured], repeated: Counter[bool], flags: int, rounds: int, seconds: float, fast: bool
) -> str:
    """Return the results file."""
    widths = sorted({audit.bits for audit in audits}, reverse=True)
    command = f"python -m benchmarks.honest_audits{' --fast' if fast else ''}"
    lines = [
        "# Honest audits: who is accused without having cheated",
        "",
        f"`{command}`, torch {torch.__version__}, {platform.system()} {platform.machine()}, {seconds:.0f} s in all: "
        f"{len(audits):,} audits of {_units(audits)} units in {rounds} round{'s' if rounds > 1 else ''}, each a real "
        "re-execution in a runner process.",
        "",
        *_verdict_lines(audits, repeated, flags),
        "",
        "Each cell is the largest value over the audits of its row.",
        "",
        *_table("worker", lambda audit: audit.worker, audits, widths),
        "",
        *_table("auditor", lambda audit: audit.auditor, audits, widths),
        "",
        *_table("unit", lambda audit: audit.kind.rsplit(" ", 1)[0], audits, widths),
        "",
        *_margins(audits, widths),
    ]
    return "\n".join(lines) + "\n"


def _units(audits: Sequence[Measured]) -> int:
    return len({(audit.kind, audit.worker) for audit in audits})


def _verdict_lines(audits: Sequence[Measured], repeated: Counter[bool], flags: int) -> list[str]:
    verdicts = Counter(audit.verdict for audit in audits)
    wrong = verdicts["fail"] + verdicts["grey"]
    bound = f": fewer than {CONFIDENCE_ZERO / len(audits):.2%} of honest audits (95%)" if not wrong else ""
    return [
        f"* **Accused: {verdicts['fail']} (fail), in doubt: {verdicts['grey']} (grey), passed: {verdicts['pass']:,}**"
        f"{bound}.",
        f"* Units that a rejoined worker ran again: {repeated[True]} of {repeated.total()} gave the same bytes and "
        "the same sketches.",
        f"* Similarity flags raised by the rounds' outcomes: {flags}.",
    ]


def _table(
    title: str, key: Callable[[Measured], str], audits: Sequence[Measured], widths: Sequence[int]
) -> Iterable[str]:
    groups: dict[str, list[Measured]] = {}
    for audit in audits:
        groups.setdefault(key(audit), []).append(audit)
    yield "| " + " | ".join([title, "audits", *(f"excess, {bits} bits" for bits in widths), "sketch, any step"]) + " |"
    yield "|---" * (3 + len(widths)) + "|"
    for name, rows in groups.items():
        excess = [_largest(audit.excess_ppb for audit in rows if audit.bits == bits) for bits in widths]
        yield "| " + " | ".join([name, f"{len(rows):,}", *excess, _largest(a.any_step_ppb for a in rows)]) + " |"


def _largest(values: Iterable[int]) -> str:
    return f"{max(values, default=0) / PPB:.1e}"


def _margins(audits: Sequence[Measured], widths: Sequence[int]) -> Iterable[str]:
    limits = thresholds("cpu-fp32")
    for bits in widths:
        worst = max(audit.excess_ppb for audit in audits if audit.bits == bits)
        yield _margin(f"Excess at {bits} bits", worst, limits.excess_accept, limits.excess_fail)
    worst = max(audit.any_step_ppb for audit in audits)
    yield _margin("Sketch of any step", worst, limits.sketch_accept, limits.sketch_fail)


def _margin(what: str, worst: int, accept: int, fail: int) -> str:
    factor = accept / max(1, worst)
    return (
        f"* {what}: largest {worst / PPB:.1e}; passes to {accept / PPB:.0e} (a factor {factor:.0f} above), "
        f"fails beyond {fail / PPB:.0e}."
    )
