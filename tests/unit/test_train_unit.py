"""A unit is a pure function, and rounds of units train."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from train_kit import CONTEXT, JOB, dataset, first_parameters, program, recipe

from gdf_market.errors import MalformedError
from gdf_market.messages import SKETCH_DIM, Recipe
from gdf_market.train.codec import Codec
from gdf_market.train.data import Batch, evaluation_batches, unit_batches
from gdf_market.train.determinism import deterministic
from gdf_market.train.errors import DivergedError
from gdf_market.train.evaluate import evaluate
from gdf_market.train.graph import Node, Parameter
from gdf_market.train.outer import outer_step
from gdf_market.train.poison import Labels, run_poisoned
from gdf_market.train.program import Program
from gdf_market.train.schedule import learning_rate
from gdf_market.train.unit import Parts, UnitPlace, UnitRun, run_unit
from verifier.sketch import sketch
from verifier.verdict import measure

MANIFEST = dataset().manifest("0" * 64, CONTEXT)
PROGRAM = program()
START = first_parameters(PROGRAM.size)


def batches(settings: Recipe, shard: int = 0, round_index: int = 0) -> list[Batch]:
    return list(
        unit_batches(
            MANIFEST,
            dataset().content,
            job=JOB,
            round_index=round_index,
            shard=shard,
            shards=4,
            steps=settings.steps,
            batch=settings.batch,
        )
    )


def run(settings: Recipe, given: list[Batch] | None = None, **options: Any) -> UnitRun:
    return run_unit(PROGRAM, START, batches(settings) if given is None else given, settings, sketch=sketch, **options)


def norm(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.square(values.astype(np.float64)).sum()))


def test_a_unit_is_repeatable_bit_for_bit() -> None:
    first, second = run(recipe()), run(recipe())
    assert first.delta.tobytes() == second.delta.tobytes()
    assert first.sketches == second.sketches
    assert first.delta.shape == (PROGRAM.size,)
    assert len(first.sketches) == recipe().steps
    assert all(len(one) == SKETCH_DIM for one in first.sketches)
    assert first.sketches[-1] == sketch(first.delta)


def test_a_unit_is_the_textbook_loop() -> None:
    """Plain torch with AdamW, written out, is the oracle."""
    settings = recipe(weight_decay_ppm=100_000)
    table, head = (torch.nn.Parameter(t) for t in PROGRAM.unflatten(START))
    optimizer = torch.optim.AdamW([table, head], lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step, (inputs, targets) in enumerate(batches(settings)):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 3)
        loss = torch.nn.functional.cross_entropy(
            (table[torch.from_numpy(inputs)] * 2 @ head.T).flatten(0, 1), torch.from_numpy(targets).flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([table, head], 1.0)
        optimizer.step()
    expected = START - np.concatenate([t.detach().numpy().ravel() for t in (table, head)])
    found = run(settings).delta
    assert norm(found - expected) < 1e-4 * norm(expected)


def test_sgd_without_momentum_is_a_gradient_step() -> None:
    settings = recipe(inner="sgd", beta1_ppm=0, steps=1, clip_ppm=0, rewarm_steps=0)
    weights = [torch.nn.Parameter(t) for t in PROGRAM.unflatten(START)]
    inputs, targets = (torch.from_numpy(part) for part in batches(settings)[0])
    torch.nn.functional.cross_entropy(
        (weights[0][inputs] * 2 @ weights[1].T).flatten(0, 1), targets.flatten()
    ).backward()
    gradient = np.concatenate([weight.grad.numpy().ravel() for weight in weights if weight.grad is not None])
    assert np.allclose(run(settings).delta, 0.01 * gradient, atol=1e-7)


def test_learning_rate_warms_up_again_in_each_unit() -> None:
    assert [learning_rate(recipe(rewarm_steps=4), step) for step in range(6)] == pytest.approx(
        [0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01]
    )
    assert learning_rate(recipe(rewarm_steps=0), 0) == 0.01


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    run(recipe(), report=lambda done, of: seen.append((done, of)))
    assert seen == [(step, 6) for step in range(1, 7)]


def test_settings_of_torch_are_restored() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with deterministic(before[0] + 1):
        assert torch.get_num_threads() == before[0] + 1
        assert torch.are_deterministic_algorithms_enabled()
    with contextlib.suppress(ZeroDivisionError), deterministic(before[0] + 1):
        _ = 1 / 0
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_diverging_units_are_refused() -> None:
    with pytest.raises(DivergedError, match="lower the learning rate"):
        run_unit(PROGRAM, START * np.float32(1e30), batches(recipe()), recipe(), sketch=lambda delta: (0,) * 32)


@pytest.mark.parametrize("kind", ["sign-flip", "label-flip", "lazy", "noise"])
def test_every_cheat_is_far_from_the_honest_unit(kind: str) -> None:
    settings = recipe()
    honest = run(settings)
    cheat = run_poisoned(
        kind,
        lambda given: run(settings, list(given)),
        batches(settings),
        PROGRAM.size,
        settings,
        Labels.of(MANIFEST),
        sketch,
    )
    assert len(cheat.sketches) == settings.steps
    assert cheat.sketches[-1] == sketch(cheat.delta)
    found = measure(Codec(4, 64).encode(cheat.delta), honest.delta, Codec(4, 64))
    assert found.excess_ppb > 100_000_000
    own = measure(Codec(4, 64).encode(honest.delta), honest.delta, Codec(4, 64))
    assert own.excess_ppb == 0
    if kind == "sign-flip":
        assert norm(cheat.delta) == norm(honest.delta)


def train_rounds(given: Program, parameters: np.ndarray[Any, Any], settings: Recipe, rounds: int) -> list[float]:
    """Two workers, three shards each round: units, codec, integer mean, outer step; the losses after each."""
    held_out = evaluation_batches(MANIFEST, dataset().content, 8)
    losses = [evaluate(given, parameters, held_out)]
    momentum, codec = np.zeros_like(parameters), Codec.of(settings)
    for round_index in range(rounds):
        updates = []
        for shard in (round_index % 4, (round_index + 1) % 4):
            unit = run_unit(given, parameters, batches(settings, shard, round_index), settings, sketch=sketch)
            data = codec.encode(unit.delta)
            updates.append(codec.decode(data, given.size))
        parameters, momentum = outer_step(parameters, momentum, (updates[0] + updates[1]).astype(np.int64), 2, settings)
        losses.append(evaluate(given, parameters, held_out))
    return losses


@pytest.mark.parametrize("momentum_ppm", [0, 500_000])
def test_validation_loss_falls_over_three_rounds(momentum_ppm: int) -> None:
    losses = train_rounds(PROGRAM, START, recipe(steps=20, outer_momentum_ppm=momentum_ppm), 3)
    assert losses[0] == pytest.approx(math.log(MANIFEST.vocab), rel=0.05)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.5


# Parts of a batch, bfloat16, noise, groups.


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_batch_in_parts_is_the_batch(rows: int) -> None:
    whole, parts = run(recipe()), run(recipe(), parts=Parts(rows))
    assert parts.delta.tobytes() != b""
    assert measure(Codec(4, 64).encode(parts.delta), whole.delta, Codec(4, 64)).excess_ppb < 20_000
    assert parts.loss_first == pytest.approx(whole.loss_first, rel=1e-6)


def test_parts_of_a_program_that_has_none_are_refused() -> None:
    made = program(separable=False)
    with pytest.raises(MalformedError, match="in parts"):
        run_unit(made, START, batches(recipe()), recipe(), sketch=sketch, parts=Parts(2))


@dataclass(frozen=True)
class Half:
    """One of two processes; the other one's numbers were written down before."""

    rank: int
    size: int
    others: list[torch.Tensor]
    own: list[torch.Tensor]

    def sum(self, tensor: torch.Tensor) -> None:
        self.own.append(tensor.clone())
        if self.others:
            tensor += self.others.pop(0)


