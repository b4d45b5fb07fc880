"""``gdf-market validator``: who agrees on blocks, and joining and leaving them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import rich_click as click
from sqlalchemy import func
from sqlmodel import col, select

from contracts.fees import KIB
from contracts.records import Network, Validator
from contracts.state import State
from gdf_market.commands.common import App, pass_app, table
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import load_identity, with_client
from gdf_market.errors import InsufficientCreditsError, UsageError
from gdf_market.units import format_credits
from ledger.block import quorum_size
from ledger.explorer.validators import ValidatorLine
from ledger.store import LedgerStore
from ledger.tables import BlockRow


@click.group()
def validator() -> None:
    """Show who agrees on blocks; join and leave them."""


@dataclass(frozen=True)
class Overview:
    """The current epoch and everybody with a validator's bond."""

    height: int
    epoch: int
    blocks_left: int
    quorum: int
    bond: int
    floor: int
    members: list[ValidatorLine]
    candidates: list[ValidatorLine]
    unlocking: list[ValidatorLine]


def overview_of(store: LedgerStore) -> Overview:
    """Return the validators after the ledger's last block."""
    state, head = store.state(), store.head()
    network, height = state.network(), head.height if head else 0
    blocks = network.staking.epoch_blocks
    proposed = _proposed(store, network.epoch * blocks + 1)

    def lines(accounts: tuple[str, ...]) -> list[ValidatorLine]:
        return [_line(state, network, account, proposed.get(account, 0)) for account in accounts]

    return Overview(
        height=height,
        epoch=network.epoch,
        blocks_left=(network.epoch + 1) * blocks - height,
        quorum=quorum_size(len(network.validators)),
        bond=network.staking.bond,
        floor=network.staking.floor,
        members=lines(network.validators),
        candidates=lines(network.candidates),
        unlocking=lines(network.unlocking),
    )


def _proposed(store: LedgerStore, first: int) -> dict[str, int]:
    """Return how many blocks from a height on each account proposed."""
    query = select(BlockRow.proposer, func.count()).where(col(BlockRow.height) >= first)
    return dict(store.all(query.group_by(BlockRow.proposer)))


def _line(state: State, network: Network, account: str, proposed: int) -> ValidatorLine:
    record = state.validator(account) or Validator(status="member")
    status = record.status
    if record.convicted:
        status = "convicted"
    elif account in network.leaving:
        status = "leaving"
    stake = state.account(account).stake
    return ValidatorLine(account, status, stake, proposed, record.silent, record.since_epoch, record.unlock_epoch)


@validator.command(name="list")
@pass_app
def list_(app: App) -> None:
    """Show the validators of this epoch, who waits for a seat, and whose bond is still locked.

    Reads the folder's ledger; a node need not run.

    Example: gdf-market validator list --json
    """
    with open_ledger(app) as store:
        found = overview_of(store)

    def text() -> object:
        count, spare = len(found.members), len(found.members) - found.quorum
        shown = table(f"epoch {found.epoch}", "account", "status", "bond", "blocks in this epoch", "silent epochs")
        for line in found.members:
            shown.add_row(line.account, line.status, format_credits(line.stake), str(line.proposed), _silent(line))
        for line in found.candidates:
            shown.add_row(line.account, "waits for a seat", format_credits(line.stake), "", "")
        for line in found.unlocking:
            reason = "convicted" if line.status == "convicted" else f"unlocks in epoch {line.unlock_epoch}"
            shown.add_row(line.account, reason, format_credits(line.stake), "", "")
        shown.caption = (
            f"{count} validators, a quorum is {found.quorum}: "
            f"{f'blocks go on while at most {spare} are away' if spare else 'blocks go on only while all are there'}; "
            f"blocks left in the epoch: {found.blocks_left}; a seat takes {format_credits(found.bond)} credits"
        )
        return shown

    app.emit(asdict(found), text)


def _silent(line: ValidatorLine) -> str:
    return str(line.silent_epochs) if line.silent_epochs else ""


@validator.command()
@pass_app
def join(app: App) -> None:
    """Lock the bond and wait for a seat; returns when that is final.

    Seats are taken at the end of an epoch, in the order of joining. From then on keep `gdf-market node run` going, and
    never run one key on two machines: two contradicting signatures lose the bond.

    Example: gdf-market validator join
    """
    account = load_identity(app).account
    with open_ledger(app) as store:
        state, found = store.state(), overview_of(store)
    _check_may_join(state, account)
    entry = with_client(app, lambda client: client.submit("validator_join"))
    place = len(found.candidates) + 1
    app.emit(
        {"entry": entry, "account": account, "bond": found.bond, "place": place, "epoch": found.epoch},
        lambda: (
            f"{format_credits(found.bond)} credits locked (entry {entry[:16]}, final); place {place} in the queue\n"
            f"next     keep `gdf-market node run` going: seats are taken at the end of epoch {found.epoch}, "
            f"in about {found.blocks_left} blocks, or of a later one\n"
            "         never run this key on two machines, and never from an old copy of this folder"
        ),
    )


def _check_may_join(state: State, account: str) -> None:
    network, record = state.network(), state.validator(account)
    if record is not None:
        raise UsageError(f"{account} {_standing(network, account, record)}; `gdf-market validator list` shows it")
    needed = network.staking.bond + network.entry_fee * -(-_JOIN_BYTES // KIB)
    balance = state.account(account).balance
    if balance < needed:
        raise InsufficientCreditsError(
            f"bond and fee are {format_credits(needed)} credits, the balance is {format_credits(balance)}; earn or "
            "receive some first"
        )


_JOIN_BYTES = 400  # an entry without fields of its own


def _standing(network: Network, account: str, record: Validator) -> str:
    if record.status == "member":
        return "is leaving" if account in network.leaving else "is a validator already"
    if record.status == "candidate":
        return "waits for a seat already"
    return f"left, and its bond unlocks in epoch {record.unlock_epoch}"


@validator.command()
@pass_app
def leave(app: App) -> None:
    """Give up the seat (or the place in the queue); returns when that is final.

    A seat ends with the epoch, if enough validators remain; keep the node running until then. The bond stays locked
    for as long as evidence about this account's votes is taken.

    Example: gdf-market validator leave
    """
    account = load_identity(app).account
    with open_ledger(app) as store:
        state, found = store.state(), overview_of(store)
    network, record = state.network(), state.validator(account)
    if record is None:
        raise UsageError(f"{account} is no validator and waits for no seat")
    if record.status == "unlocking" or account in network.leaving:
        raise UsageError(f"{account} {_standing(network, account, record)}; `gdf-market validator list` shows it")
    entry = with_client(app, lambda client: client.submit("validator_leave"))
    waits = len(found.members) - len(network.leaving) <= found.floor
    app.emit(
        {"entry": entry, "account": account, "was": record.status, "epoch": found.epoch, "below_floor": waits},
        lambda: _left(record, found, entry, waits, network.staking.evidence_epochs),
    )


def _left(record: Validator, found: Overview, entry: str, waits: bool, evidence_epochs: int) -> str:
    lead = f"entry {entry[:16]}, final: "
    if record.status == "candidate":
        return f"{lead}out of the queue, the bond is back"
    when = (
        f"the set has {len(found.members)} members and does not go below {found.floor}: the seat ends when others join"
        if waits
        else f"the seat ends with epoch {found.epoch}, in about {found.blocks_left} blocks, or a later one"
    )
    return (
        f"{lead}{when}\nnext     keep the node running until then (`gdf-market validator list`); the bond returns "
        f"{evidence_epochs} epochs later"
    )
