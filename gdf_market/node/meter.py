"""Bytes that pass in one direction, of all peers together, held to a rate."""

from __future__ import annotations

import trio

from gdf_market.node import limits


class Meter:
    """Counts and paces; ``rate_bytes_per_s`` 0 is no limit.  Who spends waits in the order of asking."""

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0
        self.total_bytes = 0
        self._bucket: limits.Bucket | None = None

    def limit(self, bytes_per_s: int) -> None:
        """Hold what is spent from now on to this rate."""
        self.rate_bytes_per_s = bytes_per_s
        burst = max(float(limits.PIECE_BYTES), bytes_per_s * limits.RATE_BURST_S)
        self._bucket = limits.Bucket(float(bytes_per_s), burst) if bytes_per_s else None

    async def spend(self, count: int) -> None:
        """Count ``count`` bytes, and wait until the rate allows more."""
        self.total_bytes += count
        if self._bucket is not None:
            await trio.sleep(self._bucket.spend(count, trio.current_time()))

    def at_once(self, bytes_per_s: int, most: int) -> int:
        """Return how many transfers may share the rate so that each still gets ``bytes_per_s``; 1 to ``most``."""
        if not self.rate_bytes_per_s:
            return most
        return max(1, min(most, self.rate_bytes_per_s // bytes_per_s))
