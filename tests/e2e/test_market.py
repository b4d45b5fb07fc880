"""The market as users run it: real processes, real sockets, real training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from contracts.records import Job, Round, Unit
from gdf_market.demo.processes import Member, stop_all, wait_until
from gdf_market.units import CREDIT
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from tests.e2e.home import PHASES, Home, cli

pytestmark = pytest.mark.e2e

ENDED = ("done", "cancelled", "expired")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "char_gpt.py"


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gdf_market", "demo", "--dir", str(folder), "--headless", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, run_demo(folder, "--json")


def test_demo_keeps_its_promises(demo_run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, run = demo_run
    assert run.returncode == 0, run.stderr + "".join(log.read_text() for log in folder.glob("*.log"))
    report = json.loads(run.stdout)  # nothing but JSON on stdout
    assert report["ok"] is True
    assert all(report["checks"].values())
    assert report["loss"]["after"] < report["loss"]["before"]
    assert [c["worker"] for c in report["convictions"]] == ["mallory"] * len(report["convictions"])
    assert report["convictions"][0]["excess"]
    assert report["balances"]["mallory"] < 200 * CREDIT
    assert min(report["paid"][name] for name in ("alice", "bob", "carol", "dave")) > 0
    assert report["traffic"]["times_fewer"] > 10


def test_demo_leaves_no_process_and_no_lock(demo_run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = demo_run
    assert leftovers(folder) == []
    assert list(folder.glob("*/node.lock")) == []
    assert list(folder.glob("*/node.json")) == []


def test_export_of_the_demo_verifies_elsewhere_and_an_altered_byte_is_found(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = demo_run
    chain = tmp_path / "chain.gdfl"
    assert cli("--data-dir", str(folder / "alice"), "ledger", "export", str(chain)).returncode == 0
    verified = cli("--data-dir", str(tmp_path / "other"), "--json", "ledger", "verify", str(chain))
    assert verified.returncode == 0, verified.stderr
    data = bytearray(chain.read_bytes())
    data[len(data) // 2] ^= 1
    chain.write_bytes(data)
    refused = cli("--data-dir", str(tmp_path / "other"), "ledger", "verify", str(chain))
    assert refused.returncode == 5
    assert "block " in refused.stderr or "height" in refused.stderr


def test_demo_ends_cleanly_on_interrupt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "gdf_market", "demo", "--dir", str(folder), "--headless"]
    flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if os.name == "nt" else {"start_new_session": True}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **flags)  # type: ignore[call-overload]
    try:
        wait_until("a worker runs", lambda: any(folder.glob("*/node.json")), timeout_s=120)
        process.send_signal(signal.CTRL_BREAK_EVENT if os.name == "nt" else signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    wait_until("nothing is left", lambda: leftovers(folder) == [], timeout_s=30)
    assert list(folder.glob("*/node.lock")) == []


def leftovers(folder: Path) -> list[str]:
    """Return the command lines of live processes that work in ``folder``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


@pytest.fixture
def home(tmp_path: Path):  # type: ignore[no-untyped-def]
    network = Home(tmp_path)
    yield network
    stop_all(network.members)


STOPS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] if os.name == "posix" else [signal.SIGTERM]


def test_stopped_and_killed_worker_rejoins_and_nothing_is_paid_twice(home: Home) -> None:
    dry = home.ann.run("post", str(EXAMPLE), "--rounds", "6", "--max-price", "5", "--units", "2", "--dry-run")
    assert dry["dry_run"] is True
    assert dry["escrow"] > 0
    too_much = home.ann.command("post", str(EXAMPLE), "--rounds", "10000", "--max-price", "500")
    refused = subprocess.run(too_much, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 6, refused.stderr
    assert "exceed the balance" in refused.stderr

    posted = home.ann.run("post", str(EXAMPLE), "--rounds", "6", "--max-price", "5", "--units", "2", *PHASES)
    job_id = posted["job"]
    with home.store(home.ann) as store:
        stop_in_different_rounds(home, store, job_id)
        wait_until("the job ends", lambda: the_job(store, job_id).status in ENDED, timeout_s=420, members=home.members)
        check_payments(home, store, job_id)
    fetched = home.ann.run("jobs", "fetch", job_id, "-o", str(home.ann.data.root / "model.safetensors"))
    assert fetched["loss_after"] < fetched["loss_before"]
    same_chain(home)


def the_job(store: LedgerStore, job_id: str) -> Job:
    job = record_of(store, Job, f"job/{job_id}")
    assert job is not None
    return job


def stop_in_different_rounds(home: Home, store: LedgerStore, job_id: str) -> None:
    """End cleo in the middle of a unit of three rounds, each time in another way, and start it again."""
    stopped: set[int] = set()

    def open_units() -> set[int]:
        units = records_of(store, Unit, f"unit/{job_id}/")
        return {unit.round for unit in units if unit.worker == home.cleo.account and unit.status == "assigned"}

    def new_unit() -> bool:
        return bool(open_units() - stopped)

    for how in STOPS:
        wait_until("cleo has a unit to train", new_unit, timeout_s=200, members=home.members)
        stopped.update(open_units())
        home.cleo.end(how)
        home.work(home.cleo)


def check_payments(home: Home, store: LedgerStore, job_id: str) -> None:
    job = the_job(store, job_id)
    assert job.status == "done", job.reason
    assert job.completed == 6
    units = records_of(store, Unit, f"unit/{job_id}/")
    rounds = {round_.index: round_ for round_ in records_of(store, Round, f"round/{job_id}/")}
    assert len({(unit.round, unit.slot) for unit in units}) == len(units)
    for unit in units:
        price = rounds[unit.round].price
        pot = price * len(rounds[unit.round].included) * job.spec.merit_ppm // 1_000_000
        assert unit.paid <= price + pot
        if unit.status == "paid":
            assert unit.paid >= price
    for member in (home.ben, home.cleo):
        assert any(unit.worker == member.account and unit.paid for unit in units), member.name
    paid = [(event.round, event.slot) for event in store.events(job=job_id, limit=100_000) if event.kind == "paid"]
    earned: dict[tuple[int, int], int] = {}
    for event in store.events(job=job_id, limit=100_000):
        if event.kind in ("paid", "merit") and event.target in (home.ben.account, home.cleo.account):
            where = (event.round, event.slot)
            earned[where] = earned.get(where, 0) + event.amount
    assert set(paid) == {(unit.round, unit.slot) for unit in units if unit.paid}
    for unit in units:
        assert earned.get((unit.round, unit.slot), 0) == unit.paid  # what moved is what the record says, once
    state = store.state()
    assert state.supply_check() == state.network().supply


def same_chain(home: Home) -> None:
    """Every ledger has the same block at the lowest common head."""
    rows = []
    end = time.monotonic() + 30
    while time.monotonic() < end:
        heads = []
        for member in home.members:
            with home.store(member) as store:
                head = store.head()
                heads.append(head.height if head else 0)
        height = min(heads)
        if height > 0:
            rows = []
            for member in home.members:
                with home.store(member) as store:
                    block = store.block(height)
                    assert block is not None
                    rows.append((block.hash, block.state_root))
            break
    assert len(set(rows)) == 1


def test_poison_is_refused_outside_a_test_network(tmp_path: Path) -> None:
    member = Member("eve", tmp_path)
    member.run("init", "--new-network", "earnest")
    run = subprocess.run(
        member.command("work", "--test-poison", "noise"), capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2
    assert "test network" in run.stderr
    assert not (member.data.root / "node.lock").exists()
