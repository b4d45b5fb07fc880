"""Claims that the explorer recomputes from signed bytes whenever a page is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdf_market.errors import PeerError


@dataclass(frozen=True)
class Check:
    """``valid`` says whether ``claim`` held just now; ``detail`` says what was compared or why it failed.

    ``pruned``: what it takes is not in this file any more, so nothing was checked.
    """

    claim: str
    valid: bool
    detail: str
    pruned: bool = False


def attempt(claim: str, verify: Callable[[], object], detail: str) -> Check:
    """Return the outcome of a verification that raises PeerError when it fails."""
    try:
        verify()
    except PeerError as error:
        return Check(claim, False, str(error))
    return Check(claim, True, detail)


def pruned(claim: str, detail: str) -> Check:
    """Return a claim that this file does not hold enough to check."""
    return Check(claim, False, detail, pruned=True)


def compare(claim: str, expected: object, found: object) -> Check:
    """Return whether a recomputed value equals the recorded one."""
    if expected == found:
        return Check(claim, True, f"{found} both in the record and recomputed")
    return Check(claim, False, f"the record says {found}, recomputing gives {expected}")
