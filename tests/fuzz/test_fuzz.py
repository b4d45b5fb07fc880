"""The fast tier's share of the fuzzing, and that the fuzzer would notice."""

from __future__ import annotations

import pytest

from gdf_market.errors import MalformedError
from tests.fuzz import runner
from tests.fuzz.draw import Draw, Run, Target
from tests.fuzz.runner import TARGETS, chunks, fuzz, report

INPUTS = 20_000


def test_every_decoder_raises_only_typed_errors() -> None:
    tallies = fuzz(list(TARGETS), INPUTS, 0, 1)
    assert [bug for tally in tallies.values() for bug in tally.bugs] == []
    assert sum(tally.inputs for tally in tallies.values()) >= INPUTS - len(TARGETS)
    # inputs that are never refused, or always, test one branch; proofs are refused by a verdict
    for name, tally in tallies.items():
        assert tally.refused > 0 or name == "proof", name
    assert sum(tally.refused < tally.inputs for tally in tallies.values()) > len(TARGETS) * 2 // 3


def test_another_exception_is_a_bug_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> Run:
        def run(draw: Draw) -> None:
            value = draw.randrange(10)
            if value == 0:
                raise MalformedError("refused")
            assert value != 5, "an assertion is no answer to a peer"

        return run

    monkeypatch.setitem(runner.TARGETS, "broken", Target("broken", prepare, (MalformedError,)))
    tally = fuzz(["broken"], 100, 0, 1)["broken"]
    assert tally.inputs == 100
    assert tally.refused > 0
    assert len(tally.bugs) > 0
    first = int(tally.bugs[0].split("input ")[1].split(":")[0])
    assert f'--target "broken" --from 0 --inputs {first + 1}' in tally.bugs[0]
    # the command gives the same inputs again
    assert fuzz(["broken"], first + 1, 0, 1)["broken"].bugs == [tally.bugs[0]]


def test_inputs_are_shared_out_by_weight() -> None:
    shares: dict[str, int] = {}
    for name, _, count in chunks(list(TARGETS), 100_000, 0):
        assert count <= runner.CHUNK
        shares[name] = shares.get(name, 0) + count
    assert set(shares) == set(TARGETS)
    assert abs(sum(shares.values()) - 100_000) <= len(TARGETS)
    assert shares["wire message"] > shares["header"] > shares["program"] > 0


def test_the_report_counts_inputs_and_bugs() -> None:
    tallies = fuzz(["header", "account id"], 40, 0, 1)
    lines = report(tallies, 2.0)
    assert lines[-1].startswith("40 inputs in 2 s, 20 inputs/s, 0 bugs")
