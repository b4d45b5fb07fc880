"""Validators killed without warning, and one whose disk is full: the programs as people run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gdf_market.demo.processes import Member, stop_all, wait_until
from ledger.export import export, verify
from ledger.store import LedgerStore
from tests.torture import Network

pytestmark = pytest.mark.e2e

FULL = """
import sys
from gdf_market.commands import main
from ledger.store import LedgerStore

connect = LedgerStore._connect

def limited(store):
    connection = connect(store)
    connection.execute("PRAGMA max_page_count=" + pages)  # SQLite refuses more, as on a full disk
    return connection

pages = sys.argv.pop(1)
LedgerStore._connect = limited
main()
"""


@pytest.mark.parametrize(("validators", "seconds"), [(4, 40), (7, 20)])
def test_killed_validators_never_contradict_themselves(validators: int, seconds: int, tmp_path: Path) -> None:
    report = Network(tmp_path, validators, seed=validators, say=print).run(seconds)
    print(report.text())
    assert report.kills >= 2
    assert report.copies == report.kills
    assert report.height >= 1


def test_a_full_disk_ends_a_node_with_one_sentence_and_space_lets_it_go_on(tmp_path: Path) -> None:
    member = Member("ann", tmp_path)
    member.run("init", "--new-network", "full", "--block-ms", "50", "--heartbeat-ms", "200")
    with closing(LedgerStore(member.data.ledger)) as store:
        store.create(member.data.genesis())
        with store._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 4
    command = [sys.executable, "-c", FULL, str(pages), *member.command("node", "run")[3:]]
    full = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert full.returncode == 1
    errors = [line for line in full.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "the disk is full; free some space and start again, nothing was lost" in errors[0]
    assert "Traceback" not in full.stderr
    assert not member.data.node_file.exists()
    with closing(LedgerStore(member.data.ledger)) as store:
        at_the_end = store.restored()
        assert at_the_end is not None
        assert at_the_end.tip.height >= 1
    member.start("node", "run")
    try:
        goal = at_the_end.tip.height + 3
        wait_until("it goes on", lambda: height(member) >= goal, timeout_s=120, members=[member])
    finally:
        stop_all([member])
    with closing(LedgerStore(member.data.ledger)) as store:
        export(store, tmp_path / "ledger.gdfl")
    assert verify(tmp_path / "ledger.gdfl").height >= goal


def height(member: Member) -> int:
    status = member.status() if member.data.node_file.exists() else None
    return int(status["height"]) if status is not None else -1


def test_the_bulk_process_of_a_killed_node_ends_without_a_word(tmp_path: Path) -> None:
    start = {
        "id": 1, "op": "start", "store": str(tmp_path), "network": "ab" * 32, "seed": "11" * 32,
        "host": "127.0.0.1", "port": 0, "announce": [], "quota_bytes": 0, "ranked": True,
    }  # fmt: skip
    for said in (b"", json.dumps(start).encode() + b"\n"):
        reading, writing = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-m", "gdf_market.node.bulk_process"],
            stdin=subprocess.PIPE,
            stdout=writing,
            stderr=subprocess.PIPE,
        ) as process:
            os.close(writing)
            os.close(reading)  # the node is gone before anything is answered
            _, errors = process.communicate(said, timeout=120)
        assert (process.returncode, errors) == (0, b"")
