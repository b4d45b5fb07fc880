"""The arithmetic of one unit's pay, from records alone; the unit page and ``jobs show --unit`` show it."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.records import Job, Round, Unit
from gdf_market.units import PPM


@dataclass(frozen=True)
class Payment:
    """The arithmetic of one unit's pay, in micro-credits: due = price + merit = held + paid + forfeited."""

    price: int
    accepted: int  # units of the round that were
    merit_ppm: int
    pot: int  # price x accepted x merit_ppm
    share_ppm: int
    merit: int
    due: int
    held: int
    paid: int
    forfeited: int
    release_ms: int


def payment(job: Job, entry: Round, unit: Unit, accepted: int) -> Payment | None:
    """Return the pay of a unit among ``accepted`` units of its round; None when it was not accepted."""
    outcome = entry.outcome
    if outcome is None or unit.slot not in outcome.included or not unit.release_ms:
        return None
    pot = entry.price * accepted * job.spec.merit_ppm // PPM
    share = outcome.merit_ppm[outcome.included.index(unit.slot)]
    merit = pot * share // PPM
    held = unit.held_pay + unit.held_merit
    return Payment(
        price=entry.price,
        accepted=accepted,
        merit_ppm=job.spec.merit_ppm,
        pot=pot,
        share_ppm=share,
        merit=merit,
        due=entry.price + merit,
        held=held,
        paid=unit.paid,
        forfeited=entry.price + merit - held - unit.paid,
        release_ms=unit.release_ms,
    )
