"""``Job`` and the owner's file that declares it: every refusal names the value, the line and the next step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gdf_market import Job
from gdf_market.errors import UsageError
from gdf_market.train.checkpoint import unpack
from gdf_market.train.data import unit_batches
from gdf_market.train.job_file import load_job
from gdf_market.train.prepare import prepare
from gdf_market.train.program import Program
from gdf_market.train.unit import run_unit
from verifier.sketch import sketch

TEXT = "some text to train on " * 50
EXAMPLE = Path(__file__).parents[2] / "examples" / "char_gpt.py"


def test_defaults_are_a_recipe() -> None:
    recipe = Job(model=nn.Linear(1, 1), data=TEXT).recipe
    assert (recipe.inner, recipe.steps, recipe.batch, recipe.rewarm_steps) == ("adamw", 20, 8, 10)
    assert (recipe.lr_e9, recipe.clip_ppm, recipe.outer_lr_ppm) == (1_000_000, 1_000_000, 1_000_000)
    assert (recipe.outer_momentum_ppm, recipe.codec_bits, recipe.codec_block) == (0, 4, 64)


@pytest.mark.parametrize(
    ("rounds", "outer"),
    [
        (1, (1_000_000, 0)),
        (29, (1_000_000, 0)),
        (30, (1_000_000, 500_000)),
        (100, (1_000_000, 500_000)),
        (101, (900_000, 700_000)),
        (10_000, (900_000, 700_000)),
    ],
)
def test_the_outer_step_follows_from_the_rounds(rounds: int, outer: tuple[int, int]) -> None:
    recipe = Job(model=nn.Linear(1, 1), data=TEXT).recipe_for(rounds)
    assert (recipe.outer_lr_ppm, recipe.outer_momentum_ppm) == outer
    given = Job(model=nn.Linear(1, 1), data=TEXT, outer_lr=0.5, outer_momentum=0.0, rounds=rounds).recipe
    assert (given.outer_lr_ppm, given.outer_momentum_ppm) == (500_000, 0)


@pytest.mark.parametrize(("steps", "rewarm"), [(1, 1), (7, 4), (20, 10), (21, 9), (50, 20), (101, 41)])
def test_the_rewarm_follows_from_the_steps(steps: int, rewarm: int) -> None:
    assert Job(model=nn.Linear(1, 1), data=TEXT, steps=steps).recipe.rewarm_steps == rewarm
    assert Job(model=nn.Linear(1, 1), data=TEXT, steps=steps, rewarm=0).recipe.rewarm_steps == 0


def test_the_schedule_runs_over_all_rounds() -> None:
    job = Job(model=nn.Linear(1, 1), data=TEXT, schedule="cosine", warmup=30, final_lr=0.1, steps=25)
    recipe = job.recipe_for(40)
    assert (recipe.schedule, recipe.schedule_steps, recipe.warmup_steps) == ("cosine", 1_000, 30)
    assert recipe.final_lr_ppm == 100_000
    assert job.recipe_for(1).warmup_steps == 25
    assert job.recipe == job.recipe_for(10)
    constant = Job(model=nn.Linear(1, 1), data=TEXT, final_lr=0.5).recipe
    assert (constant.schedule_steps, constant.final_lr_ppm) == (0, 0)


def test_rates_follow_from_the_optimizer() -> None:
    rates = {
        name: Job(model=nn.Linear(1, 1), data=TEXT, optimizer=name).recipe.lr_e9 for name in ("adamw", "muon", "sgd")
    }
    assert rates == {"adamw": 1_000_000, "muon": 1_000_000, "sgd": 50_000_000}


def test_groups_are_relative_to_the_job() -> None:
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight], "lr": 5e-4, "weight_decay": 0.05}, {"params": "bias", "weight_decay": 0}]
    job = Job(model=model, data=TEXT, lr=1e-3, weight_decay=0.1, param_groups=groups)
    first, second = job.groups
    assert (first["params"], first["lr_scale"], first["weight_decay_scale"]) == ([model.weight], 0.5, 0.5)
    assert (second["params"], second["lr_scale"], second["weight_decay_scale"]) == (["bias"], 1.0, 0.0)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"lr": 1}, "a dict with params"),
        ({"params": [], "eps": 1}, "none but lr, muon, params, weight_decay"),
        ({"params": [3]}, "parameters of the model"),
        ({"params": [], "lr": 2.0}, "from 0 to 1.0"),
        ({"params": [], "weight_decay": 0.1}, "give the job's own"),
    ],
)
def test_groups_that_cannot_be_used(group: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Job(model=nn.Linear(1, 1), data=TEXT, param_groups=[group])


def test_a_target_needs_a_second_field() -> None:
    with pytest.raises(UsageError, match="needs a target"):
        Job(model=nn.Linear(1, 1), data=(torch.ones(20, 1),), loss=nn.functional.mse_loss)
    job = Job(model=nn.Linear(1, 1), data=(torch.ones(20, 3), torch.zeros(20)), loss=nn.functional.mse_loss, batch=4)
    assert job.field_types == [("float32", (3,)), ("float32", ())]
    assert [tuple(sample.shape) for sample in job.example()] == [(4, 3), (4,)]
    assert job.tokens_per_unit == 0


def test_a_hugging_face_model_is_given_its_fields_by_name() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=50, num_labels=3, **sizes, **still)
    rows = [
        {"text": "not for the model", "input_ids": [1 + row % 40] * 6, "attention_mask": [1] * 6, "label": row % 3}
        for row in range(60)
    ]
    torch.manual_seed(0)
    job = Job(model=BertForSequenceClassification(config), data=rows, context=8, lr=1e-2, steps=12)
    assert job.names == ("input_ids", "attention_mask", "labels")
    for unnamed in (TEXT, (torch.ones(20, 6, dtype=torch.int64), torch.ones(20, dtype=torch.int64))):
        with pytest.raises(UsageError, match="give a Hugging Face model rows as dicts"):
            Job(model=job.model, data=unnamed)
    assert job.tokens_per_unit == 12 * 8 * 6
    prepared = prepare(job)
    program = Program.from_bytes(prepared.program)
    parameters, _ = unpack(prepared.checkpoint, program.size)
    batches = list(
        unit_batches(
            prepared.manifest("0" * 64),
            job.dataset.content,
            job="ab" * 32,
            round_index=0,
            shard=0,
            shards=2,
            steps=12,
            batch=8,
        )
    )
    unit = run_unit(program, parameters, batches, prepared.recipe, sketch=sketch)
    named = dict(zip(job.names, map(torch.from_numpy, batches[0]), strict=True))
    assert unit.loss_last < unit.loss_first
    assert abs(job.model(**named).loss.item() - unit.loss_first) < 1e-5


@pytest.mark.parametrize(
    "values",
    [
        {"model": "linear"},
        {"loss": 3},
        {"optimizer": "adam"},
        {"steps": 0},
        {"steps": 2.0},
        {"steps": True},
        {"steps": 1_001},
        {"batch": 0},
        {"context": 0},
        {"lr": 0},
        {"lr": float("nan")},
        {"lr": "1e-3"},
        {"betas": (0.9,)},
        {"betas": (0.9, 1.0)},
        {"weight_decay": -0.1},
        {"clip": -1},
        {"rewarm": 21},
        {"outer_lr": 0},
        {"outer_momentum": 1},
        {"codec_bits": 1},
        {"codec_block": 8},
        {"codec_density": 0},
        {"codec_density": 0.005},
        {"title": "x" * 81},
        {"tokenizer": "words"},
        {"columns": "text"},
        {"columns": []},
        {"image_size": 0},
        {"image_size": (8, 8, 8)},
        {"precision": "fp16"},
        {"schedule": "step"},
        {"warmup": -1},
        {"final_lr": 2},
        {"rounds": 0},
        {"units": 65},
    ],
)
def test_values_out_of_range_are_named(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(UsageError, match=rf"^{name}=.* has to be "):
        Job(**({"model": nn.Linear(1, 1), "data": TEXT} | values))


def test_too_little_data() -> None:
    with pytest.raises(UsageError, match="holds no window of context=64"):
        Job(model=nn.Linear(1, 1), data="short")
    with pytest.raises(UsageError, match="empty text"):
        Job(model=nn.Linear(1, 1), data="")


def write(folder: Path, code: str) -> Path:
    path = folder / "my_job.py"
    path.write_text(code, encoding="utf-8")
    return path


GOOD = 'from torch import nn\nfrom gdf_market import Job\njob = Job(model=nn.Linear(1, 1), data="abc" * 500)\n'


def test_a_file_may_use_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_job.py").write_text("text = 'abc' * 500", encoding="utf-8")
    code = GOOD.replace('"abc" * 500', "text").replace("from torch", "from neighbour_of_job import text\nfrom torch")
    assert load_job(write(tmp_path, code)).dataset.vocab == 3
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("import gdf_no_such_module", ":1: ModuleNotFoundError", "correct the line"),
        ("x = 1\ny = (2", ":2: ", "correct the line"),
        ("def f():\n    return 1 / 0\n\nf()", ":2: ZeroDivisionError", "division by zero"),
        ("raise SystemExit(3)", ":1: SystemExit", "correct the line"),
        ("x = 1", "", "declares no job; end it with"),
        ("job = 5", "", "a job of type int; end it with"),
        (GOOD.replace('"abc" * 500', '""'), ":3: data is an empty text", "correct the line"),
        (GOOD.replace('"abc" * 500', '"missing.txt"'), ":3: data file", "does not exist"),
        (GOOD.replace("data=", "steps=0, data="), ":3: steps=", "has to be a whole number"),
    ],
)
def test_files_that_declare_no_job(tmp_path: Path, code: str, line: str, message: str) -> None:
    path = write(tmp_path, code)
    with pytest.raises(UsageError) as caught:
        load_job(path)
    text = str(caught.value)
    assert f"{path}{line}" in text
    assert message in text
    assert "\n" not in text


def test_paths_that_are_no_python_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_job(tmp_path / "nothing.py")
    with pytest.raises(UsageError, match="is a folder"):
        load_job(tmp_path)
    other = tmp_path / "job.txt"
    other.write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a Python file"):
        load_job(other)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, gdf_market; assert 'torch' not in sys.modules; assert gdf_market.__version__"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(ImportError):
        from gdf_market import NothingElse  # type: ignore[attr-defined]  # noqa: F401


def test_the_example_is_what_a_pytorch_user_would_write() -> None:
    job = load_job(EXAMPLE)
    size = sum(parameter.numel() for parameter in job.model.parameters())
    assert 100_000 <= size <= 250_000
    assert job.context == 64
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "gdf_market" in line] == ["from gdf_market import Job"]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"codec_bits": 2, "codec_block": 512}, "codec_block=512"),
        ({"precision": "bf16", "codec_bits": 4}, "codec_bits=4"),
        ({"precision": "bf16", "codec_density": 0.5}, "codec_density=0.5"),
        ({"precision": "bf16", "steps": 101}, "steps=101"),
    ],
)
def test_recipes_that_no_verdict_was_measured_for_are_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(name)):
        Job(model=nn.Linear(2, 2), data=TEXT, **values)
