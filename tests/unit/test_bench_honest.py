"""The benchmark of honest audits: what its report counts, and that an accusation would show."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from benchmarks.honest_report import Measured, report

HONEST = Measured(
    kind="text adamw 4",
    bits=4,
    worker="one thread",
    auditor="two threads",
    excess_ppb=2_000,
    decoded_ppb=900_000,
    sketch_ppb=5_000,
    any_step_ppb=8_000,
    verdict="pass",
)


def test_the_largest_values_stand_against_the_thresholds() -> None:
    text = report([HONEST, replace(HONEST, excess_ppb=4_000)], Counter({True: 3}), 0, 1, 1.0, True)
    assert "**Accused: 0 (fail), in doubt: 0 (grey), passed: 2**: fewer than 150.00%" in text
    assert "| one thread | 2 | 4.0e-06 | 8.0e-06 |" in text
    assert "Excess at 4 bits: largest 4.0e-06; passes to 1e-04 (a factor 25 above), fails beyond 1e-03." in text
    assert "3 of 3 gave the same bytes" in text


def test_an_accusation_is_counted_and_claims_no_bound() -> None:
    bad = replace(HONEST, excess_ppb=2_000_000, verdict="fail")
    text = report([HONEST, bad, replace(HONEST, verdict="grey")], Counter({False: 1}), 2, 1, 1.0, False)
    assert "**Accused: 1 (fail), in doubt: 1 (grey), passed: 1**." in text
    assert "0 of 1 gave the same bytes" in text
    assert "outcomes: 2." in text


def test_rows_are_grouped_by_program_and_optimizer_over_all_widths() -> None:
    text = report([HONEST, replace(HONEST, kind="text adamw 8", bits=8, excess_ppb=1)], Counter(), 0, 2, 1.0, False)
    assert "| unit | audits | excess, 8 bits | excess, 4 bits | sketch, any step |" in text
    assert "| text adamw | 2 | 1.0e-09 | 2.0e-06 | 8.0e-06 |" in text
