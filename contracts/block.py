"""Blocks: deadlines and draws first, then the entries in order, then the end of an epoch; what callers may ask of it.

Rules kept here:
1. An entry that the rules refuse changes nothing; in a block it makes the block invalid.
2. Whatever an entry holds, refusing it is a RuleError that names it.
3. The work of a block is bounded by its entries and by the limits in parameters.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.accounts import process_nonce, process_pruning, process_spent, process_transfer, process_void
from contracts.auction import process_bid, process_bid_withdraw
from contracts.audits import process_audit_classes, process_audit_commit, process_audit_open, process_sketch_open
from contracts.bisecting import (
    process_arbiter_commit,
    process_arbiter_open,
    process_bisect_open,
    process_state_offer,
)
from contracts.epochs import process_epoch_end
from contracts.fees import process_fee
from contracts.jobs import process_job, process_job_cancel, process_job_post
from contracts.records import Event
from contracts.rounds import process_commit, process_receipt, process_result, process_reveal
from contracts.state import BlockContext, Changes, Draft, State, genesis_state, job_key, network_id, present
from contracts.validators import (
    process_evidence,
    process_proposer,
    process_validator_join,
    process_validator_leave,
)
from contracts.wake import get_wake_ms
from gdf_market.errors import PeerError, RuleError
from gdf_market.messages import (
    ArbiterCommit,
    ArbiterOpen,
    AuditClasses,
    AuditCommit,
    AuditOpen,
    Bid,
    BidWithdraw,
    BisectOpen,
    Commit,
    Entry,
    Evidence,
    JobCancel,
    JobPost,
    Receipt,
    Result,
    Reveal,
    SketchOpen,
    StateOffer,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
    Void,
)

__all__ = [
    "BlockContext",
    "Transition",
    "apply_block",
    "check_entry",
    "genesis_state",
    "network_id",
    "next_wake_ms",
    "select_entries",
]

_PROCESS: dict[type, Callable[[Draft, Any], None]] = {
    Void: process_void,
    Transfer: process_transfer,
    JobPost: process_job_post,
    JobCancel: process_job_cancel,
    Bid: process_bid,
    BidWithdraw: process_bid_withdraw,
    Commit: process_commit,
    Reveal: process_reveal,
    Receipt: process_receipt,
    Result: process_result,
    AuditCommit: process_audit_commit,
    SketchOpen: process_sketch_open,
    AuditOpen: process_audit_open,
    AuditClasses: process_audit_classes,
    BisectOpen: process_bisect_open,
    StateOffer: process_state_offer,
    ArbiterCommit: process_arbiter_commit,
    ArbiterOpen: process_arbiter_open,
    ValidatorJoin: process_validator_join,
    ValidatorLeave: process_validator_leave,
    Evidence: process_evidence,
}
NO_BEACON = "00" * 32  # entries draw nothing; only advance does


@dataclass(frozen=True)
class Transition:
    """What a block does: the state after it, what happened, and (before, after) of each record that changed."""

    state: State
    events: tuple[Event, ...]
    changes: Changes


def apply_block(state: State, entries: Sequence[Entry], context: BlockContext) -> Transition:
    """Return the transition of a block; RuleError naming the first entry that is refused.

    Signatures of entries, the block's size, and that its time is not before its parent's are the caller's to check.
    """
    draft = Draft(state, context)
    process_proposer(draft)
    process_advance(draft)
    for entry in entries:
        process_entry(draft, entry)
    if entries:
        process_spent(draft, [(entry.body.author, entry.body.nonce) for entry in entries])
    if context.height % draft.network().staking.epoch_blocks == 0:
        process_epoch_end(draft)
    process_wakes(draft)
    return Transition(State(draft.records, draft.used), tuple(draft.events), draft.changes())


def select_entries(
    state: State, candidates: Sequence[Entry], context: BlockContext
) -> tuple[list[Entry], list[tuple[Entry, RuleError]]]:
    """Return which candidates one block can hold, one after another, and why the others cannot be in it."""
    draft = Draft(state, context)
    process_advance(draft)
    selected: list[Entry] = []
    refused: list[tuple[Entry, RuleError]] = []
    for entry in candidates:
        mark = draft.mark()
        try:
            process_entry(draft, entry)
            selected.append(entry)
        except RuleError as error:
            draft.rollback(mark)
            refused.append((entry, error))
    return selected, refused


def check_entry(state: State, entry: Entry, time_ms: int) -> None:
    """Raise RuleError unless the rules accept the entry on this state as it is (deadlines that just passed aside)."""
    process_entry(Draft(state, BlockContext(height=0, time_ms=time_ms, beacon=NO_BEACON, proposer="")), entry)


def next_wake_ms(state: State) -> int | None:
    """Return the earliest block time at which a block without entries changes something, 0 for at once.

    Pruning of nonces is left out: it can wait for any block.
    """
    return min((present(state.job(job)).wake_ms for job in state.active().jobs), default=None)


def process_advance(draft: Draft) -> None:
    """Carry out what is due: only what earlier blocks hold decides, with this block's beacon."""
    process_pruning(draft)
    for job_id in draft.active().jobs:
        if present(draft.job(job_id)).wake_ms <= draft.now:
            draft.touched_jobs[job_id] = None
            process_job(draft, job_id)


def process_entry(draft: Draft, entry: Entry) -> None:
    """Apply one entry; RuleError if the rules refuse it, and then the draft is to be rolled back."""
    draft.entry = entry.id
    try:
        process_nonce(draft, entry.body)
        process_fee(draft, entry)
        _PROCESS[type(entry.body)](draft, entry.body)
    except PeerError as error:
        raise RuleError(f"{type(entry.body).__name__} {entry.id[:12]} is refused: {error}") from error
    finally:
        draft.entry = ""
    job = entry.id if isinstance(entry.body, JobPost) else getattr(entry.body, "job", None)
    if job is not None:
        draft.touched_jobs[job] = None


def process_wakes(draft: Draft) -> None:
    """Note for each job that this block touched when it needs the next one."""
    active = set(draft.active().jobs)
    for job_id in draft.touched_jobs:
        if job_id in active:
            job = present(draft.job(job_id))
            wake_ms = get_wake_ms(draft, job)
            if wake_ms != job.wake_ms:
                draft.update(job_key(job_id), wake_ms=wake_ms)
