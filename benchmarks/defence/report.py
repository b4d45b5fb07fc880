"""The tables of the benchmark, from what its runs found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.defence import league, outside, tasks
from benchmarks.defence.adversary import ATTACKS
from benchmarks.defence.market import VALIDATORS, WORKERS, Story, dishonest_validators, extra_compute
from benchmarks.defence.world import ROUNDS, STEPS
from contracts.parameters import ARBITERS, COMMITTEE_SIZE

Found = Mapping[tasks.Task, Mapping[str, Any]]

OURS = "this market"
_ACCURATE = [attack.name for attack in ATTACKS[1:]]  # all of them count for the worst loss
_SPLITS = ((False, "even"), (True, "Dirichlet 0.3"))


def tables(found: Found, data: str, missing: Mapping[str, str], words: str) -> str:
    """Return everything as Markdown."""
    runs = _Runs(found, data)
    parts = [
        f"# Attacks on verification\n\n{words}\n\n{_setting(data)}",
        _summary(runs),
        _by_attack(runs),
        _defences(runs, missing),
        _rates(runs),
        _variants(runs),
        _panels(),
        _speed(found),
        outside.table(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


class _Runs:
    """Stories and scores by what they are about, over all seeds."""

    def __init__(self, found: Found, data: str) -> None:
        self._found = {
            task: line["found"] for task, line in found.items() if task.data == data and task.kind != "outside"
        }

    def stories(self, **wanted: Any) -> list[Story]:
        """Return the stories of the market whose tasks have these fields."""
        return [Story(**each) for task, each in self._found.items() if task.kind == "market" and _has(task, wanted)]

    def scores(self, rule: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the scores of a rule."""
        lines = [each for task, each in self._found.items() if task.kind == "league" and _has(task, wanted)]
        return [score for line in lines for score in line if score["rule"] == rule]

    def clean(self, uneven: bool) -> float | None:
        """Return the accuracy of the plain mean of 20 honest workers."""
        return _mean(score["accuracy"] for score in self.scores("mean", attack="none", bad=0, uneven=uneven))

    def loss(self, accuracies: Iterable[float], uneven: bool) -> float | None:
        """Return points below clean."""
        clean, own = self.clean(uneven), _mean(accuracies)
        return None if clean is None or own is None else 100 * (clean - own)

    def market_loss(self, **wanted: Any) -> float | None:
        return self.loss((story.accuracy for story in self.stories(**wanted)), wanted["uneven"])

    def rule_loss(self, rule: str, **wanted: Any) -> float | None:
        return self.loss((score["accuracy"] for score in self.scores(rule, **wanted)), wanted["uneven"])

    def seeds(self) -> int:
        return len({task.seed for task in self._found})


def _has(task: tasks.Task, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(task, name) == value for name, value in wanted.items())


def _mean(values: Iterable[float]) -> float | None:
    given = list(values)
    return statistics.fmean(given) if given else None


def _setting(data: str) -> str:
    return (
        f"Data: {data}{' (14 x 14)' if data != 'digits' else ''}; 20 workers, {ROUNDS} rounds, H = {STEPS} steps of "
        "AdamW, 4-bit updates, outer momentum 0.5; accuracy is that of the last five rounds.  Accounts have records "
        "(bad ones too: they were honest until now) and the job's audit floor is 5%, unless it says *new*: no records, "
        "floor 10%.  Bad workers know every honest update before they make theirs; as auditors and committee members "
        "they pass each other's units.  One in four validators is bad where 20% or more of the workers are.  Peers are "
        'told how many are bad; the market is not.  "Clean" is the plain mean of 20 honest workers.'
    )


# the figures


