"""The account list and the account page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import Account, Bid, Genesis, Network, Reputation, Validator
from contracts.state import account_key, validator_key
from ledger.explorer.plots import Frame, Plot, Point, credits_label, thinned
from ledger.explorer.present import credits_text, number
from ledger.explorer.queries import Moved, Reader
from ledger.explorer.rows import EntryView, EventView, entry_views, event_views
from ledger.explorer.totals import Locked, Totals
from ledger.explorer.validators import standing

MAX_BIDS = 50
MAX_CLASSES = 50
LATEST_ENTRIES = 10
CHART_POINTS = 200


@dataclass(frozen=True)
class AccountLine:
    """One account as a line of the list; amounts in micro-credits."""

    account: str
    balance: int
    stake: int
    bonds: int
    held: int
    validator: bool


@dataclass(frozen=True)
class AccountList:
    """One page of accounts by id; ``next_after`` is None on the last page."""

    accounts: list[AccountLine]
    after: str
    next_after: str | None


@dataclass(frozen=True)
class BalanceLine:
    """One event that names the account; ``change`` is what it did to the balance, which then was ``balance``."""

    event: EventView
    change: int
    balance: int


@dataclass(frozen=True)
class Earning:
    """What an account asked for its paid units of a job, and what it got; micro-credits.

    ``asked`` is units x the price it bid, so ``got`` is more by the uniform price and the merit share.
    """

    job: str
    price: int
    units: int
    asked: int
    got: int


@dataclass(frozen=True)
class AccountPage:
    """Everything the ledger holds of one account.

    ``moves`` is the sum of what all events did to the balance, so
    ``genesis_balance + moves`` must equal ``balance``; where events were
    pruned, they tell the balance before ``pruned_below`` instead.
    """

    account: str
    balance: int
    stake: int
    validator: bool
    bid_bonds: int
    audit_bonds: int
    held: int
    earned: int
    units: dict[str, int]
    accepted: int  # units of it that were accepted, and not taken back since
    decided: int  # units of it that were accepted, missed, left out or convicted
    earnings: list[Earning]
    chart: Plot | None
    genesis_balance: int
    moves: int
    fees_paid: int
    fees_earned: int  # as a proposer
    standing: str  # "" | member | leaving | convicted | candidate | unlocking
    pruned_below: int  # 0: nothing was pruned
    reputation: dict[str, Reputation]
    bids: list[Bid]
    history: list[BalanceLine]
    before: int | None
    next_before: int | None
    entries: list[EntryView]


def load_list(reader: Reader, totals: Totals, limit: int, after: str) -> AccountList:
    """Return one page of accounts."""
    found = reader.records_under("account/", Account, limit + 1, f"account/{after}" if after else "")
    network = reader.record("network", Network)
    validators = network.validators if network else ()
    lines = [
        _line(key.removeprefix("account/"), account, totals, validators) for key, account in list(found.items())[:limit]
    ]
    return AccountList(lines, after, lines[-1].account if len(found) > limit else None)


def _line(name: str, account: Account, totals: Totals, validators: Sequence[str]) -> AccountLine:
    locked = totals.locked.get(name, Locked())
    return AccountLine(
        account=name,
        balance=account.balance,
        stake=account.stake,
        bonds=locked.bid_bonds + locked.audit_bonds,
        held=locked.held,
        validator=name in validators,
    )


def load(reader: Reader, totals: Totals, name: str, limit: int, before: int | None) -> AccountPage | None:
    """Return an account's page with ``limit`` events before event ``before``; None if the ledger never saw it."""
    account = reader.record(account_key(name), Account)
    entries = reader.entries(LATEST_ENTRIES, author=name)
    if account is None and not entries:
        return None
    own, locked = account or Account(), totals.locked.get(name, Locked())
    network = reader.record("network", Network)
    reputation = reader.records_under(f"reputation/{name}/", Reputation, MAX_CLASSES)
    found = reader.events(limit + 1, account=name, before=before)
    rows, more = found[:limit], len(found) > limit
    moved = reader.account_moves(name)
    moves = sum(each.change for each in moved)
    bids = list(reader.records_ending("bid", name, Bid, MAX_BIDS).values())
    accepted = sum(locked.units[status] for status in ("accepted", "paid"))
    return AccountPage(
        account=name,
        balance=own.balance,
        stake=own.stake,
        validator=network is not None and name in network.validators,
        bid_bonds=locked.bid_bonds,
        audit_bonds=locked.audit_bonds,
        held=locked.held,
        earned=locked.paid,
        units=dict(locked.units),
        accepted=accepted,
        decided=accepted + sum(locked.units[status] for status in ("missed", "rejected", "convicted")),
        earnings=_earnings(locked, bids),
        chart=_chart(moved, own.balance - moves),
        genesis_balance=_genesis_balance(reader.genesis(), name),
        moves=moves,
        fees_paid=sum(each.fees_paid for each in moved),
        fees_earned=sum(each.fees_earned for each in moved),
        standing=_standing(reader, network, name),
        pruned_below=oldest if (oldest := reader.oldest()) > 1 else 0,
        reputation={key.rsplit("/", 1)[1]: value for key, value in reputation.items()},
        bids=bids,
        history=_history(reader, name, own.balance, event_views(reader, rows)),
        before=before,
        next_before=rows[-1].id if more else None,
        entries=entry_views(reader, entries),
    )


def _earnings(locked: Locked, bids: Sequence[Bid]) -> list[Earning]:
    return [
        Earning(bid.job, bid.price, units, units * bid.price, locked.paid_by_job[bid.job])
        for bid in bids
        if (units := locked.paid_units[bid.job])
    ]


def _chart(moved: Sequence[Moved], start: int) -> Plot | None:
    """Return the balance by height; None below two changes."""
    if len(moved) < 2:
        return None
    points: list[Point] = [(max(moved[0].height - 1, 0), start)]
    for each in moved:
        points.append((each.height, points[-1][1] + each.change))
    shown = thinned(points, CHART_POINTS)
    frame = Frame((points[0][0], points[-1][0]), (0, max(balance for _, balance in points) or 1))
    x_ticks, y_ticks = frame.ticks(lambda height: number(round(height)), credits_label)
    balances = [int(balance) for _, balance in points]
    return Plot(
        x_ticks,
        y_ticks,
        f"Balance by block: from {credits_text(balances[0])} to {credits_text(balances[-1])} credits in "
        f"{number(len(moved))} blocks that changed it, at most {credits_text(max(balances))}.",
        lines=(frame.steps("balance", shown, "a"),),
    )


def _standing(reader: Reader, network: Network | None, name: str) -> str:
    record = reader.record(validator_key(name), Validator)
    return standing(network, name, record) if network is not None and record is not None else ""


def _genesis_balance(genesis: Genesis, name: str) -> int:
    return sum(allocation.balance for allocation in genesis.allocations if allocation.account == name)


def _history(reader: Reader, name: str, balance: int, events: list[EventView]) -> list[BalanceLine]:
    """Return events newest first with the balance after each, counted back from the balance now."""
    lines: list[BalanceLine] = []
    if not events:
        return lines
    after = balance - reader.balance_moves(name, events[0].id + 1)
    for event in events:
        change = event.amount * ((event.target == name) - (event.source == name))
        lines.append(BalanceLine(event, change, after))
        after -= change
    return lines
