"""What the benchmark runs: a list of tasks, each of which makes one line of the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.defence import images, league, market, outside, peers, speed
from benchmarks.defence.adversary import ATTACKS, BY_NAME
from benchmarks.defence.world import ROUNDS, World, make_world

VERSION = 3  # of the lines: older ones are not read
SHARDS = {"digits": 40, "fashion-mnist": 80}
VETERANS = market.Terms()
NEW = market.Terms(floor_ppm=100_000, veterans=False)
TERMS = {
    "records": VETERANS,
    "new": NEW,
    "records, 10%": market.Terms(floor_ppm=100_000),
    "records, committee of 3": market.Terms(committee=3),
    "records, committee of all": market.Terms(committee=64),
    "records, no bars": market.Terms(bars=False),
    "new, no bars": market.Terms(floor_ppm=100_000, veterans=False, bars=False),
    "new, committee of 11": market.Terms(floor_ppm=100_000, veterans=False, committee=11),
    "records, no alert": market.Terms(alert=False),
    "records, outliers": market.Terms(outliers=True),
    "records, no alert, committee of 3": market.Terms(alert=False, committee=3),
}
RATES = (1, 2, 5, 10, 15, 20, 30)  # per cent
RATE_ATTACKS = ("lazy 1 of 20", "intermittent 25%", "within the similarity band")
CELLS = ((40, False), (40, True), (20, False), (20, True))  # per cent that are bad, and whether their data are uneven
MASS_ATTACKS = ("lazy 1 of 20", "sign flip", "backdoor", "intermittent 25%", "lying auditor")


@dataclass(frozen=True)
class Task:
    """``kind``: market, league, speed, outside.  ``bad`` is in per cent; ``terms`` a name above, or a rate."""

    kind: str
    data: str
    seed: int
    attack: str = "none"
    bad: int = 0
    uneven: bool = False
    terms: str = ""

    @property
    def key(self) -> list[Any]:
        return list(dataclasses.astuple(self))

    def __str__(self) -> str:
        split = "uneven" if self.uneven else "even"
        return f"{self.kind} {self.data} {split} {self.bad}% {self.attack} {self.terms} seed {self.seed}"


@dataclass(frozen=True)
class Places:
    """Where the data and the peers' environment are."""

    peers: Path
    images: Path


def tasks(data: str, seeds: int, *, fast: bool) -> list[Task]:
    """Return all tasks of a run, in the order in which they are worth most."""
    found = [Task("speed", "", 0)]
    if fast:
        return found + [task for seed in range(seeds) for task in _fast(data, seed)]
    return found + list(_full(data, seeds))


def _fast(data: str, seed: int) -> Iterator[Task]:
    for terms in ("records", "new", "records, 10%"):
        yield Task("market", data, seed, terms=terms)
    yield Task("market", data, seed, uneven=True, terms="records")
    for uneven in (False, True):
        yield Task("league", data, seed, uneven=uneven)
    for bad, attack in itertools.product((40, 20), ATTACKS[1:]):
        yield Task("market", data, seed, attack.name, bad, False, "records")
    for attack in ATTACKS[1:]:
        if not attack.lies:
            yield Task("league", data, seed, attack.name, 40)
    for name in MASS_ATTACKS:
        yield Task("market", data, seed, name, 40, True, "records")
        yield Task("market", data, seed, name, 40, False, "new")
        for terms in list(TERMS)[3:]:
            yield Task("market", data, seed, name, 40, False, terms)
    for rate, targets in itertools.product(RATES, ("", ", no targets")):
        yield Task("market", data, seed, RATE_ATTACKS[0], 20, False, f"rate {rate}{targets}")


