"""A market on lines like those of homes: its owner leaves, workers vanish, a partition comes and goes.

Every node is a real one with an address of its own, 20 to 80 ms from the others, and one packet in 200 is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from contracts.jobs import escrow_of
from contracts.records import Job, Round
from gdf_market.demo import processes
from gdf_market.node.ledger_service import now_ms
from ledger.compare import compare
from ledger.reading import record_of
from tests.e2e.netns import Machine, internet
from tests.e2e.test_disputes import JOB
from tests.e2e.town import ENDED, WAIT_S, Town, check_conserved, check_paid_once, credits_of, the_job, units_of

pytestmark = [pytest.mark.e2e, pytest.mark.internet]

# What somebody who died delays is these deadlines; everything else ends early.
TERMS = [
    "--max-price", "5", "--shards", "12", "--bid-seconds", "15", "--work-seconds", "25", "--phase-seconds", "90",
    "--audit-seconds", "60", "--hold-seconds", "6",
]  # fmt: skip
ROUNDS = 12  # on an idle machine a round takes six seconds, and a newcomer measures the job for some rounds
LONELY, LONELY_MS = 9, 90_000  # a job waits for so many workers in vain, for so long
SIGNED = ("kind", "author", "nonce", "expires_ms")
CUT_BLOCKS = 8  # made by the majority while the network is split


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(processes, "COMMAND_S", WAIT_S)
    with internet(seed=11) as net:
        workers = ["ann", "ben", "finn", "gwen"]
        made = Town(net, tmp_path, validators=["ann", "ben", "cleo", "dora"], workers=workers)
        net.paths(delay_ms=(20, 80), jitter_ms=5, loss=0.005)
        try:
            yield made
        finally:
            made.close()


def test_a_job_outlives_its_owner_its_workers_and_a_partition(town: Town, tmp_path: Path) -> None:
    town.found()
    town.start("ann", "ben", "cleo", "dora", "finn", "olga")
    job, lonely = post_and_leave(town, tmp_path)
    check_waits_in_vain(town, lonely)
    town.until("round 0 begins", lambda: bool(phase_of(town, job, 0)))
    town.start("gwen")  # too late: every slot is taken

    # finn dies for good in the middle of a round; ben, a validator, between commit and reveal, and is back in time
    town.until("round 0 is over", lambda: bool(phase_of(town, job, 1)))
    town.lose("finn")
    town.until("ben committed", lambda: committed(town, job, "ben") > 0)
    again = committed(town, job, "ben")
    town["ben"].kill()
    assert status_of(town, job, "ben", again) == "committed"
    town.start("ben")
    town.until("that round is over", lambda: phase_of(town, job, again) in ("settled", "void"))
    assert status_of(town, job, "ben", again) == "accepted", "its secrets outlived it"

    # another validator is cut off; finn's second miss frees its slot for gwen
    split_and_heal(town, cut=["dora"])
    town.until("gwen has a unit accepted", lambda: worked(town, job, "gwen"))
    town.until("both jobs end", lambda: ended(town, job) and ended(town, lonely))
    with town.store("ann") as store:
        done = the_job(store, job)
        assert (done.status, done.completed) == ("done", ROUNDS), done.reason
        assert done.refunded > 0
        lost = [unit.status for _, unit in sorted(units_of(store, job, town["finn"]).items())]
        assert lost[-2:] == ["missed", "missed"], "two misses in a row freed its slot"
        check_paid_once(store, job)
        check_conserved(store)
        expired = the_job(store, lonely)
        assert (expired.status, expired.refunded) == ("expired", sum(escrow_of(expired.spec)))
        locked = sum(escrow_of(done.spec)) + sum(escrow_of(expired.spec))
        assert credits_of(store, town["olga"]) == town.fortune - locked + done.refunded + expired.refunded
    check_same_ledgers(town, tmp_path)
    check_fetched_by_a_stranger(town, job, tmp_path)


def post_and_leave(town: Town, folder: Path) -> tuple[str, str]:
    """Post the job, and one that asks for too many workers; the owner's computer is lost one block later."""
    olga, file = town["olga"], folder / "letters.py"
    file.write_text(JOB, encoding="utf-8")
    wanted = ["--units", "3", "--min-workers", "2", "--rounds", str(ROUNDS), "--deadline-minutes", "20"]
    job = olga.run("post", str(file), *wanted, *TERMS)["job"]
    with town.store("olga") as store:
        fields = msgspec.to_builtins(the_job(store, job).spec)
    crowd = {"title": "lonely", "units_per_round": LONELY, "min_workers": LONELY, "rounds": 1}
    fields |= crowd | {"deadline_ms": now_ms() + LONELY_MS}
    order = olga.ask("/orders", {"fields": {name: fields[name] for name in fields if name not in SIGNED}})
    assert order is not None
    posted = olga.ask(f"/orders/{order['order']}/post", {})
    assert posted is not None
    town.until("one more block is made", lambda: town.height("olga") > posted["height"])
    town.lose("olga")
    return job, order["order"]


