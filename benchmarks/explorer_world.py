"""A market's ledger as a file, long and with every kind of page in it: what the explorer's benchmark reads.

The entries are signed and the blocks certified as in a real one; jobs are played by tests/explorer_ledger.py, so the
sums hold, but the rules did not run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contracts.records import Account, Active, Network, Reputation, Validator
from gdf_market import messages
from gdf_market.identity import Identity
from gdf_market.units import CREDIT
from ledger.store import SCHEMA
from ledger.tables import EntryRow, EventRow, MetaRow
from tests.explorer_ledger import (
    DEVICE,
    Build,
    Running,
    audit_unit,
    finish,
    identity_of,
    pay_unit,
    play_round,
    post_job,
)

WORKERS = 200
ROUNDS = 40  # of a job
PAYMENTS = 6  # transfers in a block that has some


@dataclass(frozen=True)
class World:
    """The file, and where the pages are that are asked for."""

    path: Path
    entries: int
    blocks: int
    events: int
    jobs: list[str]
    accounts: list[str]
    ids: list[str]  # of entries, evenly taken


def make_world(path: Path, entries: int, say: Callable[[str], None]) -> World:
    """Write a ledger of about so many entries."""
    everyone = [identity_of(f"benchmark worker {number}") for number in range(WORKERS)]
    build = Build(workers=everyone)
    rng = random.Random(0)
    jobs: list[str] = []
    made = 0
    while made < entries:
        build.workers = rng.sample(everyone, 4)
        build.pots[build.owner.account] += 5_000 * CREDIT  # the owner of a benchmark is rich
        running = post_job(build, f"Job {len(jobs)} of the benchmark", ROUNDS)
        _play(build, running, everyone, rng)
        finish(running, "done", ("", "", "", ""))
        jobs.append(running.id)
        made = sum(isinstance(row, EntryRow) for row in build.rows)
        say(f"made {made} of {entries} entries")
    rows = [row for row in build.rows if isinstance(row, EntryRow)]
    ids = [row.id for row in rows[:: max(1, len(rows) // 500)]]
    _records(build, everyone)
    build.rows.append(MetaRow(key="schema", value=SCHEMA))
    events = sum(isinstance(row, EventRow) for row in build.rows)
    build.write(path)
    return World(path, len(rows), build.height, events, jobs, [key.account for key in everyone], ids)


def _play(build: Build, running: Running, everyone: list[Identity], rng: random.Random) -> None:
    for index in range(ROUNDS):
        play_round(running, index, 4_000_000 - index * 50_000)
        if index % 5 == 0:
            audit_unit(running, index, 3, build.validators[0], "targeted", "pass")
        for slot in range(4):
            pay_unit(running, index, slot)
        for _ in range(PAYMENTS):
            payer, payee = rng.sample(everyone, 2)
            entry = build.post(payer, messages.Transfer, to=payee.account, amount=1_000, memo="a payment")
            build.move("transfer", payer.account, payee.account, 1_000, account=payer.account, entry=entry.id)
        build.seal_block()


def _records(build: Build, everyone: list[Identity]) -> None:
    for key in (build.owner, *everyone, *build.validators):
        build.records[f"account/{key.account}"] = Account(balance=build.pots[key.account])
        build.records[f"reputation/{key.account}/{DEVICE}"] = Reputation(consecutive=9, valid=9)
    for key in build.validators:
        build.records[f"validator/{key.account}"] = Validator(status="member")
    genesis = build.genesis
    build.records["active"] = Active()
    build.records["network"] = Network(
        id=build.network,
        supply=sum(build.pots.values()),
        test_network=True,
        validators=genesis.validators,
        epoch=(build.height - 1) // genesis.staking.epoch_blocks,
        audit_bond=CREDIT,
        committee=genesis.committee,
        arbiters=genesis.arbiters,
        max_void_rounds=3,
        staking=genesis.staking,
        entry_fee=genesis.entry_fee,
    )
