"""``gdf-market post``: capture a job, show what it will cost, announce it, and put it on the ledger."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click
from rich.console import Group
from rich.text import Text

from contracts.fees import compute_post_fee
from contracts.jobs import escrow_of
from contracts.parameters import DEVICE_CLASSES, thresholds, verdict
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import decode, encode
from gdf_market.commands.common import App, pass_app, printable, table
from gdf_market.commands.estimating import estimate as estimate_market
from gdf_market.commands.estimating import facts_of, price_sentence, time_sentence
from gdf_market.commands.outlook import cost_rows, outlook, steps_table
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import interrupted_after, load_identity, run_async, with_client
from gdf_market.commands.terms import DEFAULT_PRICE, DEFAULT_ROUNDS, Terms, parse_price, terms_of
from gdf_market.errors import InsufficientCreditsError, PeerError, UnreachableError, UsageError
from gdf_market.messages import JobPost
from gdf_market.node.client import NodeClient
from gdf_market.units import MAX_INT, MINUTE_MS, PPB, PPM, SECOND_MS, format_credits

if TYPE_CHECKING:
    from gdf_market.train.data import DataManifest
    from gdf_market.train.job import Job as TrainingJob
    from gdf_market.train.prepare import Prepared
    from gdf_market.train.source import Dataset

HOLDERS = 2  # peers that must hold every blob before the owner may leave (or all peers, if there are fewer)
HOLDERS_S = 120.0
PROBE_STEPS = 3


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--rounds", type=click.IntRange(1, 10_000), help=f"Rounds to train (default: the job's, or {DEFAULT_ROUNDS})."
)
@click.option(
    "--max-price",
    metavar="CREDITS",
    help=f"Most you pay per unit, the reserve price (default: the job's, or {DEFAULT_PRICE}).",
)
@click.option("--units", type=click.IntRange(1, 64), help=f"Units per round (default: the job's, or {Terms.units}).")
@click.option(
    "--min-workers",
    type=click.IntRange(1, 64),
    default=Terms.min_workers,
    show_default=True,
    help="Workers without which no round starts.",
)
@click.option(
    "--warm-rounds",
    type=click.IntRange(0, 10_000),
    default=Terms.warm_rounds,
    show_default=True,
    help="First rounds of one unit each: a model from scratch gains little from averaging at its steep start.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 65_536),
    default=Terms.shards,
    show_default=True,
    help="Data shards; fewer means more hidden twins.",
)
@click.option("--bond", metavar="CREDITS", help="Bond per unit slot (default: 12 times the price).")
@click.option(
    "--merit-percent",
    type=click.FloatRange(0, 100),
    default=Terms.merit_percent,
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
    default=Terms.audit_floor_percent,
    show_default=True,
    help="Least audit probability per unit.",
)
@click.option(
    "--bid-seconds", "bid_s", type=click.IntRange(1), default=Terms.bid_s, show_default=True, help="Bidding window."
)
@click.option(
    "--work-seconds",
    "work_s",
    type=click.IntRange(1),
    default=Terms.work_s,
    show_default=True,
    help="Deadline of a unit.",
)
@click.option(
    "--phase-seconds",
    "phase_s",
    type=click.IntRange(1),
    default=Terms.phase_s,
    show_default=True,
    help="Deadline of reveal, receipts and result.",
)
@click.option(
    "--audit-seconds",
    "audit_s",
    type=click.IntRange(1),
    default=Terms.audit_s,
    show_default=True,
    help="Deadline of each audit step.",
)
@click.option(
    "--hold-seconds",
    "hold_s",
    type=click.IntRange(1),
    default=Terms.hold_s,
    show_default=True,
    help="How long pay is held for audits.",
)
@click.option(
    "--deadline-minutes",
    "deadline_min",
    type=click.IntRange(1),
    default=Terms.deadline_min,
    show_default=True,
    help="When the job ends whatever happened.",
)
@click.option(
    "--device-class",
    help="Device class the units run on (default: cpu-fp32, or cpu-bf16 for a job in bfloat16).",
)
@click.option("--title", help="Title in the order book (default: the job's, or the file's name).")
@click.option(
    "--replace", "replaced", metavar="ORDER", default="", help="Own order, not posted yet, whose place it takes."
)
@click.option("--dry-run", is_flag=True, help="Show escrow, price range, bytes and time; sign nothing.")
@pass_app
def post(
    app: App,
    /,
    file: Path,
    title: str | None,
    replaced: str,
    dry_run: bool,
    **given: Any,
) -> None:
    """Post the job that FILE declares.  When this returns, the job is final on the ledger and peers hold its
    program and data: you may switch the computer off.

    Example: gdf-market post examples/char_gpt.py --rounds 4 --max-price 5 --dry-run
    """
    from gdf_market.train.job_file import load_job

    parse_price(given["max_price"])
    account = load_identity(app).account
    app.data.genesis()
    with app.progress(f"capturing {file}"), interrupted_after():
        job = load_job(file)
        fields, estimate = prepare_order(app, job, terms_of(job, given), title or job.title or file.stem)
    value = summary(app, fields, estimate, account)
    if dry_run:
        app.emit(value | {"dry_run": True}, lambda: _table(value, "dry run: nothing was signed"))
        return
    value |= publish(app, value, fields, replaced)
    app.emit(value, lambda: _table(value, f"job {value['job']} is on the ledger (block {value['height']})"))


def publish(app: App, value: dict[str, Any], fields: dict[str, Any], replaced: str = "") -> dict[str, Any]:
    """Put an order on the ledger through the node that runs, or one of our own; return job, height and holders.

    ``value`` is its summary; ``replaced``: the start of the id of an own order that is not posted yet, whose place it
    takes.  Raises InsufficientCreditsError, and what the network answers.
    """
    _check_balance(value)
    return with_client(app, lambda client: _publish(app, client, fields, replaced))


def prepare_order(app: App, job: TrainingJob, terms: Terms, title: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Capture the job into blobs of this folder; return the order's fields and what this machine measured."""
    from gdf_market.train.prepare import prepare

    app.data.create()
    prepared = prepare(job, terms.rounds)
    store = BlobStore(app.data.blobs)
    content = _store_content(app, store, prepared.dataset)
    blobs = {
        "program": store.put_bytes(prepared.program),
        "data": store.put_bytes(encode(_manifest(prepared, content, terms.shards))),
        "checkpoint": store.put_bytes(prepared.checkpoint),
    }
    audits = terms.warm_rounds + (terms.rounds - terms.warm_rounds) * terms.units
    now = time.time_ns() // 1_000_000
    fields = {
        "title": title[:80],
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
        store, fields, content, len(prepared.program) + prepared.dataset.size_bytes + len(prepared.checkpoint)
    )
    return fields, estimate | {"memory_bytes": _memory_bytes(prepared)}