def phase_of(town: Town, job: str, index: int) -> str:
    with town.store("ann") as store:
        found = record_of(store, Round, f"round/{job}/{index}")
    return "" if found is None else found.phase


def status_of(town: Town, job: str, name: str, index: int) -> str:
    with town.store("ann") as store:
        unit = units_of(store, job, town[name]).get(index)
    return "" if unit is None else unit.status


def committed(town: Town, job: str, name: str) -> int:
    """Return the round in which a worker's unit waits to be revealed; -1 if there is none."""
    with town.store("ann") as store:
        units = units_of(store, job, town[name])
    return max((index for index, unit in units.items() if unit.status == "committed"), default=-1)


def worked(town: Town, job: str, name: str) -> bool:
    with town.store("ann") as store:
        return any(unit.status in ("accepted", "paid") for unit in units_of(store, job, town[name]).values())


def ended(town: Town, job: str) -> bool:
    with town.store("ann") as store:
        return the_job(store, job).status in ENDED


def reason_of(town: Town, job: str) -> str:
    with town.store("ann") as store:
        found = record_of(store, Job, f"job/{job}")
    return "" if found is None else found.reason


def split_and_heal(town: Town, cut: list[str]) -> None:
    """Cut some off until the others made blocks without them; the cut ones make none, and catch up afterwards."""
    rest = [one.name for one in town.running if one.name not in cut]
    town.net.split(cut, rest)
    start = max(town.height(name) for name in town.members if name != "olga")
    town.until("the majority goes on", lambda: town.height("ann") >= start + CUT_BLOCKS)
    assert all(town.height(name) <= start + 1 for name in cut)
    town.net.heal()
    town.until("those that were cut off catch up", lambda: all(town.height(name) > start + CUT_BLOCKS for name in cut))


def check_waits_in_vain(town: Town, job: str) -> None:
    """A job that too few bid on says so, wherever one looks."""
    town.until("the bidding is extended", lambda: bool(reason_of(town, job)))
    shown = town["cleo"].run("jobs", "show", job)["job"]
    assert (shown["status"], shown["reason"][:9]) == ("bidding", "waits for")
    offers = town["ann"].ask("/orders")
    assert offers is not None
    assert {row["id"]: row["reason"][:9] for row in offers["orders"]}[job] == "waits for"


def check_same_ledgers(town: Town, folder: Path) -> None:
    """All that run have the same blocks; an export replays with no node."""
    height = town.height("ann")
    town.until("all have that block", lambda: all(town.height(one.name) >= height for one in town.running))
    for other in town.running:
        found = compare(town["ann"].data.ledger, other.data.ledger)
        assert found.relation != "different", found.reasons
    chain = folder / "chain.gdfl"
    town["gwen"].run("ledger", "export", str(chain))
    assert town["dora"].run("ledger", "verify", str(chain))["height"] >= height


def check_fetched_by_a_stranger(town: Town, job: str, folder: Path) -> None:
    """Somebody who was never there gets the model from those who trained it."""
    stranger = Machine(town.net.host("xena"), folder)
    stranger.run("init", "--join", town.invite)
    fetched = stranger.run("jobs", "fetch", job, "-o", str(folder / "model.safetensors"))
    assert fetched["completed"] == ROUNDS
    assert fetched["loss_after"] < fetched["loss_before"]
