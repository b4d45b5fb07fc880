"""What an attack does to a node, seen from outside: memory, files and connections of its processes, and its answers."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from gdf_market.demo.processes import Member
from tests.hostile.market import ask

EVERY_S = 1.0
MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """Of all processes of a node at one moment: resident bytes, open files, sockets."""

    rss: int
    files: int
    sockets: int


def processes_of(member: Member) -> list[psutil.Process]:
    """Return a running node's process and its children (bulk, runner)."""
    assert member._process is not None
    with suppress(psutil.Error):
        root = psutil.Process(member._process.pid)
        return [root, *root.children(recursive=True)]
    return []


def sample(member: Member) -> Sample:
    """Look at a node's processes; the runner of training is left out, as its memory is torch's."""
    rss = files = sockets = 0
    for process in processes_of(member):
        with suppress(psutil.Error):
            if "gdf_market.train.runner" in " ".join(process.cmdline()):
                continue
            rss += process.memory_info().rss
            files += process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
            sockets += len(process.net_connections())
    return Sample(rss, files, sockets)


@dataclass
class Watch(threading.Thread):
    """Samples a node once a second, and asks its API, until ``over`` is set."""

    member: Member
    samples: list[Sample] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    silent: int = 0  # questions without an answer
    statuses: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self.over.is_set():
            self.samples.append(sample(self.member))
            began = time.monotonic()
            status = ask(self.member)
            if status is None:
                self.silent += 1
            else:
                self.answers_s.append(time.monotonic() - began)
                self.statuses.append(status)
            self.over.wait(EVERY_S)

    def end(self) -> None:
        self.over.set()
        self.join()

    @property
    def peak(self) -> Sample:
        return Sample(
            max(one.rss for one in self.samples),
            max(one.files for one in self.samples),
            max(one.sockets for one in self.samples),
        )

    def latency_ms(self) -> tuple[int, int]:
        """Return median and maximum of the answers."""
        if not self.answers_s:
            return 0, 0
        return round(1_000 * statistics.median(self.answers_s)), round(1_000 * max(self.answers_s))

    def refusals(self) -> Counter[str]:
        """Return what the node counted as refused between the first and the last answer, by reason."""
        if not self.statuses:
            return Counter()
        first, last = (Counter(one.get("refused", {})) for one in (self.statuses[0], self.statuses[-1]))
        return last - first
