"""Opening many entries at once, on as many cores as there are.

Verifying signatures is most of what a cold sync computes, and PyNaCl leaves Python's lock meanwhile.  The core of the
ledger knows no threads: it is handed a function that opens entries, and what that returns does not depend on them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gdf_market.messages import Entry
from ledger.envelopes import open_each

CHUNK = 12  # entries (about a millisecond) that a thread takes at a time
MAX_THREADS = 4  # what is not verification holds Python's lock, so that more would wait for it


def threads_here() -> int:
    """Return how many threads are worth their while on this machine."""
    return min(MAX_THREADS, os.cpu_count() or 1)


class OpenPool:
    """Threads that open entries together with their caller; an instance is an ``OpenMany``."""

    def __init__(self, threads: int | None = None) -> None:
        """``threads`` counts the caller (default: one for each core, four at most)."""
        self._helpers = (threads_here() if threads is None else threads) - 1
        self._pool = ThreadPoolExecutor(self._helpers, "open-entries") if self._helpers > 0 else None

    def __call__(self, raws: Sequence[bytes], network: str) -> list[Entry]:
        """Do what ``open_each`` does."""
        if self._pool is None or len(raws) < 2 * CHUNK:
            return open_each(raws, network)
        starts = range(0, len(raws), CHUNK)
        opened: list[list[Entry] | Exception | None] = [None] * len(starts)
        work = functools.partial(_drain, enumerate(starts), raws, network, opened)
        helpers = [self._pool.submit(work) for _ in range(min(self._helpers, len(starts) - 1))]
        work()
        for helper in helpers:
            helper.result()
        entries: list[Entry] = []
        for part in opened:
            if isinstance(part, Exception):
                raise part
            assert part is not None, "whoever takes a chunk leaves something in its place"
            entries += part
        return entries

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _drain(
    chunks: Iterator[tuple[int, int]], raws: Sequence[bytes], network: str, opened: list[list[Entry] | Exception | None]
) -> None:
    """Open chunk after chunk until none is left; ``next`` of an enumeration is one step for all threads."""
    for index, start in chunks:
        try:
            opened[index] = open_each(raws[start : start + CHUNK], network)
        except Exception as error:  # the caller raises it, in the order of the entries
            opened[index] = error
