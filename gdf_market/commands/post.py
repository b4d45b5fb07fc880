"""``gdf-market post``: capture a job, show what it will cost, announce it, and put it on the ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from contracts.fees import compute_post_fee
from contracts.jobs import escrow_of
from contracts.parameters import DEVICE_CLASSES
from contracts.records import Job
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import decode, encode
from gdf_market.commands.common import App, pass_app, table
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import interrupted_after, load_identity, run_async, with_client
from gdf_market.errors import InsufficientCreditsError, PeerError, UnreachableError, UsageError
from gdf_market.messages import JobPost
from gdf_market.node.client import NodeClient
from gdf_market.units import MINUTE_MS, PPM, SECOND_MS, format_credits, parse_credits
from ledger.reading import records_of

HOLDERS = 2  # peers that must hold every blob before the owner may leave (or all peers, if there are fewer)
HOLDERS_S = 120.0
PROBE_STEPS = 3


@dataclass(frozen=True)
class Terms:
    """What the owner asks for, besides the program itself."""

    rounds: int
    units: int
    min_workers: int
    warm_rounds: int
    shards: int
    max_price: int
    bond: int
    merit_percent: float
    audit_fee: int
    audit_floor_percent: float
    bid_s: int
    work_s: int
    phase_s: int
    audit_s: int
    hold_s: int
    deadline_min: int
    device_class: str


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Rounds to train.")
@click.option(
    "--max-price", default="1", show_default=True, metavar="CREDITS", help="Most you pay per unit (the reserve price)."
)
@click.option("--units", type=click.IntRange(1, 64), default=4, show_default=True, help="Units per round.")
@click.option(
    "--min-workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Workers without which no round starts.",
)
@click.option(
    "--warm-rounds",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
    help="First rounds of one unit each: a model from scratch gains little from averaging at its steep start.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 65_536),
    default=16,
    show_default=True,
    help="Data shards; fewer means more hidden twins.",
)
@click.option("--bond", metavar="CREDITS", help="Bond per unit slot (default: 9 times the price).")
@click.option(
    "--merit-percent",
    type=click.FloatRange(0, 100),
    default=20.0,
    show_default=True,
    help="Merit pot on top of a round's base pay.",
)
@click.option(
    "--audit-fee",
    metavar="CREDITS",
    help="Most you pay per audit; never more than the clearing price (default: the price).",
)
@click.option(
    "--audit-floor-percent",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="Least audit probability per unit.",
)
@click.option("--bid-seconds", "bid_s", type=click.IntRange(1), default=20, show_default=True, help="Bidding window.")
@click.option(
    "--work-seconds", "work_s", type=click.IntRange(1), default=120, show_default=True, help="Deadline of a unit."
)
@click.option(
    "--phase-seconds",
    "phase_s",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Deadline of reveal, receipts and result.",
)
@click.option(
    "--audit-seconds",
    "audit_s",
    type=click.IntRange(1),
    default=120,
    show_default=True,
    help="Deadline of each audit step.",
)
@click.option(
    "--hold-seconds",
    "hold_s",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long pay is held for audits.",
)
@click.option(
    "--deadline-minutes",
    "deadline_min",
    type=click.IntRange(1),
    default=24 * 60,
    show_default=True,
    help="When the job ends whatever happened.",
)
@click.option("--device-class", default="cpu-fp32", show_default=True, help="Device class the units run on.")
@click.option("--title", help="Title in the order book (default: the job's, or the file's name).")
@click.option("--dry-run", is_flag=True, help="Show escrow, price range, bytes and time; sign nothing.")
@pass_app
def post(
    app: App,
    /,
    file: Path,
    max_price: str,
    bond: str | None,
    audit_fee: str | None,
    title: str | None,
    dry_run: bool,
    **terms: Any,
) -> None:
    """Post the job that FILE declares.  When this returns, the job is final on the ledger and peers hold its
    program and data: you may switch the computer off.

    Example: gdf-market post examples/char_gpt.py --rounds 4 --max-price 5 --dry-run
    """
    price = parse_credits(max_price)
    if price == 0:
        raise UsageError("--max-price 0 attracts no worker; give a positive number of credits")
    asked = Terms(
        max_price=price,
        bond=parse_credits(bond) if bond is not None else 9 * price,
        audit_fee=parse_credits(audit_fee) if audit_fee is not None else price,
        **terms,
    )
    account = load_identity(app).account
    app.data.genesis()
    with app.progress(f"capturing {file}"), interrupted_after():
        fields, estimate = prepare_order(app, file, asked, title)
    value = summary(app, fields, estimate, account)
    if dry_run:
        app.emit(value | {"dry_run": True}, lambda: _table(value, "dry run: nothing was signed"))
        return
    _check_balance(value)
    value |= with_client(app, lambda client: _publish(app, client, fields))
    app.emit(value, lambda: _table(value, f"job {value['job']} is on the ledger (block {value['height']})"))


def prepare_order(app: App, file: Path, terms: Terms, title: str | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Capture the job into blobs of this folder; return the order's fields and what this machine measured."""
    from gdf_market.train.job_file import load_job
    from gdf_market.train.prepare import prepare

    app.data.create()
    prepared = prepare(load_job(file))
    store = BlobStore(app.data.blobs)
    content = store.put_bytes(prepared.content)
    blobs = {
        "program": store.put_bytes(prepared.program),
        "data": store.put_bytes(encode(prepared.manifest(content))),
        "checkpoint": store.put_bytes(prepared.checkpoint),
    }
    audits = terms.warm_rounds + (terms.rounds - terms.warm_rounds) * terms.units
    now = time.time_ns() // 1_000_000
    fields = {
        "title": (title or prepared.title or file.stem)[:80],
        **blobs,
        "parameters": prepared.parameters,
        "tokens_per_unit": prepared.tokens_per_unit,
        "recipe": msgspec.to_builtins(prepared.recipe),
        "device_class": terms.device_class,
        "rounds": terms.rounds,
        "units_per_round": terms.units,
        "warm_rounds": terms.warm_rounds,
        "shards": terms.shards,
        "min_workers": terms.min_workers,
        "reserve_price": terms.max_price,
        "unit_bond": terms.bond,
        "merit_ppm": round(terms.merit_percent * PPM / 100),
        "audit_fee": terms.audit_fee,
        "audit_budget": terms.audit_fee * audits,
        "audit_floor_ppm": round(terms.audit_floor_percent * PPM / 100),
        "bid_ms": terms.bid_s * SECOND_MS,
        "work_ms": terms.work_s * SECOND_MS,
        "reveal_ms": terms.phase_s * SECOND_MS,
        "receipt_ms": terms.phase_s * SECOND_MS,
        "result_ms": terms.phase_s * SECOND_MS,
        "audit_ms": terms.audit_s * SECOND_MS,
        "hold_ms": terms.hold_s * SECOND_MS,
        "deadline_ms": now + terms.deadline_min * MINUTE_MS,
    }
    estimate = _estimate(
        store, fields, content, len(prepared.program) + len(prepared.content) + len(prepared.checkpoint)
    )
    return fields, estimate


