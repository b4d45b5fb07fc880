"""``jobs show --unit``: every number of a unit, the arithmetic of its pay, and lines that fit a narrow terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import msgspec
import pytest

from contracts.draws import compute_audit_chance_ppm
from contracts.parameters import thresholds
from contracts.records import Arbiter, Bisection, Dispute, Job, Side
from gdf_market.codec import encode
from gdf_market.commands import main
from gdf_market.commands import unit_report as units
from gdf_market.errors import UsageError
from gdf_market.node.datadir import DataDir
from ledger.store import LedgerStore
from ledger.tables import EventRow
from tests.explorer_ledger import HOSTILE, Example, build_example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


@pytest.fixture
def store(example: Example) -> Iterator[LedgerStore]:
    opened = LedgerStore(example.path, read_only=True)
    yield opened
    opened.close()


def run(example: Example, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("GDF_DATA_DIR", str(example.path.parent))
    monkeypatch.setattr(sys, "argv", ["gdf-market", *arguments])
    try:
        main()
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize("place", ["0/3", "1/0"])
def test_the_arithmetic_of_a_paid_unit_adds_up(store: LedgerStore, example: Example, place: str) -> None:
    value = units.unit_report(store, example.done_job, *units.parse_unit(place))
    pay, unit = value["payment"], value["unit"]
    assert pay["pot"] == pay["price"] * pay["accepted"] * pay["merit_ppm"] // 1_000_000
    assert pay["merit"] == pay["pot"] * value["similarity"]["merit_ppm"] // 1_000_000
    assert pay["due"] == pay["price"] + pay["merit"] == unit["paid"] == pay["paid"]
    assert (pay["held"], pay["forfeited"], value["taken"]) == (0, 0, [])


def test_an_audit_stands_against_its_thresholds(store: LedgerStore, example: Example) -> None:
    value = units.unit_report(store, example.done_job, 0, 3)
    (audit,) = value["audits"]
    assert (audit["role"], audit["verdict"]) == ("targeted", "pass")
    assert "worker_sketches" not in audit
    limits = thresholds(value["device_class"])
    text = units.unit_text(value)
    assert f"{audit['excess_ppb'] / 1e9:.3g} passes (to {limits.excess_accept / 1e9:.3g} passes" in " ".join(
        text.split()
    )
    assert value["audit_fees"] == audit["fee"] > 0


def test_a_convicted_unit_shows_dispute_committee_and_what_was_slashed(store: LedgerStore, example: Example) -> None:
    value = units.unit_report(store, example.running_job, 5, 2)
    assert value["unit"]["status"] == "convicted"
    assert value["dispute"]["status"] == "convicted"
    assert value["payment"]["forfeited"] == value["payment"]["due"] > 0
    text = units.unit_text(value)
    assert "fails" in text
    assert "committee" in text


def test_what_a_unit_cost_the_bond_is_told_apart_from_other_units(
    store: LedgerStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = units.unit_report(store, example.running_job, 5, 2)
    template = store.events(job=example.running_job, kind="slashed")[0]
    worker = value["unit"]["worker"]

    def event(kind: str, amount: int, reason: str, index: int = -1) -> EventRow:
        fields = {"kind": kind, "account": worker, "source": "bond", "target": "escrow", "round": index}
        return EventRow(**(template.model_dump() | fields | {"amount": amount, "reason": reason}))

    made = {
        "slashed": [
            event("slashed", 5, "convicted: round 5, slot 2"),
            event("slashed", 7, "convicted: round 5, slot 21"),
        ],
        "forfeited": [
            event("forfeited", 11, "round 5, slot 2: the worker did not open its sketches"),
            event("forfeited", 13, "round 5, slot 2: of an audit", index=5),  # the bond of an audit, not of the bid
        ],
    }
    monkeypatch.setattr(LedgerStore, "events", lambda self, **asked: made[asked["kind"]])
    found = units.unit_report(store, example.running_job, 5, 2)
    assert sorted(taken["amount"] for taken in found["taken"]) == [5, 11]
    text = units.unit_text(found)
    assert "bond slashed, to the job's escrow" in text
    assert "−0.000005" in text


def test_a_unit_outside_the_outcome_is_due_nothing(store: LedgerStore, example: Example) -> None:
    value = units.unit_report(store, example.running_job, 3, 3)
    assert value["payment"] is None
    assert value["similarity"] == {"included": False, "rejected": "", "units": 3}
    assert "the unit is in no agreed outcome" in units.unit_text(value)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("slot", range(4))
def test_no_line_is_wider_than_sixty_columns(store: LedgerStore, example: Example, index: int, slot: int) -> None:
    text = units.unit_text(units.unit_report(store, example.running_job, index, slot))
    assert max(map(len, text.splitlines())) <= units.WIDTH


@pytest.mark.parametrize(
    ("consecutive", "origin", "record"), [(0, "record", 0), (4, "record", 4), (9, "floor", None), (500, "floor", None)]
)
def test_how_a_chance_came_about(
    store: LedgerStore, example: Example, consecutive: int, origin: str, record: int | None
) -> None:
    value = units.unit_report(store, example.done_job, 0, 0)
    state, job = store.state(), store.record(f"job/{example.done_job}")
    assert isinstance(job, Job)
    spec = msgspec.structs.replace(job.spec, audit_floor_ppm=100_000)
    eligible = value["chance"]["eligible"]
    chance = compute_audit_chance_ppm(100_000, consecutive, eligible)
    unit = msgspec.structs.replace(state.unit(job.id, 0, 0), audit_chance_ppm=chance)  # type: ignore[type-var]
    found = units._chance(state, msgspec.structs.replace(job, spec=spec), unit)  # type: ignore[arg-type]
    assert (found["origin"], found["valid_in_a_row"], found["each_ppm"]) == (origin, record, chance)
    assert found["any_ppm"] == pytest.approx(1e6 * (1 - (1 - chance / 1e6) ** eligible), abs=1)


def test_a_chance_of_other_auditors_is_not_explained_wrongly(store: LedgerStore, example: Example) -> None:
    state, job = store.state(), store.record(f"job/{example.done_job}")
    assert isinstance(job, Job)
    unit = msgspec.structs.replace(state.unit(job.id, 0, 0), audit_chance_ppm=999_999)  # type: ignore[type-var]
    found = units._chance(state, job, unit)  # type: ignore[arg-type]
    assert found["origin"] == "other auditors"
    assert "come or gone" in units._chance_text(found)


def test_a_bisection_shows_where_it_stands_and_what_arbiters_found() -> None:
    side = Side(low=(1,) * 32, high=(2,) * 32, state="ab" * 32)
    arbiters = (Arbiter(account="12D3KooWa" * 4, opened=True, finding="worker"), Arbiter(account="12D3KooWb" * 4))
    bisection = Bisection(
        phase="opening", low=6, high=7, turns=4, worker=side, accuser=side, seed="cd" * 32, arbiters=arbiters
    )
    dispute = Dispute(
        job="ab" * 32,
        round=0,
        slot=0,
        accuser="12D3KooWc" * 4,
        committee=(),
        opened_ms=1,
        phase_end_ms=2,
        status="bisecting",
        bisection=bisection,
    )
    value = units._dispute(dispute)
    assert value is not None
    assert value["bisection"]["worker"] == {"state": "ab" * 32}
    assert "sketch" not in value["bisection"]["arbiters"][0]
    text = " ".join(" ".join(units._dispute_lines({"dispute": value})).split())
    assert "opening: they agree to step 6, not at 7; 4 turns" in text
    assert "for the worker" in text
    assert "not opened" in text


@pytest.mark.parametrize("text", ["3", "3.0", "a/1", "3/", "/0", "-1/0", "1/2/3", "²/1"])
def test_a_place_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not ROUND/SLOT"):
        units.parse_unit(text)


def test_a_unit_that_does_not_exist(store: LedgerStore, example: Example) -> None:
    with pytest.raises(UsageError, match="has no unit 99/0"):
        units.unit_report(store, example.done_job, 99, 0)


def test_the_command_prints_json_and_text(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(example, monkeypatch, "--json", "jobs", "show", example.running_job[:8], "--unit", "5/2") == 0
    assert json.loads(capsys.readouterr().out)["unit"]["status"] == "convicted"
    assert run(example, monkeypatch, "jobs", "show", example.running_job, "--unit", "5/2") == 0
    shown = capsys.readouterr().out
    assert "payment, in credits" in shown
    assert HOSTILE not in shown  # what others chose is shown without what steers a terminal
    assert "\x1b" not in shown


def test_a_unit_is_not_watched(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(example, monkeypatch, "jobs", "show", example.done_job, "--unit", "0/0", "--watch") == 2
    assert "leave out --watch" in capsys.readouterr().err
