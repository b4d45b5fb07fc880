"""Schedules, groups and optimizers of a unit against written-out formulas and torch's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_kit import dataset, graph, recipe

from gdf_market.train.graph import Group, Parameter
from gdf_market.train.optimizers import InnerOptimizer, Muon, orthogonalise
from gdf_market.train.schedule import learning_rate, scheduled


def rates(**changes: Any) -> list[float]:
    return [scheduled(recipe(**changes), position) for position in range(9)]


def test_schedules_come_down_over_the_whole_job() -> None:
    down = {"schedule_steps": 6, "warmup_steps": 2, "final_lr_ppm": 100_000}
    assert rates(warmup_steps=2) == [0.5] + [1.0] * 8
    assert rates(schedule="linear", **down) == pytest.approx([0.5, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1, 0.1])
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(5)]
    assert rates(schedule="cosine", **down) == pytest.approx([0.5, 1, *cosine, 0.1, 0.1])
    assert rates(schedule="cosine") == [1.0] * 9  # a schedule without an end is none


def test_a_unit_of_a_later_round_goes_on_where_the_schedule_is() -> None:
    settings = recipe(schedule="linear", schedule_steps=60, steps=6, rewarm_steps=2)
    assert learning_rate(settings, 0, 5) == pytest.approx(0.01 * 0.5 * 0.5)  # half down, first of two re-warm-up steps
    assert learning_rate(settings, 5, 5) == pytest.approx(0.01 * 25 / 60)
    assert learning_rate(settings, 5, 50) == 0.0


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 1_000_000), st.sampled_from(["linear", "cosine"]))
def test_a_schedule_rises_to_one_and_falls_to_its_end(warmup: int, span: int, final: int, kind: str) -> None:
    settings = recipe(schedule=kind, warmup_steps=warmup, schedule_steps=warmup + span, final_lr_ppm=final)
    values = [scheduled(settings, position) for position in range(warmup + span + 2)]
    rise, fall = values[: warmup + 1], values[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert all(0.0 <= value <= 1.0 for value in values)
    assert values[-1] == pytest.approx(final / 1e6 if span else 1.0)


def grouped(groups: tuple[Group, ...], shapes: list[tuple[int, ...]]) -> Any:
    parameters = tuple(Parameter(name=f"p{i}", shape=shape, group=i) for i, shape in enumerate(shapes))
    return graph(dataset().vocab, parameters=parameters, groups=groups)


def some_weights(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def steps(optimizer: Any, weights: list[torch.nn.Parameter], rate: float | None, count: int = 4) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step(rate) if rate is not None else optimizer.step()


@pytest.mark.parametrize("inner", ["adamw", "sgd"])
def test_groups_scale_rate_and_decay(inner: str) -> None:
    shapes: list[tuple[int, ...]] = [(4, 3), (5,)]
    ours, theirs = some_weights(shapes), some_weights(shapes)
    settings = recipe(inner=inner, weight_decay_ppm=200_000)
    groups = (Group(lr_ppm=500_000), Group(decay_ppm=0))
    optimizer = InnerOptimizer(ours, grouped(groups, shapes), settings)
    per_group = [
        {"params": theirs[:1], "lr": 0.005, "weight_decay": 0.2},
        {"params": theirs[1:], "lr": 0.01, "weight_decay": 0.0},
    ]
    oracle: Any = torch.optim.AdamW(per_group, betas=(0.9, 0.95), eps=1e-6)
    if inner == "sgd":
        oracle = torch.optim.SGD(per_group, momentum=0.9)
    steps(optimizer, ours, 0.01)
    steps(oracle, theirs, None)
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16)])
def test_muon_is_torchs_within_bfloat16(shape: tuple[int, int]) -> None:
    """Newton-Schulz moves every singular value to 0.7..1.2, in either precision."""
    ours, theirs = some_weights([shape]), some_weights([shape])
    start = ours[0].detach().clone()
    optimizer = InnerOptimizer(ours, grouped((Group(muon=True),), [shape]), recipe(inner="muon", weight_decay_ppm=0))
    oracle = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    steps(optimizer, ours, 0.01, 3)
    steps(oracle, theirs, None, 3)
    moved = float((theirs[0] - start).norm().item())
    assert float((ours[0] - theirs[0]).norm().item()) < 0.03 * moved
    per_step = moved / math.sqrt(theirs[0].numel() * 3)
    assert per_step == pytest.approx(0.2 * 0.01, rel=0.6)  # 0.2 of the rate, as AdamW's


def test_newton_schulz_makes_singular_values_nearly_one() -> None:
    matrix = torch.randn((12, 30), generator=torch.Generator().manual_seed(0))
    found = torch.linalg.svdvals(orthogonalise(matrix))
    assert float(found.min()) > 0.6
    assert float(found.max()) < 1.3
    assert torch.allclose(orthogonalise(matrix.T), orthogonalise(matrix).T, atol=1e-6)
    assert not orthogonalise(torch.zeros(3, 4)).any()


def test_muon_decays_and_takes_kernels_as_matrices() -> None:
    (kernel,), (matrix,) = some_weights([(6, 2, 3, 3)]), some_weights([(6, 18)])
    with torch.no_grad():
        matrix.copy_(kernel.flatten(1))
    for weight in (kernel, matrix):
        steps(Muon([{"params": [weight], "lr": 0.01, "weight_decay": 0.5}]), [weight], None)
    assert torch.equal(kernel.flatten(1), matrix)


def test_only_matrices_of_a_muon_group_take_muon() -> None:
    shapes: list[tuple[int, ...]] = [(4, 3), (5,), (4, 3)]
    groups = (Group(muon=True), Group(muon=True), Group())
    plain = (Group(), Group(), Group())
    for inner, same in (("muon", [False, True, True]), ("adamw", [True, True, True])):
        ours, theirs = some_weights(shapes), some_weights(shapes)
        steps(InnerOptimizer(ours, grouped(groups, shapes), recipe(inner=inner)), ours, 0.01)
        steps(InnerOptimizer(theirs, grouped(plain, shapes), recipe()), theirs, 0.01)
        assert [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)] == same


def test_newton_schulz_keeps_small_differences_small() -> None:
    """In bfloat16 the same difference becomes thousands of times as large, and honest reruns would fail audits."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn((64, 96), generator=generator)
    other = gradient * (1 + 1e-6 * torch.randn((64, 96), generator=generator))
    found = orthogonalise(gradient)
    assert float((found - orthogonalise(other)).norm() / found.norm()) < 2e-5
