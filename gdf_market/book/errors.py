"""Why the order book refuses an order.

Bytes that are oversized, malformed, badly signed or no order at all are the fault of whoever sent them.
Every ``OrderRefusedError`` depends on this node's clock, balances or book: an honest peer may relay such an order,
so a shell drops it (gossip: ignore) without blaming the sender.
"""

from __future__ import annotations

from gdf_market.errors import PeerError


class NotAnOrderError(PeerError):
    """A sealed entry that is neither a job's post nor a void, on the order topic."""

    reason = "not-an-order"


class OrderRefusedError(PeerError):
    """A genuine order that this book does not take now."""

    reason = "refused"


class ExpiredOrderError(OrderRefusedError):
    """The order's time is over."""

    reason = "expired"


class DistantExpiryError(OrderRefusedError):
    """The order wants to stay longer than any order may."""

    reason = "distant-expiry"


class DuplicateOrderError(OrderRefusedError):
    """The book has, or had, this order."""

    reason = "duplicate"


class AuthorLimitError(OrderRefusedError):
    """The author has as many open orders as an account may."""

    reason = "author-limit"


class BookFullError(OrderRefusedError):
    """The book is full of orders of more worth."""

    reason = "book-full"


class UnfundedOrderError(OrderRefusedError):
    """The author's balance does not cover the escrows of its open orders."""

    reason = "unfunded"


class SupersededOrderError(OrderRefusedError):
    """A later order of the author with the same nonce took this one's place."""

    reason = "superseded"


class VoidedOrderError(OrderRefusedError):
    """The author took the order back."""

    reason = "voided"


class SpentNonceError(OrderRefusedError):
    """An entry with the order's nonce is on the ledger, so that this one never will be."""

    reason = "spent"


class ReplaceLimitError(OrderRefusedError):
    """The order was replaced as often as an order may be."""

    reason = "replace-limit"


class UnknownVoidError(OrderRefusedError):
    """A void of no order that is open here."""

    reason = "unknown-void"
