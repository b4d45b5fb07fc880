"""Credits: the pots that hold them, the one function that moves them, transfers, and used nonces.

Rules kept here:
1. Credits are only moved, from one pot to another, by ``move``; so their sum stays what the genesis allocated.
2. No pot goes below zero.
3. Every movement is an event that names both pots.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import immutables
import msgspec

from contracts.parameters import MAX_LIVE_NONCES, MAX_PRUNED_BLOCKS, MAX_TEXT, MAX_TTL_MS
from contracts.records import Account, Audit, Event, Spent, Unit
from contracts.state import (
    Draft,
    account_key,
    audit_key_of,
    bid_key,
    job_key,
    present,
    spent_key,
    unit_key_of,
)
from gdf_market import identity
from gdf_market.errors import RuleError
from gdf_market.messages import Body, Transfer, Void
from gdf_market.units import format_credits

_NO_NONCES = immutables.Map[int, None]()


@dataclass(frozen=True)
class Where:
    """What an event is about; ``account`` is whose pot it is, which tells equal pots of a job apart."""

    job: str = ""
    round: int = -1
    slot: int = -1
    account: str = ""


@dataclass(frozen=True)
class Pot:
    """A field that holds credits: ``field`` of the record under ``key``; ``name`` stands for it in events."""

    name: str
    key: str
    field: str
    where: Where = Where()


@functools.lru_cache(maxsize=4096)
def balance(account: str) -> Pot:
    return Pot(account, account_key(account), "balance")


def stake(account: str) -> Pot:
    return Pot("stake", account_key(account), "stake", Where(account=account))


def escrow(job: str) -> Pot:
    return Pot("escrow", job_key(job), "escrow", Where(job))


def audit_escrow(job: str) -> Pot:
    return Pot("audit_escrow", job_key(job), "audit_escrow", Where(job))


def bid_bond(job: str, worker: str) -> Pot:
    return Pot("bond", bid_key(job, worker), "bond", Where(job, account=worker))


def held_pay(unit: Unit) -> Pot:
    return Pot("held", unit_key_of(unit), "held_pay", where_unit(unit))


def held_merit(unit: Unit) -> Pot:
    return Pot("held", unit_key_of(unit), "held_merit", where_unit(unit))


def audit_bond(audit: Audit) -> Pot:
    return Pot("bond", audit_key_of(audit), "bond", where_audit(audit))


def where_unit(unit: Unit) -> Where:
    return Where(unit.job, unit.round, unit.slot, unit.worker)


def where_audit(audit: Audit) -> Where:
    return Where(audit.job, audit.round, audit.slot, audit.auditor)


def move(
    draft: Draft, kind: str, source: Pot, target: Pot, amount: int, *, where: Where | None = None, reason: str = ""
) -> None:
    """Move micro-credits and emit the event; moving nothing is no event.

    The event is about ``where``, or else about the source, or, when that is an account or an escrow, the target.
    """
    assert amount >= 0
    if amount == 0:
        return
    _add(draft, source, -amount)
    _add(draft, target, amount)  # reads after the source changed: they may be one
    if where is None:
        where = max(source.where, target.where, key=lambda place: (bool(place.account), bool(place.job)))
    emit(draft, kind, where, source=source.name, target=target.name, amount=amount, reason=reason)


def emit(
    draft: Draft, kind: str, where: Where, *, source: str = "", target: str = "", amount: int = 0, reason: str = ""
) -> None:
    """Note an event of the entry being applied, or of a deadline."""
    draft.events.append(
        Event(
            kind=kind,
            job=where.job,
            round=where.round,
            slot=where.slot,
            account=where.account,
            source=source,
            target=target,
            amount=amount,
            reason=reason[:MAX_TEXT],
            entry=draft.entry,
        )
    )


def _add(draft: Draft, pot: Pot, change: int) -> None:
    """Change what a pot holds; an account that nobody paid yet has nothing."""
    record = draft.get(pot.key)
    if record is None:
        assert pot.field == "balance"
        record = Account()
    amount: int = getattr(record, pot.field) + change
    assert amount >= 0, f"{pot} would hold {amount}"
    draft.put(pot.key, msgspec.structs.replace(record, **{pot.field: amount}))


def check_balance(draft: Draft, account: str, amount: int, purpose: str) -> None:
    """Raise RuleError unless the account can pay ``amount``."""
    available = draft.account(account).balance
    if available < amount:
        raise RuleError(f"{purpose} takes {format_credits(amount)} credits; {account} has {format_credits(available)}")


def process_void(draft: Draft, body: Void) -> None:
    """Do nothing: what a void is for, using up its nonce, happens to every entry."""


def process_transfer(draft: Draft, body: Transfer) -> None:
    """Move credits between two accounts."""
    # an id that is no key could never spend what it receives
    identity.public_key(body.to)
    check_balance(draft, body.author, body.amount, "the transfer")
    source, target = balance(body.author), balance(body.to)
    move(draft, "transfer", source, target, body.amount, where=Where(account=body.author), reason=body.memo)


def process_nonce(draft: Draft, body: Body) -> None:
    """Check an entry's lifetime and use up its nonce."""
    now = draft.now
    if now >= body.expires_ms:
        raise RuleError(f"expired at {body.expires_ms}; the block's time is {now}; sign it anew")
    # the network remembers a nonce for as long as an entry may live, so that must have an end
    if body.expires_ms > now + MAX_TTL_MS:
        raise RuleError(f"expires at {body.expires_ms}, more than {MAX_TTL_MS} ms after the block's time {now}")
    # the same nonce twice would apply an entry twice
    nonces = draft.used.get(body.author) or _NO_NONCES
    if body.nonce in nonces:
        raise RuleError(f"nonce {body.nonce} of {body.author} is used; take a random one")
    if len(nonces) >= MAX_LIVE_NONCES:
        raise RuleError(
            f"{body.author} made {len(nonces)} entries within {MAX_TTL_MS} ms; at most {MAX_LIVE_NONCES} are taken"
        )
    draft.used = draft.used.set(body.author, nonces.set(body.nonce, None))


def process_spent(draft: Draft, nonces: list[tuple[str, int]]) -> None:
    """Remember which nonces this block used."""
    number = draft.active().spent_next
    draft.put(spent_key(number), Spent(time_ms=draft.now, nonces=tuple(nonces)))
    draft.update("active", spent_next=number + 1)


def process_pruning(draft: Draft) -> None:
    """Forget the nonces of the oldest blocks, a bounded number of them; pruning wakes nobody."""
    active = draft.active()
    first = active.spent_first
    last = min(active.spent_next, first + MAX_PRUNED_BLOCKS)
    while first < last:
        spent = present(draft.get(spent_key(first)))
        assert isinstance(spent, Spent)
        # every entry of that block had to expire within MAX_TTL_MS of it
        if spent.time_ms + MAX_TTL_MS > draft.now:
            break
        for author, nonce in spent.nonces:
            _forget(draft, author, nonce)
        draft.drop(spent_key(first))
        first += 1
    if first != active.spent_first:
        draft.update("active", spent_first=first)


def _forget(draft: Draft, author: str, nonce: int) -> None:
    nonces = draft.used[author].delete(nonce)
    draft.used = draft.used.set(author, nonces) if nonces else draft.used.delete(author)
