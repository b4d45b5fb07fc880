"""Draws by the beacon, and who may audit whom."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.parameters import EVERYBODYS_CLASSES
from contracts.records import Job, Round, Unit
from contracts.state import View, present
from gdf_market.codec import digest

CONVICTED = "convicted"  # how the reason of a convicted worker's bid begins


def compute_draw(tag: str, beacon: str, *parts: str | int) -> bytes:
    """Return the 32 bytes that the beacon draws for a purpose and a position."""
    return digest(tag, bytes.fromhex(beacon), *(str(part).encode() for part in parts))


def compute_draw_order(accounts: Iterable[str], tag: str, beacon: str, *parts: str | int) -> list[str]:
    """Return accounts in the order the beacon draws them."""
    return sorted(accounts, key=lambda account: compute_draw(tag, beacon, *parts, account))


def get_round_workers(view: View, round_: Round) -> list[str]:
    """Return the distinct workers of a round in slot order."""
    units = (present(view.unit(round_.job, round_.index, slot)) for slot in round_.units)
    return list(dict.fromkeys(unit.worker for unit in units))


def is_in_class(view: View, account: str, device_class: str) -> bool:
    """Say whether an account declared that it can audit a device class; without a word from it, what every CPU can."""
    auditor = view.auditor(account)
    return device_class in (EVERYBODYS_CLASSES if auditor is None else auditor.classes)


def is_able(view: View, round_: Round, account: str) -> bool:
    """Say whether an account can reproduce a round's units: it worked in it, or is in the job's device class."""
    device_class = present(view.job(round_.job)).spec.device_class
    return is_in_class(view, account, device_class) or account in get_round_workers(view, round_)


def get_candidates(view: View, round_: Round, worker: str) -> list[str]:
    """Return who could ever judge a unit of ``worker`` in this round: validators of its class, then other workers."""
    device_class = present(view.job(round_.job)).spec.device_class
    validators = (account for account in view.network().validators if is_in_class(view, account, device_class))
    candidates = dict.fromkeys((*validators, *get_round_workers(view, round_)))
    candidates.pop(worker, None)
    return list(candidates)


def get_eligible_auditors(view: View, round_: Round, worker: str) -> list[str]:
    """Return who may audit a unit of ``worker``: the candidates that are neither convicted nor barred in the job."""
    return [account for account in get_candidates(view, round_, worker) if may_judge(view, round_.job, account)]


def is_convicted(view: View, job: str, account: str) -> bool:
    """Say whether an account was convicted in a job."""
    bid = view.bid(job, account)
    return bid is not None and bid.reason.startswith(CONVICTED)


def is_barred(view: View, job: str, account: str) -> bool:
    """Say whether an account accused somebody wrongly in a job, and so judges nothing in it any more."""
    judge = view.judge(job, account)
    return judge is not None and judge.barred


def may_judge(view: View, job: str, account: str) -> bool:
    """Say whether an account is neither convicted nor barred in a job."""
    return not is_barred(view, job, account) and not is_convicted(view, job, account)


def get_auditor_draw(view: View, unit: Unit, beacon: str, tag: str, attempt: int) -> list[str]:
    """Return who can be called to audit a unit, in the order of the draw.

    Left out: whoever audited it already, is convicted or barred in this job, or cannot lock the bond.
    """
    round_ = present(view.round(unit.job, unit.round))
    bond = view.network().audit_bond
    able = [
        account
        for account in get_eligible_auditors(view, round_, unit.worker)
        if account not in unit.auditors and view.account(account).balance >= bond
    ]
    return compute_draw_order(able, tag, beacon, unit.job, unit.round, unit.slot, attempt)


def get_arbiter_draw(view: View, unit: Unit, beacon: str) -> list[str]:
    """Return who can replay a step of a unit in dispute, in the order of the draw.

    Left out: whoever accused it, rightly or not, and whoever is convicted or barred in this job.  Others that audited
    it stay in, or a small network had nobody left; and no bond is locked.
    """
    round_ = present(view.round(unit.job, unit.round))
    audits = (present(view.audit(unit.job, unit.round, unit.slot, auditor)) for auditor in unit.auditors)
    accusers = {audit.auditor for audit in audits if audit.verdict in ("grey", "fail")}
    able = [account for account in get_eligible_auditors(view, round_, unit.worker) if account not in accusers]
    return compute_draw_order(able, "gdf/arbiters", beacon, unit.job, unit.round, unit.slot)


def compute_audit_chance_ppm(floor_ppm: int, consecutive: int, eligible: int) -> int:
    """Return one auditor's chance to audit a unit: max(floor, 1 / (1 + consecutive)) / eligible, rounded up."""
    if eligible == 0:
        return 0
    base = max(floor_ppm, -(-1_000_000 // (1 + consecutive)))
    return -(-base // eligible)


def compute_counted_record(consecutive: int, alert_round: int, round_index: int) -> int:
    """Return the valid units in a row that count: after a conviction in the job, no more than rounds have passed.

    Whoever is caught is seldom alone, and the others' records are as good.
    """
    return min(consecutive, max(0, round_index - alert_round)) if alert_round else consecutive


def compute_opened_steps(beacon: str, unit: Unit, auditor: str, steps: int, count: int) -> tuple[int, ...]:
    """Return the steps to open, ascending: the last one and up to ``count - 1`` distinct others."""
    others = list(range(steps - 1))
    chosen = {steps - 1}
    for turn in range(min(count - 1, len(others))):
        drawn = compute_draw("gdf/audit-steps", beacon, unit.job, unit.round, unit.slot, auditor, turn)
        chosen.add(others.pop(int.from_bytes(drawn, "big") % len(others)))
    return tuple(sorted(chosen))


def get_held_workers(job: Job) -> list[str]:
    """Return the distinct workers that hold slots, in slot order."""
    return list(dict.fromkeys(worker for worker in job.slots if worker))
