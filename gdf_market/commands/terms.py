"""What an owner asks for, besides the program itself: on the command line, in the job file, or by default."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdf_market.errors import UsageError
from gdf_market.units import parse_credits

if TYPE_CHECKING:
    from gdf_market.train.job import Job

DEFAULT_ROUNDS = 10
DEFAULT_PRICE = 1  # credits per unit
# A unit's bond, in prices of a unit.  With the usual audit floor, leaving out a whole unit loses even if the lottery
# alone finds it and work costs its whole price (benchmarks/results/fairness.md; at 9 it broke even).
DEFAULT_BOND_PRICES = 12


@dataclass(frozen=True)
class Terms:
    """What the owner asks for, besides the program itself."""

    max_price: int  # micro-credits, as are bond and audit_fee
    bond: int
    audit_fee: int
    rounds: int = DEFAULT_ROUNDS
    units: int = 4
    min_workers: int = 1
    warm_rounds: int = 0
    shards: int = 16
    merit_percent: float = 20.0
    audit_floor_percent: float = 10.0
    bid_s: int = 20
    work_s: int = 120
    phase_s: int = 60
    audit_s: int = 120
    hold_s: int = 60
    deadline_min: int = 24 * 60
    device_class: str = "cpu-fp32"


# the options of the command line, for who knows them from there
_ALIASES = {f"{name}_seconds": f"{name}_s" for name in ("bid", "work", "phase", "audit", "hold")}
_ALIASES["deadline_minutes"] = "deadline_min"


def terms_of(job: Job, given: dict[str, Any]) -> Terms:
    """Return what is asked for: what is given and not None, else what the job says, else the usual.

    ``max_price``, ``bond`` and ``audit_fee`` are in credits.  Raises UsageError.
    """
    own = {"rounds": job.rounds, "units": job.units, "max_price": job.max_price}
    own["device_class"] = f"cpu-{job.precision}"
    asked = {_ALIASES.get(name, name): value for name, value in given.items() if value is not None}
    chosen = {name: value for name, value in (own | asked).items() if value is not None}
    known = [field.name for field in dataclasses.fields(Terms)]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise UsageError(f"there is no term {', '.join(unknown)}; the terms are {', '.join(known)}")
    rounds, warm = chosen.get("rounds", Terms.rounds), chosen.get("warm_rounds", 0)
    if warm > rounds:
        raise UsageError(f"--warm-rounds {warm} exceeds --rounds {rounds}; lower it")
    price = parse_price(chosen.pop("max_price", None))
    bond, fee = chosen.pop("bond", None), chosen.pop("audit_fee", None)
    return Terms(
        max_price=price,
        bond=DEFAULT_BOND_PRICES * price if bond is None else parse_credits(str(bond)),
        audit_fee=price if fee is None else parse_credits(str(fee)),
        **chosen,
    )


def parse_price(given: object) -> int:
    """Return a price in micro-credits; ``given`` is in credits, or None for the usual.  Raises UsageError."""
    price = parse_credits(str(DEFAULT_PRICE if given is None else given))
    if price == 0:
        raise UsageError("--max-price 0 attracts no worker; give a positive number of credits")
    return price
