"""How long the explorer's pages take on the server's side, beside bare SQLite reads of the rows that they show.

``python -m benchmarks.explorer`` makes a market's ledger of 100,000 entries (benchmarks/explorer_world.py), asks for
every kind of page in turn, for other jobs, accounts, blocks and entries each time, and prints a Markdown table.
Times are of the clock and of the CPU, which other programs on the machine disturb less.
Progress goes to stderr.  ``--write`` also puts the table into benchmarks/results/explorer.md.

A page's bare read is what any reader of the file would ask SQLite for to show that page: its rows by key or index,
fetched as tuples on an open connection, with no decoding, checking or adding up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from benchmarks.explorer_world import ROUNDS, World, make_world
from ledger.explorer.app import create_app

RESULTS = Path(__file__).parent / "results" / "explorer.md"
NOTES = "\n## What the figures say\n"
TARGET_MS = 200
Say = Callable[[str], None]
Query = tuple[str, tuple[object, ...]]


@dataclass(frozen=True)
class Case:
    """One request, and the bare reads of its rows."""

    address: str
    reads: tuple[Query, ...]


@dataclass(frozen=True)
class Line:
    """A row of the table; times in milliseconds, CPU times but for ``p95_clock``; ``bare`` is a median."""

    page: str
    median: float
    p95: float
    p95_clock: float
    bare: float
    rows: int

    @property
    def ratio(self) -> float:
        return self.median / max(self.bare, 0.001)


LATEST_EVENTS: Query = ("select * from event order by id desc limit ?", (25,))
RECORD = "select value from record where key = ?"
UNDER = "select value from record where key >= ? and key < ? limit 300"


def _under(prefix: str) -> Query:
    return UNDER, (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))


def _block_case(height: int) -> Case:
    reads = tuple((f"select * from {table} where height = ?", (height,)) for table in ("block", "entry", "event"))
    return Case(f"/block/{height}", reads)


def _job_case(job: str) -> Case:
    reads = (
        (RECORD, (f"job/{job}",)),
        _under(f"bid/{job}/"),
        _under(f"round/{job}/"),
        _under(f"unit/{job}/"),
        ("select kind, source, target, amount from event where job = ?", (job,)),
    )
    return Case(f"/job/{job}", reads)


def _unit_case(job: str, index: int, slot: int) -> Case:
    key = f"{job}/{index}/{slot}"
    reads = (
        (RECORD, (f"unit/{key}",)),
        (RECORD, (f"round/{job}/{index}",)),
        _under(f"audit/{key}/"),
        ("select * from entry where job = ? and kind in ('commit', 'reveal')", (job,)),
        ("select * from event where job = ? and round = ? and slot = ?", (job, index, slot)),
    )
    return Case(f"/unit/{key}", reads)


def _account_case(account: str) -> Case:
    either = "select * from event where account = ? or source = ? or target = ? order by id desc limit 25"
    reads = (
        (RECORD, (f"account/{account}",)),
        (either, (account, account, account)),
        ("select * from entry where author = ? order by height desc limit 10", (account,)),
    )
    return Case(f"/account/{account}", reads)


def _entry_case(entry: str) -> Case:
    return Case(
        f"/entry/{entry}",
        (
            ("select * from entry where id = ?", (entry,)),
            ("select * from event where height = (select height from entry where id = ?)", (entry,)),
        ),
    )


def cases(world: World, repeats: int) -> Iterator[tuple[str, list[Case]]]:
    """Yield (kind of page, requests), each kind with ``repeats`` different ones where there are so many."""
    rng = random.Random(1)

    def some(make: Callable[[], Case]) -> list[Case]:
        return [make() for _ in range(repeats)]

    def same(address: str, *reads: Query) -> list[Case]:
        return [Case(address, reads)] * repeats

    blocks: Query = ("select * from block order by height desc limit 25", ())
    yield "overview", same("/", blocks, LATEST_EVENTS, ("select value from record where kind = 'job' limit 8", ()))
    yield "jobs", same("/jobs", ("select value from record where kind = 'job' limit 26", ()))
    yield "job", some(lambda: _job_case(rng.choice(world.jobs)))
    yield "round", some(lambda: _round_case(rng.choice(world.jobs), rng.randrange(ROUNDS)))
    yield "unit", some(lambda: _unit_case(rng.choice(world.jobs), rng.randrange(ROUNDS), rng.randrange(4)))
    yield "accounts", same("/accounts", ("select value from record where kind = 'account' limit 26", ()))
    yield "account", some(lambda: _account_case(rng.choice(world.accounts)))
    yield "blocks", some(lambda: _blocks_case(rng.randrange(2, world.blocks + 1)))
    yield "block", some(lambda: _block_case(rng.randrange(1, world.blocks + 1)))
    yield "entry", some(lambda: _entry_case(rng.choice(world.ids)))
    yield "events", same("/events", LATEST_EVENTS)
    kind: Query = ("select * from event where kind = 'paid' order by id desc limit 25", ())
    yield "events of a kind", same("/events?kind=paid", kind)
    yield "validators", same("/validators", ("select value from record where kind = 'validator'", ()))
    yield "order book", same("/book", ("select * from event where kind = 'round' order by id desc limit 400", ()))
    paid: Query = ("select target, amount from event where kind in ('paid', 'merit', 'audit')", ())
    yield "fairness", same("/fairness", paid)
    yield "search", some(lambda: _search_case(rng.choice(world.ids)[:8]))


def _round_case(job: str, index: int) -> Case:
    return Case(f"/job/{job}/round/{index}", ((RECORD, (f"round/{job}/{index}",)), _under(f"unit/{job}/{index}/")))


def _blocks_case(before: int) -> Case:
    read: Query = ("select * from block where height < ? order by height desc limit 25", (before,))
    return Case(f"/blocks?before={before}", (read,))


def _search_case(prefix: str) -> Case:
    reads = tuple(
        (f"select {column} from {table} where {column} >= ? and {column} < ?", (prefix, prefix + "g"))
        for table, column in (("entry", "id"), ("block", "hash"))
    )
    return Case(f"/search?q={prefix}&format=json", reads)


def _bare(connection: sqlite3.Connection, case: Case) -> tuple[float, int]:
    begin, rows = time.process_time(), 0
    for query, values in case.reads:
        rows += len(connection.execute(query, values).fetchall())
    return (time.process_time() - begin) * 1_000, rows


async def measure(world: World, repeats: int, say: Say) -> list[Line]:
    """Return the figures of every kind of page, after one request of each that is not counted."""
    app = create_app(world.path)
    lines = []
    connection = sqlite3.connect(f"{world.path.as_uri()}?mode=ro", uri=True)
    transport = httpx.ASGITransport(app=app)
    with contextlib.closing(connection):
        async with httpx.AsyncClient(transport=transport, base_url="http://explorer", timeout=None) as site:
            for page, requests in cases(world, repeats):
                await _ask(site, requests[0])
                times = [await _ask(site, case) for case in requests]
                bare = [_bare(connection, case) for case in requests]
                lines.append(
                    Line(
                        page,
                        statistics.median(cpu for cpu, _ in times),
                        p95([cpu for cpu, _ in times]),
                        p95([clock for _, clock in times]),
                        statistics.median(each for each, _ in bare),
                        int(statistics.median(rows for _, rows in bare)),
                    )
                )
                say(f"{page}: {lines[-1].median:.1f} ms, p95 {lines[-1].p95:.1f} ms, bare {lines[-1].bare:.2f} ms")
    return lines


async def _ask(site: httpx.AsyncClient, case: Case) -> tuple[float, float]:
    """Return the milliseconds of CPU and clock that one request took."""
    begin, begin_clock = time.process_time(), time.perf_counter()
    answer = await site.get(case.address)
    spent = (time.process_time() - begin) * 1_000, (time.perf_counter() - begin_clock) * 1_000
    assert answer.status_code == 200, (case.address, answer.text)
    return spent


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile: the least value that 95% of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * 95 // 100) - 1)]


def table(lines: Sequence[Line]) -> str:
    """Return the figures as Markdown."""
    rows = [
        f"| {each.page} | {each.median:.1f} | {each.p95:.1f} | {each.p95_clock:.0f} | {each.rows:,} "
        f"| {each.bare:.2f} | {each.ratio:.1f} |"
        for each in lines
    ]
    head = "| page | median CPU ms | p95 CPU ms | p95 clock ms | rows read bare | bare CPU ms | page / bare |\n"
    head += "|---|---|---|---|---|---|---|\n"
    return head + "\n".join(rows)


def report(world: World, lines: Sequence[Line], repeats: int) -> str:
    """Return the table with the conditions it was measured under."""
    slow = [each.page for each in lines if each.p95 > TARGET_MS]
    reached = f"Above {TARGET_MS} ms: {', '.join(slow)}." if slow else f"Every p95 is below {TARGET_MS} ms of CPU."
    load = f" {os.cpu_count()} cores had a load of {os.getloadavg()[0]:.0f}." if hasattr(os, "getloadavg") else ""
    return (
        f"`python -m benchmarks.explorer`, {world.entries:,} entries in {world.blocks:,} blocks with {world.events:,} "
        f"events, {len(world.jobs)} jobs, {len(world.accounts)} workers; {repeats} requests of each kind, one by one; "
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.system()} {platform.machine()}.\n\n{table(lines)}\n\n{reached}{load}\n"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000, help="length of the ledger")
    parser.add_argument("--repeats", type=int, default=60, help="requests of each kind")
    parser.add_argument("--keep", type=Path, help="folder in which the ledger is kept, and found again")
    parser.add_argument("--write", action="store_true", help=f"also write the table to {RESULTS.name}")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gdf-bench-") as folder:
        world = _world(chosen.keep or Path(folder), chosen.entries)
        lines = trio.run(measure, world, chosen.repeats, _say)
    text = report(world, lines, chosen.repeats)
    print(text)
    if chosen.write:
        old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        _, found, notes = old.partition(NOTES)
        RESULTS.write_text(f"# The explorer's figures\n\n{text}{found}{notes}", encoding="utf-8", newline="\n")


def _world(folder: Path, entries: int) -> World:
    """Return the ledger of a folder, made if it is not there."""
    named = folder / "explorer-bench.json"
    if named.exists():
        kept = json.loads(named.read_text(encoding="utf-8"))
        return World(**kept | {"path": folder / "explorer-bench.sqlite"})
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world(folder / "explorer-bench.sqlite", entries, _say)
    kept = {name: getattr(world, name) for name in ("entries", "blocks", "events", "jobs", "accounts", "ids")}
    named.write_text(json.dumps(kept), encoding="utf-8")
    return world


if __name__ == "__main__":
    main()
