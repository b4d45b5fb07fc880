"""``gdf-market ledger``: show, export and verify the replica."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import rich_click as click

from contracts.state import State
from gdf_market.codec import encode
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.reading import open_ledger
from gdf_market.errors import UsageError
from gdf_market.units import format_credits
from ledger.tables import BlockRow


@click.group()
def ledger() -> None:
    """Show, export and verify the ledger."""


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
            value = {"hash": block.hash, "header": json.loads(block.header), "entries": entries}
            app.emit(value, lambda: json.dumps(value, indent=2))
            return
        _show_head(app, store.state(), store.blocks(limit=limit))


def _show_head(app: App, state: State, blocks: list[BlockRow]) -> None:
    supply = state.supply_check()
    head = blocks[0] if blocks else None
    value = {
        "height": head.height if head else 0,
        "head": head.hash if head else None,
        "state_root": head.state_root if head else None,
        "supply": supply,
        "conserved": supply == state.network().supply,
        "blocks": [
            {"height": row.height, "hash": row.hash, "entries": row.entry_count, "proposer": row.proposer}
            for row in blocks
        ],
    }

    def text() -> object:
        shown = table(f"head {value['height']}", "height", "hash", "entries", "proposer")
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
    value = {name: _plain(item) for name, item in dataclasses.asdict(report).items()}

    def text() -> object:
        shown = table(f"{source} holds", "figure", "value")
        for name, item in value.items():
            shown.add_row(name.replace("_", " "), str(item))
        return shown

    app.emit(value, text)


def _plain(item: object) -> object:
    return item if isinstance(item, int | str | bool | type(None)) else json.loads(encode(item))