def _memory_bytes(prepared: Prepared) -> int:
    """Return the most that a step of a whole batch takes, for a worker that does not divide it."""
    from gdf_market.train.dry_run import dry_run
    from gdf_market.train.program import Program

    program, recipe = Program.from_bytes(prepared.program), prepared.recipe
    cost = dry_run(program, recipe.batch, MAX_INT, inner=recipe.inner, precision=recipe.precision)
    return cost.memory_bytes


def _store_content(app: App, store: BlobStore, dataset: Dataset) -> str:
    """Write the content file beside the blobs and store it; return its blob id.  It may be larger than memory."""
    handle, name = tempfile.mkstemp(dir=app.data.root, prefix="content", suffix=".tmp")
    os.close(handle)
    path = Path(name)
    try:
        dataset.write(path)
        return store.put_file(path)
    finally:
        path.unlink(missing_ok=True)


def _manifest(prepared: Prepared, content: str, shards: int) -> DataManifest:
    from gdf_market.train.data import check_manifest

    manifest = prepared.manifest(content)
    try:
        check_manifest(manifest, shards)
    except PeerError as error:
        raise UsageError(f"--shards {shards} is too many for this data: {error}") from None
    return manifest


def _estimate(store: BlobStore, fields: dict[str, Any], content: str, blob_bytes: int) -> dict[str, float]:
    """Measure a few steps here and derive time and bytes."""
    from gdf_market.messages import Recipe
    from gdf_market.node.trainer import ProbeResult, Trainer
    from gdf_market.train.codec import Codec

    recipe = msgspec.convert(fields["recipe"], Recipe)

    async def probe() -> ProbeResult:
        async with Trainer(threads=0) as trainer:
            return await trainer.probe(
                program=store.path(fields["program"]),
                data=store.path(fields["data"]),
                content=store.path(content),
                checkpoint=store.path(fields["checkpoint"]),
                recipe=recipe,
                steps=PROBE_STEPS,
            )

    found = run_async(probe)
    _check_repeatable(fields["device_class"], found.excess_ppb)
    step_s = found.step_s
    update = Codec.of(recipe).expected_bytes(fields["parameters"])
    unit_s = step_s * recipe.steps
    return {
        "step_s": step_s,
        "repeat_excess_ppb": found.excess_ppb,
        "unit_s": unit_s,
        "update_bytes": update,
        "join_bytes": blob_bytes,
        "round_bytes_per_worker": update * (fields["units_per_round"] - 1),
        "least_seconds": fields["bid_ms"] / SECOND_MS + fields["rounds"] * unit_s + fields["hold_ms"] / SECOND_MS,
    }