def _estimate(store: BlobStore, fields: dict[str, Any], content: str, blob_bytes: int) -> dict[str, float]:
    """Measure a few steps here and derive time and bytes."""
    from gdf_market.messages import Recipe
    from gdf_market.node.trainer import Trainer
    from gdf_market.train.codec import Codec

    recipe = msgspec.convert(fields["recipe"], Recipe)

    async def probe() -> float:
        async with Trainer(threads=0) as trainer:
            return await trainer.probe(
                program=store.path(fields["program"]),
                data=store.path(fields["data"]),
                content=store.path(content),
                checkpoint=store.path(fields["checkpoint"]),
                recipe=recipe,
                steps=PROBE_STEPS,
            )

    step_s = run_async(probe)
    update = Codec.of(recipe).expected_bytes(fields["parameters"])
    unit_s = step_s * recipe.steps
    return {
        "step_s": step_s,
        "unit_s": unit_s,
        "update_bytes": update,
        "join_bytes": blob_bytes,
        "round_bytes_per_worker": update * (fields["units_per_round"] - 1),
        "least_seconds": fields["bid_ms"] / SECOND_MS + fields["rounds"] * unit_s + fields["hold_ms"] / SECOND_MS,
    }


def summary(app: App, fields: dict[str, Any], estimate: dict[str, float], account: str) -> dict[str, Any]:
    """Return what the owner should know before signing."""
    placeholder = {"kind": "job_post", "author": account, "nonce": 0, "expires_ms": 0}
    try:
        spec = decode(encode(fields | placeholder), JobPost)
    except PeerError as error:
        raise UsageError(f"these terms make no valid order: {error}") from None
    if spec.device_class not in DEVICE_CLASSES:
        raise UsageError(f"--device-class {spec.device_class} is none of {', '.join(DEVICE_CLASSES)}")
    if spec.warm_rounds > spec.rounds:
        raise UsageError(f"--warm-rounds {spec.warm_rounds} exceeds --rounds {spec.rounds}; lower it")
    if spec.min_workers > spec.units_per_round:
        raise UsageError(f"--min-workers {spec.min_workers} exceeds --units {spec.units_per_round}; lower it")
    escrow, audits = escrow_of(spec)
    prices: list[int] = []
    balance = 0
    if app.data.ledger.exists():
        with open_ledger(app) as store:
            balance = store.state().account(account).balance
            prices = sorted(job.clearing_price for job in records_of(store, Job) if job.clearing_price)
    return {
        "title": spec.title,
        "parameters": spec.parameters,
        "escrow": escrow + audits,
        "escrow_units": escrow,
        "escrow_audits": audits,
        "fee": compute_post_fee(_entry_fee(app), spec),
        "balance": balance,
        "price_most": spec.reserve_price,
        "price_seen": [prices[0], prices[-1]] if prices else None,
        "rounds": spec.rounds,
        "units_per_round": spec.units_per_round,
        "estimate": {name: round(figure, 4) for name, figure in estimate.items()},
    }


