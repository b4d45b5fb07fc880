"""``gdf-market wallet``: balance and transfers."""

from __future__ import annotations

import rich_click as click

from contracts.records import Audit, Bid, Unit
from gdf_market import identity
from gdf_market.commands.common import App, pass_app, table
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import load_identity, with_client
from gdf_market.errors import InsufficientCreditsError, PeerError, UsageError
from gdf_market.units import format_credits, parse_credits
from ledger.reading import records_of


@click.group()
def wallet() -> None:
    """Show and send credits."""


def check_account(text: str) -> str:
    """Return ``text`` if it is an account id.  Raises UsageError."""
    try:
        identity.public_key(text)
    except PeerError as error:
        raise UsageError(str(error)) from None
    return text


@wallet.command()
@click.option("--account", help="Another account than this folder's.")
@pass_app
def show(app: App, account: str | None) -> None:
    """Show balance, stake, bonds and held pay.

    Example: gdf-market wallet show
    """
    account = check_account(account) if account is not None else load_identity(app).account
    with open_ledger(app) as store:
        state, head = store.state(), store.head()
        balance, stake = state.account(account).balance, state.account(account).stake
        # a ledger without a block knows what the genesis gave, and nothing of what came since
        known = head is not None or account in {each.account for each in store.genesis().allocations}
        held = bonds = 0
        for unit in records_of(store, Unit):
            if unit.worker == account:
                held += unit.held_pay + unit.held_merit
        for bid in records_of(store, Bid):
            if bid.worker == account:
                bonds += bid.bond
        for audit in records_of(store, Audit):
            if audit.auditor == account:
                bonds += audit.bond
    amounts = {"balance": balance, "stake": stake, "bonds": bonds, "held": held}
    value = {"account": account, "height": head.height if head is not None else 0}
    value |= amounts if known else dict.fromkeys(amounts)

    def text() -> object:
        if not known:
            return f"the balance of {account} is not known yet: this ledger has no block; run `gdf-market node run`"
        shown = table(account, "part", "credits")
        rows = (
            ("settled: balance", balance),
            ("pending: held pay", held),
            ("locked: bonds", bonds),
            ("locked: stake", stake),
        )
        for name, amount in rows:
            shown.add_row(name, format_credits(amount))
        return shown

    app.emit(value, text)


@wallet.command()
@click.argument("to")
@click.argument("amount")
@click.option("--memo", default="", help="Public note, at most 200 characters.")
@pass_app
def send(app: App, to: str, amount: str, memo: str) -> None:
    """Send AMOUNT credits to account TO; returns when the transfer is final.

    Example: gdf-market wallet send 12D3KooW… 25
    """
    micro = parse_credits(amount)
    if micro == 0:
        raise UsageError("an amount of 0 credits cannot be sent; give a positive number")
    check_account(to)
    account = load_identity(app).account
    with open_ledger(app) as store:
        balance = store.state().account(account).balance
    if balance < micro:
        raise InsufficientCreditsError(
            f"cannot send {format_credits(micro)} credits: the balance is {format_credits(balance)}"
        )
    entry = with_client(app, lambda client: client.submit("transfer", to=to, amount=micro, memo=memo))
    app.emit(
        {"entry": entry, "from": account, "to": to, "amount": micro},
        lambda: f"sent {format_credits(micro)} credits to {to} (entry {entry[:16]}, final)",
    )
