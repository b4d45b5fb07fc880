"""Small machines compute batches in parts; what does not fit says why; statistics and losses of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from train_kit import dataset, first_parameters, graph, program, recipe, write_job

from gdf_market.errors import MalformedError, OversizedError
from gdf_market.train.evaluate import evaluate, gather_statistics
from gdf_market.train.fitting import fit_evaluation, fit_unit
from gdf_market.train.graph import Forward, Node
from gdf_market.train.operations import Operations, Verification
from gdf_market.train.program import Program
from gdf_market.train.protocol import AuditRequest, ProbeRequest, StatisticsRequest, TrainRequest, UnitParts
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure

WIDE = recipe(batch=64)


def least_memory(rows: int) -> int:
    """Return what a step of so many rows takes."""
    return fit_unit(program(), recipe(batch=rows), 2**30).memory_bytes


@pytest.mark.parametrize("rows", [32, 8, 1])
def test_the_largest_part_that_fits_is_taken(rows: int) -> None:
    assert fit_unit(program(), WIDE, 2**30).parts.rows == 0
    assert fit_unit(program(), WIDE, least_memory(rows)).parts.rows == rows
    assert fit_unit(program(), WIDE, least_memory(rows)).memory_bytes <= least_memory(rows)


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(OversizedError, match="not even one row of a batch fits"):
        fit_unit(program(), WIDE, 10_000)
    with pytest.raises(OversizedError, match="cannot be computed in parts"):
        fit_unit(program(separable=False), WIDE, least_memory(32))
    with pytest.raises(OversizedError, match="cannot be computed in parts"):
        fit_unit(program(batch=64), WIDE, least_memory(32))
    with pytest.raises(MalformedError, match="divided over 2 devices"):
        fit_unit(program(batch=64), WIDE, 2**30, 2)


def test_several_processes_share_a_batch() -> None:
    assert fit_unit(program(), WIDE, least_memory(32), 2).parts.rows == 0
    assert fit_unit(program(), WIDE, least_memory(16), 2).parts.rows == 16


def test_evaluation_takes_smaller_batches() -> None:
    assert fit_evaluation(program(), 64, 2**30) == 64
    assert fit_evaluation(program(), 64, 60_000) < 64
    with pytest.raises(OversizedError):
        fit_evaluation(program(batch=64), 64, 60_000)
    with pytest.raises(OversizedError):
        fit_evaluation(program(), 64, 100)


def operations() -> Operations:
    return Operations(Verification(sketch, measure, compute_outcome), lambda _done, _of: None)


def fields(folder: Path, given: Program | None = None) -> dict[str, Any]:
    unit = write_job(folder, given)
    return {name: str(getattr(unit, name)) for name in ("program", "data", "content", "checkpoint")}


def test_a_small_machine_passes_the_audit_of_a_large_one(tmp_path: Path) -> None:
    unit = fields(tmp_path) | {"recipe": WIDE, "job": "ab" * 32, "round": 0}
    unit |= {"done": 0, "shard": 1, "shards": 4}
    out = str(tmp_path / "out")
    operations().perform(TrainRequest(**unit, out=out, memory_bytes=least_memory(8)))
    audit: Any = operations().perform(AuditRequest(**unit, claim=out))
    assert 0 <= audit.excess_ppb < 20_000


def lying() -> Program:
    """A program that says that parts change nothing, and takes the mean of the batch away."""
    honest = graph(dataset().vocab).train.nodes
    centre = (
        Node(op="aten.mean.dim", args=[{"value": 5}, [0], True], kwargs={}),
        Node(op="aten.sub.Tensor", args=[{"value": 5}, {"value": 6}], kwargs={}),
        Node(op="aten.linear.default", args=[{"value": 7}, {"value": 1}], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 8}, [-1, dataset().vocab]], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 3}, [-1]], kwargs={}),
        Node(op="aten.cross_entropy_loss.default", args=[{"value": 9}, {"value": 10}], kwargs={}),
    )
    return program(nodes=(honest[0], *centre), output=11)


def test_a_program_that_lies_about_parts_makes_no_cheat_of_a_small_machine(tmp_path: Path) -> None:
    unit = fields(tmp_path, lying()) | {
        "recipe": WIDE,
        "job": "ab" * 32,
        "round": 0,
        "done": 0,
        "shard": 1,
        "shards": 4,
    }
    out = str(tmp_path / "out")
    small = fit_unit(lying(), recipe(batch=8), 2**30).memory_bytes
    trained: Any = operations().perform(TrainRequest(**unit, out=out, memory_bytes=small))
    assert trained.parts == UnitParts(rows=8)
    whole: Any = operations().perform(AuditRequest(**unit, claim=out))
    assert whole.parts == UnitParts()
    assert whole.excess_ppb > 1_000_000
    same: Any = operations().perform(AuditRequest(**unit, claim=out, parts=trained.parts))
    assert same.parts == trained.parts
    assert (same.excess_ppb, same.sketches) == (0, trained.sketches)


def test_parts_are_not_for_a_program_that_has_none(tmp_path: Path) -> None:
    made = program(separable=False)
    unit = fields(tmp_path, made) | {"recipe": WIDE, "job": "ab" * 32, "round": 0, "done": 0, "shard": 1, "shards": 4}
    out = str(tmp_path / "out")
    operations().perform(TrainRequest(**unit, out=out))
    audit: Any = operations().perform(AuditRequest(**unit, claim=out, parts=UnitParts(rows=1)))
    assert (audit.parts, audit.excess_ppb) == (UnitParts(), 0)


def test_given_parts_that_do_not_fit_are_not_replaced(tmp_path: Path) -> None:
    unit = fields(tmp_path) | {"recipe": WIDE, "job": "ab" * 32, "round": 0, "done": 0, "shard": 1, "shards": 4}
    out = str(tmp_path / "out")
    operations().perform(TrainRequest(**unit, out=out))
    with pytest.raises(OversizedError):
        operations().perform(AuditRequest(**unit, claim=out, parts=UnitParts(), memory_bytes=least_memory(8)))


def amplifying() -> Program:
    """A program whose loss depends on digits that rounding decides: the sine of a million times the embedding."""
    honest = graph(dataset().vocab).train.nodes
    wild = (
        Node(op="aten.mul.Tensor", args=[{"value": 5}, {"float": (3e6).hex()}], kwargs={}),
        Node(op="aten.sin.default", args=[{"value": 6}], kwargs={}),
        Node(op="aten.linear.default", args=[{"value": 7}, {"value": 1}], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 8}, [-1, dataset().vocab]], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 3}, [-1]], kwargs={}),
        Node(op="aten.cross_entropy_loss.default", args=[{"value": 9}, {"value": 10}], kwargs={}),
    )
    return program(nodes=(honest[0], *wild), output=11)


def test_a_probe_finds_out_what_cannot_be_repeated(tmp_path: Path) -> None:
    def excess_ppb(made: Program) -> int:
        request = ProbeRequest(**fields(tmp_path, made), recipe=WIDE, steps=3)
        reply: Any = operations().perform(request)
        return int(reply.excess_ppb)

    assert excess_ppb(program()) < 20_000
    assert excess_ppb(program(separable=False)) < 20_000
    assert excess_ppb(amplifying()) > 1_000_000


def counting() -> Program:
    """The example with a running statistic: a tenth of the way to the mean of the logits' squares."""
    made = graph(dataset().vocab)
    nodes = (
        *made.train.nodes,
        Node(op="aten.mul.Tensor", args=[{"value": 8}, {"value": 8}], kwargs={}),
        Node(op="aten.mean.default", args=[{"value": 11}], kwargs={}),
        Node(op="aten.mul.Tensor", args=[{"value": 4}, {"float": (0.9).hex()}], kwargs={}),
        Node(op="aten.mul.Tensor", args=[{"value": 12}, {"float": (0.1).hex()}], kwargs={}),
        Node(op="aten.add.Tensor", args=[{"value": 13}, {"value": 14}], kwargs={}),
    )
    train = Forward(inputs=made.train.inputs, nodes=nodes, output=10, updates={"scale": 15})
    return Program(msgspec.structs.replace(made, train=train, evaluate=made.train), {"scale": torch.tensor(2.0)})


