"""Does the simulation of markets prove anything?  Each promise of the rules is broken in turn; a few seeds must notice.

``python -m tests.sim_market.mutations`` prints which seed noticed what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from contracts import accounts, auction, audits, bisecting, bisection, disputes, epochs, jobs, phases, settle
from contracts.bisection import ACCUSER, WORKER, Ruling
from contracts.records import Audit, Bid, Job, Unit
from contracts.state import Draft, job_key, present, unit_key_of
from gdf_market.messages import JobPost, Outcome
from tests.sim.memory import InvariantError
from tests.sim_market.runs import is_network, run_seed

SEEDS = 60  # in which a mutation must be noticed
Patch = pytest.MonkeyPatch


def _everywhere(patch: Patch, name: str, mutated: Callable[..., Any]) -> None:
    """Replace a function in every module of the rules that calls it."""
    modules = (accounts, audits, auction, bisecting, disputes, epochs, jobs, phases, settle)
    holders = [module for module in modules if hasattr(module, name)]
    assert holders, name
    for module in holders:
        patch.setattr(module, name, mutated)


def pay_twice(patch: Patch) -> None:
    def released(draft: Draft, unit: Unit) -> None:
        original(draft, unit)
        job = present(draft.job(unit.job))
        pay = min(unit.held_pay, job.escrow)
        accounts.move(draft, "paid", accounts.escrow(job.id), accounts.balance(unit.worker), pay)

    original = settle.process_unit_released
    _everywhere(patch, "process_unit_released", released)


def pay_more_than_the_price(patch: Patch) -> None:
    original = settle.process_unit_accepted
    _everywhere(
        patch,
        "process_unit_accepted",
        lambda draft, unit, pay, merit: original(
            draft, unit, pay + (present(draft.job(unit.job)).escrow > pay + merit), merit
        ),
    )


def keep_bonds(patch: Patch) -> None:
    _everywhere(patch, "process_bond", lambda draft, job_id, worker: None)


def forget_the_refund(patch: Patch) -> None:
    original = accounts.move

    def move(draft: Draft, kind: str, *arguments: Any, **options: Any) -> None:
        if kind != "refund":
            original(draft, kind, *arguments, **options)

    patch.setattr(jobs, "move", move)


def lock_too_little(patch: Patch) -> None:
    original = jobs.escrow_of

    def escrow_of(spec: JobPost) -> tuple[int, int]:
        pay, budget = original(spec)
        return pay - 1, budget

    patch.setattr(jobs, "escrow_of", escrow_of)


def count_no_misses(patch: Patch) -> None:
    patch.setattr(phases, "_count_misses", lambda draft, round_, worker: None)


def ignore_twins(patch: Patch) -> None:
    def compute_targets(outcome: Outcome) -> list[int]:
        return list(outcome.suspicion[:1])

    patch.setattr(audits, "compute_targets", compute_targets)


def convict_by_one_arbiter(patch: Patch) -> None:
    original = bisection.compute_ruling

    def compute_ruling(found: Any, steps: int, limits: Any) -> Ruling:
        accusing = [each.account for each in found.arbiters if each.finding == ACCUSER]
        return Ruling(ACCUSER, tuple(accusing)) if accusing else original(found, steps, limits)

    patch.setattr(bisecting, "compute_ruling", compute_ruling)


def convict_by_accusation(patch: Patch) -> None:
    def compute_ruling(found: Any, steps: int, limits: Any) -> Ruling:
        return Ruling(ACCUSER, ())

    patch.setattr(bisecting, "compute_ruling", compute_ruling)


def acquit_everybody(patch: Patch) -> None:
    def compute_ruling(found: Any, steps: int, limits: Any) -> Ruling:
        return Ruling(WORKER, ())

    patch.setattr(bisecting, "compute_ruling", compute_ruling)


def pay_the_silent(patch: Patch) -> None:
    original = settle.process_audit_closed

    def closed(draft: Draft, audit: Audit, status: str, *, fee: bool, forfeit: bool = False) -> None:
        original(draft, audit, status, fee=fee or status == "late", forfeit=forfeit)

    _everywhere(patch, "process_audit_closed", closed)


def forfeit_without_cause(patch: Patch) -> None:
    original = settle.process_audit_closed

    def closed(draft: Draft, audit: Audit, status: str, *, fee: bool, forfeit: bool = False) -> None:
        original(draft, audit, status, fee=fee, forfeit=forfeit or audit.verdict == "pass")

    _everywhere(patch, "process_audit_closed", closed)


def dearest_first(patch: Patch) -> None:
    original = auction.get_open_bids

    def get_open_bids(draft: Draft, job: Job) -> list[Bid]:
        return original(draft, job)[::-1]

    _everywhere(patch, "get_open_bids", get_open_bids)


def never_expire(patch: Patch) -> None:
    patch.setattr(jobs, "_process_deadline", lambda draft, job: None)


def hold_nothing(patch: Patch) -> None:
    original = settle.process_unit_accepted

    def accepted(draft: Draft, unit: Unit, pay: int, merit: int) -> None:
        original(draft, unit, pay, merit)
        key = unit_key_of(unit)
        draft.update(key, status="paid", held_pay=0, held_merit=0)
        job = present(draft.job(unit.job))  # what was held is nobody's any more
        draft.put(job_key(job.id), msgspec.structs.replace(job, unsettled=tuple(k for k in job.unsettled if k != key)))

    _everywhere(patch, "process_unit_accepted", accepted)


@dataclass(frozen=True)
class Case:
    """A promise, and a change of the rules that breaks it."""

    promise: str
    mutate: Callable[[Patch], None]
    first: int = 0  # seed to begin with


CASES = {
    case.mutate.__name__.replace("_", " "): case
    for case in (
        Case("nobody is paid twice for a unit", pay_twice),
        Case("a unit is paid at the clearing price", pay_more_than_the_price),
        Case("no bond is locked for ever", keep_bonds),
        Case("the owner gets back what was not spent", forget_the_refund),
        Case("the escrow covers every round from the start", lock_too_little),
        Case("two missed rounds in a row free the slot", count_no_misses, first=11),
        Case("twins are audited", ignore_twins, first=19),
        Case("one arbiter convicts nobody", convict_by_one_arbiter, first=150),
        Case("an accusation alone convicts nobody", convict_by_accusation, first=24),
        Case("a cheat that was found is convicted", acquit_everybody),
        Case("fees are for audits that were opened", pay_the_silent),
        Case("an auditor that was right keeps its bond", forfeit_without_cause),
        Case("who asks for less is served first", dearest_first),
        Case("a job ends by its deadline", never_expire, first=27),
        Case("credits are neither made nor lost", hold_nothing),
    )
}


@dataclass(frozen=True)
class Notice:
    """Which seed noticed, after how many, and how."""

    seed: int
    tried: int
    invariant: str


def first_to_notice(case: Case) -> Notice | None:
    """Return the first seed that breaks an invariant under a mutation; whole networks are left out for their cost."""
    seeds = [seed for seed in range(case.first, case.first + 2 * SEEDS) if not is_network(seed)][:SEEDS]
    with pytest.MonkeyPatch.context() as patch:
        case.mutate(patch)
        for tried, seed in enumerate(seeds, 1):
            try:
                run_seed(seed)
            except InvariantError as error:
                return Notice(seed, tried, str(error).partition(" (")[0][:110])
    return None


def main() -> int:
    found = {name: first_to_notice(case) for name, case in CASES.items()}
    for name, notice in found.items():
        print(f"{name}: {notice or f'not noticed by {SEEDS} seeds'}")
    return 1 if None in found.values() else 0


if __name__ == "__main__":
    sys.exit(main())
