"""Following a job: what is read from the ledger, when something is shown, in which form, and when it ends."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from contracts.records import Job
from gdf_market.codec import encode
from gdf_market.commands import watch as watching
from gdf_market.commands.common import App
from gdf_market.commands.metrics import Sinks
from gdf_market.commands.plot import UNICODE
from gdf_market.commands.progress import CURVE_POINTS, Progress, RoundMetrics, progress_of, recipe_line, sampled
from gdf_market.commands.watch import Sight, View, duration, follow, look, sentence, view
from gdf_market.node.datadir import DataDir
from gdf_market.units import CREDIT
from ledger.store import LedgerStore
from tests.explorer_ledger import HOSTILE, PRICE, Example, build_example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


@pytest.fixture
def app(example: Example) -> App:
    return App(data=DataDir(example.path.parent))


def progress(example: Example, job: str) -> Progress:
    store = LedgerStore(example.path, read_only=True)
    try:
        return progress_of(store, job)[0]
    finally:
        store.close()


def test_progress_of_a_running_job(example: Example) -> None:
    found = progress(example, example.running_job)
    assert (found.completed, found.rounds, found.status, found.ended) == (6, 12, "running", False)
    assert (found.workers, found.slots) == (2, 4)
    assert (found.missed, found.rejected, found.convicted) == (1, 0, 1)
    assert found.accepted == 6 * 4 - 2
    assert found.losses == ((1, 4.1802), (2, 3.3202), (3, 2.8702), (4, 2.6102), (5, 2.4402), (6, 2.3302))
    assert found.loss == 2.3302
    pots = example.build.pots
    assert found.held == sum(amount for name, amount in pots.items() if name.startswith("held") and found.job in name)
    assert found.escrow == pots[f"escrow {found.job}"] + pots[f"audit_escrow {found.job}"]
    assert found.paid > 15 * PRICE
    assert found.audit_fees == 5 * CREDIT // 2
    assert found.round_seconds is not None
    assert found.eta_seconds == pytest.approx(6 * found.round_seconds + 300)


def test_progress_of_a_job_that_is_done(example: Example) -> None:
    found = progress(example, example.done_job)
    assert (found.ended, found.eta_seconds, found.workers, found.held) == (True, 0.0, 0, 0)
    assert found.refunded > 0


def test_a_long_curve_keeps_its_ends() -> None:
    points = [(step, float(step)) for step in range(1, 10_001)]
    kept = sampled(points)
    assert len(kept) == CURVE_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert sampled(points[:5]) == tuple(points[:5])


def sight(example: Example, now_ms: int = 0, still_s: int = 0, **changes: object) -> Sight:
    found = replace(progress(example, example.running_job), title="Tiny GPT", reason="", **changes)  # type: ignore[arg-type]
    return Sight(found, now_ms or found.head_ms, still_s, node_runs=False)


@pytest.mark.parametrize(("width", "height"), [(80, 23), (60, 12), (20, 5), (200, 60)])
def test_the_view_fits_the_terminal(example: Example, width: int, height: int) -> None:
    lines = view(sight(example), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert all(line.isascii() for line in lines)


def test_the_view_of_80_by_24_says_everything(example: Example) -> None:
    shown = "\n".join(view(sight(example, phase="work", round=6, phase_end_ms=10**13, units_in=2), 80, 23))
    for word in ("Tiny GPT", "6/12 rounds", "work of round 6", "left", "2 on 4 slots", "2 in now", "1 convicted"):
        assert word in shown
    for word in ("paid", "held", "loss     2.3302 (first 4.1802)", "about", "a round", "validation loss (nats)"):
        assert word in shown
    assert shown.count("*") >= 6
    assert re.search(r"#{10,}\.{10,} 6/12", shown)


def test_the_view_is_drawn_without_colour_and_with_the_text_of_others_as_it_is(example: Example) -> None:
    evil = replace(progress(example, example.running_job), title=f"\x1b[2J{HOSTILE}", reason="[bold]no[/nothing]")
    console = Console(width=80, height=24, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(View(Sight(evil, evil.head_ms, 0, node_runs=True)))
    shown = capture.get()
    assert "\x1b" not in shown
    assert "[bold]no[/nothing]" in shown
    assert len(shown.splitlines()) <= 24
    assert UNICODE.point in shown


@pytest.mark.parametrize(
    ("runs", "word"), [(False, "no node here (`gdf-market node run`)"), (True, "the node here gets no block")]
)
def test_a_ledger_that_stands_still_is_said(example: Example, runs: bool, word: str) -> None:
    still = replace(sight(example, still_s=125), node_runs=runs)
    assert "has not moved for 2 min 05 s: " in still.stillness
    assert word in still.stillness
    assert any(word in line for line in view(still, 80, 23))
    assert word in sentence(still)
    assert sight(example).stillness == ""


class Ledgers:
    """Replaces what a watched job is read from, one state per look."""

    def __init__(self, states: list[Progress]) -> None:
        self.states, self.looks = states, 0

    def __call__(self, _store: object, _job: str) -> tuple[Progress, list[object]]:
        self.looks += 1
        return replace(self.states[min(self.looks, len(self.states)) - 1], height=-1), []


def test_looking_ends_with_the_job_and_waits_between_looks(
    app: App, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, done = progress(example, example.running_job), progress(example, example.done_job)
    monkeypatch.setattr(watching, "progress_of", Ledgers([running, running, done]))
    pauses: list[float] = []
    now_s = running.head_ms / 1_000
    seen = list(look(app, example.running_job, Sinks(""), clock=lambda: now_s, sleep=pauses.append))
    assert [one.progress.ended for one in seen] == [False, False, True]
    assert len(pauses) == 2
    assert min(pauses) >= watching.POLL_S
    assert {one.still_s for one in seen} == {0}


def test_a_ledger_without_new_blocks_is_not_read_again(
    app: App, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def read(store: LedgerStore, job: str) -> tuple[Progress, list[RoundMetrics]]:
        reads.append(job)
        return progress_of(store, job)

    monkeypatch.setattr(watching, "progress_of", read)
    late_s = example.build.time_ms / 1_000 + 60
    sights = look(app, example.running_job, Sinks(""), clock=lambda: late_s, sleep=lambda _: None)
    first, second = next(sights), next(sights)
    assert reads == [example.running_job]
    assert first.still_s == second.still_s == 60


@pytest.fixture
def changing(example: Example) -> Iterator[Sight]:
    first = sight(example)
    later = replace(first, progress=replace(first.progress, height=99, head_ms=first.progress.head_ms + 9_000))
    moved = replace(first, progress=replace(first.progress, units_in=3))
    ended = replace(first, progress=replace(first.progress, status="done"))
    return iter([first, later, moved, moved, ended])


def test_json_is_one_object_per_change(app: App, changing: Iterator[Sight], capsys: pytest.CaptureFixture[str]) -> None:
    app.json = True
    follow(app, changing)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["units_in"], line["status"]) for line in lines] == [(0, "running"), (3, "running"), (0, "done")]
    assert lines[0]["losses"][0] == [1, 4.1802]


def test_plain_output_is_one_line_per_change(
    app: App, changing: Iterator[Sight], capsys: pytest.CaptureFixture[str]
) -> None:
    follow(app, changing)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("round 6/12; running; 2 workers; 0 units in")
    assert [part.strip() for part in lines[-1].split(";")].count("done") == 1


def test_a_terminal_gets_one_picture(app: App, changing: Iterator[Sight]) -> None:
    app.out = Console(force_terminal=True, width=80, height=24, no_color=True, record=True, file=io.StringIO())
    follow(app, changing)
    assert "6/12 rounds" in app.out.export_text()


def test_an_interrupt_ends_the_view_alone(
    app: App, example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gdf_market.commands import main

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gdf_market.commands.watch.time.sleep", interrupted)
    monkeypatch.setattr(
        "sys.argv", ["gdf-market", "--data-dir", str(app.data.root), "jobs", "show", example.running_job, "--watch"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    shown = capsys.readouterr()
    assert shown.out.startswith("round 6/12")
    assert shown.err.strip() == "interrupted"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-5, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3_660, "1 h 01 min"), (90_000, "1 d 01 h")],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_recipe_in_one_line(example: Example) -> None:
    store = LedgerStore(example.path, read_only=True)
    job = store.record(f"job/{example.running_job}")
    store.close()
    assert isinstance(job, Job)
    line = recipe_line(job.spec.recipe)
    for word in ("adamw", "20 steps of 8 samples", "0.001 constant", "fp32", "4 bits in blocks of 128"):
        assert word in line