def some_batches(count: int) -> list[tuple[np.ndarray[Any, Any], ...]]:
    from gdf_market.train.data import evaluation_batches

    return list(evaluation_batches(dataset().manifest("0" * 64, 8), dataset().content, 8))[:count]


def test_statistics_are_gathered_anew_before_a_loss_is_measured() -> None:
    made = counting()
    start = first_parameters(made.size)
    batches = some_batches(3)
    found = gather_statistics(made, start, batches)
    assert list(found) == ["scale"]
    assert 0 < float(found["scale"]) < 2.0
    with_statistics = evaluate(made, start, batches, statistics=batches)
    replaced = Program(made.graph, {"scale": found["scale"]})
    assert with_statistics == pytest.approx(evaluate(replaced, start, batches))
    assert with_statistics != pytest.approx(evaluate(made, start, batches), rel=1e-9)
    assert gather_statistics(program(), start, batches) == {}


def test_statistics_of_a_checkpoint_are_written(tmp_path: Path) -> None:
    out = tmp_path / "statistics"
    reply: Any = operations().perform(StatisticsRequest(**fields(tmp_path, counting()), out=str(out)))
    assert (reply.path, reply.tensors) == (str(out), 1)
    found = safetensors.torch.load(out.read_bytes())
    assert list(found) == ["scale"]
    assert found["scale"].shape == ()
