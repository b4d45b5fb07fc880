"""The fairness page: who earns how much, merit against base pay, what audits found, what the audit rate detects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdf_market.units import PPM
from ledger.explorer.aggregates import Bucket, Earned
from ledger.explorer.distribution import detection, gini, lorenz, units_until
from ledger.explorer.plots import MAX_DOTS, TICKS, Frame, Plot, credits_label, percent_label
from ledger.explorer.present import account_name, credits_text, number, percent, utc
from ledger.explorer.queries import MAX_PAGE
from ledger.explorer.totals import Totals

SHOWN_UNITS = 60  # on the axis of the detection curve
CHANCES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class RewardLine:
    """One account's rewards in micro-credits and its share of all."""

    account: str
    base: int
    merit: int
    audits: int
    total: int
    share_ppm: int


@dataclass(frozen=True)
class Rate:
    """An audit rate, and after how many cheated units it has found one with 50, 90 and 99% (0: never)."""

    name: str
    chance_ppm: int
    half: int
    most: int
    nearly_all: int


@dataclass(frozen=True)
class FairnessPage:
    """Figures of all rewards since genesis, or since ``pruned_below``; amounts in micro-credits."""

    earners: int
    base: int
    merit: int
    audits: int
    gini_ppm: int
    units: int  # accepted or convicted so far
    audited: int  # of these, by at least one auditor
    convicted: int
    rates: list[Rate]
    rewards: list[RewardLine]
    buckets: list[Bucket]
    lorenz: Plot | None
    scatter: Plot | None
    history: Plot | None
    curve: Plot | None
    pruned_below: int


def load(
    totals: Totals, earned: Sequence[Earned], buckets: Sequence[Bucket], floors_ppm: Sequence[int], oldest: int
) -> FairnessPage:
    """Return the page; ``floors_ppm`` are the lottery rates of the jobs under way."""
    amounts = [line.total for line in earned]
    rates = _rates(totals, floors_ppm)
    total = sum(amounts)
    return FairnessPage(
        earners=len(earned),
        base=sum(line.base for line in earned),
        merit=sum(line.merit for line in earned),
        audits=sum(line.audits for line in earned),
        gini_ppm=round(gini(amounts) * PPM),
        units=totals.judged,
        audited=totals.audited,
        convicted=totals.units.get("convicted", 0),
        rates=rates,
        rewards=[
            RewardLine(line.account, line.base, line.merit, line.audits, line.total, line.total * PPM // max(total, 1))
            for line in sorted(earned, key=lambda line: (-line.total, line.account))[:MAX_PAGE]
        ],
        buckets=list(buckets),
        lorenz=_lorenz(amounts),
        scatter=_scatter(earned),
        history=_history(buckets),
        curve=_curve(rates),
        pruned_below=oldest if oldest > 1 else 0,
    )


def _rates(totals: Totals, floors_ppm: Sequence[int]) -> list[Rate]:
    found: list[tuple[str, int]] = []
    if totals.judged:
        found.append(("Measured: units that somebody audited", totals.audited * PPM // totals.judged // 100 * 100))
    if floors_ppm:
        found.append(("Lowest lottery rate of a job under way", min(floors_ppm)))
    return [
        Rate(name, chance, *(units_until(min(chance, PPM), wanted) for wanted in CHANCES)) for name, chance in found
    ]


def _lorenz(amounts: Sequence[int]) -> Plot | None:
    points = lorenz(amounts)
    if len(points) < 3:
        return None
    frame = Frame((0, 1), (0, 1))
    x_ticks, y_ticks = frame.ticks(percent_label, percent_label)
    half = next((share for count, share in points if count >= 0.5), 1.0)
    return Plot(
        x_ticks,
        y_ticks,
        f"The poorer half of {number(len(amounts))} accounts earned {percent_label(half)} of all rewards; the Gini "
        f"coefficient is {gini(amounts):.3f}.",
        lines=(frame.line("all equal", [(0, 0), (1, 1)], "guide"), frame.line("rewards", points, "a")),
    )


def _scatter(earned: Sequence[Earned]) -> Plot | None:
    shown = [line for line in earned if line.base][:MAX_DOTS]
    if not shown:
        return None
    frame = Frame((0, max(line.base for line in shown)), (0, max(1, *(line.merit for line in shown))))
    x_ticks, y_ticks = frame.ticks(credits_label, credits_label)
    base, merit = sum(line.base for line in shown), sum(line.merit for line in shown)
    return Plot(
        x_ticks,
        y_ticks,
        f"Merit pay was {percent(merit * PPM // base // 100 * 100)} of base pay. Accounts above the line got more "
        "for the effect of their updates than the average, accounts below it less.",
        lines=(frame.line("average", [(0, 0), (max(line.base for line in shown), _average(shown))], "guide"),),
        dots=tuple(
            frame.dot(
                line.base,
                line.merit,
                f"{account_name(line.account)}: base {credits_text(line.base)}, merit {credits_text(line.merit)}",
            )
            for line in shown
        ),
    )


def _average(shown: Sequence[Earned]) -> float:
    """Return the merit pay at the right edge of the line through the origin."""
    base, merit = sum(line.base for line in shown), sum(line.merit for line in shown)
    return max(line.base for line in shown) * merit / base


def _history(buckets: Sequence[Bucket]) -> Plot | None:
    if not buckets:
        return None
    width = buckets[1].start_ms - buckets[0].start_ms if len(buckets) > 1 else 1
    start, end = buckets[0].start_ms, buckets[-1].start_ms + width
    most = max(max(each.audits, each.convictions) for each in buckets)
    frame = Frame((start, end), (0, max(TICKS, -(-most // TICKS) * TICKS)))  # whole numbers at the marks
    _, y_ticks = frame.ticks(str, lambda value: f"{value:.0f}")
    x_ticks, _ = Frame((start, end), (0, 1)).ticks(lambda ms: utc(round(ms))[5:16], str)
    bars = []
    for each in buckets:
        right = each.start_ms + width
        what = f"from {utc(each.start_ms)}: {each.audits} verdicts, {each.failed} fail, {each.convictions} convicted"
        if each.audits:
            bars.append(frame.bar((each.start_ms, right), (0, each.audits), what, "a"))
        if each.convictions:
            bars.append(frame.bar((each.start_ms, right), (0, each.convictions), what, "bad"))
    verdicts, convicted = sum(each.audits for each in buckets), sum(each.convictions for each in buckets)
    return Plot(
        x_ticks,
        y_ticks,
        f"{number(verdicts)} verdicts of audits and {number(convicted)} convicted units over time.",
        bars=tuple(bars),
    )


def _curve(rates: Sequence[Rate]) -> Plot | None:
    if not rates:
        return None
    frame = Frame((0, SHOWN_UNITS), (0, 1))
    x_ticks, y_ticks = frame.ticks(lambda value: f"{value:.0f}", percent_label)
    lines = tuple(
        frame.line(
            f"{rate.name} ({percent(rate.chance_ppm)})", detection(min(rate.chance_ppm, PPM), SHOWN_UNITS), style
        )
        for rate, style in zip(rates, "ab", strict=False)
    )
    first = rates[0]
    return Plot(
        x_ticks,
        y_ticks,
        f"At {percent(first.chance_ppm)} per unit, the chance that at least one of 10 cheated units is audited is "
        f"{percent_label(detection(min(first.chance_ppm, PPM), 10)[-1][1])}.",
        lines=lines,
    )
