"""Worker, attester and auditor: does what the ledger's state says this account can do now.

The state alone decides (``contracts.views.pending_actions``); this module only
carries actions out, each in its own task, and remembers nothing that a restart
may not forget: secrets of commits are in the journal before they are needed.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import trio

from contracts.block import check_entry
from contracts.parameters import verdict
from contracts.records import Job, Unit
from contracts.rounds import get_recipe
from contracts.views import Action, pending_actions
from gdf_market.codec import encode
from gdf_market.errors import GdfError, LocalError, RuleError, UnreachableError, ensure
from gdf_market.messages import (
    AuditCommit,
    AuditOpen,
    Commit,
    Openings,
    Outcome,
    Receipt,
    Result,
    Reveal,
    SketchOpen,
    audit_commitment,
    commitment,
)
from gdf_market.node.context import JobFiles, NodeContext
from gdf_market.node.disputing import LIE, Disputing, make_lie
from gdf_market.node.journal import AuditNote, UnitNote
from gdf_market.node.ledger_service import now_ms
from gdf_market.node.runner_process import TrainerError
from gdf_market.node.trainer import AuditResult, UnitRequest
from gdf_market.node.unit_files import UnitFiles
from gdf_market.train.protocol import UnitParts
from gdf_market.units import SECOND_MS
from verifier.sketch import openings, sketch_tree
from verifier.sortition import audit_ticket, draw_shard

HOLD_TRIES = 8
HOLD_AGAIN_S = 1.0  # pause before an update that nobody served is asked for again
RETRY_MS = 3_000  # pause before an action that failed is tried again
MAX_TASKS = 256
MAX_LOSERS = 65_536  # lost lotteries that are remembered
GRACE_S = 5.0  # an action goes on this long after its deadline
NOT_MEASURED = -1  # loss in a result

log = structlog.get_logger("gdf.roles")


class Roles:
    """Carries out pending actions; ``poison`` (test networks only) is how its units cheat, or "lie": its audits do."""

    def __init__(self, context: NodeContext, *, poison: str = "") -> None:
        self._context = context
        self._files = UnitFiles(context)
        self._disputing = Disputing(context, self._files)
        self._poison = "" if poison == LIE else poison
        self._lies = poison == LIE
        self._busy: set[tuple[str, str, int, int]] = set()
        self._retry: dict[tuple[str, str, int, int], int] = {}
        self._losers: set[tuple[str, int, int]] = set()  # audit lotteries this node did not win
        self.trained = 0
        self.audited = 0

    def get_jobs_in_use(self) -> set[str]:
        """Return the jobs for which something is done at this moment."""
        return {job for _, job, _, _ in self._busy}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._start_due(nursery)
                with trio.move_on_after(1.0):  # deadlines pass without blocks too
                    await self._context.ledger.wait_block()

    def _start_due(self, nursery: trio.Nursery) -> None:
        now = now_ms()
        context = self._context
        for action in pending_actions(context.state, context.account, context.ledger.replica.time_ms):
            key = (action.kind, action.job, action.round, action.slot)
            if key in self._busy or self._retry.get(key, 0) > now or len(self._busy) >= MAX_TASKS:
                continue
            if action.kind == "commit":
                continue  # "train" of the same unit commits, too
            if action.kind == "audit_lottery" and key[1:] in self._losers:
                continue
            self._busy.add(key)
            nursery.start_soon(self._perform, action, key)

    async def _perform(self, action: Action, key: tuple[str, str, int, int]) -> None:
        steps: dict[str, Callable[[Action], Awaitable[None]]] = {
            "train": self._train,
            "reveal": self._reveal,
            "receipt": self._receipt,
            "result": self._result,
            "audit_lottery": self._lottery,
            "audit_targeted": functools.partial(self._audit, role="targeted", proof=""),
            "audit_committee": functools.partial(self._audit, role="committee", proof=""),
            "sketch_open": self._open_sketches,
            "audit_open": self._open_audit,
            "bisect_open": self._disputing.open_middle,
            "state_offer": self._disputing.offer_state,
            "arbiter_commit": self._disputing.commit,
            "arbiter_open": self._disputing.open_replay,
        }
        try:
            # what is late is worth nothing, and would keep the runner from what is not
            with trio.move_on_after(self._left_s(action) + GRACE_S) as scope:
                await steps[action.kind](action)
            ensure(not scope.cancelled_caught, LocalError("it was not done before its deadline"))
            self._retry.pop(key, None)
        except GdfError as error:
            self._failed(action, key, error)
        finally:
            self._busy.discard(key)

    def _left_s(self, action: Action) -> float:
        """Return the seconds until an action is late; by block time, so that a wrong clock here does no harm."""
        return max(0.0, (action.deadline_ms - self._context.ledger.replica.time_ms) / SECOND_MS)

    def _failed(self, action: Action, key: tuple[str, str, int, int], error: GdfError) -> None:
        """Say why an action failed; as long as it is pending, it is tried again a little later."""
        level = log.info if isinstance(error, RuleError) else log.warning
        level(
            "action failed",
            action=action.kind,
            job=action.job[:8],
            round=action.round,
            slot=action.slot,
            error=str(error),
        )
        self._context.note("action", f"{action.kind} of round {action.round}, slot {action.slot}: {error}")
        if len(self._retry) >= 4 * MAX_TASKS:
            self._retry.clear()
        self._retry[key] = now_ms() + RETRY_MS

    # worker ------------------------------------------------------------------

    async def _train(self, action: Action) -> None:
        context = self._context
        note = context.journal.unit(action.job, action.round, action.slot)
        if note is None:
            note = await self._run_unit(action)
        digest = commitment(context.account, note.update, note.proof, note.sketch_root, note.salt)
        await context.submit(Commit, job=action.job, round=action.round, slot=action.slot, digest=digest)

    async def _run_unit(self, action: Action) -> UnitNote:
        context = self._context
        job, round_ = self._files.job(action.job), self._files.round(action)
        shard, proof = draw_shard(
            context.identity.seed, action.job, action.round, action.slot, round_.seed, job.spec.shards
        )
        out = self._files.scratch("update", action)
        request = await self._files.request(job, round_, shard)
        run = await context.trainer.train(request, out=out, poison=self._poison)
        update = await self._files.store(out)
        note = UnitNote(
            job=action.job,
            round=action.round,
            slot=action.slot,
            update=update,
            proof=proof,
            salt=secrets.token_hex(32),
            sketch_root=sketch_tree(run.sketches).root().hex(),
            sketches=run.sketches,
            parts=run.parts,
        )
        await trio.to_thread.run_sync(context.journal.save, note)
        self.trained += 1
        return note

    async def _reveal(self, action: Action) -> None:
        note = self._context.journal.unit(action.job, action.round, action.slot)
        if note is None:
            raise RuleError(f"the secret of slot {action.slot} is lost; this unit earns nothing")
        await self._context.submit(
            Reveal,
            job=action.job,
            round=action.round,
            slot=action.slot,
            update=note.update,
            proof=note.proof,
            sketch_root=note.sketch_root,
            salt=note.salt,
            rows=note.parts.rows,
            processes=note.parts.processes,
        )

    async def _open_sketches(self, action: Action) -> None:
        note = self._context.journal.unit(action.job, action.round, action.slot)
        if note is None:
            raise RuleError(f"the sketches of slot {action.slot} are lost; they cannot be opened")
        await self._submit_openings(SketchOpen, action, openings(note.sketches, action.steps))

    async def _submit_openings(self, kind: type[SketchOpen], action: Action, opened: Openings) -> None:
        await self._context.submit(kind, job=action.job, round=action.round, slot=action.slot, openings=opened)

    # attester ----------------------------------------------------------------

    async def _receipt(self, action: Action) -> None:
        """Fetch what was revealed; say what arrived before 60% of the phase is over."""
        held: list[int] = []
        units = self._files.revealed(action)
        with trio.move_on_after(max(2.0, 0.6 * self._left_s(action))):
            async with trio.open_nursery() as nursery:
                for unit in units:
                    nursery.start_soon(self._hold, unit, held)
        await self._context.submit(Receipt, job=action.job, round=action.round, holds=tuple(sorted(held)))

    async def _hold(self, unit: Unit, held: list[int]) -> None:
        """Try a few times: a busy holder must not cost an honest worker its unit, nor a silent one stop the round."""
        for _ in range(HOLD_TRIES):
            try:
                await self._files.update(self._files.job(unit.job), unit)
            except UnreachableError as error:
                log.info("update not held yet", slot=unit.slot, error=str(error))
                await trio.sleep(HOLD_AGAIN_S)
            except GdfError as error:
                log.info("update not held", slot=unit.slot, error=str(error))
                return
            else:
                held.append(unit.slot)
                return

    async def _result(self, action: Action) -> None:
        context = self._context
        job, round_ = self._files.job(action.job), self._files.round(action)
        files = await context.files(job.spec)
        included = [unit for unit in self._files.revealed(action) if unit.slot in round_.included]
        updates = {unit.slot: await self._files.update(job, unit) for unit in included}
        out = context.scratch / f"checkpoint-{action.job[:16]}-{action.round}.bin"
        computed = await context.trainer.outcome(
            program=files.program,
            checkpoint=await context.checkpoint(job, round_.checkpoint),
            recipe=get_recipe(job.spec, round_),
            updates=updates,
            shards={unit.slot: unit.shard for unit in included},
            out=out,
        )
        loss_e6 = await self._loss(files, out)
        checkpoint = await self._files.store(out)
        outcome = Outcome(
            checkpoint=checkpoint,
            included=computed.included,
            rejected=computed.rejected,
            merit_ppm=computed.merit_ppm,
            cosine_ppm=computed.cosine_ppm,
            suspicion=computed.suspicion,
            flags=computed.flags,
        )
        log.info("outcome", round=action.round, size=len(encode(outcome)), loss_e6=loss_e6)
        await context.submit(Result, job=action.job, round=action.round, outcome=outcome, loss_e6=loss_e6)

    async def _loss(self, files: JobFiles, checkpoint: Path) -> int:
        """Return the validation loss in micro-nats; NOT_MEASURED if it has none: the vote must not depend on it."""
        try:
            return await self._context.trainer.evaluate(files.program, files.data, files.content, checkpoint)
        except TrainerError as error:
            log.warning("loss not measured", error=str(error))
            return NOT_MEASURED

    # auditor -----------------------------------------------------------------

    async def _lottery(self, action: Action) -> None:
        context, round_, unit = self._context, self._files.round(action), self._files.unit(action)
        where = (action.job, action.round, action.slot)
        proof = audit_ticket(context.identity.seed, *where, round_.audit_seed, unit.audit_chance_ppm)
        if proof is None:
            if len(self._losers) >= MAX_LOSERS:
                self._losers.clear()  # losing again is cheap to find out
            self._losers.add(where)
            return
        await self._audit(action, role="lottery", proof=proof)

    async def _audit(self, action: Action, *, role: str, proof: str) -> None:
        context = self._context
        note = context.journal.audit(action.job, action.round, action.slot) or await self._reexecute(action)
        digest = audit_commitment(context.account, note.excess_ppb, note.distance_ppb, note.sketch_root, note.salt)
        await context.submit(
            AuditCommit,
            job=action.job,
            round=action.round,
            slot=action.slot,
            role=role,
            proof=proof,
            digest=digest,
        )

    async def challenge(self, job: str, round_index: int, slot: int) -> AuditNote:
        """Audit a unit that nobody asked this node to audit; return what it found, once its commit is final.

        Raises RuleError for what the ledger would refuse, before anything is run again, and GdfError.
        """
        action = self.check_challenge(job, round_index, slot)
        key = (action.kind, job, round_index, slot)
        self._busy.add(key)
        try:
            await self._audit(action, role="challenge", proof="")
        finally:
            self._busy.discard(key)
        note = self._context.journal.audit(job, round_index, slot)
        assert note is not None, "it was saved before the commit"
        return note

    def check_challenge(self, job: str, round_index: int, slot: int) -> Action:
        """Return what a challenge of a unit is to do.

        Raises RuleError, naming the unit, for what the ledger would refuse, and LocalError while it is under way.
        """
        context, key = self._context, ("audit_challenge", job, round_index, slot)
        unit = self._files.unit(Action(*key, 0))
        ensure(key not in self._busy, LocalError("this challenge is under way"))
        where: dict[str, Any] = {"job": job, "round": round_index, "slot": slot}
        trial = context.seal(AuditCommit, **where, role="challenge", proof="", digest=job)
        try:
            check_entry(context.state, trial, max(now_ms(), context.ledger.replica.time_ms + 1))
        except RuleError as error:  # it names the entry of this trial, which nobody ever sees
            cause = error.__cause__ or error
            raise RuleError(
                f"slot {slot} of round {round_index} of job {job[:12]} is not challenged: {cause}"
            ) from None
        return Action(*key, unit.release_ms)

    async def _reexecute(self, action: Action) -> AuditNote:
        context = self._context
        job, round_, unit = self._files.job(action.job), self._files.round(action), self._files.unit(action)
        run = await self._audit_run(await self._files.request(job, round_, unit.shard), job, unit)
        if self._lies:
            run = make_lie(run)
        note = AuditNote(
            job=action.job,
            round=action.round,
            slot=action.slot,
            excess_ppb=run.excess_ppb,
            distance_ppb=run.distance_ppb,
            salt=secrets.token_hex(32),
            sketch_root=sketch_tree(run.sketches).root().hex(),
            sketches=run.sketches,
            parts=run.parts,
        )
        await trio.to_thread.run_sync(context.journal.save, note)
        self.audited += 1
        return note

    async def _audit_run(self, request: UnitRequest, job: Job, unit: Unit) -> AuditResult:
        """Run the unit again; what does not pass, in the very parts that the worker says it used.

        A program may claim falsely that parts change nothing: that must not make the worker a cheat.
        """
        claim = await self._files.update(job, unit)
        run = await self._context.trainer.audit(request, claim=claim)
        parts = UnitParts(rows=unit.rows, processes=unit.processes)
        if run.parts == parts or verdict(job.spec.device_class, run.excess_ppb, 0) == "pass":
            return run
        return await self._context.trainer.audit(replace(request, parts=parts), claim=claim)

    async def _open_audit(self, action: Action) -> None:
        note = self._context.journal.audit(action.job, action.round, action.slot)
        if note is None:
            raise RuleError(f"the secret of the audit of slot {action.slot} is lost; its bond goes")
        await self._context.submit(
            AuditOpen,
            job=action.job,
            round=action.round,
            slot=action.slot,
            excess_ppb=note.excess_ppb,
            distance_ppb=note.distance_ppb,
            sketch_root=note.sketch_root,
            salt=note.salt,
            openings=openings(note.sketches, action.steps),
        )
