"""The order book's core: which job orders are open, and why the others were refused.  Sans-I/O.

An order is the sealed JobPost envelope that is later posted on the ledger, so its id is the job's id.

Rules kept here:
1. Checks run from cheap to expensive, and the signature comes before anything is looked up.
2. Each author has a bounded share and must be able to pay for all its open orders together.
3. A full book keeps the orders of most worth; which one gives way depends on the book's content alone.
4. An order that became a job is final: it leaves the book and does not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdf_market.book.errors import (
    AuthorLimitError,
    BookFullError,
    DistantExpiryError,
    DuplicateOrderError,
    ExpiredOrderError,
    NotAnOrderError,
    UnfundedOrderError,
)
from gdf_market.errors import OversizedError, PeerError, ensure
from gdf_market.messages import MAX_ENTRY_BYTES, Entry, JobPost, open_entry
from gdf_market.units import MINUTE_MS

MAX_REASONS = 32  # kinds of refusal that are counted apart; further ones count as "other"

BalanceOf = Callable[[str], int]  # spendable micro-credits of an account
EscrowOf = Callable[[JobPost], int]  # micro-credits that posting the job locks; may raise RuleError


@dataclass(frozen=True)
class Limits:
    """What peers can make the book hold."""

    order_bytes: int = MAX_ENTRY_BYTES
    per_author: int = 16
    orders: int = 1_024
    lifetime_ms: int = 60 * MINUTE_MS  # an order expires at most this far ahead
    posted: int = 4_096  # jobs remembered so that their orders do not come back


@dataclass(frozen=True)
class Order:
    """An open order: its entry, the peer that brought it and when, and the escrow it needs (micro-credits)."""

    entry: Entry
    spec: JobPost
    peer: str
    received_ms: int
    escrow: int

    @property
    def id(self) -> str:
        """The id of the order and of the job it becomes."""
        return self.entry.id

    @property
    def worth(self) -> int:
        """The most its workers can earn in base pay, in micro-credits."""
        return self.spec.reserve_price * self.spec.rounds * self.spec.units_per_round


class OrderBook:
    """Open orders of one network.  ``refused`` counts refusals by reason."""

    def __init__(self, network: str, limits: Limits | None = None) -> None:
        self._network = network
        self._limits = limits or Limits()
        self._open: dict[str, Order] = {}  # by id, in order of arrival
        self._posted: dict[str, None] = {}  # ids, oldest first
        self.refused: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, order_id: str) -> bool:
        return order_id in self._open

    def get(self, order_id: str) -> Order | None:
        """Return an open order."""
        return self._open.get(order_id)

    def orders(self) -> list[Order]:
        """Return the open orders, highest reserve price first, then by id."""
        return sorted(self._open.values(), key=lambda order: (-order.spec.reserve_price, order.id))

    def on_order(self, raw: bytes, peer: str, now_ms: int, *, balance_of: BalanceOf, escrow_of: EscrowOf) -> Order:
        """Check an envelope from ``peer`` and add it to the book.

        Raises OversizedError, MalformedError, SignatureError or NotAnOrderError for what no honest peer sends, and
        an OrderRefusedError for what this book does not take now; each is counted in ``refused``.
        """
        try:
            return self._add(raw, peer, now_ms, balance_of, escrow_of)
        except PeerError as error:
            self._count(error.reason)
            raise

    def expire(self, now_ms: int) -> list[str]:
        """Drop the orders whose time is over; return their ids."""
        return self._drop(order.id for order in self._open.values() if order.spec.expires_ms <= now_ms)

    def drop_unfunded(self, balance_of: BalanceOf) -> list[str]:
        """Drop orders that their authors can no longer pay for, latest first; return their ids.

        Without this, one balance moved from account to account would fund orders of all of them.
        """
        left: dict[str, int] = {}
        unfunded = []
        for order in self._open.values():
            author = order.spec.author
            left.setdefault(author, balance_of(author))
            left[author] -= order.escrow
            if left[author] < 0:
                unfunded.append(order.id)
                left[author] += order.escrow
        return self._drop(unfunded)

    def mark_posted(self, job_id: str) -> None:
        """Note that a job is final on the ledger: its order leaves the book for good."""
        self._open.pop(job_id, None)
        self._posted[job_id] = None
        if len(self._posted) > self._limits.posted:
            del self._posted[next(iter(self._posted))]

    def _add(self, raw: bytes, peer: str, now_ms: int, balance_of: BalanceOf, escrow_of: EscrowOf) -> Order:
        size, most = len(raw), self._limits.order_bytes
        ensure(size <= most, OversizedError(f"order of {size} bytes; at most {most} are read"))
        entry = open_entry(raw, self._network)
        spec = entry.body
        if not isinstance(spec, JobPost):
            raise NotAnOrderError(f"a {type(spec).__name__} is not an order; send it to the ledger")
        self._check_time(spec, now_ms)
        known = entry.id in self._open or entry.id in self._posted
        ensure(not known, DuplicateOrderError(f"order {entry.id[:16]} is known"))
        self.expire(now_ms)  # what is over takes nobody's place
        escrow = escrow_of(spec)
        self._check_author(spec, escrow, balance_of)
        order = Order(entry, spec, peer, now_ms, escrow)
        self._make_room(order)
        self._open[order.id] = order
        return order

    def _check_time(self, spec: JobPost, now_ms: int) -> None:
        ahead_ms, most_ms = spec.expires_ms - now_ms, self._limits.lifetime_ms
        ensure(ahead_ms > 0, ExpiredOrderError(f"order expired {-ahead_ms} ms ago; sign a new one"))
        ensure(
            ahead_ms <= most_ms, DistantExpiryError(f"order expires in {ahead_ms} ms; at most {most_ms} are allowed")
        )

    def _check_author(self, spec: JobPost, escrow: int, balance_of: BalanceOf) -> None:
        others = [order for order in self._open.values() if order.spec.author == spec.author]
        most = self._limits.per_author
        ensure(len(others) < most, AuthorLimitError(f"{spec.author} has {most} open orders; wait until one is posted"))
        needed, balance = escrow + sum(order.escrow for order in others), balance_of(spec.author)
        ensure(
            needed <= balance,
            UnfundedOrderError(f"{spec.author} needs {needed} micro-credits for its open orders and has {balance}"),
        )

    def _make_room(self, order: Order) -> None:
        """Drop the order of least worth (then of least id) if the book is full; refuse ``order`` if that is it."""
        if len(self._open) < self._limits.orders:
            return
        least = min(self._open.values(), key=_rank)
        ensure(
            _rank(least) < _rank(order),
            BookFullError(f"the book holds {len(self._open)} orders, each worth more than {order.worth} micro-credits"),
        )
        self._drop([least.id])
        self._count("evicted")

    def _drop(self, ids: Iterable[str]) -> list[str]:
        dropped = list(ids)
        for order_id in dropped:
            del self._open[order_id]
        return dropped

    def _count(self, reason: str) -> None:
        if reason not in self.refused and len(self.refused) >= MAX_REASONS:
            reason = "other"
        self.refused[reason] = self.refused.get(reason, 0) + 1


def _rank(order: Order) -> tuple[int, str]:
    return (order.worth, order.id)
