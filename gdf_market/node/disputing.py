"""A bisection as worker, accuser or arbiter: opens sketches, gives states away, replays the step in question.

A side's state is not kept while it trains or audits: it runs the unit's first steps again, in the same parts, and so
arrives at the same bytes.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import trio

from contracts.parameters import DISTANCE_CAP_PPB
from contracts.records import Bisection, Unit
from contracts.views import Action
from gdf_market.errors import OversizedError, PeerError, RuleError, ensure
from gdf_market.messages import (
    SKETCH_DIM,
    ArbiterCommit,
    ArbiterOpen,
    BisectOpen,
    Body,
    StateOffer,
    arbiter_commitment,
)
from gdf_market.node.context import NodeContext
from gdf_market.node.journal import ArbiterNote, AuditNote, UnitNote
from gdf_market.node.runner_process import RequestFailedError
from gdf_market.node.trainer import AuditResult, ReplayResult
from gdf_market.node.unit_files import UnitFiles
from gdf_market.train.errors import DivergedError
from gdf_market.train.protocol import UnitParts
from gdf_market.train.unit_state import StateError, most_state_bytes
from verifier.sketch import openings

LIE = "lie"  # of the test-only ways to cheat, the one of an auditor
LIE_EXCESS_PPB = 100_000_000  # a tenth: fails in every device class

# What the runner raises for a state from which no step can be run, on any machine.
_MALFORMED = frozenset({StateError.__name__, OversizedError.__name__, DivergedError.__name__})
_NOTHING = (0,) * SKETCH_DIM
# What all arbiters say of such a state, so that they agree: no finding, and the committee decides.
MALFORMED = ReplayResult(DISTANCE_CAP_PPB, _NOTHING, _NOTHING, 0)

log = structlog.get_logger("gdf.disputing")


class _MalformedStateError(PeerError):
    """A side offered a state from which the step cannot be run."""


def make_lie(run: AuditResult) -> AuditResult:
    """Return what a lying auditor says it found: another path from the middle of the unit on."""
    middle = len(run.sketches) // 2
    other = tuple(tuple(-value for value in sketch) for sketch in run.sketches[middle:])
    return replace(run, excess_ppb=LIE_EXCESS_PPB, sketches=(*run.sketches[:middle], *other))


class Disputing:
    """Carries out the actions of a bisection; each raises GdfError and is then tried again."""

    def __init__(self, context: NodeContext, files: UnitFiles) -> None:
        self._context, self._files = context, files

    async def open_middle(self, action: Action) -> None:
        """Open the own sketch at the step that is asked for."""
        (opening,) = openings(self._note(action).sketches, action.steps)
        await self._submit(BisectOpen, action, opening=opening)

    async def offer_state(self, action: Action) -> None:
        """Run the first steps again and serve the state after them."""
        files, note = self._files, self._note(action)
        (done,) = action.steps
        unit = files.unit(action)
        request = await files.request(files.job(action.job), files.round(action), unit.shard, note.parts)
        run = await self._context.trainer.state(request, step=done, out=files.scratch("state", action))
        if run.sketch != note.sketches[done - 1]:
            log.warning("the unit came out differently this time", slot=action.slot, round=action.round, steps=done)
        await self._submit(StateOffer, action, state=await files.store(run.state))

    def _note(self, action: Action) -> UnitNote | AuditNote:
        """Return the own path through a unit, as its worker or as its auditor."""
        journal, where = self._context.journal, (action.job, action.round, action.slot)
        worker = self._files.unit(action).worker
        note = journal.unit(*where) if worker == self._context.account else journal.audit(*where)
        if note is None:
            raise RuleError(f"the sketches of slot {action.slot} are lost; they cannot be opened")
        return note

    async def commit(self, action: Action) -> None:
        """Compare both states, replay the step and commit to what came out."""
        bisection = self._bisection(action)
        note = self._arbiter_note(action, bisection) or await self._replay(action, bisection)
        numbers = (note.state_distance_ppb, note.excess_ppb, note.sketch, note.seeded)
        digest = arbiter_commitment(self._context.account, *numbers, note.salt)
        await self._submit(ArbiterCommit, action, digest=digest)

    async def _replay(self, action: Action, bisection: Bisection) -> ArbiterNote:
        """Measure, and note it: what is malformed today is tomorrow, so it is a finding and not tried again."""
        try:
            run = await self._measure(action, bisection)
        except _MalformedStateError as error:
            log.info("an offered state is malformed", slot=action.slot, round=action.round, error=str(error))
            run = MALFORMED
        note = ArbiterNote(
            job=action.job,
            round=action.round,
            slot=action.slot,
            seed=bisection.seed,
            state_distance_ppb=run.state_distance_ppb,
            excess_ppb=run.excess_ppb,
            sketch=run.sketch,
            seeded=run.seeded,
            salt=secrets.token_hex(32),
        )
        await trio.to_thread.run_sync(self._context.journal.save, note)
        return note

    async def _measure(self, action: Action, bisection: Bisection) -> ReplayResult:
        """Run the step in question.  Raises _MalformedStateError for a state from which it cannot be run."""
        files, unit = self._files, self._files.unit(action)
        job = files.job(action.job)
        parts = UnitParts(rows=unit.rows, processes=unit.processes)  # an honest worker's step comes out in its own
        states = [await self._state(root, unit) for root in (bisection.worker.state, bisection.accuser.state) if root]
        request = await files.request(job, files.round(action), unit.shard, parts)
        claim = await files.update(job, unit) if bisection.high == job.spec.recipe.steps else None
        try:
            return await self._context.trainer.replay(
                request,
                step=bisection.high,
                seed=bisection.seed,
                worker_state=states[0] if states else None,
                accuser_state=states[1] if states else None,
                claim=claim,
            )
        except RequestFailedError as error:
            ensure(error.kind not in _MALFORMED, _MalformedStateError(str(error)))
            raise

    async def _state(self, root: str, unit: Unit) -> Path:
        """Return a state that a side named, which may have what a state of the job's parameters has at most."""
        limit = most_state_bytes(self._files.job(unit.job).spec.parameters)
        try:
            return await self._context.bulk.fetch(root, max_bytes=min(limit, self._context.settings.max_blob_bytes))
        except OversizedError as error:
            # what this node alone does not take says nothing about the state
            ensure(limit > self._context.settings.max_blob_bytes, _MalformedStateError(str(error)))
            raise

    async def open_replay(self, action: Action) -> None:
        """Open what was committed to."""
        note = self._arbiter_note(action, self._bisection(action))
        if note is None:
            raise RuleError(f"the secret of the replay of slot {action.slot} is lost; it cannot be opened")
        await self._submit(
            ArbiterOpen,
            action,
            state_distance_ppb=note.state_distance_ppb,
            excess_ppb=note.excess_ppb,
            sketch=note.sketch,
            seeded=note.seeded,
            salt=note.salt,
        )

    def _bisection(self, action: Action) -> Bisection:
        dispute = self._context.state.dispute(action.job, action.round, action.slot)
        if dispute is None or dispute.bisection is None:
            raise RuleError(f"nothing is bisected in slot {action.slot} of round {action.round}")
        return dispute.bisection

    def _arbiter_note(self, action: Action, bisection: Bisection) -> ArbiterNote | None:
        """Return the note of this very bisection: a unit may be accused again."""
        note = self._context.journal.arbiter(action.job, action.round, action.slot)
        return note if note is not None and note.seed == bisection.seed else None

    async def _submit(self, kind: type[Body], action: Action, **fields: Any) -> None:
        await self._context.submit(kind, job=action.job, round=action.round, slot=action.slot, **fields)
