"""``gdf-market init`` and ``key``: identity and network of a data folder."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from contracts.records import Allocation, Genesis, Staking
from gdf_market import identity, keystore
from gdf_market.commands import wizard
from gdf_market.commands.common import App, pass_app
from gdf_market.commands.config import store_settings
from gdf_market.commands.session import load_identity, passphrase
from gdf_market.errors import PeerError, UsageError
from gdf_market.units import CREDIT, parse_credits

DEFAULT_SUPPLY = 1_000_000 * CREDIT
VALIDATOR_BOND = "100"  # credits
ENTRY_FEE = "0.001"  # credits per started KiB; test networks take none unless asked to
EPOCH_BLOCKS = 720  # at least 36 minutes on an idle network, and 6 on the busiest one
FLOOR = 4  # the smallest set that goes on without one of its members


@click.command()
@click.option("--new-network", metavar="NAME", help="Start a network of your own, with this name.")
@click.option("--join", metavar="INVITE", help="Join the network of an invite string (from `gdf-market node invite`).")
@click.option(
    "--test-network", is_flag=True, help="With --new-network: allow test-only behaviour such as --test-poison."
)
@click.option(
    "--validator",
    "validators",
    multiple=True,
    metavar="ACCOUNT",
    help="With --new-network: a validator (repeat; default: this account).",
)
@click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="ACCOUNT=CREDITS",
    help="With --new-network: credits of another account (repeat).",
)
@click.option(
    "--block-ms",
    type=click.IntRange(50, 60_000),
    default=500,
    show_default=True,
    help="With --new-network: least time between blocks.",
)
@click.option(
    "--heartbeat-ms",
    type=click.IntRange(200, 600_000),
    default=3_000,
    show_default=True,
    help="With --new-network: an idle network's block time.",
)
@click.option(
    "--epoch-blocks",
    type=click.IntRange(1, 1_000_000),
    default=EPOCH_BLOCKS,
    show_default=True,
    help="With --new-network: blocks after which the set of validators may change.",
)
@click.option(
    "--validator-bond",
    default=VALIDATOR_BOND,
    show_default=True,
    metavar="CREDITS",
    help="With --new-network: what a validator locks, from the first ones on; lost if it signs contradictions.",
)
@click.option(
    "--validator-floor",
    type=click.IntRange(1, 100),
    help="With --new-network: leaving does not take the set below so many (default: as many as it begins with, "
    f"at most {FLOOR}).",
)
@click.option(
    "--entry-fee",
    metavar="CREDITS",
    help="With --new-network: what an entry pays to the block's proposer per started KiB "
    f"(default: {ENTRY_FEE}, on a test network 0).",
)
@click.option("--ask/--defaults", default=None, help="Ask, or ask nothing (default: ask where there is a terminal).")
@click.option("--backup", type=click.Path(path_type=Path), help="Copy a new key to this file, and test the copy.")
@click.option("--listen", metavar="HOST:PORT", help="Where other machines reach this node; kept in config.toml.")
@click.option("--hours", metavar="SPANS", help="When this machine may work, such as 22:00-07:00; kept in config.toml.")
@click.option("--min-price", metavar="CREDITS", help="Least credits per unit to work for; kept in config.toml.")
@click.option("--check-gpu", is_flag=True, help="Time a kernel: is the GPU really used?")
@pass_app
def init(
    app: App,
    new_network: str | None,
    join: str | None,
    test_network: bool,
    validators: tuple[str, ...],
    grants: tuple[str, ...],
    block_ms: int,
    heartbeat_ms: int,
    epoch_blocks: int,
    validator_bond: str,
    validator_floor: int | None,
    entry_fee: str | None,
    ask: bool | None,
    backup: Path | None,
    listen: str | None,
    hours: str | None,
    min_price: str | None,
    check_gpu: bool,
) -> None:
    """Make this folder's key, and start or join a network.

    Examples:

    gdf-market init                          (asks; with --defaults: a key only)

    gdf-market init --new-network home       (a new network; you validate it and own its credits)

    gdf-market init --join gdf1-…            (join the network of an invite)
    """
    if new_network and join:
        raise UsageError("--new-network and --join exclude each other; give one of them")
    if join == "" or new_network == "":
        raise UsageError("an empty name or invite joins nothing; is the node that should print its invite running?")
    choices = wizard.Choices(
        network=new_network or "",
        invite=join or "",
        passphrase=passphrase(app),
        backup=backup,
        listen=listen or "",
        hours=hours or "",
        min_price=min_price or "",
        check_gpu=check_gpu,
    )
    if ask or (ask is None and _is_bare(app, choices)):
        choices = wizard.ask(app, choices)
        new_network, join = choices.network or None, choices.invite or None
    costs = _costs(test_network, validator_bond, entry_fee)
    genesis, bootstrap = _genesis_of_invite(join) if join else (None, [])
    settings = wizard.settings_of(choices)
    app.data.create()
    key = _ensure_key(app, choices)
    store_settings(app, settings)
    if new_network:
        accounts = sorted({_account(account) for account in validators} or {key.account})
        genesis = _new_genesis(
            key.account,
            new_network,
            test_network,
            accounts,
            grants,
            block_ms=block_ms,
            heartbeat_ms=heartbeat_ms,
            staking=Staking(
                epoch_blocks=epoch_blocks, bond=costs.bond, floor=validator_floor or min(FLOOR, len(accounts))
            ),
            entry_fee=costs.entry_fee,
        )
    network = app.data.save_genesis(genesis) if genesis is not None else None
    if bootstrap:
        _remember_bootstrap(app, bootstrap)
    value = {"account": key.account, "data_dir": str(app.data.root), "network": network}
    advice = wizard.firewall_advice(choices)
    extra = [f"firewall {advice}"] if advice else []
    if choices.check_gpu:
        value["kernel"] = wizard.kernel_sentence(app)
        extra.append(f"speed    {value['kernel']}")
    if new_network and genesis is not None:
        from gdf_market.node.invite import make_invite

        value["invite"] = make_invite(genesis, [])  # without addresses: enough to prepare other folders

    def text() -> str:
        lines = [f"account  {key.account}", f"folder   {app.data.root}", *extra]
        if network is None:
            lines.append("next     gdf-market init --new-network NAME, or --join INVITE")
        else:
            lines += [f"network  {network}", "next     gdf-market work, gdf-market post, or gdf-market node run"]
        return "\n".join(lines)

    app.emit(value, text)


def _is_bare(app: App, choices: wizard.Choices) -> bool:
    """Say whether a person at a terminal gave no flag at all: then it asks."""
    terminal = sys.stdin.isatty() and app.err.is_terminal and not (app.json or app.quiet)
    return terminal and choices == wizard.Choices(passphrase=choices.passphrase)


def _ensure_key(app: App, choices: wizard.Choices) -> identity.Identity:
    if app.data.key.exists():
        return load_identity(app)
    secret = choices.passphrase
    key = keystore.create(app.data.key, secret)
    if secret is None:
        app.say("The key has no passphrase: whoever reads key.json owns its credits. Set GDF_PASSPHRASE to seal it.")
    if choices.backup is not None:
        wizard.back_up(app, choices.backup, secret)
        app.say(f"The key is backed up in {choices.backup}, and the copy opens.")
    else:
        app.say(f"Back it up: gdf-market --data-dir {app.data.root} key backup FILE")
    return key


def _genesis_of_invite(text: str) -> tuple[Genesis, list[str]]:
    from gdf_market.node.invite import parse_invite

    invite = parse_invite(text)
    if invite.genesis is None:
        raise UsageError(f"the genesis of {invite.name} is too large for an invite; copy genesis.json from a member")
    return invite.genesis, list(invite.bootstrap)


def _remember_bootstrap(app: App, bootstrap: list[str]) -> None:
    import tomlkit

    from gdf_market.node.datadir import write_atomic

    known = app.settings().bootstrap  # says what is wrong with a damaged file
    text = app.data.config.read_text(encoding="utf-8") if app.data.config.exists() else ""
    document = tomlkit.parse(text)
    document["bootstrap"] = known + [address for address in bootstrap if address not in known]
    write_atomic(app.data.config, tomlkit.dumps(document).encode())


@dataclass(frozen=True)
class _Costs:
    """In micro-credits."""

    bond: int
    entry_fee: int  # per started KiB


def _costs(test_network: bool, validator_bond: str, entry_fee: str | None) -> _Costs:
    """Return what a seat and an entry cost.  Raises UsageError for what lets strangers in for nothing."""
    bond = parse_credits(validator_bond)
    fee = parse_credits(entry_fee if entry_fee is not None else "0" if test_network else ENTRY_FEE)
    for name, amount in (("--validator-bond", bond), ("--entry-fee", fee)):
        if amount == 0 and not test_network:
            raise UsageError(f"{name} 0 is for test networks only: strangers would fill the network for nothing")
    return _Costs(bond, fee)


def _account(text: str) -> str:
    try:
        identity.public_key(text)
    except PeerError as error:
        raise UsageError(str(error)) from None
    return text


def _new_genesis(
    own: str,
    name: str,
    test_network: bool,
    validators: list[str],
    grants: tuple[str, ...],
    *,
    block_ms: int,
    heartbeat_ms: int,
    staking: Staking,
    entry_fee: int,
) -> Genesis:
    balances: dict[str, int] = {}
    for grant in grants:
        account, separator, amount = grant.partition("=")
        if not separator:
            raise UsageError(f"--grant {grant!r} is not ACCOUNT=CREDITS")
        balances[_account(account)] = parse_credits(amount)
    stakes = dict.fromkeys(validators, staking.bond)
    others = sum(balances.values()) + sum(stakes.values())
    if others > DEFAULT_SUPPLY:
        raise UsageError(f"grants and validators' bonds exceed the supply of {DEFAULT_SUPPLY // CREDIT} credits")
    balances[own] = balances.get(own, 0) + DEFAULT_SUPPLY - others
    accounts = sorted(balances.keys() | stakes.keys())
    import msgspec

    from gdf_market.codec import decode, encode

    try:
        genesis = Genesis(
            name=name,
            test_network=test_network,
            time_ms=time.time_ns() // 1_000_000,
            allocations=tuple(
                Allocation(account=account, balance=balances.get(account, 0), stake=stakes.get(account, 0))
                for account in accounts
            ),
            validators=tuple(validators),
            block_ms=block_ms,
            heartbeat_ms=heartbeat_ms,
            audit_bond=CREDIT // 10,
            max_void_rounds=5,
            staking=staking,
            entry_fee=entry_fee,
        )
        return decode(encode(genesis), Genesis, max_bytes=1 << 20)
    except (PeerError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"network {name!r} cannot be made: {error}; a name is lower-case letters, digits and -"
        ) from None


@click.group()
def key() -> None:
    """Show, back up and restore this folder's key."""


@key.command()
@pass_app
def show(app: App) -> None:
    """Show the account id of this folder's key.

    Example: gdf-market key show
    """
    account = load_identity(app).account
    app.emit({"account": account}, lambda: account)


@key.command()
@click.argument("target", type=click.Path(path_type=Path))
@pass_app
def backup(app: App, target: Path) -> None:
    """Copy the key to TARGET (sealed if a passphrase is given).

    Example: gdf-market --passphrase-file words.txt key backup /media/stick/key.json
    """
    app.data.require_key()
    keystore.backup(app.data.key, target, passphrase(app))
    app.emit({"backup": str(target)}, lambda: f"key copied to {target}; keep it where only you can read it")


@key.command()
@click.argument("source", type=click.Path(path_type=Path))
@pass_app
def restore(app: App, source: Path) -> None:
    """Put the key of the back-up SOURCE into this folder (which must not have one).

    Example: gdf-market key restore /media/stick/key.json
    """
    app.data.create()
    keystore.restore(source, app.data.key, passphrase(app))
    account = load_identity(app).account
    app.emit({"account": account}, lambda: f"restored {account}")