def _check_repeatable(device_class: str, excess_ppb: int) -> None:
    """Refuse what no auditor could confirm.  Raises UsageError."""
    if device_class not in DEVICE_CLASSES or verdict(device_class, excess_ppb, 0) == "pass":
        return
    raise UsageError(
        f"the model's steps cannot be repeated: in another order of additions they differ by {excess_ppb / PPB:.1e}, "
        f"where at most {thresholds(device_class).excess_accept / PPB:.0e} passes, so honest work would be disputed. "
        "Try a lower learning rate or gradient clipping, and look for parameters without a gradient of their own "
        "(a bias before a normalisation), which an optimizer moves by rounding noise"
    )


def summary(app: App, fields: dict[str, Any], estimate: dict[str, float], account: str) -> dict[str, Any]:
    """Return what the owner should know before signing."""
    spec = spec_of(fields, account)
    escrow, audits = escrow_of(spec)
    balance = 0
    if app.data.ledger.exists():
        with open_ledger(app) as store:
            balance = store.state().account(account).balance
    market = estimate_market(spec, facts_of(app, spec.device_class), estimate.get("unit_s"))
    likely = market["price"]["likely_micro"]
    return {
        "title": spec.title,
        "parameters": spec.parameters,
        "escrow": escrow + audits,
        "escrow_units": escrow,
        "escrow_audits": audits,
        "fee": compute_post_fee(_entry_fee(app), spec),
        "balance": balance,
        "price_most": spec.reserve_price,
        "market": market,
        "rounds": spec.rounds,
        "units_per_round": spec.units_per_round,
        "most_units": spec.most_units(),
        "warm_rounds": spec.warm_rounds,
        "estimate": {name: round(figure, 4) for name, figure in estimate.items()},
        "outlook": outlook(spec, estimate, [] if likely is None else [likely]),
    }


def spec_of(fields: dict[str, Any], account: str) -> JobPost:
    """Return the terms as the ledger will see them, but for what signing adds.  Raises UsageError."""
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
    return spec


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


def _publish(app: App, client: NodeClient, fields: dict[str, Any], replaced: str = "") -> dict[str, Any]:
    """Announce the order, wait until peers hold its blobs, and put it on the ledger."""
    status = client.status()
    spec = spec_of(fields, status["account"])
    _check_covered(sum(escrow_of(spec)), compute_post_fee(_entry_fee(app), spec), status["balance"])
    order = str(client.call("POST", "/orders", {"fields": fields, "replace": replaced})["order"])
    roots = [fields["program"], fields["data"], fields["checkpoint"]]
    with app.progress(f"order {order[:12]} announced; waiting until peers hold its program and data") as say:
        try:
            holders = _wait_for_holders(client, roots, say)
        except UnreachableError as error:
            raise UnreachableError(
                f"{error}; order {order[:12]} stays announced until it expires: `gdf-market post --replace "
                f"{order[:12]} FILE` puts another in its place, `gdf-market market cancel {order[:12]}` takes it back"
            ) from None
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
                "put on the ledger; check that a worker is running (`gdf-market status` says what it does)"
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
    shown.add_row("job", f"{value['title']}, {value['parameters']:,} parameters")
    shown.add_row(
        "escrow",
        f"{format_credits(value['escrow'])} credits: {value['most_units']} units at "
        f"{format_credits(value['price_most'])} and merit are {format_credits(value['escrow_units'])}, all audits "
        f"{format_credits(value['escrow_audits'])}; "
        f"unspent credits return; the fee of {format_credits(value['fee'])} does not",
    )
    shown.add_row("balance", f"{format_credits(value['balance'])} credits")
    shown.add_row("price per unit", price_sentence(value["market"]["price"]))
    warm = f", the first {value['warm_rounds']} of one unit" if value["warm_rounds"] else ""
    shown.add_row("units", f"{value['rounds']} rounds x {value['units_per_round']} units{warm}")
    shown.add_row(
        "time",
        f"{estimate['unit_s']:.1f} s per unit on this machine; at least {estimate['least_seconds']:.0f} s in all",
    )
    shown.add_row("time on this market", time_sentence(value["market"]["time"]))
    shown.add_row("repeatable", f"to {estimate['repeat_excess_ppb'] / PPB:.1e} in another order of additions")
    shown.add_row(
        "bytes",
        f"{int(estimate['join_bytes']):,} to join",
    )
    for what, cost in cost_rows(value["outlook"]):
        shown.add_row(what, cost)
    notes = [Text(f"Note: {printable(sentence)}") for sentence in value["outlook"]["warnings"]]
    return Group(shown, steps_table(value["outlook"]), *notes)
