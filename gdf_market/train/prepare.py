"""Everything a job's post needs, from the owner's ``Job``: its files and the numbers about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdf_market.messages import Recipe
from gdf_market.train.capture import capture, initial_parameters
from gdf_market.train.checkpoint import pack
from gdf_market.train.data import DataManifest
from gdf_market.train.job import DEFAULT_ROUNDS, Job
from gdf_market.train.source import Dataset


@dataclass(frozen=True)
class Prepared:
    """``program`` and ``checkpoint`` are the bytes of blobs; ``dataset`` writes the content file."""

    title: str
    program: bytes
    checkpoint: bytes
    parameters: int
    tokens_per_unit: int
    recipe: Recipe
    dataset: Dataset
    context: int

    def manifest(self, content_blob: str) -> DataManifest:
        """Return the data manifest, once the content has its blob id; its canonical bytes are a blob, too."""
        return self.dataset.manifest(content_blob, self.context)


def prepare(job: Job, rounds: int | None = None) -> Prepared:
    """Capture a job's program and first checkpoint, and its recipe for ``rounds`` (the job's own number).

    Raises UsageError as ``capture`` does.
    """
    program = capture(job)
    parameters = initial_parameters(job.model, program)
    return Prepared(
        title=job.title,
        program=program.to_bytes(),
        checkpoint=pack(parameters, np.zeros_like(parameters)),
        parameters=program.size,
        tokens_per_unit=job.tokens_per_unit,
        recipe=job.recipe_for(rounds or job.rounds or DEFAULT_ROUNDS),
        dataset=job.dataset,
        context=job.context,
    )
