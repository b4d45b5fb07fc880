"""What ``jobs fetch`` writes loads into the owner's module with strict=True and gives the same loss."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from gdf_market.codec import decode, encode
from gdf_market.commands import jobs as commands
from gdf_market.commands import main
from gdf_market.commands.model_file import check_target, model_bytes, snippet, write_model
from gdf_market.commands.session import run_async
from gdf_market.errors import UsageError
from gdf_market.node.datadir import DataDir
from gdf_market.node.trainer import Trainer
from gdf_market.train.capture import capture_module
from gdf_market.train.checkpoint import pack
from gdf_market.train.data import DataManifest, evaluation_batches, load_content
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.job import Job
from gdf_market.train.prepare import prepare
from gdf_market.train.program import Program
from tests.contracts_world import key_of
from tests.explorer_ledger import Example, build_example, identity_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code


class Tied(nn.Module):
    """A language model of two layers whose head is its table, with a buffer that no pass reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("unused", torch.arange(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(F.gelu(self.mix(self.table(x)))).flatten(0, 1), y.flatten())


class Adapter(nn.Module):
    """A frozen layer with a trained low-rank addition."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(5, 4), nn.Linear(5, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


TOKENS = torch.randint(0, 11, (4, 7)), torch.randint(0, 11, (4, 7))
ROWS = torch.randn(6, 5), torch.randint(0, 4, (6,))
MODELS = [(Tied, TOKENS, None), (Adapter, ROWS, F.cross_entropy)]


def trained(program: Program) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return other parameters than the module began with."""
    return np.random.default_rng(5).standard_normal(program.size).astype(np.float32) * np.float32(0.3)


def loss_of(model: nn.Module, samples: tuple[torch.Tensor, ...], loss: Any) -> float:
    with torch.no_grad():
        return float(loss(model(*samples[:-1]), samples[-1]) if loss else model(*samples))


@pytest.mark.parametrize(("kind", "samples", "loss"), MODELS, ids=lambda value: getattr(value, "__name__", None))
def test_the_file_loads_strictly_and_gives_the_same_loss(kind: Any, samples: Any, loss: Any) -> None:
    model = kind()
    program = Program.from_bytes(capture_module(model, samples, loss).to_bytes())
    flat = trained(program)
    tensors = safetensors.torch.load(model_bytes(program, pack(flat, flat)))
    assert set(tensors) == set(model.state_dict())
    other = kind()
    other.load_state_dict(tensors, strict=True)
    expected = float(ProgramModule(program, program.unflatten(flat)).evaluate(*samples))
    assert loss_of(other, samples, loss) == pytest.approx(expected, abs=1e-6)


def test_trained_tensors_alone_are_the_adapters() -> None:
    model = Adapter()
    program = capture_module(model, ROWS, F.cross_entropy)
    flat = trained(program)
    tensors = safetensors.torch.load(model_bytes(program, pack(flat, flat), trained_only=True))
    assert set(tensors) == {"down.weight", "up.weight"}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (set(missing), unexpected) == ({"base.weight", "base.bias"}, [])
    expected = float(ProgramModule(program, program.unflatten(flat)).evaluate(*ROWS))
    assert loss_of(model, ROWS, F.cross_entropy) == pytest.approx(expected, abs=1e-6)


def test_tied_tensors_that_were_trained_keep_both_names() -> None:
    program = capture_module(Tied(), TOKENS)
    flat = trained(program)
    tensors = safetensors.torch.load(model_bytes(program, pack(flat, flat), trained_only=True))
    assert set(tensors) == {"table.weight", "head.weight", "mix.weight", "mix.bias"}
    assert torch.equal(tensors["table.weight"], tensors["head.weight"])


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a job with batch norm, and a checkpoint that was trained."""
    folder = tmp_path_factory.mktemp("blobs")
    draw = np.random.default_rng(1)
    rows = (draw.standard_normal((200, 5)) * 3 + 1).astype(np.float32), draw.integers(0, 4, 200)
    prepared = prepare(Job(model=Normed(), data=rows, loss=F.cross_entropy, batch=10, steps=2))
    program = Program.from_bytes(prepared.program)
    flat = trained(program)
    contents = {
        "program": prepared.program,
        "data": encode(prepared.manifest("ab" * 32)),
        "content": prepared.dataset.to_bytes(),
        "first_checkpoint": prepared.checkpoint,
        "checkpoint_file": pack(flat, flat),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: str(folder / name) for name in contents}


@pytest.fixture(scope="module")
def written(blobs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("written") / "model.safetensors"
    write_model(blobs, target)
    return target


def test_running_statistics_are_those_of_the_trained_weights(blobs: dict[str, str], written: Path) -> None:
    model = Normed()
    model.load_state_dict(safetensors.torch.load_file(written), strict=True)
    rows = torch.from_numpy(np.frombuffer(Path(blobs["content"]).read_bytes()[: 200 * 20], np.float32).reshape(200, 5))
    hidden = model.first(rows[:180]).detach()  # the last tenth is for validation
    assert torch.allclose(model.norm.running_mean, hidden.mean(0), atol=0.35)
    assert torch.allclose(model.norm.running_var, hidden.var(0), rtol=0.35)
    assert not torch.allclose(model.norm.running_mean, torch.zeros(8), atol=0.05)


def test_the_file_gives_the_loss_that_the_market_measured(blobs: dict[str, str], written: Path) -> None:
    model = Normed().eval()
    model.load_state_dict(safetensors.torch.load_file(written), strict=True)
    manifest = decode(Path(blobs["data"]).read_bytes(), DataManifest)
    batches = evaluation_batches(manifest, load_content(Path(blobs["content"]), manifest), 0)
    x, y = (torch.cat([torch.from_numpy(batch[part]) for batch in batches]) for part in (0, 1))

    async def measure() -> int:
        async with Trainer() as trainer:
            names = ("program", "data", "content", "checkpoint_file")
            return await trainer.evaluate(*(Path(blobs[name]) for name in names))

    expected = run_async(measure) / 1e6
    assert loss_of(model, (x, y), F.cross_entropy) == pytest.approx(expected, abs=1e-5)


def test_adapters_need_no_running_statistics(
    blobs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdf_market.commands.model_file.run_async", lambda _main: pytest.fail("not needed"))
    target = tmp_path / "model.safetensors"
    write_model(blobs, target, trained_only=True)
    assert not any("running" in name for name in safetensors.torch.load_file(target))


# ---- the command


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


class Client:
    """A node's client that has every blob and owns what ``account`` owns."""

    def __init__(self, account: str = "") -> None:
        self.account = account
        self.submitted: list[tuple[str, Any]] = []

    def status(self) -> dict[str, Any]:
        return {"account": self.account}

    def submit(self, kind: str, **fields: Any) -> str:
        self.submitted.append((kind, fields))
        return "e" * 64


def run(monkeypatch: pytest.MonkeyPatch, root: Path, client: Client, *arguments: str) -> int:
    monkeypatch.setattr(commands, "with_client", lambda _app, use: use(client))
    monkeypatch.setattr(sys, "argv", ["gdf-market", "--data-dir", str(root), *arguments])
    try:
        main()
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def test_the_printed_lines_load_the_model(
    example: Example,
    blobs: dict[str, str],
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {"job": "ab" * 32, "status": "done", "completed": 2, "rounds": 2, "paths": blobs}
    monkeypatch.setattr(commands, "fetch_blobs", lambda *_: dict(facts))
    content = written.read_bytes()
    monkeypatch.setattr(commands, "write_model", lambda _paths, target, **_: target.write_bytes(content))
    target = tmp_path / 'a "quoted" näme.safetensors'
    if os.name == "nt":
        target = tmp_path / "näme.safetensors"
    for form in ("--json", "--quiet"):
        assert (
            run(monkeypatch, example.path.parent, Client(), form, "jobs", "fetch", "-o", str(target), "--no-evaluate")
            == 0
        )
        out = capsys.readouterr().out
        line = json.loads(out)["load"] if form == "--json" else out.split("load it   ")[1].strip()
        model = Normed()
        exec(line, {"model": model})
        assert not torch.equal(model.norm.running_mean, torch.zeros(8))


def test_adapters_are_loaded_without_strict() -> None:
    assert snippet(Path("a.safetensors"), trained_only=True).endswith('a.safetensors"), strict=False)')


def test_a_bad_target_is_refused_before_anything_is_fetched(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "fetch_blobs", lambda *_: pytest.fail("fetched"))
    for target, word in ((tmp_path, "is a folder"), (tmp_path / "no" / "model", "does not exist")):
        assert run(monkeypatch, example.path.parent, Client(), "jobs", "fetch", "-o", str(target)) == 2
        assert word in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        check_target(tmp_path / "model")


# ---- cancel


OWNER = identity_of("owner").account


def test_an_owner_cancels(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(OWNER)
    assert run(monkeypatch, example.path.parent, client, "jobs", "cancel", example.running_job) == 0
    assert client.submitted == [("job_cancel", {"job": example.running_job})]
    assert "is being cancelled" in capsys.readouterr().out


def test_a_stranger_and_a_late_owner_read_one_sentence(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for account, job, words in (
        (key_of("x").account, example.running_job, f"belongs to {OWNER}; only its owner"),
        (OWNER, example.done_job, "is over (done); there is nothing left"),
    ):
        client = Client(account)
        assert run(monkeypatch, example.path.parent, client, "jobs", "cancel", job) == 2
        assert client.submitted == []
        shown = capsys.readouterr()
        assert shown.out == ""
        assert words in " ".join(shown.err.split())
        assert len(shown.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "ending"), [("running", "cancelled"), ("draining", "cancelled"), ("cancelled", "cancelled")]
)
def test_a_second_cancellation_is_none(example: Example, status: str, ending: str) -> None:
    job: Any = example.build.records[f"job/{example.running_job}"]
    again = msgspec.structs.replace(job, status=status, ending=ending)
    with pytest.raises(UsageError, match="cancelled already"):
        commands._cancel(Client(OWNER), again)  # type: ignore[arg-type]


# ---- the group alone


def test_jobs_without_a_command_lists_as_json_and_helps_people(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("--json", "jobs"), ("jobs", "--json")):
        assert run(monkeypatch, example.path.parent, Client(), *arguments) == 0
        assert {row["id"] for row in json.loads(capsys.readouterr().out)["jobs"]} == {
            example.done_job,
            example.running_job,
        }
    assert run(monkeypatch, example.path.parent, Client(), "jobs") == 0
    assert "Usage" in capsys.readouterr().out
