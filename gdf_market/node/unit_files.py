"""What the roles look up about a unit: its records on the ledger, and the local files that it is computed from."""

from __future__ import annotations

import contextlib
from pathlib import Path

import trio

from contracts.records import Job, Round, Unit
from contracts.views import Action
from gdf_market.blobs.store import BlobStore
from gdf_market.errors import RuleError
from gdf_market.node.context import NodeContext
from gdf_market.node.trainer import UnitRequest
from gdf_market.train.codec import Codec
from gdf_market.train.protocol import UnitParts


def _move(path: Path, blobs: BlobStore) -> str:
    root = blobs.put_file(path)
    with contextlib.suppress(OSError):  # the scratch folder is emptied at the next start
        path.unlink()
    return root


class UnitFiles:
    """Records raise RuleError when the ledger has none; files are fetched from peers and raise GdfError."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def job(self, job: str) -> Job:
        found = self._context.state.job(job)
        if found is None:
            raise RuleError(f"job {job[:16]} is not on the ledger")
        return found

    def round(self, action: Action) -> Round:
        found = self._context.state.round(action.job, action.round)
        if found is None:
            raise RuleError(f"round {action.round} of job {action.job[:16]} is not on the ledger")
        return found

    def unit(self, action: Action) -> Unit:
        found = self._context.state.unit(action.job, action.round, action.slot)
        if found is None:
            raise RuleError(f"slot {action.slot} of round {action.round} is not on the ledger")
        return found

    def revealed(self, action: Action) -> list[Unit]:
        """Return the units of a round whose updates are named."""
        units = (self._context.state.unit(action.job, action.round, slot) for slot in self.round(action).units)
        return [unit for unit in units if unit is not None and unit.update]

    async def request(self, job: Job, round_: Round, shard: int, parts: UnitParts | None = None) -> UnitRequest:
        """Return what a unit on a shard is computed from, in these parts (None: the largest that fit here)."""
        files = await self._context.files(job.spec)
        return UnitRequest(
            program=files.program,
            data=files.data,
            content=files.content,
            checkpoint=await self._context.checkpoint(job, round_.checkpoint),
            recipe=job.spec.recipe,
            job=job.id,
            round=round_.index,
            done=round_.done,
            shard=shard,
            shards=job.spec.shards,
            parts=parts,
        )

    async def update(self, job: Job, unit: Unit) -> Path:
        """Return the encoded update that a unit revealed."""
        limit = Codec.of(job.spec.recipe).max_bytes(job.spec.parameters)
        return await self._context.bulk.fetch(unit.update, max_bytes=limit)

    def scratch(self, kind: str, action: Action) -> Path:
        """Return where the runner writes a file for an action."""
        return self._context.scratch / f"{kind}-{action.job[:16]}-{action.round}-{action.slot}.bin"

    async def store(self, path: Path) -> str:
        """Move a file that the runner wrote into the blob store; return its root."""
        return await trio.to_thread.run_sync(_move, path, self._context.blobs)
