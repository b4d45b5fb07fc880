"""``gdf-market earnings``: what an account earned and lost on the ledger; settled, pending and estimated apart."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rich_click as click

from contracts.records import Job, Unit
from contracts.state import job_key
from gdf_market.commands.common import App, pass_app, short, table
from gdf_market.commands.controls import parse_duration
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import load_identity
from gdf_market.commands.wallet import check_account
from gdf_market.errors import StorageError
from gdf_market.units import SECOND_MS, format_credits
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from ledger.tables import EventRow

PAGE = 1_000
SHOWN = 20
UNDER_WAY = ("assigned", "committed", "revealed")

_EARNED = {
    "paid": "units",
    "merit": "merit",
    "audit": "audits",  # an auditor's or arbiter's fee
    "slashed": "slashed others",
    "fee": "proposed blocks",
}
_LOST = {"fee": "fees", "slashed": "own bond slashed", "forfeited": "own bond forfeited"}


@dataclass(frozen=True)
class Line:
    """One change; ``amount`` in micro-credits, negative for a loss."""

    height: int
    time_ms: int
    what: str
    amount: int
    job: str
    round: int
    slot: int
    reason: str


def change_of(event: EventRow, account: str) -> tuple[str, int] | None:
    """Return (what, micro-credits) of an event that earned or cost the account something, or None.

    Bonds that are locked and returned, escrow and transfers move credits, but nobody earns by them.
    """
    if event.target == account and event.source != account and event.kind in _EARNED:
        return _EARNED[event.kind], event.amount
    if event.kind == "fee" and event.source == account and event.target != account:
        return _LOST["fee"], -event.amount
    from_own_bond = event.source in ("bond", "stake") and event.account == account and event.target != account
    if from_own_bond and event.kind in ("slashed", "forfeited"):
        return _LOST[event.kind], -event.amount
    return None


def read_lines(store: LedgerStore, account: str, since_ms: int) -> Iterator[Line]:
    """Yield what the account earned and lost in blocks from ``since_ms`` on (Unix time), newest first."""
    before, times = None, dict[int, int]()
    while rows := store.events(account=account, before=before, limit=PAGE):
        for row in rows:
            if row.height not in times:
                block = store.block(row.height)
                if block is None:
                    raise StorageError(f"{store.path} has an event of block {row.height}, but not the block")
                times = {row.height: block.time_ms}
            if times[row.height] < since_ms:
                return
            found = change_of(row, account)
            if found is not None:
                yield Line(row.height, times[row.height], *found, row.job, row.round, row.slot, row.reason)
        before = rows[-1].id


def estimate(store: LedgerStore, account: str) -> tuple[int, int]:
    """Return micro-credits (pending, estimated): held pay of accepted units; the price of units under way.

    What is pending is paid unless an audit fails; what is estimated also has to be accepted, and merit may be added.
    """
    pending = estimated = 0
    for unit in records_of(store, Unit):
        if unit.worker != account:
            continue
        pending += unit.held_pay + unit.held_merit
        if unit.status in UNDER_WAY:
            job = record_of(store, Job, job_key(unit.job))
            estimated += job.clearing_price if job is not None else 0
    return pending, estimated


@click.command()
@click.option("--account", help="Another account than this folder's.")
@click.option("--since", metavar="TIME", help="Only the last such time: 24h, 7d (default: everything).")
@click.option(
    "--csv", "as_csv", type=click.Path(path_type=Path, allow_dash=True), help="Write all lines ( - : stdout)."
)
@pass_app
def earnings(app: App, account: str | None, since: str | None, as_csv: Path | None) -> None:
    """Show what was earned and lost, and for what; settled, pending and estimated are never mixed.

    Example: gdf-market earnings --since 7d --csv week.csv
    """
    account = check_account(account) if account is not None else load_identity(app).account
    with open_ledger(app) as store:
        head = store.head()
        since_ms = head.time_ms - parse_duration(since) if since is not None and head is not None else 0
        lines = list(read_lines(store, account, since_ms))
        pending, estimated = estimate(store, account)
        pruned = store.oldest() > 1 and since is None
    if as_csv is not None:
        _write_csv(app, lines, as_csv)
        return
    value = _summary(account, lines, pending, estimated) | {"since_ms": since_ms, "older_blocks_deleted": pruned}
    app.emit(value, lambda: _text(value, lines))


def _summary(account: str, lines: Sequence[Line], pending: int, estimated: int) -> dict[str, Any]:
    sums: dict[str, int] = {}
    for line in lines:
        sums[line.what] = sums.get(line.what, 0) + line.amount
    return {
        "account": account,
        "unit": "micro-credits",
        "settled": sum(sums.values()),
        "settled_by": sums,
        "pending": pending,
        "estimated": estimated,
    }


def _text(value: dict[str, Any], lines: Sequence[Line]) -> object:
    shown = table(f"{value['account']}, in credits", "what", "credits", "block", "job", "for")
    shown.add_row("settled", format_credits(value["settled"]), "", "", "earned less lost, from the ledger's events")
    for what, amount in sorted(value["settled_by"].items(), key=lambda item: -item[1]):
        shown.add_row(f"  {what}", format_credits(amount))
    shown.add_row("pending", format_credits(value["pending"]), "", "", "held until the audit window ends")
    shown.add_row("estimated", format_credits(value["estimated"]), "", "", "units under way, at their job's price")
    if value["older_blocks_deleted"]:
        shown.add_row("", "", "", "", "older blocks were deleted here: earlier earnings are not counted")
    for line in lines[:SHOWN]:
        where = f"round {line.round}, slot {line.slot}" if line.slot >= 0 else line.reason
        shown.add_row(line.what, format_credits(line.amount), str(line.height), short(line.job), where)
    if len(lines) > SHOWN:
        shown.add_row("…", "", "", "", f"{len(lines) - SHOWN} more: --csv FILE")
    return shown


def _write_csv(app: App, lines: Sequence[Line], target: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time_utc", "height", "what", "micro_credits", "job", "round", "slot", "reason"])
    for line in reversed(lines):
        time = datetime.fromtimestamp(line.time_ms / SECOND_MS, UTC).isoformat(timespec="milliseconds")
        reason = (
            f"'{line.reason}" if line.reason[:1] in "=+-@\t" and line.reason else line.reason
        )  # no spreadsheet formula
        writer.writerow([time, line.height, line.what, line.amount, line.job, line.round, line.slot, reason])
    if str(target) == "-":
        click.echo(text.getvalue(), nl=False)
        return
    try:
        target.write_text(text.getvalue(), encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}") from None
    app.say(f"{len(lines)} lines in {target}")
