"""Fees: what an entry that nothing else bounds pays to the proposer of the block that takes it.

Rules kept here:
1. Every kind of entry either pays a fee or can be made only once by whoever holds a certain role (docs/rules.md, Fees).
2. A fee is moved, never burnt or minted; a proposer pays itself like anybody else.
"""

from __future__ import annotations

from contracts.accounts import Where, balance, check_balance, move
from contracts.judges import get_challenges
from contracts.parameters import ROUND_KIB_PER_UNIT
from contracts.state import Draft, View
from gdf_market.codec import encode
from gdf_market.messages import (
    AuditClasses,
    AuditCommit,
    Bid,
    BidWithdraw,
    Entry,
    JobCancel,
    JobPost,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
    Void,
)

KIB = 1_024
ENVELOPE_BYTES = 192  # what signing adds to a body: the envelope, and the digits of nonce and expiry
PAYING = (Void, Transfer, JobPost, JobCancel, Bid, BidWithdraw, AuditClasses, ValidatorJoin, ValidatorLeave)


def compute_fee(entry_fee: int, entry: Entry) -> int:
    """Return the micro-credits that an entry pays where a started KiB costs ``entry_fee``.

    A job's post also pays for the entries that its rounds make, which are free for those who make them.  A challenge is
    taken for the first one of its unit (``compute_challenge_fee``).
    """
    challenges = isinstance(entry.body, AuditCommit) and entry.body.role == "challenge"
    if not (challenges or isinstance(entry.body, PAYING)):
        return 0
    kib = -(-len(entry.raw) // KIB)
    if isinstance(entry.body, JobPost):
        kib += entry.body.rounds * entry.body.units_per_round * ROUND_KIB_PER_UNIT
    return entry_fee * kib


def compute_challenge_fee(entry_fee: int, entry: Entry, before: int) -> int:
    """Return what a challenge pays of a unit that was challenged ``before``: each costs twice what the last one did."""
    return compute_fee(entry_fee, entry) << before


def compute_post_fee(entry_fee: int, spec: JobPost) -> int:
    """Return what posting a job costs at most, before its nonce, times and signature are known."""
    return compute_fee(entry_fee, Entry("", spec, bytes(len(encode(spec)) + ENVELOPE_BYTES)))


def process_fee(draft: Draft, entry: Entry) -> None:
    """Move an entry's fee from its author to the block's proposer; RuleError if the author cannot pay it.

    Without a block there is no proposer (``check_entry``): the draft, which nobody keeps, then pays the account "".
    """
    fee = _get_fee(draft, entry)
    if fee == 0:
        return
    author = entry.body.author
    check_balance(draft, author, fee, "the entry's fee")
    move(draft, "fee", balance(author), balance(draft.context.proposer), fee, where=Where(account=author))


def _get_fee(view: View, entry: Entry) -> int:
    entry_fee, body = view.network().entry_fee, entry.body
    if not (isinstance(body, AuditCommit) and body.role == "challenge"):
        return compute_fee(entry_fee, entry)
    unit = view.unit(body.job, body.round, body.slot)
    return compute_challenge_fee(entry_fee, entry, 0 if unit is None else len(get_challenges(view, unit)))
