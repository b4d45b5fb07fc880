"""``jobs show JOB --unit ROUND/SLOT``: every number behind one unit's verdict and pay, and where it comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from contracts.draws import compute_audit_chance_ppm
from contracts.parameters import thresholds
from contracts.records import Audit, Dispute, Job, Round, Unit
from contracts.state import State, dispute_key, present, round_key, unit_key
from contracts.views import eligible_auditors
from gdf_market.commands.common import short
from gdf_market.commands.progress import require_job
from gdf_market.errors import UsageError
from gdf_market.units import PPM
from ledger.explorer.payment import payment
from ledger.explorer.present import credits_text, percent, ratio, signed_credits, signed_ratio, utc
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from ledger.tables import EventRow

WIDTH = 60
LABEL = 15
LONGEST_RECORD = 100_000  # valid units in a row that an audit chance is looked for with
MAX_EVENTS = 1_000  # of one worker in one job, newest first
TAKEN = ("slashed", "forfeited")


def parse_unit(text: str) -> tuple[int, int]:
    """Return (round, slot) of ``ROUND/SLOT``.  Raises UsageError."""
    index, slash, slot = text.partition("/")
    if not slash or not (index.isascii() and index.isdigit() and slot.isascii() and slot.isdigit()):
        raise UsageError(f"--unit {text!r} is not ROUND/SLOT; for example 3/0 (rounds and slots count from 0)")
    return int(index), int(slot)


def unit_report(store: LedgerStore, job_id: str, index: int, slot: int) -> dict[str, Any]:
    """Return everything that decided about a unit, as plain JSON values.  Raises UsageError if there is none."""
    job = require_job(store, job_id)
    round_ = record_of(store, Round, round_key(job_id, index))
    unit = record_of(store, Unit, unit_key(job_id, index, slot))
    if round_ is None or unit is None:
        raise UsageError(f"job {job_id[:12]} has no unit {index}/{slot} (yet); `gdf-market jobs show` lists its units")
    audits: list[Audit] = records_of(store, Audit, f"audit/{job_id}/{index}/{slot}/")
    state = store.state()
    return {
        "job": job_id,
        "title": job.spec.title,
        "phase": round_.phase,
        "unit": msgspec.to_builtins(unit),
        "shards": job.spec.shards,
        "chance": _chance(state, job, unit),
        "similarity": _similarity(round_, slot),
        "device_class": job.spec.device_class,
        "thresholds": msgspec.to_builtins(thresholds(job.spec.device_class)),
        "target": next((msgspec.to_builtins(t) for t in round_.targets if t.slot == slot), None),
        "audits": [_audit(audit) for audit in sorted(audits, key=lambda each: (each.committed_ms, each.auditor))],
        "dispute": _dispute(record_of(store, Dispute, dispute_key(job_id, index, slot))),
        "payment": _payment(state, job, round_, unit),
        "taken": _taken(store, unit),
        "audit_fees": sum(audit.fee for audit in audits),
        "reputation": msgspec.to_builtins(state.reputation(unit.worker, job.spec.device_class)),
    }


def _chance(state: State, job: Job, unit: Unit) -> dict[str, Any]:
    """Return the chance of each auditor, of at least one, and which term of the rule gave it."""
    chance, eligible = unit.audit_chance_ppm, len(eligible_auditors(state, unit.job, unit.round, unit.slot))
    floor, origin, record = job.spec.audit_floor_ppm, "", None
    if not chance:
        origin = "not drawn yet" if unit.status == "assigned" else "none"
    elif chance == compute_audit_chance_ppm(floor, LONGEST_RECORD, eligible):
        origin = "floor"
    else:
        same = (k for k in range(LONGEST_RECORD) if compute_audit_chance_ppm(floor, k, eligible) <= chance)
        found = next(same, LONGEST_RECORD)
        if compute_audit_chance_ppm(floor, found, eligible) == chance:
            alerted = job.alert_round and found == max(0, unit.round - job.alert_round)
            origin, record = "alert" if alerted else "record", found
        else:
            origin = "other auditors"  # validators came or went since
    return {
        "each_ppm": chance,
        "any_ppm": round(PPM * (1 - (1 - chance / PPM) ** eligible)),
        "eligible": eligible,
        "floor_ppm": floor,
        "origin": origin,
        "valid_in_a_row": record,
    }


def _similarity(round_: Round, slot: int) -> dict[str, Any] | None:
    outcome = round_.outcome
    if outcome is None:
        return None
    rejected = next((each.reason for each in outcome.rejected if each.slot == slot), "")
    if slot not in outcome.included:
        return {"included": False, "rejected": rejected, "units": len(outcome.included)}
    at = outcome.included.index(slot)
    return {
        "included": True,
        "rejected": "",
        "units": len(outcome.included),
        "cosine_ppm": outcome.cosine_ppm[at],
        "merit_ppm": outcome.merit_ppm[at],
        "suspicion_rank": outcome.suspicion.index(slot) + 1 if slot in outcome.suspicion else None,
        "flags": [msgspec.to_builtins(flag) for flag in outcome.flags if slot in (flag.slot, flag.other)],
    }


def _audit(audit: Audit) -> dict[str, Any]:
    """Return an audit without its sketches: thirty-two numbers each that nobody reads."""
    left_out = ("worker_sketches", "auditor_sketches")
    return {name: value for name, value in msgspec.to_builtins(audit).items() if name not in left_out}


def _dispute(dispute: Dispute | None) -> dict[str, Any] | None:
    if dispute is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(dispute)
    bisection = found.get("bisection")
    if bisection:
        for side in ("worker", "accuser"):
            bisection[side] = {"state": bisection[side]["state"]}
        for arbiter in bisection["arbiters"]:
            del arbiter["sketch"], arbiter["seeded"]
    return found


def _payment(state: State, job: Job, round_: Round, unit: Unit) -> dict[str, Any] | None:
    units = [present(state.unit(round_.job, round_.index, slot)) for slot in round_.units]
    found = payment(job, round_, unit, sum(1 for each in units if each.release_ms))
    return None if found is None else msgspec.to_builtins(found)


def _taken(store: LedgerStore, unit: Unit) -> list[dict[str, Any]]:
    """Return what this unit cost its worker's bond, and who got it, oldest first."""
    place = f"round {unit.round}, slot {unit.slot}"

    def belongs(event: EventRow) -> bool:
        # a conviction or silence names the unit in its reason, at the end or before a colon
        return event.source == "bond" and event.round == -1 and f"{event.reason}:".find(f"{place}:") >= 0

    found = [
        {"kind": event.kind, "amount": event.amount, "to": event.target, "reason": event.reason}
        for kind in TAKEN
        for event in store.events(job=unit.job, account=unit.worker, kind=kind, limit=MAX_EVENTS)
        if event.amount and belongs(event)
    ]
    return found[::-1]


