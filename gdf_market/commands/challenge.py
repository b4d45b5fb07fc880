"""``gdf-market challenge``: doubt a unit, and put a bond on it."""

from __future__ import annotations

import rich_click as click

from contracts.audits import challenge_bond
from contracts.parameters import verdict
from contracts.records import Job, Network, Round, Unit
from contracts.state import present, round_key, unit_key
from gdf_market.commands.common import App, pass_app
from gdf_market.commands.progress import require_job
from gdf_market.commands.reading import open_ledger, resolve_job
from gdf_market.errors import UsageError
from gdf_market.messages import JobPost
from gdf_market.node.client import NodeClient
from gdf_market.units import PPB, format_credits
from ledger.reading import record_of
from ledger.store import LedgerStore


@click.command()
@click.argument("job")
@click.argument("round", type=click.IntRange(0), metavar="ROUND")
@click.argument("slot", type=click.IntRange(0, 63), metavar="SLOT")
@pass_app
def challenge(app: App, job: str, round: int, slot: int) -> None:
    """Run somebody's unit again, and accuse its worker if it comes out differently.

    Anybody may, until the unit's pay is released. It locks what a committee may cost the job, at least the network's
    audit bond; that returns unless the accusation is wrong, and a right one earns a part of what a cheat loses. Whoever
    is wrong judges nothing in that job any more. The k-th challenge of a unit costs 2^(k-1) times the entry's fee. The
    node on this folder must run, and go on running until the audit is opened.

    Example: gdf-market challenge 3f9a 4 2
    """
    with open_ledger(app) as store:
        found = require_job(store, resolve_job(store, job))
        if record_of(store, Unit, unit_key(found.id, round, slot)) is None:
            raise UsageError(
                f"job {found.id[:12]} has no unit in round {round}, slot {slot}; `gdf-market jobs show {job}` lists "
                "those it has"
            )
        bond = challenge_bond(*_terms(store, found, round))
    with NodeClient.of(app.data) as client:
        client.check_challenge(found.id, round, slot)
        with app.progress("running the unit again"):
            value = client.challenge(found.id, round, slot)
    value |= {"verdict": verdict(found.spec.device_class, value["excess_ppb"], 0), "bond": bond}
    app.emit(
        value,
        lambda: (
            f"the claim exceeds rounding by {value['excess_ppb'] / PPB:.2e}: {value['verdict']}, as far as the update "
            f"goes; the sketches of both sides are compared next. {format_credits(bond)} credits are locked until it "
            "ends, and lost if the accusation is wrong"
        ),
    )


def _terms(store: LedgerStore, job: Job, index: int) -> tuple[Network, JobPost, Round]:
    """Return what decides how much a challenge of a unit in a round locks; all three are there where the unit is."""
    network, round_ = record_of(store, Network, "network"), record_of(store, Round, round_key(job.id, index))
    return present(network), job.spec, present(round_)
