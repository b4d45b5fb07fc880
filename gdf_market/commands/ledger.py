"""``gdf-market ledger``: show, export, verify and import the replica; prove an entry; compare two ledgers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from contracts.records import Genesis
from contracts.state import State, network_id
from gdf_market.codec import decode
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.reading import open_ledger
from gdf_market.errors import PeerError, UsageError, VerificationFailedError
from gdf_market.node.datadir import MAX_GENESIS_BYTES, DataDir
from gdf_market.units import format_credits
from ledger.tables import BlockRow

if TYPE_CHECKING:
    from ledger.compare import Comparison
    from ledger.export import Report
    from ledger.proof import Verdict

GENESIS = "Network to trust: its id, an invite, or a genesis.json (default: this folder's)."


@click.group()
def ledger() -> None:
    """Show, export, verify and import the ledger; prove an entry; compare two ledgers."""


@ledger.command()
@click.option("--height", type=click.IntRange(min=0), help="One block instead of the head.")
@click.option("--entry", "entry_id", help="One entry, by id.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, show_default=True, help="Blocks to list.")
@pass_app
def show(app: App, height: int | None, entry_id: str | None, limit: int) -> None:
    """Show the head and the latest blocks, one block, or one entry.

    Example: gdf-market ledger show --height 12
    """
    with open_ledger(app) as store:
        if entry_id is not None:
            row = store.entry(entry_id)
            if row is None:
                raise UsageError(f"no entry {entry_id!r} in this ledger; give the full id of 64 characters")
            body = json.loads(row.raw)
            app.emit(
                {"id": row.id, "height": row.height, "position": row.position, "envelope": body},
                lambda: json.dumps(body, indent=2),
            )
            return
        if height is not None:
            block = store.block(height)
            if block is None:
                raise UsageError(f"no block {height} in this ledger; `gdf-market ledger show` prints the head")
            entries = [{"id": row.id, "kind": row.kind, "author": row.author} for row in store.block_entries(height)]
            number, validators = store.epoch_at(height)
            epoch = {"number": number, "validators": list(validators)}
            value = {"hash": block.hash, "epoch": epoch, "header": json.loads(block.header), "entries": entries}
            app.emit(value, lambda: json.dumps(value, indent=2))
            return
        _show_head(app, store.state(), store.blocks(limit=limit))


def _show_head(app: App, state: State, blocks: list[BlockRow]) -> None:
    supply = state.supply_check()
    head = blocks[0] if blocks else None
    network = state.network()
    value = {
        "height": head.height if head else 0,
        "epoch": network.epoch,
        "validators": len(network.validators),
        "head": head.hash if head else None,
        "state_root": head.state_root if head else None,
        "supply": supply,
        "conserved": supply == network.supply,
        "blocks": [
            {"height": row.height, "hash": row.hash, "entries": row.entry_count, "proposer": row.proposer}
            for row in blocks
        ],
    }

    def text() -> object:
        title = f"head {value['height']}, epoch {network.epoch} with {len(network.validators)} validators"
        shown = table(title, "height", "hash", "entries", "proposer")
        for row in blocks:
            shown.add_row(str(row.height), short(row.hash, 16), str(row.entry_count), short(row.proposer))
        shown.caption = (
            f"supply {format_credits(supply)} credits, {'conserved' if value['conserved'] else 'NOT CONSERVED'}"
        )
        return shown

    app.emit(value, text)


@ledger.command()
@click.argument("target", type=click.Path(path_type=Path))
@pass_app
def export(app: App, target: Path) -> None:
    """Write the finalized chain to TARGET, which anyone can verify with no node.

    Example: gdf-market ledger export chain.gdfl
    """
    from ledger.export import export as write

    with open_ledger(app) as store:
        blocks = write(store, target)
    app.emit({"file": str(target), "blocks": blocks}, lambda: f"{blocks} blocks written to {target}")


@ledger.command()
@click.option("--keep-epochs", type=click.IntRange(min=1), required=True, help="Epochs whose blocks stay.")
@pass_app
def prune(app: App, keep_epochs: int) -> None:
    """Delete the blocks, entries and events of old epochs from this folder's ledger; its node must be stopped.

    The state and the chain of validator sets stay, so the node goes on as before; it can no longer export or show what
    was deleted.  `keep_epochs` in config.toml does the same whenever an epoch ends.

    Example: gdf-market ledger prune --keep-epochs 24
    """
    from ledger.effects import Prune
    from ledger.store import LedgerStore

    app.data.genesis()  # says what to do in a folder without a network
    with app.data.lock(), contextlib.closing(LedgerStore(app.data.ledger)) as store:
        before, blocks = store.oldest(), app.data.genesis().staking.epoch_blocks
        oldest = max(before, store.boundary() + 1 - keep_epochs * blocks)
        size = app.data.ledger.stat().st_size
        if oldest > before:
            with app.progress(f"deleting blocks {before} to {oldest - 1}"):
                store.save([Prune(oldest)])
                store.compact()
        freed = max(0, size - app.data.ledger.stat().st_size)
    app.emit(
        {"oldest": oldest, "deleted": oldest - before, "bytes_freed": freed},
        lambda: (
            f"{oldest - before} blocks deleted, {freed} bytes freed; the ledger begins at block {oldest}"
            if oldest > before
            else f"nothing to delete: the ledger begins at block {oldest}"
        ),
    )


@ledger.command()
@click.argument("source", type=click.Path(path_type=Path, exists=False))
@pass_app
def verify(app: App, source: Path) -> None:
    """Replay an exported file from its genesis: signatures, certificates, rules, state roots, conservation.

    Exits with 5 and names the height when anything does not hold.

    Example: gdf-market ledger verify chain.gdfl
    """
    from ledger.export import verify as replay

    if not source.is_file():
        raise UsageError(f"{source} is not a file; write one with `gdf-market ledger export {source}`")
    with app.progress(f"replaying {source}"):
        report = replay(source)
    _emit_report(app, report, f"{source} holds")


def _emit_report(app: App, report: Report, title: str) -> None:
    fields = (field.name for field in dataclasses.fields(report))
    value = {name: getattr(report, name) for name in fields if name != "state"}

    def text() -> object:
        shown = table(title, "figure", "value")
        for name, item in value.items():
            shown.add_row(name.replace("_", " "), str(item))
        return shown

    app.emit(value, text)


# ---- proofs


@ledger.command()
@click.argument("entry", required=False)
@click.option("--head", "heads", type=int, nargs=2, metavar="H1 H2", help="Prove that block H1 is an ancestor of H2.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write (default: stdout).")
@pass_app
def prove(app: App, entry: str | None, heads: tuple[int, int] | None, output: Path | None) -> None:
    """Prove to anyone, with no ledger of their own, that ENTRY (an id) is final, or that one block precedes another.

    Examples:

    gdf-market ledger prove 4b0f… -o paid.proof

    gdf-market ledger prove --head 100 250 -o heads.proof
    """
    from ledger.proof import read
    from ledger.prove import prove_entry, prove_heads

    if (entry is None) == (heads is None):
        raise UsageError("give the id of an entry, or --head with two heights")
    with open_ledger(app) as store:
        data = prove_entry(store, entry) if entry is not None else prove_heads(store, *(heads or (0, 0)))
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another file with -o") from None
    network, epochs = network_id(app.data.genesis()), len(read(data).links)
    app.emit(
        {"file": str(output), "bytes": len(data), "network": network, "epochs": epochs},
        lambda: (
            f"{len(data)} bytes written to {output}\n"
            f"epochs  the sets of {epochs + 1} epochs lead from the genesis to the block\n"
            f"check   gdf-market ledger check {output} --genesis {network}"
        ),
    )


@ledger.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--genesis", metavar="G", help=GENESIS)
@pass_app
def check(app: App, file: Path, genesis: str | None) -> None:
    """Check a proof with no ledger and no node: only FILE and the network that you trust.

    Prints every step; exits with 5 at the first that fails.

    Example: gdf-market ledger check paid.proof --genesis gdf1-…
    """
    from ledger.proof import MAX_PROOF_BYTES
    from ledger.proof import check as check_proof

    network = _trusted_network(genesis) or network_id(app.data.genesis())
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_PROOF_BYTES + 2)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; make a proof with `gdf-market ledger prove`") from None
    verdict = check_proof(data, network)
    app.emit(_verdict_value(verdict, network), lambda: _verdict_text(verdict))
    if not verdict.holds:
        failed = verdict.steps[-1]
        raise VerificationFailedError(f"{file} proves nothing: {failed.name}: {failed.detail}")


def _verdict_value(verdict: Verdict, network: str) -> dict[str, Any]:
    value: dict[str, Any] = {
        "holds": verdict.holds,
        "network": network,
        "steps": [dataclasses.asdict(step) for step in verdict.steps],
    }
    if verdict.first is not None and verdict.last is not None:
        value |= {"height": verdict.first.height, "time_ms": verdict.first.time_ms}
        value |= {"epoch": verdict.first.epoch, "certified_height": verdict.certified_height}
    if verdict.entry is not None:
        value["entry"] = {"id": verdict.entry.id, "envelope": json.loads(verdict.entry.raw)}
    return value


def _verdict_text(verdict: Verdict) -> str:
    return "\n".join(f"{'ok' if step.ok else 'FAILED':7} {step.name:12} {step.detail}" for step in verdict.steps)


def _trusted_network(text: str | None) -> str | None:
    """Return the network id that a person gave as an id, an invite or a file.  Raises UsageError."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return text.lower()
    if text.startswith("gdf1-"):
        from gdf_market.node.invite import parse_invite

        return parse_invite(text).network
    path = Path(text).expanduser()
    if path.is_dir():
        return network_id(DataDir(path).genesis())
    try:
        with path.open("rb") as file:
            return network_id(decode(file.read(MAX_GENESIS_BYTES + 1), Genesis, max_bytes=MAX_GENESIS_BYTES))
    except OSError as error:
        raise UsageError(
            f"--genesis {text[:80]} is neither a network id (64 hex digits) nor an invite (gdf1-…), "
            f"and no file can be read there: {error.strerror}"
        ) from None
    except PeerError as error:
        raise UsageError(f"{path} is no genesis ({error}); copy genesis.json from a member of the network") from None


