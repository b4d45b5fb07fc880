"""How a bisection goes on: worker and accuser open, name their states, and arbiters replay the one step in question.

Rules kept here:
1. Entries only note what was said; an advance compares it.
2. Arbiters are drawn, and the seed of their projection with them, after all that they compare was fixed; they commit
   before anything is opened to them.
3. Whoever is silent loses the bisection nothing but time: then the committee decides.  A silent accuser loses its bond.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from contracts.accounts import Where, audit_escrow, balance, emit, move
from contracts.bisection import (
    ACCUSER,
    WORKER,
    compute_bounds,
    compute_finding,
    compute_half,
    compute_ruling,
    get_middle,
    is_found,
    is_phase_complete,
)
from contracts.draws import CONVICTED, compute_draw, get_arbiter_draw
from contracts.evidence import check_openings
from contracts.judges import get_majority
from contracts.parameters import thresholds
from contracts.records import Arbiter, Audit, Bisection, Dispute, Job, Side, Unit
from contracts.state import Draft, dispute_key, present, require
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import ArbiterCommit, ArbiterOpen, BisectOpen, StateOffer, arbiter_commitment

REFUTED, COMMITTEE = "refuted", "committee"

BisectionBody = BisectOpen | StateOffer | ArbiterCommit | ArbiterOpen


@dataclass(frozen=True)
class End:
    """How a bisection ended: convicted, refuted or committee; ``agreeing`` are the arbiters of the majority."""

    decision: str
    reason: str
    agreeing: tuple[str, ...] = ()
    accuser_silent: bool = False


# entries


def process_bisect_open(draft: Draft, body: BisectOpen) -> None:
    """Take a side's sketch at the middle of what is in question."""
    dispute, bisection, unit = _require_phase(draft, body, "halving")
    side, name = _require_side(draft, body, dispute, unit)
    ensure(not side.middle, RuleError(f"the {name} opened this step already; wait for the other side"))
    middle = get_middle(bisection)
    ensure(body.opening.step == middle, RuleError(f"step {body.opening.step} is opened; step {middle} is asked for"))
    root = unit.sketch_root
    if name == ACCUSER:
        root = present(draft.audit(body.job, body.round, body.slot, body.author)).sketch_root
    opened = check_openings((body.opening,), root, present(draft.job(body.job)).spec.recipe.steps)
    _put_side(draft, unit, bisection, name, msgspec.structs.replace(side, middle=opened[middle]))
    emit(draft, "opened", _where(unit, body.author), reason=f"step {middle} in dispute")


def process_state_offer(draft: Draft, body: StateOffer) -> None:
    """Take the name of a side's state after the last step that both agree on."""
    dispute, bisection, unit = _require_phase(draft, body, "offering")
    side, name = _require_side(draft, body, dispute, unit)
    ensure(not side.state, RuleError(f"the {name} named its state already"))
    _put_side(draft, unit, bisection, name, msgspec.structs.replace(side, state=body.state))
    emit(draft, "opened", _where(unit, body.author), reason=f"state after step {bisection.low}")


def process_arbiter_commit(draft: Draft, body: ArbiterCommit) -> None:
    """Take an arbiter's commitment to what it measured."""
    _, bisection, unit = _require_phase(draft, body, "replaying")
    arbiter = _require_arbiter(bisection, body.author)
    ensure(not arbiter.digest, RuleError(f"{body.author} committed already"))
    _put_arbiter(draft, unit, bisection, msgspec.structs.replace(arbiter, digest=body.digest))
    emit(draft, "auditing", _where(unit, body.author), reason="arbiter")


def process_arbiter_open(draft: Draft, body: ArbiterOpen) -> None:
    """Take an arbiter's opening of what it committed to."""
    _, bisection, unit = _require_phase(draft, body, "opening")
    arbiter = _require_arbiter(bisection, body.author)
    ensure(arbiter.digest != "" and not arbiter.opened, RuleError(f"no commit of {body.author} waits to be opened"))
    numbers = (body.state_distance_ppb, body.excess_ppb, body.sketch, body.seeded)
    found = arbiter_commitment(body.author, *numbers, body.salt)
    ensure(found == arbiter.digest, RuleError(f"the opening hashes to {found}, the commit was {arbiter.digest}"))
    shown = msgspec.structs.replace(
        arbiter,
        opened=True,
        state_distance_ppb=body.state_distance_ppb,
        excess_ppb=body.excess_ppb,
        sketch=body.sketch,
        seeded=body.seeded,
    )
    _put_arbiter(draft, unit, bisection, shown)
    emit(draft, "opened", _where(unit, body.author), reason="arbiter")


