"""When an honest leader proposes, and how long the others wait for it.

A leader with work (waiting entries, a deadline of the rules that is due, an unfinalized tip) proposes at once,
at least ``block_ms`` after its parent; without work it proposes a heartbeat.  The others expect it at the same time
by their own view, and skip the slot when a margin has passed, so that a dead leader delays urgent work by the margin
and not by a heartbeat.  Margins grow with the slots since the last finalization, up to a cap: after any disturbance
they outgrow the network's delay.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger import limits


@dataclass(frozen=True)
class Situation:
    """What one node knows about the slot at the frontier; times by its own clock, except the parent's."""

    entered_ms: int
    parent_ms: int | None  # block time of the parent; None while it is missing here
    parent_final: bool
    work_since_ms: int | None
    wake_ms: int | None  # block time at which the rules have something to do
    proposed_ms: int | None  # when a proposal for the slot arrived
    suspect: bool  # the leader let its last slot pass: it proves that it lives by proposing at once
    unfinalized: int
    block_ms: int
    heartbeat_ms: int


def propose_at(now: Situation) -> int:
    """Return when a leader in this situation proposes."""
    if now.parent_ms is None:
        return now.entered_ms
    # a parent whose proposer's clock was ahead must not keep us waiting for our own clock
    base = min(now.parent_ms, now.entered_ms)
    earliest = max(now.entered_ms, base + max(1, now.block_ms))
    if now.suspect:
        return earliest
    reasons = [base + now.heartbeat_ms]
    if not now.parent_final:
        reasons.append(now.entered_ms + limits.UNFINALIZED_MS)
    if now.work_since_ms is not None:
        reasons.append(now.work_since_ms)
    if now.wake_ms is not None:
        reasons.append(now.wake_ms)
    return max(earliest, min(reasons))


def margin_ms(now: Situation) -> int:
    """Return how long after ``propose_at`` the slot is skipped."""
    margin = limits.SUSPECT_MS if now.suspect else limits.MARGIN_MS
    for _ in range(min(now.unfinalized, 32)):  # beyond that the cap holds anyway
        margin = margin * limits.BACKOFF_NUMERATOR // limits.BACKOFF_DENOMINATOR
    return min(limits.MAX_MARGIN_MS, margin)


def skip_at(now: Situation) -> int:
    """Return when a follower in this situation votes to skip the slot."""
    expected = propose_at(now)
    if now.proposed_ms is not None:
        expected = min(expected, max(now.entered_ms, now.proposed_ms))
    return expected + margin_ms(now)