# ---- import and diff


@ledger.command(name="import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--genesis", metavar="G", help=GENESIS)
@pass_app
def import_(app: App, source: Path, genesis: str | None) -> None:
    """Fill this folder's ledger from an export, verified on the way; a node then goes on from its head.

    An empty folder joins the network of SOURCE: give --genesis, or compare the network id that is printed.

    Example: gdf-market --data-dir new ledger import chain.gdfl --genesis gdf1-…
    """
    from ledger import importing

    if not source.is_file():
        raise UsageError(f"{source} is not a file; write one with `gdf-market ledger export {source}`")
    founded = importing.read_genesis(source)
    network = network_id(founded)
    known = _known_network(app, genesis)
    if known not in (None, network):
        raise UsageError(f"{source} is a ledger of network {network}, not of {known}; nothing was written")
    with app.data.lock():
        importing.check_empty(app.data.ledger)
        with app.progress(f"replaying {source}") as say:
            report = importing.build(
                source, app.data.ledger, network, progress=lambda height: say(f"replaying {source}: block {height}")
            )
        app.data.save_genesis(founded)
        importing.publish(app.data.ledger)
    if known is None:
        app.say(f"This folder now belongs to network {network}; compare that with what its members say.")
    _emit_report(app, report, f"{app.data.ledger} holds")


