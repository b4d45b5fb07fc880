"""``Job`` from Python: what it posts, what it tells while a job runs, and the owner's own model at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gdf_market import Job
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import decode, encode
from gdf_market.commands import main, posted
from gdf_market.commands import post as posting
from gdf_market.commands.posted import PostedJob, open_app
from gdf_market.commands.terms import terms_of
from gdf_market.errors import KeyLockedError, UnreachableError, UsageError
from gdf_market.node.datadir import DataDir
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.data import DataManifest, load_content
from gdf_market.train.prepare import Prepared, prepare
from gdf_market.train.program import Program
from gdf_market.units import CREDIT
from tests.explorer_ledger import Example, build_example


def make_job(**changes: Any) -> Any:
    torch.manual_seed(0)
    inputs = torch.randn(200, 4)
    values: dict[str, Any] = {
        "model": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        "data": (inputs, inputs.sum(1, keepdim=True)),
        "loss": nn.functional.mse_loss,
        "rounds": 3,
    }
    return Job(**(values | changes))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setattr(sys, "argv", ["gdf-market", "--data-dir", str(folder), "init", "--new-network", "home"])
    main()
    capsys.readouterr()
    return folder


def test_a_job_is_posted_as_the_command_does_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def publish(app: Any, value: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        sent.append(fields)
        return {"job": "ab" * 32, "height": 9, "holders": 2}

    monkeypatch.setattr(posting, "publish", publish)
    monkeypatch.setattr(posting, "_estimate", lambda *_: {"unit_s": 1.0})
    job = make_job(schedule="linear", title="Sums")
    found = job.post(data_dir=home, quiet=True, max_price=2.5, units=2, shards=5)
    (fields,) = sent
    assert (found.id, found.summary["height"], found.model) == ("ab" * 32, 9, job.model)
    assert (fields["rounds"], fields["units_per_round"], fields["shards"]) == (3, 2, 5)
    assert (fields["reserve_price"], fields["title"]) == (2_500_000, "Sums")
    assert fields["recipe"]["schedule_steps"] == 60
    store = BlobStore(DataDir(home).blobs)
    manifest = decode(store.path(fields["data"]).read_bytes(), DataManifest)
    assert (manifest.kind, manifest.count, manifest.train) == ("rows", 200, 180)
    content = load_content(store.path(manifest.content), manifest)
    assert (content.columns[0] == job.dataset.content.columns[0]).all()
    assert not list(home.glob("content*"))  # the file in between is gone
    with pytest.raises(UsageError, match="--shards 181"):
        job.post(data_dir=home, quiet=True, shards=181)
    with pytest.raises(UsageError, match="no term colour; the terms are max_price"):
        job.post(data_dir=home, quiet=True, colour=3)
    assert len(sent) == 1


def test_posting_needs_an_identity(tmp_path: Path) -> None:
    with pytest.raises(KeyLockedError):
        make_job().post(data_dir=tmp_path)


def test_the_job_file_gives_terms_and_the_command_line_wins() -> None:
    job = make_job(rounds=7, units=3, max_price="0.5")
    plain = terms_of(job, {"rounds": None, "units": None, "max_price": None, "bond": None})
    assert (plain.rounds, plain.units, plain.max_price) == (7, 3, CREDIT // 2)
    assert (plain.bond, plain.audit_fee) == (12 * CREDIT // 2, CREDIT // 2)
    given = terms_of(job, {"rounds": 2, "max_price": "4", "bond": "0", "audit_fee": 1})
    assert (given.rounds, given.units, given.max_price, given.bond, given.audit_fee) == (2, 3, 4 * CREDIT, 0, CREDIT)
    usual = terms_of(make_job(rounds=None), {})
    assert (usual.rounds, usual.units, usual.max_price) == (10, 4, CREDIT)
    for price in ("0", "-1", "much"):
        with pytest.raises(UsageError):
            terms_of(job, {"max_price": price})


def test_an_ended_job_is_told_round_by_round(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posted, "running_beside", _never)
    monkeypatch.setenv("GDF_DATA_DIR", str(example.path.parent))
    rounds = list(make_job().watch(example.done_job[:16]))
    assert [(line.round, round(line.loss or 0, 3), line.units) for line in rounds] == [(0, 0.812, 4), (1, 0.401, 4)]
    assert all(line.credits > 0 for line in rounds)
    with pytest.raises(UsageError, match="no job starts with"):
        make_job().watch("00000000000000")


def _never(_app: Any) -> Any:
    raise AssertionError("an ended job needs no node")


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Prepared, bytes], None]:
    def serve(prepared: Prepared, checkpoint: bytes) -> None:
        files = {
            "program": prepared.program,
            "data": encode(prepared.manifest("0" * 64)),
            "content": prepared.dataset.to_bytes(),
            "checkpoint_file": checkpoint,
        }
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        paths = {name: str(tmp_path / name) for name in files}
        monkeypatch.setattr(posted, "with_client", lambda app, use: use(None))
        monkeypatch.setattr(posted, "fetch_blobs", lambda app, client, job, wait_s: {"paths": paths})

    return serve


def test_the_owner_gets_its_own_model_back(tmp_path: Path, fetched: Callable[[Prepared, bytes], None]) -> None:
    job = make_job()
    prepared = prepare(job)
    n = Program.from_bytes(prepared.program).size
    moved = unpack(prepared.checkpoint, n)[0] + np.float32(0.5)
    fetched(prepared, pack(moved, np.zeros_like(moved)))
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    one = PostedJob("ab" * 32, job.model, {}, open_app(tmp_path, quiet=True))
    tensors = one.checkpoint(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size > 4 * n
    assert tensors.keys() == before.keys()
    assert all(torch.equal(tensors[name], before[name] + 0.5) for name in before)
    assert one.load() is job.model
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in job.model.state_dict().items())
    with pytest.raises(UsageError, match="is a folder"):
        one.checkpoint(tmp_path)


def test_a_node_that_does_not_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no node could be started"), posted.running_beside(open_app(tmp_path)):
        pass
