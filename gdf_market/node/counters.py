"""Counts of what the network layer refused, by reason; `peers` and the metrics show them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog

MAX_REASONS = 64  # reasons are words of this code base, never text from a peer

log = structlog.get_logger("gdf.net")


class Counters:
    """How often each reason occurred in this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, **details: Any) -> None:
        """Count ``reason`` and note its details in the log."""
        assert reason in self._counts or len(self._counts) < MAX_REASONS
        self._counts[reason] += 1
        log.debug("network refused", reason=reason, **details)

    def __getitem__(self, reason: str) -> int:
        return self._counts[reason]

    def snapshot(self) -> dict[str, int]:
        """Return all counts, by reason in alphabetical order."""
        return dict(sorted(self._counts.items()))
