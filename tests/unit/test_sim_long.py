"""The long simulation counts what it ran, names what failed and how to repeat it, and leaves when it is told to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sim import long
from tests.sim.long import Outcome, Totals, follow, outcomes, run_one
from tests.simulator import InvariantError


def test_a_seed_is_run_and_measured() -> None:
    outcome = run_one(3)
    assert outcome.error == ""
    assert outcome.simulated_ms > 3_000
    assert outcome.blocks > 0
    assert outcome.messages > 0


def test_a_failing_seed_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_at_7(seed: int) -> Outcome:
        if seed == 7:
            raise InvariantError("two finalized blocks at height 3")
        raise OSError("a bug")

    monkeypatch.setattr(long, "run_seed", fail_at_7)
    totals = Totals(2, time.monotonic())
    follow(iter([run_one(7), None, run_one(8)]), totals, lambda line: None)
    shown = capsys.readouterr().out
    assert "seed 7 failed: InvariantError: two finalized blocks at height 3" in shown
    assert "python -m tests.sim.test_simplex 7" in shown
    assert totals.failed == [7, 8]
    assert "2 of 2 seeds" in totals.line(time.monotonic())


def test_every_seed_runs_once_and_few_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def seeds():  # type: ignore[no-untyped-def]
        for seed in range(30):
            taken.append(seed)
            yield seed

    monkeypatch.setattr(long, "run_one", lambda seed: Outcome(seed, simulated_ms=1))
    found = []
    with ThreadPoolExecutor(2) as pool:
        for outcome in outcomes(pool, seeds(), 4):  # type: ignore[arg-type]
            if outcome is not None:
                found.append(outcome.seed)
                assert len(taken) <= len(found) + 8
    assert sorted(found) == taken == list(range(30))


@pytest.mark.parametrize(("results", "stopped", "code"), [([""], False, 0), (["bad"], False, 1), ([""], True, 130)])
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    results: list[str],
    stopped: bool,
    code: int,
) -> None:
    def some(pool: object, seeds: object, queued: int):  # type: ignore[no-untyped-def]
        yield from (Outcome(5, simulated_ms=3_600_000, error=error) for error in results)
        if stopped:
            raise KeyboardInterrupt

    monkeypatch.setattr(long, "outcomes", some)
    assert long.run(range(5, 6), 1) == code
    shown = capsys.readouterr().out
    assert ("failed seeds: 5" in shown) == (code == 1)
    assert shown.startswith("stopped: 1 of 1") == stopped