# as text


def unit_text(value: dict[str, Any]) -> str:
    """Return a report for people, at most 60 columns wide."""
    unit = value["unit"]
    sections: Sequence[tuple[str, Iterator[str]]] = (
        (f"unit {unit['round']}/{unit['slot']} of {value['title']}", _claim_lines(value)),
        ("similarity and merit", _similarity_lines(value)),
        ("audits", _audit_lines(value)),
        ("dispute", _dispute_lines(value)),
        ("payment, in credits", _payment_lines(value)),
    )
    blocks = []
    for title, lines in sections:
        if shown := list(lines):
            blocks.append("\n".join([*textwrap.wrap(title, WIDTH), *shown]))
    return "\n\n".join(blocks)


def _line(label: str, text: str) -> str:
    """Return a labelled text; what does not fit goes on below it."""
    wrapped = textwrap.wrap(text, WIDTH - LABEL - 2) or ["-"]
    rest = "".join(f"\n{' ' * (LABEL + 2)}{part}" for part in wrapped[1:])
    return f"  {label:<{LABEL}}{wrapped[0]}{rest}"


def _sum(text: str, amount: str) -> str:
    """Return a row of a sum: what it is, wrapped, with its amount at the right."""
    wrapped = textwrap.wrap(text, WIDTH - 16)
    first = "\n".join(f"  {part}" for part in wrapped[:-1])
    last = f"  {wrapped[-1]:<{WIDTH - 16}} {amount:>13}"
    return f"{first}\n{last}" if first else last


def _claim_lines(value: dict[str, Any]) -> Iterator[str]:
    unit = value["unit"]
    yield _line("job", short(value["job"]))
    yield _line("worker", short(unit["worker"]))
    yield _line("status", "; ".join(filter(None, (unit["status"], unit["reason"]))))
    drawn = f"{unit['shard']} of {value['shards']}, drawn by the worker's VRF" if unit["update"] else "not revealed"
    yield _line("shard", drawn)
    yield _line("audit chance", _chance_text(value["chance"]))
    record = value["reputation"]
    yield _line("record now", f"{record['consecutive']} valid in a row, {record['invalid']} invalid")


def _chance_text(chance: dict[str, Any]) -> str:
    if not chance["each_ppm"]:
        return str(chance["origin"])
    each, together = percent(chance["each_ppm"]), percent(chance["any_ppm"])
    shown = f"{each} for each of {chance['eligible']} auditors, {together} in all: "
    if chance["origin"] == "floor":
        return shown + f"the job's floor of {percent(chance['floor_ppm'])}, divided among them"
    if chance["origin"] == "record":
        count = chance["valid_in_a_row"]
        return shown + f"1 / (1 + {count} valid units in a row) is above the floor of {percent(chance['floor_ppm'])}"
    if chance["origin"] == "alert":
        return shown + "records count for less after a conviction in the job"
    return shown + "auditors have come or gone since it was drawn"


