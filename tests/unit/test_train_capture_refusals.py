"""Every refusal says which module, which operator, which line, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gdf_market.errors import UsageError
from gdf_market.train.capture import capture_module
from gdf_market.train.exporting import check_forward

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code

BATCH = (torch.randn(4, 4), torch.randn(4, 4))


class Inner(nn.Module):
    """Computes something of the owner's."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.calls, self.seen = name, 0, []
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:  # noqa: C901  (torch keeps only lines of functions called forward)
        match self.name:
            case "branch":
                return x if x.sum() > 0 else -x
            case "item":
                return x * x.max().item()
            case "tolist":
                return x * sum(x[0].tolist())
            case "numpy":
                return x + torch.from_numpy(x.detach().numpy() * 2)
            case "counter":
                self.calls += 1
                return x * self.calls
            case "history":
                self.seen.append(1)
                return x * len(self.seen)
            case "buffer":
                self.total.add_(x.detach().sum(0))
                return x + self.total
            case "custom_function":
                return Straight.apply(x)
            case "custom_operator":
                return torch.ops.tests_capture.twice(x)
            case "nonzero":
                return x + x.nonzero().sum()
            case "noise":
                return x + 0.1 * torch.randn(4)
            case "gumbel":
                return F.gumbel_softmax(x, dim=-1)
            case "autocast":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return (x @ x.T @ x).float()
            case "complex":
                return torch.fft.rfft(x).abs().sum() + x
            case "uninitialised":
                return x + torch.empty(4).mul_(0)
        raise AssertionError(self.name)


class Straight(torch.autograd.Function):
    """An owner's own gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@torch.library.custom_op("tests_capture::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Outer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), Inner(name))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers(x), y)


@pytest.mark.parametrize(
    ("name", "expected", "source"),
    [
        ("branch", ["torch.where"], "x if x.sum() > 0"),
        ("item", ["aten.item.default", "keep it a tensor"], "x * x.max().item()"),
        ("tolist", ["tensor"], "x * sum(x[0].tolist())"),
        ("custom_function", ["custom autograd function Straight", "detach()"], "Straight.apply(x)"),
        ("custom_operator", ["tests_capture.twice.default", "common operators"], "twice(x)"),
        ("nonzero", ["aten.nonzero.default", "torch.where"], "x.nonzero()"),
        ("noise", ["aten.randn.default draws random numbers", "a sample of the data"], "torch.randn(4)"),
        ("gumbel", ["draws random numbers"], "F.gumbel_softmax(x"),
        ("autocast", ["autocast", "the job's precision"], ""),
        ("complex", ["aten.fft_", "common operators"], "torch.fft.rfft"),
        ("uninitialised", ["torch.zeros"], "torch.empty(4)"),
    ],
)
def test_the_module_the_line_and_the_remedy(name: str, expected: list[str], source: str) -> None:
    with pytest.raises(UsageError) as caught:
        capture_module(Outer(name), BATCH)
    message = str(caught.value)
    for part in expected:
        assert part in message
    if source:
        assert source in message
        assert f"{__file__}:" in message
    if name not in ("custom_function", "autocast"):
        assert "layers.1" in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("counter", "changes the attribute layers.1.calls"),
        ("history", "changes the attribute layers.1.seen"),
        ("buffer", "changes layers.1.total while it trains"),
        ("numpy", "cannot trace the model"),
    ],
)
def test_python_side_effects(name: str, expected: str) -> None:
    model = Outer(name)
    with pytest.raises(UsageError, match=expected):
        capture_module(model, BATCH)
    assert model.layers[1].total.tolist() == [0.0] * 4  # looking at it changed nothing


def test_no_grad_cuts_the_gradient_as_in_the_owners_code() -> None:
    class Stopped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = self.first(x).mean(1, keepdim=True)
            return F.mse_loss(self.second(x) * scale + self.first(x), y)

    from gdf_market.train.capture import initial_parameters
    from gdf_market.train.interpreter import ProgramModule

    model = Stopped()
    program = capture_module(model, BATCH)
    module = ProgramModule(program, program.unflatten(initial_parameters(model, program)))
    module(*BATCH).backward()
    model(*BATCH).backward()
    own = dict(model.named_parameters())
    for weight, parameter in zip(module.weights, program.graph.parameters, strict=True):
        assert torch.allclose(weight.grad, own[parameter.name].grad, atol=1e-6)


def test_memory_that_is_filled_at_once_is_a_full_tensor() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.layer(x) + torch.empty(4).fill_(0.5), y)

    program = capture_module(Filled(), BATCH)
    assert "aten.full.default" in {node.op for node in program.graph.train.nodes}


def test_a_label_beyond_the_classes_names_its_field() -> None:
    class Classifier(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(x, y)

    samples = (torch.zeros(4, 3), torch.tensor([0, 3, 1, 2]))
    with pytest.raises(UsageError, match=r"Field 1 of the data holds values up to 3 \(fields count from 0\)"):
        check_forward(Classifier(), samples)
    check_forward(Classifier(), (samples[0], samples[1] % 3))
