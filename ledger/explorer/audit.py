"""The audit page: a full replay of this file on request, with its progress, what it verified and what looks odd."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ledger.explorer.queries import Reader
from ledger.explorer.replay import Report
from ledger.explorer.worker import DONE, RUNNING, Progress

COMMANDS = ("gdf-market ledger export chain.gdfl", "gdf-market ledger verify chain.gdfl")
VERIFIED = (
    "Every block follows from the one before: hash, slot, time, epoch, and the slot's leader signed it",
    "Every beacon follows from the one before by its proposer's VRF proof",
    "Every author signed each entry, and the header of its block covers it",
    "A quorum of the validators of each epoch signed that its blocks are final",
    "The rules accept every entry in its place",
    "The state after every block has the root that its header names",
    "Every block leaves as many credits as it found, and all records add up to the supply",
)


@dataclass(frozen=True)
class AuditPage:
    """``report`` is of the last run that ended well; ``behind``: blocks that came after it."""

    status: str
    percent: int
    done: int
    of: int
    started_ms: int
    ended_ms: int
    error: str
    report: Report | None
    behind: int
    verified: tuple[str, ...]
    commands: tuple[str, ...]
    pruned_below: int
    running: bool


def load(reader: Reader, progress: Progress) -> AuditPage:
    """Return the page for the state of the last run."""
    report = msgspec.convert(progress.result, Report) if progress.status == DONE and progress.result else None
    head, oldest = reader.head(), reader.oldest()
    return AuditPage(
        status=progress.status,
        percent=100 * progress.done // progress.of if progress.of else 0,
        done=progress.done,
        of=progress.of,
        started_ms=progress.started_ms,
        ended_ms=progress.ended_ms,
        error=progress.error,
        report=report,
        behind=max(0, (head.height if head else 0) - report.height) if report else 0,
        verified=VERIFIED,
        commands=COMMANDS,
        pruned_below=oldest if oldest > 1 else 0,
        running=progress.status == RUNNING,
    )