def _similarity_lines(value: dict[str, Any]) -> Iterator[str]:
    found = value["similarity"]
    if found is None:
        yield _line("outcome", f"none agreed on; the round is {value['phase']}")
        return
    if not found["included"]:
        yield _line("not included", found["rejected"] or "its update was not held by enough attesters")
        return
    yield _line("cosine", f"{signed_ratio(found['cosine_ppm'])} with the sum of the others")
    rank = found["suspicion_rank"]
    yield _line("suspicion", f"{rank} of {found['units']}; 1 is audited always" if rank else "not ranked")
    for flag in found["flags"]:
        other = flag["other"] if flag["slot"] == value["unit"]["slot"] else flag["slot"]
        yield _line("flag", f"{flag['reason']} with slot {other} ({signed_ratio(flag['value_ppm'])})")
    yield _line("merit", f"{percent(found['merit_ppm'])} of the round's pot")
    if value["target"] is not None:
        target = value["target"]
        yield _line("named auditor", f"{short(target['auditor'])}, {target['status']}")


def _audit_lines(value: dict[str, Any]) -> Iterator[str]:
    if not value["audits"]:
        yield _line("none", "nobody has audited this unit")
    limits = value["thresholds"]
    for audit in value["audits"]:
        verdict = audit["verdict"] or "no verdict yet"
        yield _line(audit["role"], f"{short(audit['auditor'])}: {audit['status']}, {verdict}")
        if audit["verdict"] and audit["verdict"] != "silent":
            yield _line("  excess", _against(audit["excess_ppb"], limits, "excess"))
            yield _line("  sketch", _against(audit["sketch_distance_ppb"], limits, "sketch"))
            yield _line("  steps opened", ", ".join(map(str, audit["steps"])))
        yield _line("  bond, fee", f"{credits_text(audit['bond'])} locked, {credits_text(audit['fee'])} paid")


def _against(found: int, limits: dict[str, int], what: str) -> str:
    accept, fail = limits[f"{what}_accept"], limits[f"{what}_fail"]
    said = "passes" if found <= accept else "fails" if found > fail else "in doubt"
    return f"{ratio(found)} {said} (to {ratio(accept)} passes, above {ratio(fail)} fails)"


def _dispute_lines(value: dict[str, Any]) -> Iterator[str]:
    dispute = value["dispute"]
    if dispute is None:
        return
    yield _line("status", "; ".join(filter(None, (dispute["status"], dispute["reason"]))))
    yield _line("accuser", short(dispute["accuser"]))
    if dispute["committee"]:
        redrawn = f", redrawn {dispute['attempt']} times" if dispute["attempt"] else ""
        yield _line("committee", ", ".join(map(short, dispute["committee"])) + redrawn)
    bisection = dispute.get("bisection")
    if bisection:
        between = f"agree to step {bisection['low']}, not at {bisection['high']}; {bisection['turns']} turns"
        yield _line("bisection", f"{bisection['phase']}: they {between}")
        for arbiter in bisection["arbiters"]:
            finding = f"for the {arbiter['finding']}" if arbiter["finding"] else "for nobody"
            yield _line("  arbiter", f"{short(arbiter['account'])}: {finding if arbiter['opened'] else 'not opened'}")


def _payment_lines(value: dict[str, Any]) -> Iterator[str]:
    pay = value["payment"]
    if pay is None:
        yield _line("nothing due", "the unit is in no agreed outcome")
    else:
        pot = f"{credits_text(pay['price'])} x {pay['accepted']} units x {percent(pay['merit_ppm'])}"
        yield _sum("clearing price of the round", credits_text(pay["price"]))
        yield _sum(
            f"merit pot {pot} = {credits_text(pay['pot'])}, x {percent(pay['share_ppm'])}", signed_credits(pay["merit"])
        )
        yield _sum("due", credits_text(pay["due"]))
        if pay["held"]:
            yield _sum(f"held until {utc(pay['release_ms'])} or its audits end", credits_text(pay["held"]))
        yield _sum("paid to the worker", credits_text(pay["paid"]))
        yield _sum("taken back", credits_text(pay["forfeited"]))
    for taken in value["taken"]:
        to = "the job's escrow" if taken["to"] == "escrow" else short(taken["to"])
        yield _sum(f"bond {taken['kind']}, to {to}", signed_credits(-taken["amount"]))
    yield _sum("audit fees that the job paid for it", credits_text(value["audit_fees"]))