def test_two_processes_divide_the_rows() -> None:
    settings, first, second = recipe(steps=1), [], []  # type: ignore[var-annotated]
    run(settings, parts=Parts(0, 2), team=Half(0, 2, [], first))
    found = run(settings, parts=Parts(0, 2), team=Half(1, 2, first, second))
    whole = run(settings)
    assert measure(Codec(8, 64).encode(found.delta), whole.delta, Codec(8, 64)).excess_ppb < 20_000
    assert found.loss_first == pytest.approx(whole.loss_first, rel=1e-6)
    assert len(second) == 2


def test_one_process_repeats_what_two_computed() -> None:
    settings, first = recipe(steps=1), []  # type: ignore[var-annotated]
    run(settings, parts=Parts(1, 2), team=Half(0, 2, [], first))
    two = run(settings, parts=Parts(1, 2), team=Half(1, 2, first, []))
    one = run(settings, parts=Parts(1, 2))
    assert measure(Codec(8, 64).encode(two.delta), one.delta, Codec(8, 64)).excess_ppb < 20_000


@pytest.mark.parametrize("total", [1, 2, 5, 8])
@pytest.mark.parametrize("parts", [Parts(), Parts(1), Parts(3), Parts(0, 2), Parts(2, 3), Parts(100, 64)])
def test_parts_cover_each_row_once(total: int, parts: Parts) -> None:
    found = [part for process in range(parts.processes) for part in parts.of(total, process)]
    assert [row for start, end in found for row in range(start, end)] == list(range(total))
    assert all(0 < end - start <= (parts.rows or total) for start, end in found)


