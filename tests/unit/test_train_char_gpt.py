"""The example, in a tiny variant, from the owner's file to three rounds of two workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from gdf_market.train.capture import capture
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import Codec
from gdf_market.train.data import evaluation_batches, unit_batches
from gdf_market.train.evaluate import evaluate
from gdf_market.train.job import Job
from gdf_market.train.job_file import load_job
from gdf_market.train.outer import outer_step
from gdf_market.train.prepare import Prepared, prepare
from gdf_market.train.program import Program, to_safetensors
from gdf_market.train.unit import run_unit
from verifier.sketch import sketch

EXAMPLE = Path(__file__).parents[2] / "examples" / "char_gpt.py"
JOB_ID = "ab" * 32


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    code = EXAMPLE.read_text(encoding="utf-8")
    for old, new in (("width = 64", "width = 16"), ("layers = 3", "layers = 1"), ("context = 64", "context = 16")):
        assert old in code
        code = code.replace(old, new)
    path = tmp_path_factory.mktemp("job") / "tiny_gpt.py"
    path.write_text(code, encoding="utf-8")
    return load_job(path)


@pytest.fixture(scope="module")
def prepared(job: Job) -> Prepared:
    return prepare(job)


def test_what_is_posted_describes_the_job(job: Job, prepared: Prepared) -> None:
    assert prepared.parameters == sum(parameter.numel() for parameter in job.model.parameters())
    assert prepared.tokens_per_unit == 20 * 8 * 16
    manifest = prepared.manifest("0" * 64)
    assert len(prepared.content) == 2 * manifest.count
    assert manifest.vocab == 103
    assert manifest.context == 16
    assert Program.from_bytes(prepared.program).graph.batch == 0


def test_capturing_twice_gives_the_same_bytes(job: Job, prepared: Prepared) -> None:
    assert capture(job).to_bytes() == prepared.program


def test_validation_loss_falls_over_three_rounds(job: Job, prepared: Prepared) -> None:
    program, recipe = Program.from_bytes(prepared.program), prepared.recipe
    manifest, tokens = prepared.manifest("0" * 64), job.dataset.content
    checkpoint, codec = prepared.checkpoint, Codec.of(recipe)
    held_out = evaluation_batches(manifest, tokens, recipe.batch)
    losses = [evaluate(program, unpack(checkpoint, program.size)[0], held_out)]
    for round_index in range(3):
        parameters, momentum = unpack(checkpoint, program.size)
        total = np.zeros(program.size, np.int64)
        for shard in (2 * round_index, 2 * round_index + 1):
            batches = unit_batches(
                manifest,
                tokens,
                job=JOB_ID,
                round_index=round_index,
                shard=shard,
                shards=16,
                steps=recipe.steps,
                batch=recipe.batch,
            )
            unit = run_unit(program, parameters, batches, recipe, sketch=sketch)
            total += codec.decode(codec.encode(unit.delta), program.size)
        checkpoint = pack(*outer_step(parameters, momentum, total, 2, recipe))
        losses.append(evaluate(program, unpack(checkpoint, program.size)[0], held_out))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.5
    restored = safetensors.torch.load(to_safetensors(program, checkpoint))
    job.model.load_state_dict(restored)  # the owner gets its own model back
