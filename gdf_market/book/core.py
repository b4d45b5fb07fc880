"""The order book's core: which job orders are open, and why the others were refused.  Sans-I/O.

An order is the sealed JobPost envelope that is later posted on the ledger, so its id is the job's id.  The ledger takes
one entry of each (author, nonce): that is what makes an order that replaces another one, and the void that takes one
back, binding for those that only heard the first.

Rules kept here:
1. Checks run from cheap to expensive, and the signature comes before anything is looked up.
2. Each author has a bounded share and must be able to pay for all its open orders together.
3. A full book keeps the orders of most worth; which one gives way depends on the book's content alone.
4. An order that became a job is final: it leaves the book and does not come back.
5. Of the orders of one author with one nonce the book holds the one that expires last (then of the highest id),
   whatever came first; a void of that nonce ends them all.  What was replaced or taken back does not return.
6. Replacing and taking back is bounded: it uses up the author's share until the last of these orders has expired.
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
    ReplaceLimitError,
    SpentNonceError,
    SupersededOrderError,
    UnfundedOrderError,
    UnknownVoidError,
    VoidedOrderError,
)
from gdf_market.errors import OversizedError, PeerError, ensure
from gdf_market.messages import MAX_ENTRY_BYTES, Entry, JobPost, Void, open_entry
from gdf_market.units import MINUTE_MS

MAX_REASONS = 32  # kinds of refusal that are counted apart; further ones count as "other"

BalanceOf = Callable[[str], int]  # spendable micro-credits of an account
EscrowOf = Callable[[JobPost], int]  # micro-credits that posting the job locks; may raise RuleError
IsSpent = Callable[[str, int], bool]  # says whether the ledger took an entry of this author with this nonce

_Nonce = tuple[str, int]  # author and nonce


@dataclass(frozen=True)
class Limits:
    """What peers can make the book hold."""

    order_bytes: int = MAX_ENTRY_BYTES
    per_author: int = 16  # nonces: of open orders, and of those that were replaced or taken back
    orders: int = 1_024
    replacements: int = 8  # of one order
    past: int = 4_096  # nonces remembered because their orders were replaced or taken back
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


@dataclass(frozen=True)
class _Past:
    """What is remembered of a nonce: rank of the newest order seen, how many it replaced, and whether it is void."""

    rank: tuple[int, str] = (0, "")
    replaced: int = 0
    void: bool = False
    until_ms: int = 0  # when the last of its orders has expired


def _never(_author: str, _nonce: int) -> bool:
    return False


class OrderBook:
    """Open orders of one network.  ``refused`` counts refusals by reason."""

    def __init__(self, network: str, limits: Limits | None = None) -> None:
        self._network = network
        self._limits = limits or Limits()
        self._open: dict[str, Order] = {}  # by id, in order of arrival
        self._posted: dict[str, None] = {}  # ids, oldest first
        self._by_nonce: dict[_Nonce, str] = {}  # the open order of an author's nonce
        self._past: dict[_Nonce, _Past] = {}  # oldest first
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

    def on_order(
        self,
        raw: bytes,
        peer: str,
        now_ms: int,
        *,
        balance_of: BalanceOf,
        escrow_of: EscrowOf,
        is_spent: IsSpent = _never,
    ) -> Order:
        """Check an envelope from ``peer``; return the order that it adds to the book, or, a void, takes out of it.

        Raises OversizedError, MalformedError, SignatureError or NotAnOrderError for what no honest peer sends, and
        an OrderRefusedError for what this book does not take now; each is counted in ``refused``.
        """
        try:
            entry = self._open_envelope(raw, now_ms)
            if isinstance(entry.body, Void):
                return self._take_back(entry.body)
            return self._add(entry, peer, now_ms, balance_of, escrow_of, is_spent)
        except PeerError as error:
            self._count(error.reason)
            raise

    def expire(self, now_ms: int) -> list[str]:
        """Drop the orders whose time is over; return their ids."""
        for key in [key for key, past in self._past.items() if past.until_ms <= now_ms]:
            del self._past[key]
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

    def drop_spent(self, is_spent: IsSpent) -> list[str]:
        """Drop orders whose nonce the ledger has seen; return their ids.

        A job, its void, or any other entry of the author with the same nonce came first.
        """
        return self._drop([self._by_nonce[key] for key in self._by_nonce if is_spent(*key)])

    def mark_posted(self, job_id: str) -> None:
        """Note that a job is final on the ledger: its order leaves the book for good."""
        if job_id in self._open:
            self._drop([job_id])
        self._posted[job_id] = None
        if len(self._posted) > self._limits.posted:
            del self._posted[next(iter(self._posted))]

    def _open_envelope(self, raw: bytes, now_ms: int) -> Entry:
        size, most = len(raw), self._limits.order_bytes
        ensure(size <= most, OversizedError(f"order of {size} bytes; at most {most} are read"))
        entry = open_entry(raw, self._network)
        if not isinstance(entry.body, JobPost | Void):
            raise NotAnOrderError(f"a {type(entry.body).__name__} is not an order; send it to the ledger")
        self._check_time(entry.body, now_ms)
        known = entry.id in self._open or entry.id in self._posted
        ensure(not known, DuplicateOrderError(f"order {entry.id[:16]} is known"))
        self.expire(now_ms)  # what is over takes nobody's place
        return entry

    def _take_back(self, void: Void) -> Order:
        """Drop the order that a void is about.  One that is not here needs none: the ledger tells of its void, too."""
        key = (void.author, void.nonce)
        past = self._past.get(key)
        ensure(
            past is None or not past.void, DuplicateOrderError(f"nonce {void.nonce} of {void.author} is void already")
        )
        ensure(key in self._by_nonce, UnknownVoidError(f"{void.author} has no open order with nonce {void.nonce}"))
        order = self._open[self._by_nonce[key]]
        self._remember(key, _Past(void=True, until_ms=max(order.spec.expires_ms, void.expires_ms)))
        self._drop([order.id])
        return order

    def _remember(self, key: _Nonce, past: _Past) -> None:
        self._past.pop(key, None)
        self._past[key] = past
        if len(self._past) > self._limits.past:
            del self._past[next(iter(self._past))]

    def _add(
        self, entry: Entry, peer: str, now_ms: int, balance_of: BalanceOf, escrow_of: EscrowOf, is_spent: IsSpent
    ) -> Order:
        spec = entry.body
        assert isinstance(spec, JobPost), "voids are taken back"
        key = (spec.author, spec.nonce)
        self._check_past(key, spec, entry.id)
        ensure(not is_spent(*key), SpentNonceError(f"{spec.author} used the nonce {spec.nonce} on the ledger already"))
        order = Order(entry, spec, peer, now_ms, escrow_of(spec))
        self._check_author(order, balance_of)
        old = self._by_nonce.get(key)
        if old is not None:
            replaced = self._past.get(key, _Past()).replaced
            self._remember(key, _Past(_age(order), replaced + 1, until_ms=spec.expires_ms))
            self._drop([old])
        self._make_room(order)
        self._open[order.id] = order
        self._by_nonce[key] = order.id
        return order

    def _check_past(self, key: _Nonce, spec: JobPost, order_id: str) -> None:
        """Refuse an order that another one with its nonce, or a void, came before or comes before."""
        past, held = self._past.get(key), self._by_nonce.get(key)
        if past is None:
            past = _Past(_age(self._open[held])) if held is not None else _Past()
        ensure(not past.void, VoidedOrderError(f"{spec.author} took order {order_id[:16]} back"))
        ensure(
            (spec.expires_ms, order_id) > past.rank,
            SupersededOrderError(f"order {order_id[:16]} was replaced by {past.rank[1][:16]}"),
        )
        most = self._limits.replacements
        ensure(
            past.replaced < most,
            ReplaceLimitError(f"{spec.author} replaced this order {most} times; wait until it has expired"),
        )

    def _check_time(self, spec: JobPost | Void, now_ms: int) -> None:
        ahead_ms, most_ms = spec.expires_ms - now_ms, self._limits.lifetime_ms
        ensure(ahead_ms > 0, ExpiredOrderError(f"order expired {-ahead_ms} ms ago; sign a new one"))
        ensure(
            ahead_ms <= most_ms, DistantExpiryError(f"order expires in {ahead_ms} ms; at most {most_ms} are allowed")
        )

    def _check_author(self, order: Order, balance_of: BalanceOf) -> None:
        author, key = order.spec.author, (order.spec.author, order.spec.nonce)
        keys = {other for other in (*self._by_nonce, *self._past) if other[0] == author} - {key}
        most = self._limits.per_author
        ensure(
            len(keys) < most,
            AuthorLimitError(f"{author} has {most} open, replaced or withdrawn orders; wait until one has expired"),
        )
        others = [self._open[self._by_nonce[other]] for other in keys if other in self._by_nonce]
        needed, balance = order.escrow + sum(other.escrow for other in others), balance_of(author)
        ensure(
            needed <= balance,
            UnfundedOrderError(f"{author} needs {needed} micro-credits for its open orders and has {balance}"),
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
            spec = self._open.pop(order_id).spec
            del self._by_nonce[spec.author, spec.nonce]
        return dropped

    def _count(self, reason: str) -> None:
        if reason not in self.refused and len(self.refused) >= MAX_REASONS:
            reason = "other"
        self.refused[reason] = self.refused.get(reason, 0) + 1


def _age(order: Order) -> tuple[int, str]:
    """Return what orders with one nonce are compared by: the one that was signed last expires last."""
    return (order.spec.expires_ms, order.id)


def _rank(order: Order) -> tuple[int, str]:
    return (order.worth, order.id)
