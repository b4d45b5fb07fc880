"""Earnings from the ledger's events add up to what the balance shows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from contracts.records import Audit, Bid
from gdf_market.commands.earnings import change_of, estimate, read_lines
from gdf_market.node.datadir import DataDir
from ledger.reading import records_of
from ledger.store import LedgerStore
from ledger.tables import EventRow
from tests.command_kit import call
from tests.explorer_ledger import Example, build_example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.save_genesis(made.build.genesis)
    return made


def accounts(example: Example) -> list[str]:
    build = example.build
    return [key.account for key in (build.owner, *build.workers, *build.validators)]


def test_settled_earnings_explain_the_balance(example: Example) -> None:
    store = LedgerStore(example.path, read_only=True)
    explained = 0
    for account in accounts(example):
        at_first = sum(one.balance for one in example.build.genesis.allocations if one.account == account)
        locked = sum(bid.bond for bid in records_of(store, Bid) if bid.worker == account)
        locked += sum(audit.bond for audit in records_of(store, Audit) if audit.auditor == account)
        moved = 0  # by what nobody earns by
        for event in store.events(account=account, limit=10_000):
            if event.kind in ("transfer", "escrow", "refund"):
                moved += event.amount * ((event.target == account) - (event.source == account))
        settled = sum(line.amount for line in read_lines(store, account, 0))
        assert store.state().account(account).balance + locked == at_first + moved + settled
        explained += settled != 0
    assert explained >= 4
    store.close()


def test_what_is_locked_and_returned_is_no_earning() -> None:
    common = {"height": 1, "position": 0, "job": "", "round": -1, "slot": -1, "reason": "", "entry": "", "amount": 7}

    def row(kind: str, source: str, target: str, account: str = "me") -> EventRow:
        return EventRow(kind=kind, source=source, target=target, account=account, **common)

    assert change_of(row("bid", "me", "bond"), "me") is None
    assert change_of(row("returned", "bond", "me"), "me") is None
    assert change_of(row("audit", "me", "bond"), "me") is None
    assert change_of(row("audit", "audit_escrow", "me"), "me") == ("audits", 7)
    assert change_of(row("transfer", "other", "me"), "me") is None
    assert change_of(row("fee", "me", "me"), "me") is None  # a proposer that pays itself
    assert change_of(row("fee", "me", "other"), "me") == ("fees", -7)
    assert change_of(row("slashed", "bond", "escrow"), "me") == ("own bond slashed", -7)
    assert change_of(row("slashed", "bond", "me", account="other"), "me") == ("slashed others", 7)
    assert change_of(row("forfeited", "bond", "audit_escrow"), "me") == ("own bond forfeited", -7)


def test_pending_is_what_the_state_holds(example: Example) -> None:
    store = LedgerStore(example.path, read_only=True)
    worker = example.build.workers[0].account
    pending, estimated = estimate(store, worker)
    assert pending > 0
    assert estimated >= 0
    store.close()


@pytest.fixture
def run(example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def command(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, "--data-dir", str(example.path.parent), *arguments)

    return command


def test_json_and_csv_tell_the_same(run, example: Example, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    worker = example.build.workers[0].account
    code, out, _ = run("earnings", "--account", worker, "--json")
    value = json.loads(out)
    assert code == 0
    assert value["unit"] == "micro-credits"
    code, out, _ = run("earnings", "--account", worker, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert sum(int(row["micro_credits"]) for row in rows) == value["settled"] == sum(value["settled_by"].values())
    assert [int(row["height"]) for row in rows] == sorted(int(row["height"]) for row in rows)
    assert not any(row["reason"].startswith(("=", "+", "-", "@")) for row in rows)
    code, out, _ = run("earnings", "--account", worker)
    assert code == 0
    assert "pending" in out
    assert "estimated" in out


def test_nothing_is_newer_than_the_newest_block(run, example: Example) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("earnings", "--account", example.build.workers[0].account, "--since", "1s", "--json")
    assert code == 0
    everything = json.loads(run("earnings", "--account", example.build.workers[0].account, "--json")[1])
    assert json.loads(out)["settled"] <= everything["settled"]


def test_bad_input_is_one_sentence(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("earnings", "--account", "nobody")
    assert code == 2
    assert err.startswith("Error: ")
    code, _, err = run("earnings", "--account", "12D3KooW", "--since", "yesterday")
    assert code == 2