def _entry_fee(app: App) -> int:
    """Return the network's fee per KiB; a dry run needs no network and shows none."""
    return app.data.genesis().entry_fee if app.data.genesis_file.exists() else 0


def _check_balance(value: dict[str, Any]) -> None:
    # a folder that never ran a node knows no balance yet; the node that it starts will check again
    if value["balance"]:
        _check_covered(value["escrow"], value["fee"], value["balance"])


def _check_covered(escrow: int, fee: int, balance: int) -> None:
    if balance < escrow + fee:
        raise InsufficientCreditsError(
            f"the escrow of {format_credits(escrow)} credits and the fee of {format_credits(fee)} exceed the balance "
            f"of {format_credits(balance)}; lower --max-price, --rounds or --units"
        )


def _publish(app: App, client: NodeClient, fields: dict[str, Any]) -> dict[str, Any]:
    """Announce the order, wait until peers hold its blobs, and put it on the ledger."""
    status = client.status()
    spec = decode(
        encode(fields | {"kind": "job_post", "author": status["account"], "nonce": 0, "expires_ms": 0}), JobPost
    )
    _check_covered(sum(escrow_of(spec)), compute_post_fee(_entry_fee(app), spec), status["balance"])
    order = str(client.call("POST", "/orders", {"fields": fields})["order"])
    roots = [fields["program"], fields["data"], fields["checkpoint"]]
    with app.progress(f"order {order[:12]} announced; waiting until peers hold its program and data") as say:
        holders = _wait_for_holders(client, roots, say)
        say(f"{holders} peers hold everything; putting the job on the ledger")
        height = int(client.call("POST", f"/orders/{order}/post")["height"])
    return {"job": order, "height": height, "holders": holders}


def _wait_for_holders(client: NodeClient, roots: list[str], say: Any) -> int:
    end = time.monotonic() + HOLDERS_S
    while True:
        peers = len(client.status()["peers"])
        counts = client.call("POST", "/holders", {"roots": roots})["holders"]
        holders = min(counts.values())
        if holders >= min(HOLDERS, max(1, peers)):
            return int(holders)
        if time.monotonic() > end:
            if holders:
                return int(holders)
            raise UnreachableError(
                f"none of {peers} peers fetched the job's program and data within {HOLDERS_S:.0f} s, so nothing was "
                "posted; check that a worker is running (`gdf-market status` says what it does)"
            )
        say(
            f"{holders} of {peers} peers hold the program and data"
            if peers
            else "no peer is connected yet; waiting for one"
        )
        time.sleep(0.5)


def _table(value: dict[str, Any], title: str) -> object:
    estimate = value["estimate"]
    shown = table(title, "what", "value")
    seen = value["price_seen"]
    shown.add_row("job", f"{value['title']}, {value['parameters']:,} parameters")
    shown.add_row(
        "escrow",
        f"{format_credits(value['escrow'])} credits ({format_credits(value['escrow_units'])} for units and merit, "
        f"{format_credits(value['escrow_audits'])} for audits); unspent credits return; "
        f"the fee of {format_credits(value['fee'])} does not",
    )
    shown.add_row("balance", f"{format_credits(value['balance'])} credits")
    past = (
        "no job was cleared yet"
        if seen is None
        else f"cleared before at {format_credits(seen[0])} to {format_credits(seen[1])}"
    )
    shown.add_row("price per unit", f"at most {format_credits(value['price_most'])}; {past}")
    shown.add_row("units", f"{value['rounds']} rounds x {value['units_per_round']} units")
    shown.add_row(
        "time",
        f"{estimate['unit_s']:.1f} s per unit on this machine; at least {estimate['least_seconds']:.0f} s in all",
    )
    shown.add_row(
        "bytes",
        f"{int(estimate['join_bytes']):,} to join; per round and worker about "
        f"{int(estimate['round_bytes_per_worker']):,} received ({int(estimate['update_bytes']):,} per update)",
    )
    return shown
