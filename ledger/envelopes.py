"""Opening many entries at once: what the core of the ledger is handed, and the plain way to do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdf_market.messages import Entry, open_entry

OpenMany = Callable[[Sequence[bytes], str], list[Entry]]  # envelopes, network; raises what the first bad one raises


def open_each(raws: Sequence[bytes], network: str) -> list[Entry]:
    """Decode envelopes and verify their signatures, one after another.

    Raises OversizedError, MalformedError or SignatureError for the first that is none.
    """
    return [open_entry(raw, network) for raw in raws]
