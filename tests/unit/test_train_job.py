"""``Job`` and the owner's file that declares it: every refusal names the value, the line and the next step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gdf_market import Job
from gdf_market.errors import UsageError
from gdf_market.train.job_file import load_job

TEXT = "some text to train on " * 50
EXAMPLE = Path(__file__).parents[2] / "examples" / "char_gpt.py"


def test_defaults_are_a_recipe() -> None:
    recipe = Job(model=nn.Linear(1, 1), data=TEXT).recipe
    assert (recipe.inner, recipe.steps, recipe.batch, recipe.rewarm_steps) == ("adamw", 20, 8, 10)
    assert (recipe.lr_e9, recipe.clip_ppm, recipe.outer_lr_ppm) == (1_000_000, 1_000_000, 1_000_000)
    assert (recipe.outer_momentum_ppm, recipe.codec_bits, recipe.codec_block) == (0, 4, 64)


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
        {"title": "x" * 81},
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