def _require_phase(draft: Draft, body: BisectionBody, phase: str) -> tuple[Dispute, Bisection, Unit]:
    dispute = require(
        draft.dispute(body.job, body.round, body.slot), f"no dispute about slot {body.slot} of round {body.round}"
    )
    ensure(dispute.status == "bisecting", RuleError(f"the dispute is {dispute.status}; this needs a bisection"))
    bisection = present(dispute.bisection)
    ensure(bisection.phase == phase, RuleError(f"the bisection is {bisection.phase}; this entry needs {phase}"))
    return dispute, bisection, present(draft.unit(body.job, body.round, body.slot))


def _require_side(draft: Draft, body: BisectOpen | StateOffer, dispute: Dispute, unit: Unit) -> tuple[Side, str]:
    bisection = present(dispute.bisection)
    if body.author == unit.worker:
        return bisection.worker, WORKER
    ensure(body.author == dispute.accuser, RuleError(f"{body.author} is neither worker nor accuser in this dispute"))
    return bisection.accuser, ACCUSER


def _require_arbiter(bisection: Bisection, author: str) -> Arbiter:
    found = next((arbiter for arbiter in bisection.arbiters if arbiter.account == author), None)
    return require(found, f"{author} is no arbiter in this dispute")


def _put(draft: Draft, unit: Unit, bisection: Bisection) -> None:
    draft.update(dispute_key(unit.job, unit.round, unit.slot), bisection=bisection)


def _put_side(draft: Draft, unit: Unit, bisection: Bisection, name: str, side: Side) -> None:
    _put(draft, unit, msgspec.structs.replace(bisection, **{name: side}))


def _put_arbiter(draft: Draft, unit: Unit, bisection: Bisection, changed: Arbiter) -> None:
    arbiters = tuple(changed if each.account == changed.account else each for each in bisection.arbiters)
    _put(draft, unit, msgspec.structs.replace(bisection, arbiters=arbiters))


def _where(unit: Unit, account: str) -> Where:
    return Where(unit.job, unit.round, unit.slot, account)


# advance


def process_bisection_start(draft: Draft, unit: Unit, audit: Audit) -> End | None:
    """Begin with what an audit opened; return how the bisection ended, None if it goes on."""
    spec = _job_of(draft, unit).spec
    limit = thresholds(spec.device_class).sketch_accept
    return _process_next(draft, unit, compute_bounds(audit, spec.recipe.steps, limit))


def process_bisection(draft: Draft, unit: Unit, dispute: Dispute) -> End | None:
    """Advance a bisection when everybody has acted or the deadline passed; return how it ended, None if it goes on."""
    bisection = present(dispute.bisection)
    if not is_phase_complete(bisection) and dispute.phase_end_ms > draft.now:
        return None
    match bisection.phase:
        case "halving" | "offering" if not is_phase_complete(bisection):
            return _get_silence(bisection)
        case "halving":
            limit = thresholds(_job_of(draft, unit).spec.device_class).sketch_accept
            return _process_next(draft, unit, compute_half(bisection, limit))
        case "offering":
            return _process_arbiters_drawn(draft, unit, bisection)
        case "replaying":
            return _process_commits_over(draft, unit, bisection)
        case _:
            return _process_ruling(draft, unit, bisection)


def _job_of(draft: Draft, unit: Unit) -> Job:
    return present(draft.job(unit.job))


def _get_silence(bisection: Bisection) -> End:
    """Return the end of a bisection in which a side did not act in time."""
    silent = [
        name
        for name, side in ((WORKER, bisection.worker), (ACCUSER, bisection.accuser))
        if not (side.middle if bisection.phase == "halving" else side.state)
    ]
    return End(COMMITTEE, f"the {' and the '.join(silent)} kept silent", accuser_silent=ACCUSER in silent)