def _summary(runs: _Runs) -> str:
    base: dict[str, Any] = {"terms": "records"}
    lines = ["## Figures", "", "| figure | target | found |", "|---|---|---|"]
    for bad, limit in ((20, 0.7), (40, 1.0)):
        lines.append(
            f"| worst-attack loss of accuracy at {bad}% bad, points below clean | <= {limit} | {_worst(runs, bad)} |"
        )
    doors = [(s.backdoor, bad) for bad in (10, 20, 30, 40) for s in runs.stories(attack="backdoor", bad=bad, **base)]
    rates = ", ".join(
        f"{100 * statistics.fmean(each):.1f}% at {bad}%"
        for bad in (20, 40)
        if (each := [value for value, at in doors if at == bad])
    )
    worst = f"; highest of one run {100 * max(doors)[0]:.1f}%" if doors else ""
    lines.append(f"| backdoor success | <= 3% | {rates}{worst} |")
    for name, words in (("records", "records, floor 5%"), ("new", "new accounts, floor 10%")):
        lines.append(
            f"| bad workers convicted within {ROUNDS} rounds; mean round ({words}) | 100%; <= 5 "
            f"| {_convictions(runs, name)} |"
        )
    every = runs.stories()
    audits, alarms = sum(s.honest_audits for s in every), sum(s.honest_alarms for s in every)
    largest = max((s.largest_honest_ppb for s in every), default=0) / 1e9
    lines.append(
        f"| honest units that an honest audit did not pass | 0 of >= 1,000 "
        f"| {alarms} of {audits:,}; largest distance {largest:.1e} |"
    )
    convicted = sum(
        s.honest_convicted
        for task_name in _ACCURATE
        if task_name != "lying auditor"
        for s in runs.stories(attack=task_name)
    )
    lines.append(f"| honest workers convicted, without lying committees | 0 | {convicted} |")
    lines.append(f"| honest workers convicted by lying committees (job of 20 workers) | 0 | {_liars(runs)} |")
    lazy = runs.stories(attack="lazy 1 of 20")
    found = _share(sum(s.cheat_found for s in lazy), sum(s.cheat_audits for s in lazy))
    lines.append(f"| skip-1-of-20 found when audited, fp32 | 100% | {found} |")
    lines.append(f"| extra compute for all verification | <= 12% | {_extra(runs)} |")
    lines.append("| robust aggregation | >= 3 x | see below |")
    return "\n".join(lines)


def _worst(runs: _Runs, bad: int) -> str:
    parts = []
    for uneven, split in _SPLITS:
        losses = [
            (loss, name)
            for name in _ACCURATE
            if (loss := runs.market_loss(attack=name, bad=bad, uneven=uneven, terms="records")) is not None
        ]
        if losses:
            parts.append(f"{max(losses)[0]:.2f} ({max(losses)[1]}, {split})")
    clean = [runs.market_loss(attack="none", bad=0, uneven=uneven, terms="records") for uneven, _ in _SPLITS]
    return "; ".join(parts) + "; without bad workers " + " and ".join(_points(each) for each in clean)


def _convictions(runs: _Runs, terms: str) -> str:
    parts = []
    for bad in (20, 40):
        stories = [s for name in _ACCURATE for s in runs.stories(attack=name, bad=bad, terms=terms) if s.cheats]
        if not stories:
            continue
        waits = [wait for story in stories for wait in story.convicted.values()]
        open_ = sum(s.cheats - s.kept_out - len(s.convicted) for s in stories)
        cheats = sum(s.cheats - s.kept_out for s in stories)
        parts.append(
            f"at {bad}%: {_share(cheats - open_, cheats)}, mean {statistics.fmean(waits):.1f}, last {max(waits)}"
        )
    return "; ".join(parts)


def _liars(runs: _Runs) -> str:
    parts = []
    for bad in (10, 20, 30, 40):
        stories = runs.stories(attack="lying auditor", bad=bad, terms="records")
        if stories:
            each = statistics.fmean(s.honest_convicted for s in stories)
            lies, lost = sum(s.lies for s in stories), sum(s.lies_punished for s in stories)
            parts.append(f"{each:.1f} a job at {bad}% ({lost} of {lies} false accusations lost their bond)")
    return "; ".join(parts)


