"""Integer units shared by every package: credits, ratios and time.

Money is an ``int`` number of micro-credits.  Ratios are parts per million
(``_ppm``) or per billion (``_ppb``).  Time is Unix milliseconds (``_ms``).
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from gdf_market.errors import UsageError

CREDIT = 1_000_000  # micro-credits in one credit
PPM = 1_000_000
PPB = 1_000_000_000
SECOND_MS = 1_000
MINUTE_MS = 60_000
MAX_INT = 2**53 - 1  # largest integer every JSON reader keeps exact (RFC 8785 section 3.2.2.3)


def parse_credits(text: str) -> int:
    """Return micro-credits for a decimal number of credits such as ``"2.5"``.

    Raises UsageError when the text is no plain decimal number, is negative,
    has more than six decimals, or does not fit.
    """
    try:
        amount = Decimal(text) * CREDIT
    except InvalidOperation:
        raise UsageError(f"{text!r} is not an amount of credits; write a number such as 2.5") from None
    if not amount.is_finite() or amount < 0 or amount > MAX_INT or amount != amount.to_integral_value():
        raise UsageError(f"{text!r} is not an amount of credits; write a number from 0 with at most six decimals")
    return int(amount)


def format_credits(amount: int) -> str:
    """Return micro-credits as decimal credits without trailing zeros: ``2500000`` -> ``"2.5"``."""
    sign = "-" if amount < 0 else ""
    whole, part = divmod(abs(amount), CREDIT)
    decimals = f".{part:06d}".rstrip("0").rstrip(".")
    return f"{sign}{whole}{decimals}"
