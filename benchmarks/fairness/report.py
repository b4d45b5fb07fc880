"""What the benchmark of fairness says, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.fairness import riders
from benchmarks.fairness.cheating import Strategy, Tally, break_even_ppm
from benchmarks.fairness.digits import WORKERS
from benchmarks.fairness.identities import Reward
from benchmarks.fairness.market import BOND, PRICE
from benchmarks.fairness.merits import KINDS, Comparison
from benchmarks.fairness.riders import Earned
from benchmarks.fairness.shapley import bootstrap, spearman
from gdf_market.units import PPM

RESULTS = Path(__file__).parent.parent / "results" / "fairness.md"
TARGET = 0.9

Grid = Mapping[tuple[Strategy, int], Tally]  # by pattern of a strategy and audit floor in ppm


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [row(head), "|---" * len(head) + "|", *map(row, rows)]


def merit_lines(found: Sequence[Comparison]) -> list[str]:
    """Return the comparison of merit with exact Shapley values."""
    lines = [
        "## Merit against exact Shapley values",
        "",
        f"Six workers, digits of scikit-learn, {len(found)} seeds; every one of the 64 coalitions is trained from the "
        "start with the market's units, codec and outcome. Rank correlation over the six workers: mean over seeds, "
        "with the 95% interval of a bootstrap over seeds.",
        "",
    ]
    rows = []
    for kind, name in enumerate(KINDS):
        for what, values in (
            ("Spearman", [each.spearman(kind) for each in found]),
            ("Kendall", [each.kendall(kind) for each in found]),
            ("Spearman, formula of the paper", [spearman(each.paper, each.values[kind]) for each in found]),
        ):
            low, high = bootstrap(values)
            mean = statistics.mean(values)
            met = ("yes" if mean >= TARGET else "**no**") if what == "Spearman" else ""
            rows.append([name, what, f"**{mean:.3f}**", f"{low:.3f} to {high:.3f}", f"{min(values):.2f}", met])
    lines += table(["value of a coalition", "correlation", "mean", "95%", "worst seed", f">= {TARGET}"], rows)
    lines += ["", *_by_worker(found)]
    return lines


def _by_worker(found: Sequence[Comparison]) -> list[str]:
    rows = []
    for at, name in enumerate(WORKERS):
        merit = statistics.mean(each.merit[at] for each in found)
        values = [statistics.mean(each.values[kind][at] for each in found) for kind in range(len(KINDS))]
        rows.append([name, f"{merit:.1%}", *(f"{value:+.3f}" for value in values)])
    return table(["worker's data", "merit share", *(f"Shapley: {name}" for name in KINDS)], rows)


def rider_lines(found: Sequence[Earned]) -> list[str]:
    """Return what riders earn."""
    rows = [
        [
            each.rider.name,
            f"{each.rider.units} ({each.rider.worked})",
            f"**{statistics.mean(each.relative):.2f}**",
            _share(each.rejected),
            _share(each.flagged),
            _share(each.first),
            _share(each.honest_flagged),
        ]
        for each in found
    ]
    head = ["what is handed in", "units (worked)", "merit of all, in honest units", "rejected by form", "flagged"]
    return [
        "## Free-riders and copies",
        "",
        f"{riders.UNITS} units a round on the digits, the others honest; {riders.ROUNDS - 1} rounds each of several "
        "seeds, by the real outcome. A rejected unit earns nothing at all; a flagged one, and the most suspicious one "
        "of each round, is audited, and what is caught loses its pay, its merit and the bond.",
        "",
        *table([*head, "most suspicious", "an honest unit flagged"], rows),
    ]


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.0%}"


def identity_lines(found: Sequence[Reward]) -> list[str]:
    """Return the ratio of rewards by number of names."""
    names = sorted({each.names for each in found})
    rows, first = [], 0.0
    for count in names:
        mine = [each for each in found if each.names == count]
        total = sum(each.total for each in mine)
        first = first or total
        rows.append(
            [
                str(count),
                f"{sum(each.units for each in mine):,}",
                f"{sum(each.base for each in mine):,.2f}",
                f"{sum(each.merit for each in mine):,.2f}",
                f"**{total / first:.4f}**",
                f"{sum(each.audited for each in mine)}",
                f"{sum(each.siblings for each in mine)}",
                f"{sum(each.audits for each in mine):.2f}",
            ]
        )
    head = [
        "names",
        "units",
        "base pay",
        "merit",
        "reward against one name",
        "audits of others",
        "of each other",
        "fees",
    ]
    return [
        "## One machine under several names",
        "",
        "A machine does four of eight units in every round, under one name or divided over several, by the real "
        "auction, rounds, merit and settlement; credits over all jobs. Fees of audits are apart: each name has tickets "
        "of its own, so more names do more audits, and those of each other's units take no work. Nobody has a record "
        "at first, so the first units are audited often.",
        "",
        *table(head, rows),
    ]


def cheating_lines(grid: Grid, strategies: Sequence[Strategy], floors: Sequence[int], jobs: int) -> list[str]:
    """Return what cheats can expect."""
    loss = BOND / PRICE
    rows, worst = [], []
    for strategy in strategies:
        cells = [_cell(grid[strategy.pattern(False), floor], strategy.saved) for floor in floors]
        pooled = Tally()
        for floor in floors:
            pooled.add(grid[strategy.pattern(False), floor])
        even = break_even_ppm(strategy, pooled)
        needed = f"{even / PPM:.1%}" if strategy.record else "its chance is 100% at first"
        rows.append([strategy.name, *cells, needed, f"{pooled.mean_loss:.1f}"])
        ends = (grid[strategy.pattern(True), floor] for floor in (floors[0], floors[-1]))
        worst.append([strategy.name, *(_cell(tally, strategy.saved) for tally in ends)])
    shown = [f"{floor / PPM:.0%}" for floor in floors]
    return [
        "## What cheating is worth",
        "",
        f"Expected gain over honest work for each cheated unit, in prices, ± one standard error; {jobs} jobs a cell "
        "(more for jobs of one or two rounds), six workers and two validators, bond "
        f"{loss:.0f} times the price. Worst cases throughout: a unit costs its whole price; similarity never points at "
        "the cheat, and it gets an honest merit; being thrown out and losing its record cost it nothing.",
        "",
        *table(["strategy", *(f"audits: {each}" for each in shown), "break-even", "lost when caught"], rows),
        "",
        "What is gained is the work left out; what is lost, when an audit finds it, is bond, pay and merit, and the "
        "pay of a unit under way. Some audit happens with 1 - (1 - p / n)^n for a floor p and n auditors, less "
        "than p, and allies do not count. So a unit that costs its whole price is worth leaving out below the "
        "break-even, by lottery alone; the owner's terms (bond and floor) decide where that is.",
        "",
        "The same where each round's most suspicious unit, which is always audited, is a random one (similarity that "
        "knows nothing):",
        "",
        *table(["strategy", *(f"audits: {each}" for each in shown[:: len(shown) - 1])], worst),
    ]


def _cell(tally: Tally, saved: float) -> str:
    gain = tally.per_unit(saved)
    bold = "**" if gain > 0 else ""
    return f"{bold}{gain:+.2f}{bold} ± {tally.error:.2f}"