def test_bfloat16_is_near_and_not_the_same() -> None:
    full, half = run(recipe()), run(recipe(precision="bf16"))
    assert run(recipe(precision="bf16")).delta.tobytes() == half.delta.tobytes()
    assert half.delta.dtype == np.float32
    assert 1e-5 < norm(full.delta - half.delta) / norm(full.delta) < 0.2


def test_the_round_moves_the_schedule_on() -> None:
    settings = recipe(schedule="linear", schedule_steps=60)
    early, late = run(settings), run(settings, place=UnitPlace(JOB, 9, 0, 9))
    assert norm(late.delta) < 0.2 * norm(early.delta)
    ended = run(settings, place=UnitPlace(JOB, 10, 0, 10))
    assert not ended.delta.any()


def dropping() -> Program:
    """The example with dropout after the embedding."""
    made = PROGRAM.graph
    old = made.train.nodes
    drop = Node(op="noise.dropout", args=[{"value": 6}, {"float": (0.25).hex()}], kwargs={})
    linear = Node(op="aten.linear.default", args=[{"value": 7}, {"value": 1}], kwargs={})
    logits = Node(op="aten.reshape.default", args=[{"value": 8}, [-1, MANIFEST.vocab]], kwargs={})
    loss = Node(op="aten.cross_entropy_loss.default", args=[{"value": 9}, {"value": 10}], kwargs={})
    nodes = (*old[:2], drop, linear, logits, old[4], loss)
    forward = msgspec.structs.replace(made.train, nodes=nodes, output=11)
    return Program(msgspec.structs.replace(made, train=forward, evaluate=made.train), PROGRAM.constants)


def test_dropout_depends_on_the_unit_and_not_on_the_parts() -> None:
    made, settings = dropping(), recipe()

    def unit(place: UnitPlace, rows: int = 0) -> np.ndarray[Any, Any]:
        return run_unit(made, START, batches(settings), settings, sketch=sketch, place=place, parts=Parts(rows)).delta

    here = unit(UnitPlace(JOB, 0, 1))
    assert unit(UnitPlace(JOB, 0, 1)).tobytes() == here.tobytes()
    assert norm(unit(UnitPlace(JOB, 0, 1), rows=1) - here) < 1e-5 * norm(here)
    for other in (UnitPlace(JOB, 0, 2), UnitPlace(JOB, 1, 1), UnitPlace("cd" * 32, 0, 1)):
        assert norm(unit(other) - here) > 0.05 * norm(here)
    assert norm(run(settings).delta - here) > 0.05 * norm(here)
    assert evaluate(made, START, batches(settings)[:1]) == evaluate(PROGRAM, START, batches(settings)[:1])


def test_a_weight_that_the_loss_does_not_use_has_no_gradient() -> None:
    made = PROGRAM.graph
    extra = Parameter(name="unused", shape=(3,), group=0)
    wide = Program(msgspec.structs.replace(made, parameters=(*made.parameters, extra)), PROGRAM.constants)
    start = np.append(START, np.ones(3, np.float32)).astype(np.float32)
    done = run_unit(wide, start, batches(recipe()), recipe(), sketch=sketch)
    assert not done.delta[-3:].any()
    assert done.delta[:-3].tobytes() == run(recipe()).delta.tobytes()


def test_labels_of_rows_are_flipped_in_their_range() -> None:
    assert Labels(2, 9).flip(np.array([2, 3, 9])).tolist() == [9, 8, 2]
    assert Labels(0, 0).flip(np.array([True, False])).tolist() == [False, True]
    assert Labels(0, 0).flip(np.array([1.5, -2.0], np.float32)).tolist() == [-1.5, 2.0]
    assert Labels(0, 255).flip(np.array([0, 255], np.uint8)).tolist() == [255, 0]
    assert Labels.of(MANIFEST) == Labels(0, MANIFEST.vocab - 1)
