"""The account's own orders that the ledger does not have yet, in a file: a node that starts again can still post them,
replace them or take them back.

Rules kept here:
1. An order is on disk before it is gossiped: whoever heard it can put it on the ledger until it expires.
2. There is one order per nonce; its void, once there is one, is kept beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gdf_market.errors import PeerError, UsageError
from gdf_market.messages import MAX_ENTRY_BYTES, Entry, Void, open_entry
from gdf_market.node.datadir import write_atomic

MAX_ORDERS = 64  # nonces; a book takes fewer of one author
MAX_BYTES = 2 * MAX_ORDERS * (MAX_ENTRY_BYTES + 16)

log = structlog.get_logger("gdf.orders")


@dataclass(frozen=True)
class OwnOrder:
    """An order, and the void that takes it back, if there is one."""

    order: Entry
    void: Entry | None = None

    @property
    def gossiped(self) -> Entry:
        """What others should hear of it now."""
        return self.void or self.order


class OwnOrders:
    """Own orders by nonce, in the order in which they were announced.  ``save`` writes what changed."""

    def __init__(self, path: Path, network: str) -> None:
        self._path = path
        self._orders: dict[int, OwnOrder] = {}
        for entry in _load(path, network):
            self.put(entry)
        self.changed = False  # since it was saved

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[OwnOrder]:
        return iter(list(self._orders.values()))

    def put(self, entry: Entry) -> None:
        """Take an order, in place of one with its nonce, or a void beside the order with its nonce.

        Raises UsageError when there are too many.
        """
        nonce, known = entry.body.nonce, self._orders.get(entry.body.nonce)
        if not isinstance(entry.body, Void):
            if known is None and len(self._orders) >= MAX_ORDERS:
                raise UsageError(f"{MAX_ORDERS} orders of this account are open; wait until one is posted or expires")
            self._orders[nonce] = OwnOrder(entry)
        elif known is not None:
            self._orders[nonce] = replace(known, void=entry)
        self.changed = True

    def find(self, prefix: str) -> OwnOrder:
        """Return the order whose id starts with ``prefix``.  Raises UsageError unless there is exactly one."""
        found = [own for own in self if own.order.id.startswith(prefix.lower())]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{len(found)} orders start with {prefix!r}; give more characters of the id")
        raise UsageError(
            f"this account has no order {prefix!r} that waits to be posted; it was posted, replaced, taken back or has "
            "expired (`gdf-market market ls` lists orders, `gdf-market jobs cancel` ends a job)"
        )

    def forget(self, is_over: Callable[[Entry], bool]) -> None:
        """Drop orders that are over: posted, void by the ledger, or expired."""
        over = [nonce for nonce, own in self._orders.items() if is_over(own.order)]
        for nonce in over:
            del self._orders[nonce]
        self.changed = self.changed or bool(over)

    def save(self) -> None:
        """Write the orders if they changed.  Raises StorageError."""
        if self.changed:
            self.changed = False
            kept = [entry.raw.decode() for own in self for entry in (own.order, own.void) if entry is not None]
            write_atomic(self._path, json.dumps(kept).encode())


def _load(path: Path, network: str) -> list[Entry]:
    """Return what the last run left; nothing if the file is missing or damaged (its orders expire by themselves)."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        return [open_entry(str(raw).encode(), network) for raw in found][: 2 * MAX_ORDERS]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError, PeerError) as error:
        log.warning("own orders not read", path=str(path), error=str(error))
        return []