def _known_network(app: App, genesis: str | None) -> str | None:
    """Return the network that the folder or the person names, if any.  Raises UsageError when they disagree."""
    given = _trusted_network(genesis)
    own = network_id(app.data.genesis()) if app.data.genesis_file.exists() else None
    if given is not None and own not in (None, given):
        raise UsageError(f"{app.data.root} belongs to network {own}, not to {given}; use another --data-dir")
    return given or own


@ledger.command()
@click.argument("others", nargs=-1, required=True, metavar="PEER_OR_FILE [PEER_OR_FILE]")
@pass_app
def diff(app: App, others: tuple[str, ...]) -> None:
    """Say where two ledgers part: this folder's and another, or two others.

    A ledger is a data folder (its node may be running), a ledger.sqlite file, an export, or a peer of the network: its
    address (/ip4/…/tcp/…/p2p/…) or an invite. Two peers cannot be compared at once.

    Exits with 0 if they are equal or one continues the other, with 5 if they differ, naming the first height and why.

    Examples:

    gdf-market ledger diff demo-run/alice demo-run/bob

    gdf-market ledger diff /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…
    """
    from ledger.compare import DIFFERENT, EQUAL, compare

    if len(others) > 2:
        raise UsageError("give one ledger to compare with this folder's, or two")
    a, b = others if len(others) == 2 else (str(app.data.root), others[0])
    if _is_peer(a):
        a, b = b, a
    with app.progress(f"comparing {a} and {b}"):
        found = _diff_peer(Path(a), b) if _is_peer(b) else compare(Path(a), Path(b))

    def text() -> str:
        if found.relation == DIFFERENT:
            return "\n".join([f"height {found.height} differs", *(f"  {reason}" for reason in found.reasons)])
        if found.relation == EQUAL:
            return f"equal: {found.height} blocks"
        names = (b, a) if found.longer == "a" else (a, b)
        return f"{names[0]} is a prefix of {names[1]}: {found.height} common blocks, then {found.beyond} more"

    app.emit({"a": a, "b": b, **dataclasses.asdict(found)}, text)
    if found.first > 1:
        app.say(f"Blocks before {found.first} are not in both; the hash of its parent stands for them.")
    if found.attested_otherwise:
        app.say(
            f"{found.attested_otherwise} common blocks carry other signatures, all valid; honest nodes may differ so"
        )
    if found.relation == DIFFERENT:
        raise VerificationFailedError(f"the ledgers differ at height {found.height}")


def _is_peer(text: str) -> bool:
    return text.startswith("gdf1-") or "/p2p/" in text


def _diff_peer(path: Path, peer: str) -> Comparison:
    """Compare a ledger on disk (side a) with a peer's (side b)."""
    from gdf_market.commands.session import run_async
    from gdf_market.node.remote_ledger import compare_with_peer
    from ledger.store import LedgerStore

    if _is_peer(str(path)):
        raise UsageError("two peers cannot be compared at once; compare this folder with each")
    file = path / "ledger.sqlite" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"there is no ledger at {file}; give a data folder or its ledger.sqlite")
    store = LedgerStore(file, read_only=True)
    try:
        addresses = _addresses(peer, network_id(store.genesis()))
        return run_async(lambda: compare_with_peer(store, addresses))
    finally:
        store.close()


def _addresses(peer: str, network: str) -> tuple[str, ...]:
    if not peer.startswith("gdf1-"):
        return (peer,)
    from gdf_market.node.invite import check_network, parse_invite

    invite = parse_invite(peer)
    check_network(invite, network)
    if not invite.bootstrap:
        raise UsageError("the invite names no address; make one with `gdf-market node invite` on a running node")
    return invite.bootstrap
