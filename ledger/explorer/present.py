"""How values read on a page: amounts, times, ratios and short names.  Template filters, no markup."""

from __future__ import annotations

from datetime import UTC, datetime

from gdf_market.units import PPB, PPM, SECOND_MS, format_credits

SHORT_HEAD, SHORT_TAIL = 8, 5
TONES = {  # status -> tone of its chip; anything else is neutral
    **dict.fromkeys(("done", "paid", "accepted", "pass", "valid", "cleared", "settled", "matched", "opened"), "good"),
    **dict.fromkeys(("convicted", "fail", "invalid", "expired", "slashed", "void", "late"), "bad"),
    **dict.fromkeys(("missed", "rejected", "grey", "cancelled", "unresolved", "draining", "dispute"), "warn"),
    **dict.fromkeys(
        ("running", "bidding", "open", "work", "reveal", "receipt", "result", "committed", "revealed", "assigned"),
        "live",
    ),
    **dict.fromkeys(("committing", "opening", "pending", "member", "candidate"), "live"),
    **dict.fromkeys(("leaving", "unlocking"), "warn"),
}


def credits_text(amount: int) -> str:
    """Return micro-credits as credits with digit groups: ``1234500000`` -> ``1,234.5``."""
    text = format_credits(abs(amount))
    whole, dot, part = text.partition(".")
    return f"{'−' if amount < 0 else ''}{int(whole):,}{dot}{part}"


def signed_credits(amount: int) -> str:
    """Return an amount with its sign, for a row of a sum."""
    return ("+" if amount > 0 else "") + credits_text(amount)


def number(value: int) -> str:
    """Return an integer with digit groups."""
    return f"{value:,}"


def percent(ppm: int) -> str:
    """Return parts per million as per cent: ``125000`` -> ``12.5%``."""
    return f"{ppm * 100 / PPM:.4f}".rstrip("0").rstrip(".") + "%"


def ratio(ppb: int) -> str:
    """Return parts per billion as a plain ratio with three digits: ``21`` -> ``2.1e-08``."""
    return "0" if ppb == 0 else f"{ppb / PPB:.3g}"


def signed_ratio(ppm: int) -> str:
    """Return signed parts per million as a ratio with three decimals."""
    return f"{ppm / PPM:.3f}"


def nats(value_e6: int) -> str:
    """Return micro-nats as nats."""
    return f"{value_e6 / 1_000_000:.4f}"


def short(name: str) -> str:
    """Return an id as its first and last characters: ``12D3KooWAbc…`` -> ``12D3KooW…xyzAB``."""
    return name if len(name) <= SHORT_HEAD + SHORT_TAIL + 1 else f"{name[:SHORT_HEAD]}…{name[-SHORT_TAIL:]}"


def account_name(account: str) -> str:
    """Return an account id shortened by its common prefix: the last eight characters tell accounts apart."""
    return f"12D3…{account[-8:]}" if account.startswith("12D3KooW") else short(account)


def utc(time_ms: int) -> str:
    """Return Unix milliseconds as ``2026-11-30 11:20:03 UTC``; the raw number when no calendar reaches it."""
    try:
        return datetime.fromtimestamp(time_ms / SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def iso(time_ms: int) -> str:
    """Return Unix milliseconds in ISO 8601 for ``<time datetime>``, "" when no calendar reaches it."""
    try:
        return datetime.fromtimestamp(time_ms / SECOND_MS, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def duration(ms: int) -> str:
    """Return a span in its two largest units: ``3725000`` -> ``1 h 2 min``."""
    if ms < SECOND_MS:
        return f"{ms} ms"
    seconds = ms // SECOND_MS
    parts = (("d", seconds // 86_400), ("h", seconds // 3_600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60))
    first = next(index for index, (_, amount) in enumerate(parts) if amount)
    return " ".join(f"{amount:,} {name}" for name, amount in parts[first : first + 2] if amount)


def ago(time_ms: int, now_ms: int) -> str:
    """Return how long before ``now_ms`` a moment was."""
    if time_ms > now_ms:
        return f"in {duration(time_ms - now_ms)}"
    return f"{duration(now_ms - time_ms)} ago"


def tone(status: str) -> str:
    """Return the tone of a status chip: good | bad | warn | live | plain."""
    return TONES.get(status, "plain")


FILTERS = {
    "credits": credits_text,
    "signed_credits": signed_credits,
    "number": number,
    "percent": percent,
    "ratio": ratio,
    "signed_ratio": signed_ratio,
    "nats": nats,
    "short": short,
    "account_name": account_name,
    "utc": utc,
    "iso": iso,
    "duration": duration,
    "tone": tone,
}
