"""Replays that the explorer runs on request: the whole ledger, the state around an entry; and its proofs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gdf_market.errors import StorageError, UsageError
from ledger.effects import Prune
from ledger.explorer import differences as module
from ledger.explorer.app import create_app
from ledger.explorer.differences import Differences, differences
from ledger.explorer.replay import main
from ledger.explorer.worker import DONE, FAILED, RUNNING, Progress, Worker
from ledger.proof import check
from ledger.prove import prove_entry
from ledger.rules import MARKET
from ledger.state_hash import StateHash
from ledger.store import LedgerStore
from tests.explorer_ledger import Example, build_example
from tests.ledger_kit import ENTRY_FEE, Maker, make_epochs

PATIENCE_S = 240  # of tests that wait for a process


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    made = make_epochs(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    made.store.close()
    return made


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return build_example(tmp_path_factory.mktemp("explorer") / "ledger.db")


def client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=create_app(path)), base_url="http://explorer")


def entry_at(maker: Maker, height: int, position: int = 0) -> str:
    return maker.store.block_entries(height)[position].id


# ---- proofs


async def test_a_proof_is_the_file_of_the_command(maker: Maker) -> None:
    name = entry_at(maker, 18, 1)
    async with client(maker.path) as site:
        answer = await site.get(f"/proof/{name}")
        assert answer.content == prove_entry(maker.store, name)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name[:16]}.proof"'
        assert check(answer.content, maker.network).holds
        assert (await site.get("/proof/" + "0" * 64)).status_code == 404


async def test_what_does_not_verify_is_not_proven(example: Example) -> None:
    async with client(example.path) as site:
        answer = await site.get(f"/proof/{example.altered}", params={"format": "json"})
        assert (answer.status_code, answer.json()["title"]) == (409, "No proof can be made")
        assert "is damaged" in answer.json()["message"]


# ---- the state around an entry


def changed(found: Differences) -> dict[str, dict[str, tuple[str, str]]]:
    return {
        record.key: {field.field: (field.before, field.after) for field in record.fields} for record in found.records
    }


@pytest.mark.parametrize(("height", "start"), [(1, 0), (5, 0), (18, 16)])
def test_a_transfer_changes_the_accounts_that_it_names(maker: Maker, height: int, start: int) -> None:
    store = maker.store
    name = entry_at(maker, height, {1: 0, 5: 1, 18: 2}[height])
    found = differences(store, name)
    assert (found.height, found.start, found.replayed) == (height, start, height - start)
    assert found.state_root == store.block(height).state_root
    moved = {
        record: int(fields["balance"][1]) - int(fields["balance"][0])
        for record, fields in changed(found).items()
        if record.startswith("account/") and "balance" in fields
    }
    stakes = sum(
        int(fields["stake"][1] or 0) - int(fields["stake"][0] or 0)
        for fields in changed(found).values()
        if "stake" in fields
    )
    assert sum(moved.values()) + stakes == 0
    body = json.loads(store.entry(name).raw)["body"]
    proposer = store.block(height).proposer
    expected = -ENTRY_FEE * (proposer != body["author"]) - (body["amount"] if body["kind"] == "transfer" else stakes)
    assert moved[f"account/{body['author']}"] == expected


def test_an_entry_alone_is_shown_and_not_its_neighbours(maker: Maker) -> None:
    first, second = (differences(maker.store, entry_at(maker, 18, position)) for position in (0, 1))
    senders = [json.loads(maker.store.block_entries(18)[position].raw)["body"]["author"] for position in (0, 1)]
    assert senders[0] != senders[1]
    assert f"account/{senders[0]}" in changed(first)
    assert f"account/{senders[0]}" not in changed(second)


def test_the_replay_has_bounds(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = entry_at(maker, 7)
    with pytest.raises(UsageError, match="no entry"):
        differences(maker.store, "0" * 64)
    monkeypatch.setattr(module, "MAX_ENTRIES", 1)
    with pytest.raises(UsageError, match="more than 1 entries"):
        differences(maker.store, name)
    monkeypatch.setattr(module, "MAX_BLOCKS", 5)
    with pytest.raises(UsageError, match="7 blocks before; at most 5"):
        differences(maker.store, name)
    assert differences(maker.store, entry_at(maker, 18)).replayed == 2


def test_long_values_are_cut(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEXT", 10)
    found = differences(maker.store, entry_at(maker, 18))
    texts = [text for fields in changed(found).values() for pair in fields.values() for text in pair]
    assert any(text.endswith("characters)") for text in texts)
    assert all(len(text.split("…")[0]) <= 10 for text in texts)
    monkeypatch.setattr(module, "MAX_RECORDS", 1)
    shorter = differences(maker.store, entry_at(maker, 18))
    assert (len(shorter.records), shorter.more) == (1, len(found.records) - 1)


def test_a_damaged_state_is_noticed(tmp_path: Path) -> None:
    made = make_epochs(tmp_path / "ledger.sqlite")
    made.store.close()
    with contextlib.closing(sqlite3.connect(made.path)) as file, file:
        file.execute("update undo set value = null")
    name, store = entry_at(made, 18), LedgerStore(made.path, read_only=True)
    with contextlib.closing(store), pytest.raises(StorageError, match="could not be restored"):
        differences(store, name)


def test_a_pruned_ledger_knows_the_state_of_its_epoch_only(tmp_path: Path) -> None:
    made = make_epochs(tmp_path / "ledger.sqlite")
    early, late = entry_at(made, 14), entry_at(made, 18)
    made.store.save([Prune(13)])
    assert differences(made.store, late).start == 16
    with pytest.raises(UsageError, match="blocks before 13 were pruned"):
        differences(made.store, early)
    made.store.close()


async def test_the_page_shows_it_and_keeps_it(maker: Maker) -> None:
    name = entry_at(maker, 18)
    async with client(maker.path) as site:
        page = (await site.get(f"/entry/{name}", params={"format": "json"})).json()
        assert page["changes"] == {"blocks": 2, "possible": True}
        with trio.fail_after(PATIENCE_S):
            answer = await site.get(f"/entry/{name}/changes")
            again = await site.get(f"/entry/{name}/changes", params={"format": "json"})
        assert "State before and after" in answer.text
        assert again.json()["error"] == ""
        assert [record["key"] for record in again.json()["found"]["records"]] == [
            record.key for record in differences(maker.store, name).records
        ]
        assert (await site.get("/entry/abc/changes")).status_code == 404


# ---- the whole ledger


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_whole_ledger_is_replayed(maker: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--db", str(maker.path)]) == 0
    *progress, last = lines(capsys)
    assert progress[0] == {"done": 0, "of": 19}
    assert progress[-1] == {"done": 19, "of": 19}
    found = last["result"]
    head = maker.store.head()
    assert (found["height"], found["head"], found["state_root"]) == (19, head.hash, head.state_root)
    assert found["state_root"] == StateHash.of(maker.store.state().records.items()).root()
    assert found["supply"] == MARKET.genesis_state(maker.genesis).supply_check()
    assert found["anomalies"]["complete"]


def test_what_does_not_hold_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_epochs(tmp_path / "ledger.sqlite")
    made.store.close()
    with contextlib.closing(sqlite3.connect(made.path)) as file, file:
        (raw,) = file.execute("select raw from entry where height = 7").fetchone()
        altered = raw.replace(b'"amount":5', b'"amount":6')
        file.execute("update entry set raw = ? where height = 7 and position = 0", (altered,))
    assert main(["--db", str(made.path)]) == 5
    assert lines(capsys)[-1]["error"].startswith("height 7: ")


def watch_until(worker: Worker, status: str) -> Progress:
    """Wait for the end of a run."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE_S
    while worker.progress.status == RUNNING and time.monotonic() < until:
        pause.wait(0.05)
    assert worker.progress.status == status, worker.progress
    return worker.progress


