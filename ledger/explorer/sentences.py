"""One plain sentence for every kind of entry and event.

Sentences hold what strangers wrote (titles, memos, reasons): they are plain
text and are escaped where they are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from gdf_market.messages import (
    AuditCommit,
    AuditOpen,
    Bid,
    BidWithdraw,
    Body,
    Commit,
    JobCancel,
    JobPost,
    Receipt,
    Result,
    Reveal,
    SketchOpen,
    Transfer,
)
from gdf_market.units import format_credits
from ledger.explorer.present import account_name, number, ratio, short
from ledger.tables import EventRow


def _credits(amount: int) -> str:
    return f"{format_credits(amount)} credits"


def _slots(slots: tuple[int, ...]) -> str:
    return ", ".join(map(str, slots)) if slots else "none"


def _unit(body: Commit | Reveal | AuditCommit | AuditOpen | SketchOpen) -> str:
    return f"round {body.round}, slot {body.slot} of job {short(body.job)}"


@singledispatch
def entry_sentence(body: Body) -> str:
    """Return what the author of an entry states or orders."""
    return f"{account_name(body.author)} signed an entry of a kind this explorer does not know."


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


def _name(party: str) -> str:
    """Return a source or target of money as text: an account, or one of the named pots."""
    return account_name(party) if party.startswith("12D3KooW") else party.replace("_", " ")


def _moved(event: EventRow) -> str:
    return f"{_credits(event.amount)} went from {_name(event.source)} to {_name(event.target)}"


def _who(event: EventRow) -> str:
    return account_name(event.account) if event.account else "the network"


_LEADS: dict[str, Callable[[EventRow], str]] = {
    "transfer": lambda _: "Transfer",
    "escrow": lambda _: "Locked for the job",
    "bid": lambda e: f"{_who(e)} bid",
    "matched": lambda e: f"{_who(e)} won a place",
    "unmatched": lambda e: f"The bid of {_who(e)} got no place",
    "round": lambda _: "Round started",
    "phase": lambda _: "Next phase",
    "accepted": lambda e: f"The unit of {_who(e)} was accepted",
    "missed": lambda e: f"{_who(e)} missed a deadline",
    "rejected": lambda e: f"The unit of {_who(e)} was left out",
    "held": lambda e: f"Pay of {_who(e)} is held for audits",
    "paid": lambda e: f"{_who(e)} was paid",
    "merit": lambda e: f"Merit share of {_who(e)}",
    "audit": lambda e: f"Audit by {_who(e)}",
    "convicted": lambda e: f"{_who(e)} was convicted",
    "slashed": lambda e: f"{_who(e)} lost its bond",
    "refund": lambda _: "Returned to the owner",
    "job": lambda _: "Job",
}


def event_sentence(event: EventRow) -> str:
    """Return what an event did to money or status."""
    lead = _LEADS[event.kind](event) if event.kind in _LEADS else _name(event.kind).capitalize()
    moved = f": {_moved(event)}" if event.amount and event.source and event.target else ""
    reason = f" ({event.reason})" if event.reason else ""
    return f"{lead}{moved}{reason}."
