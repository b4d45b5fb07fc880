"""One plain sentence for every kind of entry and event.

Sentences hold what strangers wrote (titles, memos, reasons): they are plain
text and are escaped where they are shown.
"""

from __future__ import annotations

from functools import singledispatch

from gdf_market.messages import (
    ArbiterCommit,
    ArbiterOpen,
    AuditClasses,
    AuditCommit,
    AuditOpen,
    Bid,
    BidWithdraw,
    BisectOpen,
    Body,
    Commit,
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
from gdf_market.statements import SignedHeader, Statement, place, signer
from gdf_market.units import CREDIT, format_credits
from ledger.explorer.present import account_name, number, ratio, short
from ledger.tables import EventRow


def _credits(amount: int) -> str:
    return f"{format_credits(amount)} credit{'' if amount == CREDIT else 's'}"


def _slots(slots: tuple[int, ...]) -> str:
    return ", ".join(map(str, slots)) if slots else "none"


UnitBody = (
    Commit | Reveal | AuditCommit | AuditOpen | SketchOpen | BisectOpen | StateOffer | ArbiterCommit | ArbiterOpen
)


def _unit(body: UnitBody) -> str:
    return f"round {body.round}, slot {body.slot} of job {short(body.job)}"


@singledispatch
def entry_sentence(body: Body) -> str:
    """Return what the author of an entry states or orders."""
    return f"{account_name(body.author)} signed an entry of a kind this explorer does not know."


@entry_sentence.register
def _(body: Void) -> str:
    return f"{account_name(body.author)} uses up its nonce {body.nonce}: an order with it can no longer be posted."


@entry_sentence.register
def _(body: Transfer) -> str:
    memo = f", with the memo “{body.memo}”" if body.memo else ""
    return f"{account_name(body.author)} sends {_credits(body.amount)} to {account_name(body.to)}{memo}."


@entry_sentence.register
def _(body: JobPost) -> str:
    return (
        f"{account_name(body.author)} posts the job “{body.title}”: {number(body.rounds)} rounds of "
        f"{body.units_per_round} units at up to {_credits(body.reserve_price)} per accepted unit, "
        f"with {_credits(body.audit_budget)} for audits."
    )


@entry_sentence.register
def _(body: JobCancel) -> str:
    return f"{account_name(body.author)} cancels job {short(body.job)}; the round under way still settles."


@entry_sentence.register
def _(body: Bid) -> str:
    return (
        f"{account_name(body.author)} offers to run up to {body.units} units per round of job {short(body.job)} "
        f"on {body.device_class} for {_credits(body.price)} each or better."
    )


@entry_sentence.register
def _(body: BidWithdraw) -> str:
    return f"{account_name(body.author)} takes its bid on job {short(body.job)} back."


@entry_sentence.register
def _(body: Commit) -> str:
    return f"{account_name(body.author)} finished {_unit(body)} and commits to its update without showing it."


@entry_sentence.register
def _(body: Reveal) -> str:
    return (
        f"{account_name(body.author)} reveals the update {short(body.update)} of {_unit(body)}, "
        "with the proof of the data shard it drew."
    )


@entry_sentence.register
def _(body: Receipt) -> str:
    return (
        f"{account_name(body.author)} states which updates of round {body.round} of job {short(body.job)} "
        f"it holds: slots {_slots(body.holds)}."
    )


@entry_sentence.register
def _(body: Result) -> str:
    loss = f"; it measured a loss of {body.loss_e6 / 1_000_000:.4f} nats" if body.loss_e6 >= 0 else ""
    return (
        f"{account_name(body.author)} votes for checkpoint {short(body.outcome.checkpoint)} as the result of round "
        f"{body.round} of job {short(body.job)}, including slots {_slots(body.outcome.included)}{loss}."
    )


@entry_sentence.register
def _(body: AuditCommit) -> str:
    role = {
        "lottery": "won the audit lottery for",
        "targeted": "was named to audit",
        "committee": "sits in judgement on",
        "challenge": "challenges",
    }
    return f"{account_name(body.author)} {role[body.role]} {_unit(body)}, re-executed it and commits to its finding."


@entry_sentence.register
def _(body: SketchOpen) -> str:
    return (
        f"{account_name(body.author)} opens its sketches of {_unit(body)} "
        f"at steps {_slots(tuple(opening.step for opening in body.openings))}."
    )


@entry_sentence.register
def _(body: AuditOpen) -> str:
    return (
        f"{account_name(body.author)} opens its audit of {_unit(body)}: rounding excess {ratio(body.excess_ppb)}, "
        f"relative distance {ratio(body.distance_ppb)}."
    )


@entry_sentence.register
def _(body: AuditClasses) -> str:
    classes = ", ".join(body.classes) or "no device class"
    return f"{account_name(body.author)} declares that it can audit units of {classes}."


@entry_sentence.register
def _(body: BisectOpen) -> str:
    return (
        f"{account_name(body.author)} opens its sketch of {_unit(body)} at step {body.opening.step}, the middle of "
        "what is in dispute."
    )


@entry_sentence.register
def _(body: StateOffer) -> str:
    state = f"its state of {_unit(body)} before the step in dispute"
    return f"{account_name(body.author)} names {short(body.state)} as {state}."


@entry_sentence.register
def _(body: ArbiterCommit) -> str:
    return f"{account_name(body.author)} replayed the step of {_unit(body)} in dispute and commits to what it found."


@entry_sentence.register
def _(body: ArbiterOpen) -> str:
    return (
        f"{account_name(body.author)} opens its replay for {_unit(body)}: the states of both sides differ by "
        f"{ratio(body.state_distance_ppb)}, rounding excess {ratio(body.excess_ppb)}."
    )


@entry_sentence.register
def _(body: ValidatorJoin) -> str:
    return f"{account_name(body.author)} locks its bond and waits for a seat among the validators."


@entry_sentence.register
def _(body: ValidatorLeave) -> str:
    return f"{account_name(body.author)} gives up its seat among the validators, or its place in the queue."


@entry_sentence.register
def _(body: Evidence) -> str:
    epoch, slot = place(body.first)
    return (
        f"{account_name(body.author)} proves that {account_name(signer(body.first))} signed two contradicting "
        f"statements in slot {slot} of epoch {epoch}."
    )


def statement_sentence(statement: Statement) -> str:
    """Return what a validator stated."""
    if isinstance(statement, SignedHeader):
        header = statement.header
        return f"A proposal of block {number(header.height)} with the entries {short(header.entries_root)}."
    if not statement.hash:
        return "A vote to skip the slot."
    return f"A vote to {'finalize' if statement.kind == 'final' else 'notarize'} block {short(statement.hash)}."


def _party(party: str) -> str:
    """Return a source or target of money as text: an account, or one of the named pots."""
    return account_name(party) if party.startswith("12D3KooW") else _POTS.get(party, party.replace("_", " "))


_POTS = {
    "escrow": "the escrow",
    "audit_escrow": "the audit escrow",
    "held": "held pay",
    "bond": "bond",
    "stake": "the validator's bond",
}

# What happened, for an event that moves no credits and for one that does; {who} is the account it is about.
_STATUS = {
    "bid": "{who} bids",
    "matched": "{who} wins slots",
    "unmatched": "The bid of {who} gets no slot",
    "leaving": "{who} leaves when the round ends",
    "left": "{who} gives up its slots",
    "bidding": "Bids are taken",
    "round": "The round starts",
    "phase": "The round goes on to its next phase",
    "committed": "{who} has committed to its unit",
    "revealed": "{who} has revealed its unit",
    "accepted": "The unit of {who} is accepted",
    "missed": "{who} missed a deadline",
    "rejected": "The unit of {who} is left out",
    "target": "The unit must be audited",
    "auditing": "{who} audits",
    "opened": "{who} opens what it committed to",
    "verdict": "{who} has its verdict",
    "dispute": "The dispute about the unit",
    "convicted": "{who} is convicted",
    "barred": "{who} judges nothing in this job any more",
    "job": "The job changes its status",
    "auditor": "{who} declares what it can audit",
    "validator": "Validator {who}",
    "evicted": "Validator {who} is evicted",
    "epoch": "An epoch begins",
}
_MOVES = {
    "transfer": "Transfer",
    "fee": "{who} pays the fee of its entry to the block's proposer",
    "escrow": "The owner locks what the job may cost",
    "bid": "{who} locks its bond",
    "bond": "{who} locks its bond as a validator",
    "audit": "Audit by {who}",
    "held": "The price of {who}'s unit is held",
    "merit": "Merit pay of {who}",
    "paid": "{who} is paid",
    "returned": "A bond of {who} is returned",
    "forfeited": "{who} forfeits credits",
    "convicted": "Pay of {who} is taken back",
    "slashed": "The bond of {who} is slashed",
    "refund": "The owner gets back what is left",
}


def event_sentence(event: EventRow) -> str:
    """Return what an event did to money or status."""
    table = _MOVES if event.amount else _STATUS
    lead = table.get(event.kind, event.kind.replace("_", " ").capitalize())
    lead = lead.replace("{who}", account_name(event.account) if event.account else "the network")
    moved = ""
    if event.amount:
        moved = f": {_credits(event.amount)} from {_party(event.source)} to {_party(event.target)}"
    return f"{lead}{moved}{f' ({event.reason})' if event.reason else ''}."
