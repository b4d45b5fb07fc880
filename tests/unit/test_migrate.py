"""docs/migrate: scripts for one GPU become jobs in at most ten changed lines, and both train."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gdf_market.train.checkpoint import unpack
from gdf_market.train.data import check_manifest, unit_batches
from gdf_market.train.job_file import load_job
from gdf_market.train.prepare import prepare
from gdf_market.train.program import Program
from gdf_market.train.unit import run_unit
from verifier.sketch import sketch

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("char_gpt", "cnn", "encoder")
MOST_CHANGED = 10


def lines(name: str, when: str) -> list[str]:
    return (DOCS / "migrate" / f"{name}_{when}.py").read_text(encoding="utf-8").splitlines()


def diff(name: str) -> str:
    """Return the diff as docs/migrate.md shows it."""
    shown = list(difflib.unified_diff(lines(name, "before"), lines(name, "after"), n=1, lineterm=""))[2:]
    return f"<!-- diff {name} -->\n```diff\n" + "\n".join(shown) + "\n```\n"


@pytest.mark.parametrize("name", NAMES)
def test_at_most_ten_lines_change(name: str) -> None:
    matcher = difflib.SequenceMatcher(None, lines(name, "before"), lines(name, "after"), autojunk=False)
    changed = [max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
    assert 0 < sum(changed) <= MOST_CHANGED


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_diff(name: str) -> None:
    page = (DOCS / "migrate.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- diff {name} -->\n```diff\n.*?```\n", page, re.S)
    assert shown is not None
    assert shown.group() == diff(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_script_before_trains(name: str, tmp_path: Path) -> None:
    code = "\n".join(lines(name, "before"))
    short = code.replace("range(1000)", "range(12)").replace("in range(10):", "in range(2):").replace("2000", "640")
    assert short != code
    script = tmp_path / "script.py"
    script.write_text(short, encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait for each other are slow on a busy machine
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=environment)
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) >= 2
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_job_after_trains(name: str) -> None:
    job = load_job(DOCS / "migrate" / f"{name}_after.py")
    prepared = prepare(job)
    program, manifest = Program.from_bytes(prepared.program), prepared.manifest("0" * 64)
    check_manifest(manifest, 16)  # the usual number of shards
    parameters, momentum = unpack(prepared.checkpoint, program.size)
    assert not np.any(momentum)
    recipe = prepared.recipe
    batches = unit_batches(
        manifest,
        job.dataset.content,
        job="ab" * 32,
        round_index=0,
        shard=3,
        shards=16,
        steps=recipe.steps,
        batch=recipe.batch,
    )
    unit = run_unit(program, parameters, batches, recipe, sketch=sketch)
    assert unit.loss_last < 0.9 * unit.loss_first
