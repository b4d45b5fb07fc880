"""Jobs of other kinds than text, end to end: images with batch norm, and adapters on a frozen model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from contracts.records import Audit, Job, Unit
from gdf_market.demo.processes import stop_all, wait_until
from ledger.reading import record_of, records_of
from ledger.store import LedgerStore
from tests.e2e.home import Home

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# phases end when everybody acted: long deadlines cost nothing, and two jobs share two workers of one thread each
PHASES = [
    "--bid-seconds", "8", "--work-seconds", "90", "--phase-seconds", "60", "--audit-seconds", "90",
    "--hold-seconds", "8", "--deadline-minutes", "20",
]  # fmt: skip
ENDED = ("done", "cancelled", "expired")


@pytest.fixture
def home(tmp_path: Path):  # type: ignore[no-untyped-def]
    network = Home(tmp_path)
    yield network
    stop_all(network.members)


def post(home: Home, name: str) -> str:
    terms = ("--rounds", "3", "--warm-rounds", "1", "--max-price", "5", "--units", "2", "--audit-floor-percent", "60")
    return str(home.ann.run("post", str(EXAMPLES / name), *terms, *PHASES)["job"])


def check_ended(store: LedgerStore, job_id: str) -> None:
    job = record_of(store, Job, f"job/{job_id}")
    assert job is not None
    assert (job.status, job.completed) == ("done", 3), job.reason
    units = records_of(store, Unit, f"unit/{job_id}/")
    assert {unit.status for unit in units} == {"paid"}, [(unit.round, unit.slot, unit.reason) for unit in units]
    verdicts = [audit.verdict for audit in records_of(store, Audit, f"audit/{job_id}/") if audit.verdict]
    assert verdicts
    assert set(verdicts) == {"pass"}


def model_of(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", EXAMPLES / name)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.job.model


def test_images_and_adapters_train_on_the_network(home: Home) -> None:
    jobs = {name: post(home, name) for name in ("cnn.py", "lora.py")}
    with home.store(home.ann) as store:
        for job_id in jobs.values():
            wait_until(
                "the job ends",
                lambda job_id=job_id: record_of(store, Job, f"job/{job_id}").status in ENDED,  # type: ignore[misc,union-attr]
                timeout_s=600,
                members=home.members,
            )
            check_ended(store, job_id)
    for name, job_id in jobs.items():
        target = home.ann.data.root / f"{name}.safetensors"
        fetched = home.ann.run("jobs", "fetch", job_id, "-o", str(target))
        assert fetched["loss_after"] < fetched["loss_before"]
        before = {key: tensor.clone() for key, tensor in model_of(name).state_dict().items()}
        model = model_of(name)
        model.load_state_dict(load_file(target), strict=True)
        changed = {key for key, tensor in model.state_dict().items() if not tensor.equal(before[key])}
        assert changed, "training changed nothing"
        if name == "cnn.py":
            assert any("running_mean" in key for key in changed), "statistics of batch norm belong to the weights"
        else:
            frozen = {key for key, tensor in model.named_parameters() if not tensor.requires_grad}
            assert frozen
            assert not changed & frozen