def _full(data: str, seeds: int) -> Iterator[Task]:
    """Yield what all seeds have, then what only the first has: other shares of bad workers, terms, rates, the outside
    table.  One league is half a minute of CPU time, a market a quarter of that, a column of the outside table many."""
    names = [attack.name for attack in ATTACKS[1:]]
    peers_too = [attack.name for attack in ATTACKS[1:] if not attack.lies]
    for seed in range(seeds):
        for uneven, terms in itertools.product((False, True), ("records", "new", "records, 10%")):
            yield Task("market", data, seed, uneven=uneven, terms=terms)
        for uneven in (False, True):
            yield Task("league", data, seed, uneven=uneven)
    for (bad, uneven), seed, name in itertools.product(CELLS, range(seeds), names):
        yield Task("market", data, seed, name, bad, uneven, "records")
    for (bad, uneven), seed, name in itertools.product(CELLS[:2], range(seeds), peers_too):
        yield Task("league", data, seed, name, bad, uneven)
    yield from _first(data, names, peers_too)


def _first(data: str, names: Sequence[str], peers_too: Sequence[str]) -> Iterator[Task]:
    for column in outside.COLUMNS:
        yield Task("outside", "fashion-mnist", 0, column)
    for name in peers_too:
        yield Task("league", data, 0, name, 20)
    for name, terms in itertools.product(MASS_ATTACKS, list(TERMS)[1:]):
        yield Task("market", data, 0, name, 40, False, terms)
    for rate, name, targets in itertools.product(RATES, RATE_ATTACKS, ("", ", no targets")):
        yield Task("market", data, 0, name, 20, False, f"rate {rate}{targets}")
    for bad, name in itertools.product((10, 30), names):
        yield Task("market", data, 0, name, bad, False, "records")


def terms_of(name: str) -> market.Terms:
    """Return the terms of a task."""
    if not name.startswith("rate "):
        return TERMS[name]
    rate, _, targets = name.removeprefix("rate ").partition(", ")
    return market.Terms(floor_ppm=int(rate) * 10_000, targeted=targets != "no targets")


def run(task: Task, places: Places) -> dict[str, Any]:
    """Return the line of a task."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    began, before = time.perf_counter(), _cpu()
    with peers.Peers(peers.prepare(places.peers)) if task.kind in ("league", "speed") else _nobody() as helpers:
        if task.kind == "speed":
            found: Any = speed.measure(helpers, 5)
        elif task.kind == "outside":
            attack, bad = outside.COLUMNS[task.attack]
            cnn = outside.make_world(places.images, task.seed)
            found = dataclasses.asdict(market.play(cnn, attack, bad, VETERANS, ROUNDS, workers=outside.WORKERS))
        elif task.kind == "market":
            world, bad = _world(task, places), task.bad * market.WORKERS // 100
            story = market.play(world, BY_NAME[task.attack], bad, terms_of(task.terms), ROUNDS)
            found = dataclasses.asdict(story)
        else:
            torch.set_flush_denormal(True)  # models that an attack drives away compute with nothing else, very slowly
            world, bad = _world(task, places), task.bad * market.WORKERS // 100
            rules = [rule for rule in league.RULES if rule not in league.PEERS or rule in helpers.rules]
            scores = league.compete(world, BY_NAME[task.attack], bad, ROUNDS, helpers, rules)
            found = [dataclasses.asdict(score) for score in scores]
    return {"version": VERSION, "key": task.key, "found": found, "seconds": time.perf_counter() - began,
            "cpu": _cpu() - before}  # fmt: skip


def _cpu() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


@contextlib.contextmanager
def _nobody() -> Iterator[Any]:
    yield None


def _world(task: Task, places: Places) -> World:
    return _made(task.data, places, task.uneven, task.seed)


@functools.lru_cache(maxsize=2)
def _made(data: str, places: Places, uneven: bool, seed: int) -> World:
    return make_world(_images(data, places), shards=SHARDS[data], uneven=uneven, seed=seed)


@functools.lru_cache(maxsize=1)
def _images(data: str, places: Places) -> images.Images:
    if data == "digits":
        return peers.load_digits(peers.prepare(places.peers))
    return images.fashion(places.images, pooled=True)
