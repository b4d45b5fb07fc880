"""Rounds: how one starts, and what workers and attesters say in it: commits, reveals, receipts, results.

Rules kept here:
1. Entries only note what was said; what follows from it is decided in the advance of a later block (phases.py).
2. Everybody speaks once per phase, and only in the phase that asks for it.
"""

from __future__ import annotations

import msgspec

from contracts.accounts import Where, emit, where_unit
from contracts.auction import get_open_bids, process_leftover_bids, process_uncovered_slots, process_vacancies
from contracts.draws import get_held_workers
from contracts.parameters import MAX_UNSETTLED
from contracts.records import Job, Round, Unit
from contracts.state import Draft, View, job_key, present, require, round_key, unit_key
from gdf_market import identity, vrf
from gdf_market.codec import digest, encode
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import Commit, JobPost, Outcome, Receipt, Recipe, Result, Reveal, commitment, draw, shard_alpha
from gdf_market.units import PPM, format_credits


def get_units(view: View, round_: Round) -> list[Unit]:
    """Return the round's units in slot order."""
    return [present(view.unit(round_.job, round_.index, slot)) for slot in round_.units]


def get_slots(view: View, round_: Round, status: str) -> list[int]:
    """Return the slots of units with a status, ascending."""
    return [unit.slot for unit in get_units(view, round_) if unit.status == status]


def _require_phase(draft: Draft, body: Commit | Reveal | Receipt | Result, phase: str) -> Round:
    round_ = require(draft.round(body.job, body.round), f"no round {body.round} of job {body.job}")
    ensure(
        round_.phase == phase,
        RuleError(f"round {body.round} is in phase {round_.phase}; a {type(body).__name__.lower()} needs {phase}"),
    )
    return round_


def _require_unit(draft: Draft, body: Commit | Reveal, status: str) -> Unit:
    unit = require(draft.unit(body.job, body.round, body.slot), f"no unit in slot {body.slot} of round {body.round}")
    ensure(unit.worker == body.author, RuleError(f"slot {body.slot} is {unit.worker}'s, not {body.author}'s"))
    ensure(unit.status == status, RuleError(f"the unit in slot {body.slot} is {unit.status}, not {status}"))
    return unit


def process_commit(draft: Draft, body: Commit) -> None:
    """Take a worker's hidden claim that a unit is done."""
    _require_phase(draft, body, "work")
    unit = _require_unit(draft, body, "assigned")
    draft.update(unit_key(body.job, body.round, body.slot), status="committed", commit=body.digest)
    emit(draft, "committed", where_unit(unit))


def process_reveal(draft: Draft, body: Reveal) -> None:
    """Open a commit: the update, and the shard that the worker's own VRF drew."""
    round_ = _require_phase(draft, body, "reveal")
    unit = _require_unit(draft, body, "committed")
    found = commitment(body.author, body.update, body.proof, body.sketch_root, body.salt)
    ensure(found == unit.commit, RuleError(f"the reveal hashes to {found}, the commit was {unit.commit}"))
    alpha = shard_alpha(body.job, body.round, body.slot, round_.seed)
    spec = present(draft.job(body.job)).spec
    most = spec.recipe.batch
    ensure(body.rows < most, RuleError(f"{body.rows} rows at once are no part of a batch of {most}; 0 means all"))
    beta = vrf.verify(identity.public_key(body.author), alpha, bytes.fromhex(body.proof))
    draft.update(
        unit_key(body.job, body.round, body.slot),
        status="revealed",
        update=body.update,
        sketch_root=body.sketch_root,
        rows=body.rows,
        processes=body.processes,
        shard=draw(beta, spec.shards),
    )
    emit(draft, "revealed", where_unit(unit))


def process_receipt(draft: Draft, body: Receipt) -> None:
    """Note which revealed updates an attester holds."""
    round_ = _require_phase(draft, body, "receipt")
    _check_attester(round_, body.author, dict(round_.receipts))
    ensure(list(body.holds) == sorted(set(body.holds)), RuleError(f"slots {list(body.holds)} are not ascending"))
    unknown = set(body.holds) - set(get_slots(draft, round_, "revealed"))
    ensure(not unknown, RuleError(f"slots {sorted(unknown)} revealed nothing in this round"))
    draft.update(round_key(body.job, body.round), receipts=(*round_.receipts, (body.author, body.holds)))


def _check_attester(round_: Round, account: str, said: dict[str, object]) -> None:
    ensure(account in round_.attesters, RuleError(f"{account} is no attester of round {round_.index}"))
    ensure(account not in said, RuleError(f"{account} attested to round {round_.index} in this phase already"))


def process_result(draft: Draft, body: Result) -> None:
    """Note an attester's vote for an outcome."""
    round_ = _require_phase(draft, body, "result")
    _check_attester(round_, body.author, dict(round_.results))
    _check_outcome(round_, body.outcome)
    name = digest("gdf/outcome", encode(body.outcome)).hex()
    outcomes = dict(round_.outcomes) | {name: body.outcome}
    draft.update(
        round_key(body.job, body.round),
        results=(*round_.results, (body.author, name)),
        outcomes=tuple(outcomes.items()),
        losses=(*round_.losses, (body.author, body.loss_e6)),
    )


