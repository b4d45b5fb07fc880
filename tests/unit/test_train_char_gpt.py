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
    assert prepared.dataset.size_bytes == len(prepared.dataset.to_bytes()) == 2 * manifest.count
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


@pytest.mark.parametrize("name", ["cnn", "lora"])
def test_the_other_examples_train_and_come_back(name: str) -> None:
    job = load_job(EXAMPLE.with_name(f"{name}.py"))
    ready = prepare(job)
    program = Program.from_bytes(ready.program)
    trained = sum(parameter.numel() for parameter in job.model.parameters() if parameter.requires_grad)
    assert ready.parameters == trained
    parameters, _ = unpack(ready.checkpoint, program.size)
    batches = unit_batches(
        ready.manifest("0" * 64),
        job.dataset.content,
        job=JOB_ID,
        round_index=0,
        shard=0,
        shards=16,
        steps=ready.recipe.steps,
        batch=ready.recipe.batch,
    )
    unit = run_unit(program, parameters, batches, ready.recipe, sketch=sketch)
    assert unit.loss_last < 0.8 * unit.loss_first
    moved = pack(parameters - unit.delta, np.zeros_like(parameters))
    job.model.load_state_dict(safetensors.torch.load(to_safetensors(program, moved)))


def test_only_the_adapters_travel() -> None:
    job = load_job(EXAMPLE.with_name("lora.py"))
    names = {parameter.name for parameter in Program.from_bytes(prepare(job).program).graph.parameters}
    assert {name.rsplit(".", 1)[1] for name in names} == {"down", "up"}
