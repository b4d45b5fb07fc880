"""Blobs over slow lines: several sources against one, a fast source among slow ones, trouble, set rates.

`python -m benchmarks.network` (about three minutes) writes benchmarks/results/network.md.  Every source and the
receiver are bulk hosts in processes of their own, on loopback; a line is a source's limit on what it sends.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
import trio

from benchmarks import network_bare
from benchmarks.network_world import Fetched, World
from gdf_market.blobs.manifest import CHUNK_BYTES

RESULTS = Path(__file__).parent / "results" / "network.md"
LINE = 1_000_000  # bytes a second that a home line sends
FAST, SLOW = 4_000_000, 125_000
RATES = (500_000, 2_000_000, 4_000_000)

Row = Sequence[str]


def _mega(count: float) -> str:
    return f"{count / 1e6:.2f}"


def line_row(name: str, found: Fetched, single: Fetched, lines: int) -> Row:
    """Return a download as a row: against one source, and against the sum of the lines."""
    return (
        name,
        f"{found.seconds:.1f}",
        _mega(found.bytes_per_s),
        f"{found.bytes_per_s / single.bytes_per_s:.2f} ×",
        f"{100 * found.bytes_per_s / lines:.0f}%",
        f"{100 * (found.received / found.size - 1):.1f}%",
    )


def table(head: Row, rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


async def several(world: World) -> str:
    """One to four home lines."""
    rows: list[Row] = []
    single: Fetched | None = None
    async with world.sources([LINE] * 4) as sources:
        for count in (1, 2, 3, 4):
            found = await world.fetch(sources[:count])
            single = single or found
            rows.append(line_row(f"{count} × {_mega(LINE)} MB/s", found, single, count * LINE))
    head = ("sources", "seconds", "MB/s", "of one source", "of all lines together", "bytes beyond the blob's")
    return (
        f"## Several sources\n{world.size / 1e6:.1f} MB, a receiver that knows nothing of its sources yet.\n\n"
        + table(head, rows)
    )


async def ordered(world: World) -> str:
    """One fast line and three slow ones, with the order by measured pace and without."""
    rows: list[Row] = []
    lines = FAST + 3 * SLOW
    async with world.sources([SLOW, SLOW, FAST, SLOW]) as sources:
        alone = await world.fetch(sources[2:3])
        rows.append(line_row(f"the fast one alone, {_mega(FAST)} MB/s", alone, alone, FAST))
        for name, ranked, warm in (
            ("plain shared queue", False, True),
            ("nearest and fastest first, nobody measured yet", True, False),
            ("nearest and fastest first, measured before", True, True),
        ):
            found = await world.fetch(sources, ranked=ranked, warm=warm)
            rows.append(line_row(f"and 3 × {_mega(SLOW)} MB/s, {name}", found, alone, lines))
    head = ("sources", "seconds", "MB/s", "of the fast one", "of all lines together", "bytes beyond the blob's")
    return "## A fast source among slow ones\n" + table(head, rows)


async def trouble(world: World) -> str:
    """A source that is killed, and one that sends wrong bytes, beside two and three good ones."""
    rows: list[Row] = []
    async with world.sources([LINE] * 3) as sources:

        async def kill() -> None:
            sources[0].stop()
            await trio.lowlevel.checkpoint()

        async with world.corrupting() as bad:
            cases: list[tuple[str, Callable[[], Awaitable[Fetched]]]] = [
                ("three good sources", lambda: world.fetch(sources)),
                ("and one that sends wrong bytes", lambda: world.fetch([bad, *sources])),
                ("three, one of them killed midway", lambda: world.fetch(sources, midway=kill)),
            ]
            for name, run in cases:
                found = await run()
                extra = 100 * (found.received / found.size - 1)
                rows.append((name, f"{found.seconds:.1f}", _mega(found.bytes_per_s), f"{extra:.1f}%"))
    return "## Trouble\n" + table(("sources", "seconds", "MB/s", "bytes beyond the blob's"), rows)


async def rates(world: World) -> str:
    """Set rates in both directions, and what passed."""
    rows: list[Row] = []
    async with world.sources([0, 0]) as sources:
        for rate in RATES:
            sources[0].limit(rate)
            up = await world.fetch(sources[:1])
            sources[0].limit(0)
            down = await world.fetch(sources, down=rate)
            reached = [f"{_mega(one.bytes_per_s)} ({100 * one.bytes_per_s / rate:.0f}%)" for one in (up, down)]
            rows.append((_mega(rate), *reached))
    return "## Set rates, MB/s\n" + table(("asked", "sending, one source", "taking, two sources"), rows)


async def unlimited(world: World) -> str:
    """A blob from one source without limits, against a bare stream of the library, and the receiver's memory."""
    bare, blob, peak = [], [], 0
    async with world.sources([0]) as sources:
        for _ in range(3):  # in turns: the machine may be busy
            bare.append(world.size / await network_bare.measure(world.size))
            found = await world.fetch(sources)
            blob.append(found.bytes_per_s)
            peak = max(peak, found.peak_rss)
    shares = sorted(mine / theirs for mine, theirs in zip(blob, bare, strict=True))
    rows = [
        ("a bare py-libp2p stream", f"{_mega(max(bare))} MB/s"),
        ("a blob from one source, checked and on disk", f"{_mega(max(blob))} MB/s"),
        ("blob against stream, median of three pairs", f"{100 * shares[1]:.0f}%"),
        ("largest memory of the receiving process", f"{peak / 1e6:.0f} MB"),
    ]
    return f"## Without limits\n{world.size / 1e6:.1f} MB.\n\n" + table(("what", "figure"), rows)


async def measure(only: str) -> None:
    """Run the benchmarks and write their results, or print one of them, if it is named."""
    sections: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gdf-bench-") as name:
        folder = Path(name)
        for number, (run, chunks) in enumerate(
            ((several, 18), (ordered, 18), (trouble, 18), (rates, 6), (unlimited, 64))
        ):
            if only in ("", run.__name__):
                place = folder / str(number)
                place.mkdir()
                sections.append(await run(World(place, chunks)))
                print(sections[-1] + "\n", flush=True)
                if not only:
                    write(sections)


def main() -> None:
    """Measure and write the results."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", help="several, ordered, trouble, rates or unlimited; prints, writes nothing"
    )
    only = parser.parse_args().only
    trio.run(measure, only)


def write(sections: Sequence[str]) -> None:
    """Write what was measured so far."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    head = (
        "# Blobs over the network\n`make bench-net`: bulk hosts in processes on loopback; a line is a source's "
        f"limit on what it sends; chunks of {CHUNK_BYTES >> 20} MiB. "
        f"{os.cpu_count()} cores, load {load} at the end. "
        "Compare ratios: seconds depend on what else the machine does.\n"
    )
    RESULTS.write_text(head + "\n" + "\n\n".join(sections) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
