"""What people say when the ledger asks them: one function for each kind of action, as a node's roles do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from contracts.records import Bisection, Job, Round, Unit
from contracts.state import State, present
from contracts.views import Action
from gdf_market.messages import (
    ArbiterCommit,
    ArbiterOpen,
    AuditCommit,
    AuditOpen,
    BisectOpen,
    Body,
    Commit,
    Outcome,
    Receipt,
    Result,
    Reveal,
    SketchOpen,
    StateOffer,
    arbiter_commitment,
    audit_commitment,
    commitment,
)
from gdf_market.units import PPM
from tests.sim_market.people import FALSE, GREY_EXCESS_PPB, Person
from tests.sim_market.said import Where
from tests.sim_market.truth import (
    FALSE_EXCESS_PPB,
    Task,
    Vectors,
    excess_ppb,
    name_of,
    openings_of,
    outcome_of,
    path_of,
    replay,
    root_of,
    sketches_of,
    text_hash,
    update_of,
)
from verifier.sortition import audit_ticket, draw_shard

if TYPE_CHECKING:
    from tests.sim_market.market import Market

Said = tuple[type[Body], dict[str, Any]]
Act = Callable[["Market", Person, State, Action], Said | None]


def where_of(action: Action) -> Where:
    return action.job, action.round, action.slot


def _at(action: Action) -> dict[str, Any]:
    return {"job": action.job, "round": action.round, "slot": action.slot}


def _unit(state: State, action: Action) -> Unit:
    return present(state.unit(*where_of(action)))


def _job(state: State, job: str) -> Job:
    return present(state.job(job))


def _round(state: State, action: Action) -> Round:
    return present(state.round(action.job, action.round))


def task_of(state: State, unit: Unit, shard: int | None = None) -> Task:
    """Return what a unit computes; a worker knows its shard before it reveals."""
    steps = _job(state, unit.job).spec.recipe.steps
    return Task(unit.job, unit.round, unit.shard if shard is None else shard, steps)


# workers


def reveal_fields(market: Market, person: Person, state: State, action: Action) -> dict[str, str]:
    """Return what a unit reveals; what was really computed is noted for those who must know."""
    spec, round_, unit = _job(state, action.job).spec, _round(state, action), _unit(state, action)
    shard, proof = draw_shard(person.key.seed, *where_of(action), round_.seed, spec.shards)
    task = task_of(state, unit, shard)
    flavour = market.flavour_of(person, task, action.slot)
    update = update_of(task, flavour)
    market.blobs[name_of(update)] = update
    market.note_unit(where_of(action), person, flavour)
    return {
        "update": name_of(update),
        "proof": proof,
        "sketch_root": root_of(sketches_of(task, flavour, person.account)),
        "salt": text_hash("salt", person.account, *where_of(action)),
    }


def act_commit(market: Market, person: Person, state: State, action: Action) -> Said:
    digest = commitment(person.account, **reveal_fields(market, person, state, action))
    person.noted.add(("unit", *where_of(action)))
    return Commit, {**_at(action), "digest": digest}


def act_reveal(market: Market, person: Person, state: State, action: Action) -> Said | None:
    if ("unit", *where_of(action)) in person.lost:
        return None
    return Reveal, {**_at(action), **reveal_fields(market, person, state, action)}


def act_sketch_open(market: Market, person: Person, state: State, action: Action) -> Said | None:
    if ("unit", *where_of(action)) in person.lost:
        return None
    shown = _own_sketches(market, person, state, action)
    return SketchOpen, {**_at(action), "openings": openings_of(shown, action.steps)}


def _own_flavour(market: Market, person: Person, state: State, action: Action) -> str:
    """Return the path that somebody walked, as the worker of a unit or as an auditor."""
    unit = _unit(state, action)
    if unit.worker == person.account:
        return market.made[where_of(action)].flavour
    return market.judged_flavour(person, unit)


def _own_sketches(market: Market, person: Person, state: State, action: Action) -> tuple[tuple[int, ...], ...]:
    task = task_of(state, _unit(state, action))
    return sketches_of(task, _own_flavour(market, person, state, action), person.account)


# attesters


def act_receipt(market: Market, person: Person, state: State, action: Action) -> Said:
    round_ = _round(state, action)
    units = [present(state.unit(action.job, action.round, slot)) for slot in round_.units]
    holds = tuple(unit.slot for unit in units if unit.status == "revealed" and market.holds(person, unit))
    return Receipt, {"job": action.job, "round": action.round, "holds": holds}


def act_result(market: Market, person: Person, state: State, action: Action) -> Said | None:
    round_ = _round(state, action)
    units = [present(state.unit(action.job, action.round, slot)) for slot in round_.included]
    updates = tuple((unit.slot, unit.shard, market.blobs[unit.update].astype("<i8").tobytes()) for unit in units)
    outcome = outcome_of(action.job, action.round, updates)
    if outcome is None:
        return None
    if person.character.stuffs:
        own = next((unit.slot for unit in units if unit.worker == person.account), None)
        outcome = _stuffed(outcome, own)
    return Result, {"job": action.job, "round": action.round, "outcome": outcome, "loss_e6": -1}


def _stuffed(outcome: Outcome, own: int | None) -> Outcome:
    """Return an outcome of another checkpoint in which one slot has all the merit, and nobody is suspected."""
    shares = tuple(PPM if slot == own else 0 for slot in outcome.included)
    return msgspec.structs.replace(
        outcome, checkpoint=text_hash("stuffed", outcome.checkpoint), merit_ppm=shares, suspicion=(), flags=()
    )


# auditors


def audit_fields(market: Market, person: Person, state: State, action: Action) -> dict[str, Any]:
    """Return what an audit opens: the truth by re-execution, or what the person claims instead."""
    unit = _unit(state, action)
    task, flavour = task_of(state, unit), market.judged_flavour(person, unit)
    excess = excess_ppb(unit.update, task, flavour)
    if market.is_mate(person, unit.worker):
        excess = 1_000
    elif person.character.lies == "doubt":
        excess = GREY_EXCESS_PPB
    elif person.character.lies == "slander":
        excess = FALSE_EXCESS_PPB
    return {
        "excess_ppb": excess,
        "distance_ppb": excess,
        "sketch_root": root_of(sketches_of(task, flavour, person.account)),
        "salt": text_hash("audit salt", person.account, *where_of(action)),
    }


def ticket_of(person: Person, state: State, action: Action) -> str | None:
    """Return the proof that a person audits a unit, None if it does not."""
    where = where_of(action)
    if where not in person.tickets:
        seed, unit = _round(state, action).audit_seed, _unit(state, action)
        person.tickets[where] = audit_ticket(person.key.seed, *where, seed, unit.audit_chance_ppm)
    return person.tickets[where]


def act_audit(market: Market, person: Person, state: State, action: Action) -> Said | None:
    role, proof = action.kind.removeprefix("audit_"), ""
    if role == "lottery":
        found = ticket_of(person, state, action) if person.character.lottery else None
        if found is None:
            return None
        proof = found
    digest = audit_commitment(person.account, **audit_fields(market, person, state, action))
    person.noted.add(("audit", *where_of(action)))
    return AuditCommit, {**_at(action), "role": role, "proof": proof, "digest": digest}


def act_audit_open(market: Market, person: Person, state: State, action: Action) -> Said | None:
    if ("audit", *where_of(action)) in person.lost:
        return None
    shown = _own_sketches(market, person, state, action)
    opened = openings_of(shown, action.steps)
    return AuditOpen, {**_at(action), **audit_fields(market, person, state, action), "openings": opened}


# the two sides of a bisection, and arbiters


def _is_lost(person: Person, state: State, action: Action) -> bool:
    kind = "unit" if _unit(state, action).worker == person.account else "audit"
    return (kind, *where_of(action)) in person.lost


def act_bisect_open(market: Market, person: Person, state: State, action: Action) -> Said | None:
    if _is_lost(person, state, action):
        return None
    (opening,) = openings_of(_own_sketches(market, person, state, action), action.steps)
    return BisectOpen, {**_at(action), "opening": opening}


def act_state_offer(market: Market, person: Person, state: State, action: Action) -> Said | None:
    if _is_lost(person, state, action):
        return None
    flavour = _own_flavour(market, person, state, action)
    vector = path_of(task_of(state, _unit(state, action)), flavour)[action.steps[0] - 1]
    if person.character.false_states:
        vector = vector + 12_345
    market.blobs[name_of(vector)] = vector
    return StateOffer, {**_at(action), "state": name_of(vector)}


def arbiter_fields(market: Market, person: Person, state: State, action: Action) -> dict[str, Any]:
    """Return what an arbiter measured, or says that it did."""
    unit, bisection = _unit(state, action), _bisection(state, action)
    named = (bisection.worker.state, bisection.accuser.state)
    states = [market.blobs[name] for name in named if name]
    task, flavour = task_of(state, unit), market.judged_flavour(person, unit)
    found = replay(task, flavour, person.account, bisection.low, bisection.high, states, bisection.seed)
    vouches = market.is_mate(person, unit.worker)
    excess = 0
    if bisection.high == task.steps:
        excess = _encoding_excess(unit, states[0])
        if vouches:
            excess = 1_000
        elif person.character.lies:
            excess = FALSE_EXCESS_PPB
    return {
        "state_distance_ppb": 0 if vouches or flavour == FALSE else found.state_distance_ppb,
        "excess_ppb": excess,
        "sketch": found.sketch,
        "seeded": found.seeded,
        "salt": text_hash("arbiter salt", person.account, *where_of(action), bisection.seed),
    }


def _bisection(state: State, action: Action) -> Bisection:
    return present(present(state.dispute(*where_of(action))).bisection)


def _encoding_excess(unit: Unit, last: Vectors) -> int:
    return 1_000 if unit.update == name_of(np.asarray(last)) else FALSE_EXCESS_PPB


def act_arbiter_commit(market: Market, person: Person, state: State, action: Action) -> Said:
    fields = arbiter_fields(market, person, state, action)
    numbers = (fields["state_distance_ppb"], fields["excess_ppb"], fields["sketch"], fields["seeded"])
    return ArbiterCommit, {**_at(action), "digest": arbiter_commitment(person.account, *numbers, fields["salt"])}


def act_arbiter_open(market: Market, person: Person, state: State, action: Action) -> Said:
    return ArbiterOpen, {**_at(action), **arbiter_fields(market, person, state, action)}


ACTS: dict[str, Act] = {
    "commit": act_commit,
    "reveal": act_reveal,
    "receipt": act_receipt,
    "result": act_result,
    "audit_lottery": act_audit,
    "audit_targeted": act_audit,
    "audit_committee": act_audit,
    "audit_challenge": act_audit,
    "sketch_open": act_sketch_open,
    "audit_open": act_audit_open,
    "bisect_open": act_bisect_open,
    "state_offer": act_state_offer,
    "arbiter_commit": act_arbiter_commit,
    "arbiter_open": act_arbiter_open,
}