def _extra(runs: _Runs) -> str:
    parts = []
    for terms in ("records", "records, 10%", "new"):
        stories = runs.stories(attack="none", bad=0, terms=terms)
        if stories:
            parts.append(f"{terms}: {100 * extra_compute(stories):.1f}%")
    for bad in (20, 40):
        stories = [s for name in _ACCURATE for s in runs.stories(attack=name, bad=bad, terms="records")]
        if stories:
            whole, steps = extra_compute(stories), extra_compute(stories, member=1 / STEPS)
            parts.append(
                f"records, under attack at {bad}%: {100 * whole:.1f}% "
                f"(with arbiters that run one step: {100 * steps:.1f}%)"
            )
    return "; ".join(parts)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}% ({part} of {whole})" if whole else "-"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# the market by attack


def _by_attack(runs: _Runs) -> str:
    heads, cells = [], []
    for bad in (20, 40):
        for uneven, split in _SPLITS:
            if any(runs.stories(attack=name, bad=bad, uneven=uneven, terms="records") for name in _ACCURATE):
                heads.append(f"{bad}%, {split}")
                cells.append((bad, uneven))
    lines = [f"## {OURS.capitalize()} by attack", "", _ATTACK_WORDS, ""]
    lines += ["| attack | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name in _ACCURATE:
        row = [_attack_cell(runs, name, bad, uneven) for bad, uneven in cells]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


_ATTACK_WORDS = (
    "Points below clean / cheats convicted of those whose updates were taken, mean round of conviction (counted from "
    "the first cheat) / audits by honest auditors that said fail.  Where none was taken, the form check kept all of "
    "them out."
)


def _attack_cell(runs: _Runs, name: str, bad: int, uneven: bool) -> str:
    wanted: dict[str, Any] = {"attack": name, "bad": bad, "uneven": uneven, "terms": "records"}
    stories = runs.stories(**wanted)
    if not stories:
        return "-"
    loss = _points(runs.market_loss(**wanted))
    cheats = sum(s.cheats - s.kept_out for s in stories)
    if not cheats:
        return f"{loss} / none taken" if any(s.cheats for s in stories) else f"{loss} / no cheats"
    waits = [wait for s in stories for wait in s.convicted.values()]
    mean = f"{statistics.fmean(waits):.1f}" if waits else "-"
    found, audits = sum(s.cheat_found for s in stories), sum(s.cheat_audits for s in stories)
    return f"{loss} / {len(waits)} of {cheats}, {mean} / {found} of {audits}"


# all defences


def _defences(runs: _Runs, missing: Mapping[str, str]) -> str:
    columns = [
        (bad, uneven, split)
        for uneven, split in _SPLITS
        for bad in (20, 40)
        if any(runs.scores("mean", attack=name, bad=bad, uneven=uneven) for name in _ACCURATE)
    ]
    if not columns:
        return ""
    lines = ["## Defences side by side", "", _DEFENCE_WORDS, ""]
    heads = [f"worst loss, {bad}%, {split}" for bad, _, split in columns]
    lines.append("| defence | " + " | ".join(heads) + " | backdoor at 40% | NaN and Inf at 40% |")
    lines.append("|---|" + "---|" * (len(heads) + 2))
    counted = [name for name in _ACCURATE if name not in ("NaN and Inf", "lying auditor")]
    cells = [_ours(runs, bad, uneven, counted) for bad, uneven, _ in columns]
    ours: dict[str, Any] = {"bad": 40, "uneven": False, "terms": "records"}
    cells.append(_door(story.backdoor for story in runs.stories(attack="backdoor", **ours)))
    cells.append(_points(runs.market_loss(attack="NaN and Inf", **ours)))
    lines.append(f"| **{OURS}** | " + " | ".join(cells) + " |")
    for rule in league.RULES:
        if not runs.scores(rule):
            lines.append(f"| {rule} |" + " not installed |" * (len(heads) + 2))
            continue
        cells = [_rule_cell(runs, rule, bad, uneven, counted) for bad, uneven, _ in columns]
        door = _door(s["backdoor"] for s in runs.scores(rule, attack="backdoor", bad=40, uneven=False))
        nan = _points(runs.rule_loss(rule, attack="NaN and Inf", bad=40, uneven=False))
        lines.append(f"| {rule} | " + " | ".join(cells) + f" | {door} | {nan} |")
    same = "; ".join(f"{name} = {other}" for name, other in league.REPEATED.items())
    lines += ["", f"The same numbers, so not run twice: {same}."]
    lines += [f"\n{name} could not be installed: {reason}" for name, reason in missing.items()]
    for rule in league.RULES:
        failed = [score for score in runs.scores(rule) if score["errors"]]
        if failed:
            rounds = sum(score["errors"] for score in failed)
            lines.append(f"\n{rule} gave no result in {rounds} rounds of {len(failed)} runs ({failed[0]['error']}).")
    return "\n".join(lines)


_DEFENCE_WORDS = (
    "Points below clean in the worst of the attacks, which is named; all attacks but NaN and Inf, which has its own "
    "column, and the lying auditor, which only exists where there are auditors."
)


def _ours(runs: _Runs, bad: int, uneven: bool, names: Sequence[str]) -> str:
    losses = [(runs.market_loss(attack=name, bad=bad, uneven=uneven, terms="records"), name) for name in names]
    return _largest(losses)


def _rule_cell(runs: _Runs, rule: str, bad: int, uneven: bool, names: Sequence[str]) -> str:
    return _largest([(runs.rule_loss(rule, attack=name, bad=bad, uneven=uneven), name) for name in names])


def _largest(losses: Sequence[tuple[float | None, str]]) -> str:
    known = [(loss, name) for loss, name in losses if loss is not None]
    return f"{max(known)[0]:.2f} ({max(known)[1]})" if known else "-"


def _door(values: Iterable[float]) -> str:
    mean = _mean(values)
    return "-" if mean is None else f"{100 * mean:.1f}%"


# detection against the rate of audits


def _rates(runs: _Runs) -> str:
    lines = ["## Detection against the rate of audits", ""]
    lines.append(
        "20% bad, accounts with records.  Share of the cheats convicted within 40 rounds, mean round / extra compute."
    )
    names = [name for name in tasks.RATE_ATTACKS if runs.stories(attack=name, terms=f"rate {tasks.RATES[0]}")]
    if not names:
        return ""
    modes = [("", "with targets"), (", no targets", "lottery alone")]
    heads = [
        f"{name}, {words}"
        for name in names
        for mode, words in modes
        if runs.stories(attack=name, terms=f"rate 1{mode}")
    ]
    lines += ["", "| audit rate | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for rate in tasks.RATES:
        row = [
            _rate_cell(runs.stories(attack=name, terms=f"rate {rate}{mode}"))
            for name in names
            for mode, _ in modes
            if runs.stories(attack=name, terms=f"rate 1{mode}")
        ]
        lines.append(f"| {rate}% | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _rate_cell(stories: Sequence[Story]) -> str:
    if not stories:
        return "-"
    waits = [wait for story in stories for wait in story.convicted.values()]
    share = 100 * len(waits) / max(1, sum(s.cheats for s in stories))
    mean = f"{statistics.fmean(waits):.1f}" if waits else "-"
    return f"{share:.0f}%, {mean} / {100 * extra_compute(stories):.1f}%"


# what other rules would change


def _variants(runs: _Runs) -> str:
    names = [
        name for name in tasks.TERMS if runs.stories(attack=tasks.MASS_ATTACKS[0], bad=40, uneven=False, terms=name)
    ]
    if not names:
        return ""
    lines = ["## Other terms and rules, at 40% bad", "", _VARIANT_WORDS, ""]
    lines += ["| terms | " + " | ".join(tasks.MASS_ATTACKS) + " |", "|---|" + "---|" * len(tasks.MASS_ATTACKS)]
    for terms in names:
        row = [_variant_cell(runs, attack, terms) for attack in tasks.MASS_ATTACKS]
        lines.append(f"| {terms} | " + " | ".join(row) + " |")
    return "\n".join(lines)


_VARIANT_WORDS = (
    "Cheats convicted, mean round / backdoor success or honest workers convicted where that is the attack / honest "
    "accusers that lost their bond / extra compute (with arbiters that run one step).  "
    "*No alert*, *no bars*, *outliers* and committees of other sizes than "
    f"{ARBITERS} are not the rules; they show what would change.  Bars: whoever accused somebody wrongly judges "
    "nothing in the job any more.  Alert: in the k-th round after a "
    "conviction no unit's audit chance is below 1 / k.  Outliers: units whose cosine with the sum of the others is "
    "below half the median of those are targets, too (at most four a round, as now)."
)


def _variant_cell(runs: _Runs, attack: str, terms: str) -> str:
    stories = runs.stories(attack=attack, bad=40, uneven=False, terms=terms)
    if not stories:
        return "-"
    extra = f"{100 * extra_compute(stories):.0f}% ({100 * extra_compute(stories, member=1 / STEPS):.0f}%)"
    punished = sum(s.honest_accusers_punished for s in stories)
    if attack == "lying auditor":
        return f"{statistics.fmean(s.honest_convicted for s in stories):.1f} honest convicted a job / {extra}"
    waits = [wait for s in stories for wait in s.convicted.values()]
    mean = f"{statistics.fmean(waits):.1f}" if waits else "-"
    door = f" / {_door(s.backdoor for s in stories)}" if attack == "backdoor" else ""
    return f"{len(waits)} of {sum(s.cheats for s in stories)}, {mean}{door} / {punished} / {extra}"


def bad_majority(count: int, bad: int, panel: int) -> float:
    """Return the chance that more than half of ``panel`` accounts drawn of ``count`` are among the ``bad`` ones."""
    size = min(panel, count)
    ways = sum(math.comb(bad, k) * math.comb(count - bad, size - k) for k in range(size // 2 + 1, size + 1))
    return ways / math.comb(count, size)


def _panels() -> str:
    """Return how often a lie is upheld: exact, from the sizes alone."""
    lines = ["## Chance that a panel upholds a lie", "", _PANEL_WORDS, ""]
    lines += [
        "| bad accounts | " + " | ".join(f"{size}" for size in _PANELS) + " | all |",
        "|---|" + "---|" * (len(_PANELS) + 1),
    ]
    for bad in (10, 20, 30, 40):
        asked = WORKERS - 2 + VALIDATORS  # without the accused worker and the accuser
        liars = bad * WORKERS // 100 - 1 + dishonest_validators(bad / 100)
        row = [f"{100 * bad_majority(asked, liars, size):.1f}%" for size in (*_PANELS, asked)]
        lines.append(f"| {bad}% | " + " | ".join(row) + " |")
    return "\n".join(lines)


_PANELS = (3, 5, 7, 11, 15, 17)
_PANEL_WORDS = (
    "More than half of the panel (arbiters or committee) are the accuser's friends; 20 workers and 4 validators, "
    f"by size of the panel.  A committee usually has {COMMITTEE_SIZE} members, and a bisection {ARBITERS} arbiters, "
    f"each of whom replays one step of {STEPS}: {STEPS} arbiters cost what one member of a committee does."
)


# speed


def _speed(found: Found) -> str:
    lines = ["## Robust aggregation, 20 updates of a million values, one thread", ""]
    measured = next((line["found"] for task, line in found.items() if task.kind == "speed"), None)
    if measured is None:
        return ""
    gram, rest = (measured[name]["seconds"] for name in ("Gram matrix, exact", "NNM + trimmed mean from it, exact"))
    same = {name: each for name, each in measured.items() if "difference" in each and not each["error"]}
    lines += ["| what | CPU ms, best of five | difference from ours |", "|---|---|---|"]
    for name, each in measured.items():
        difference = f"{each['difference']:.1e}" if "difference" in each else ""
        lines.append(
            f"| {name} | {1e3 * each['seconds']:.0f}{' ' + each['error'] if each.get('error') else ''} | {difference} |"
        )
    if same:
        name, best = min(same.items(), key=lambda pair: float(pair[1]["seconds"]))
        lines.append(
            f"\nOurs, Gram matrix included: {1e3 * (gram + rest):.0f} ms; the fastest peer of the same rule ({name}): "
            f"{1e3 * best['seconds']:.0f} ms, {best['seconds'] / (gram + rest):.2f} x ours (target >= 3); without the "
            f"Gram matrix, which flags and merit need anyway: {best['seconds'] / rest:.2f} x."
        )
    return "\n".join(lines)