def test_one_replay_at_a_time(maker: Maker) -> None:
    worker = Worker(maker.path, lambda: 1_000)
    assert worker.start()
    assert not worker.start()
    found = watch_until(worker, DONE)
    assert found.result is not None
    assert found.result["height"] == 19
    assert worker.start()
    worker.close()
    assert "ended early" in watch_until(worker, FAILED).error


def test_a_replay_that_takes_too_long_is_ended(maker: Maker) -> None:
    worker = Worker(maker.path, lambda: 1_000, limit_s=0.01)
    worker.start()
    assert "longer than" in watch_until(worker, FAILED).error


async def test_a_replay_is_asked_for_by_this_site_only(maker: Maker) -> None:
    async with client(maker.path) as site:
        other = "https://example.org"
        for headers in ({"origin": other}, {"origin": "null"}, {"origin": other, "sec-fetch-site": "cross-site"}):
            assert (await site.post("/audit", headers=headers)).status_code == 403
        assert (await site.get("/audit", params={"format": "json"})).json()["status"] == "idle"
        answer = await site.post("/audit", headers={"origin": "null", "sec-fetch-site": "same-origin"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/audit")
        with trio.fail_after(PATIENCE_S):
            page = (await site.get("/audit", params={"format": "json"})).json()
            while page["status"] == "running":
                assert "Blocks replayed" in (await site.get("/audit")).text or page["report"] is None
                page = (await site.get("/audit", params={"format": "json"})).json()
        assert (page["status"], page["report"]["height"], page["behind"]) == ("done", 19, 0)
        text = (await site.get("/audit")).text
        assert "gdf-market ledger verify chain.gdfl" in text
        assert "19 blocks with" in text


def test_the_replay_needs_no_training_and_no_network_code() -> None:
    code = "import ledger.explorer.replay, sys; print([m for m in ('torch', 'libp2p') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