def _process_next(draft: Draft, unit: Unit, bisection: Bisection) -> End | None:
    """Go on to the next turn, or, where one step is left, to the states, or, from the checkpoint, to the arbiters."""
    if not is_found(bisection):
        _process_phase(draft, unit, bisection, "halving")
    elif bisection.low >= 0:
        _process_phase(draft, unit, bisection, "offering")
    else:
        return _process_arbiters_drawn(draft, unit, bisection)
    return None


def _process_phase(draft: Draft, unit: Unit, bisection: Bisection, phase: str) -> None:
    key = dispute_key(unit.job, unit.round, unit.slot)
    end = draft.now + _job_of(draft, unit).spec.audit_ms
    draft.update(key, phase_end_ms=end, bisection=msgspec.structs.replace(bisection, phase=phase))
    question = f"after {bisection.turns} turns, steps {bisection.low + 1} to {bisection.high}"
    emit(draft, "dispute", _where(unit, unit.worker), reason=f"{phase}: {question}")


def _process_arbiters_drawn(draft: Draft, unit: Unit, bisection: Bisection) -> End | None:
    beacon = draft.context.beacon
    drawn = get_arbiter_draw(draft, unit, beacon)[: draft.network().arbiters]
    if not drawn:
        return End(COMMITTEE, "there is no arbiter")
    if len(drawn) < len(get_majority(draft, unit)):
        return End(COMMITTEE, "there are fewer arbiters than accusers")
    seed = compute_draw("gdf/arbiters-seed", beacon, unit.job, unit.round, unit.slot).hex()
    arbiters = tuple(Arbiter(account=account) for account in drawn)
    named = msgspec.structs.replace(bisection, seed=seed, arbiters=arbiters)
    _process_phase(draft, unit, named, "replaying")
    return None


def _process_commits_over(draft: Draft, unit: Unit, bisection: Bisection) -> End | None:
    committed = sum(bool(arbiter.digest) for arbiter in bisection.arbiters)
    if 2 * committed <= len(bisection.arbiters):
        return End(COMMITTEE, f"{committed} of {len(bisection.arbiters)} arbiters committed")
    _process_phase(draft, unit, bisection, "opening")
    return None


def _process_ruling(draft: Draft, unit: Unit, bisection: Bisection) -> End:
    """Judge what the arbiters opened, and pay those that agree."""
    spec = _job_of(draft, unit).spec
    steps, limits = spec.recipe.steps, thresholds(spec.device_class)
    judged = msgspec.structs.replace(
        bisection,
        arbiters=tuple(
            msgspec.structs.replace(each, finding=compute_finding(bisection, steps, each, limits))
            if each.opened
            else each
            for each in bisection.arbiters
        ),
    )
    ruling = compute_ruling(judged, steps, limits)
    _process_arbiters_paid(draft, unit, judged, ruling.agreeing)
    count = f"{len(ruling.agreeing)} of {len(judged.arbiters)} arbiters"
    place = "the encoding" if judged.high == steps else f"step {judged.high}"
    if ruling.finding == ACCUSER:
        return End(CONVICTED, f"{count} find {place} false", ruling.agreeing)
    if ruling.finding == WORKER:
        return End(REFUTED, f"{count} find {place} right")
    return End(COMMITTEE, f"{count} agree, and find nothing that decides" if ruling.agreeing else "no arbiters agree")


def _process_arbiters_paid(draft: Draft, unit: Unit, bisection: Bisection, agreeing: tuple[str, ...]) -> None:
    """Pay each agreeing arbiter its part of one audit's fee: together they replay less than one audit does."""
    job, price = _job_of(draft, unit), present(draft.round(unit.job, unit.round)).price
    share = min(job.spec.audit_fee, price, job.audit_escrow) // len(bisection.arbiters)
    paid = tuple(
        msgspec.structs.replace(each, fee=share) if each.account in agreeing else each for each in bisection.arbiters
    )
    _put(draft, unit, msgspec.structs.replace(bisection, arbiters=paid))
    for account in agreeing:
        source, target = audit_escrow(unit.job), balance(account)
        move(draft, "audit", source, target, share, where=_where(unit, account), reason="arbiter's fee")