def _check_outcome(round_: Round, outcome: Outcome) -> None:
    included, rejected = list(outcome.included), [each.slot for each in outcome.rejected]
    ensure(
        included == sorted(set(included)) and rejected == sorted(set(rejected)),
        RuleError("the slots of an outcome are distinct and ascending"),
    )
    ensure(
        sorted(included + rejected) == list(round_.included),
        RuleError(f"the outcome decides on slots {sorted(included + rejected)}; in are {list(round_.included)}"),
    )
    ensure(
        len(outcome.merit_ppm) == len(included) and sum(outcome.merit_ppm) <= PPM,
        RuleError(f"{len(outcome.merit_ppm)} merit shares of {sum(outcome.merit_ppm)} ppm for {len(included)} slots"),
    )
    ensure(
        len(outcome.cosine_ppm) == len(included),
        RuleError(f"{len(outcome.cosine_ppm)} cosines for {len(included)} slots"),
    )
    ensure(
        len(set(outcome.suspicion)) == len(outcome.suspicion) and set(outcome.suspicion) <= set(included),
        RuleError(f"suspicion names slots {list(outcome.suspicion)}; included are {included}"),
    )
    flagged = {slot for flag in outcome.flags for slot in (flag.slot, flag.other)}
    ensure(flagged <= set(included), RuleError(f"flags name slots {sorted(flagged)}; included are {included}"))


def process_round_start(draft: Draft, job_id: str) -> None:
    """Start the next round; below the least number of workers, go back to bidding."""
    process_uncovered_slots(draft, job_id)
    process_vacancies(draft, job_id)
    job = present(draft.job(job_id))
    workers = get_held_workers(job)
    if len(workers) < job.spec.min_workers:
        reason = f"has {len(workers)} of the {job.spec.min_workers} workers it needs"
        end = draft.now + job.spec.bid_ms
        draft.update(job_key(job_id), status="bidding", phase_end_ms=end, reason=reason)
        emit(draft, "bidding", Where(job_id), reason=reason)
        return
    process_leftover_bids(draft, job_id, get_open_bids(draft, job))
    _start_round(draft, job)


def is_warm(spec: JobPost, done: int) -> bool:
    """Say whether the round after ``done`` completed ones is a warm round: one worker's ordinary steps.

    Averaging pays from a start that is past its first, steep descent (DiLoCo, section 3.1, starts from a pretrained
    model); until there, more workers add little.
    """
    return done < spec.warm_rounds


def get_recipe(spec: JobPost, round_: Round) -> Recipe:
    """Return the recipe of a round: the outer step of a warm round takes its one update as it is."""
    if not is_warm(spec, round_.done):
        return spec.recipe
    return msgspec.structs.replace(spec.recipe, outer_lr_ppm=PPM, outer_momentum_ppm=0)


def can_start_round(job: Job) -> bool:
    """Say whether the job may have more units whose pay is held."""
    return len(job.unsettled) + job.spec.units_per_round <= MAX_UNSETTLED


def _start_round(draft: Draft, job: Job) -> None:
    beacon = bytes.fromhex(draft.context.beacon)
    seed = digest("gdf/round-seed", beacon, bytes.fromhex(job.id), job.round.to_bytes(8, "big"))
    slots = tuple(slot for slot, worker in enumerate(job.slots) if worker)
    if is_warm(job.spec, job.completed):
        slots = (slots[int.from_bytes(seed, "big") % len(slots)],)
    round_ = Round(
        job=job.id,
        index=job.round,
        phase="work",
        started_ms=draft.now,
        phase_end_ms=draft.now + job.spec.work_ms,
        seed=seed.hex(),
        checkpoint=job.checkpoint,
        price=job.clearing_price,
        units=slots,
        done=job.completed,
    )
    draft.put(round_key(job.id, job.round), round_)
    for slot in slots:
        unit = Unit(job=job.id, round=job.round, slot=slot, worker=job.slots[slot], status="assigned")
        draft.put(unit_key(job.id, job.round, slot), unit)
    reason = f"{len(slots)} units at {format_credits(round_.price)} credits"
    emit(draft, "round", Where(job.id, job.round), reason=reason)


def process_expulsion(draft: Draft, job_id: str, worker: str, reason: str) -> None:
    """Take a convicted worker out of the round under way: its units do not count, nor do its statements."""
    job = present(draft.job(job_id))
    round_ = draft.round(job_id, job.round)
    if round_ is None:
        return
    for unit in get_units(draft, round_):
        if unit.worker == worker and unit.status in ("assigned", "committed", "revealed"):
            draft.update(unit_key(unit.job, unit.round, unit.slot), status="convicted", reason=reason)
            emit(draft, "convicted", where_unit(unit), reason=reason)
    draft.update(
        round_key(job_id, job.round),
        attesters=tuple(account for account in round_.attesters if account != worker),
        receipts=tuple(pair for pair in round_.receipts if pair[0] != worker),
        results=tuple(pair for pair in round_.results if pair[0] != worker),
        losses=tuple(pair for pair in round_.losses if pair[0] != worker),
    )
