"""torch.export of owners' modules: what is captured computes the same, what cannot be repeated is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gdf_market.errors import UsageError
from gdf_market.train.capture import capture_module, initial_parameters
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.program import Program, to_safetensors

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code

IMAGES, LABELS = torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))


class SmallCNN(nn.Module):
    """Convolution, an in-place activation, frozen batch norm statistics, pooling, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 16, 3)
        self.register_buffer("gain", torch.tensor(1.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.act(self.norm(self.conv(x))), 2)
        return self.head(self.drop(x.flatten(1) * self.gain))


class TinyGPT(nn.Module):
    """Attention, tied weights, positions made inside the graph."""

    def __init__(self, vocab: int = 11, width: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        B, T = idx.shape
        x = self.tokens(idx) + torch.arange(T).unsqueeze(-1) * 0.01
        q, k, v = (part.view(B, T, 2, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).split(8, dim=2))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, 8)
        return F.cross_entropy(self.head(x).view(-1, 11), targets.view(-1))


def check_same(model: nn.Module, program: Program, batch: tuple[torch.Tensor, ...], loss: torch.Tensor) -> None:
    """The program, read back from bytes, has the loss and the gradients of the module."""
    again = Program.from_bytes(program.to_bytes())
    flat = initial_parameters(model, again)
    module = ProgramModule(again, again.unflatten(flat))
    result = module(*batch)
    result.backward()
    loss.backward()
    assert result.item() == pytest.approx(loss.item(), rel=1e-6)
    own = dict(model.named_parameters(remove_duplicate=False))
    for weight, parameter in zip(module.weights, again.graph.parameters, strict=True):
        assert torch.allclose(weight.grad, own[parameter.name].grad, atol=1e-6)


def test_a_gpt_takes_any_batch_and_keeps_tied_weights() -> None:
    model = TinyGPT()
    program = capture_module(model, (torch.randint(0, 11, (3, 6)), torch.randint(0, 11, (3, 6))))
    assert program.graph.batch == 0
    assert program.size == sum(parameter.numel() for parameter in model.parameters())
    batch = (torch.randint(0, 11, (5, 6)), torch.randint(0, 11, (5, 6)))
    check_same(model, program, batch, model(*batch))
    from gdf_market.train.checkpoint import pack

    flat = initial_parameters(model, program)
    restored = TinyGPT()
    restored.load_state_dict(_load(to_safetensors(program, pack(flat, flat * 0))))
    assert restored(*batch).item() == pytest.approx(model(*batch).item(), rel=1e-6)


def _load(data: bytes) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load(data)


def test_a_cnn_in_eval_mode_with_a_loss_function() -> None:
    model = SmallCNN().eval()
    program = capture_module(model, (IMAGES, LABELS), F.cross_entropy)
    check_same(model, program, (IMAGES, LABELS), F.cross_entropy(model(IMAGES), LABELS))
    names = {parameter.name for parameter in program.graph.parameters}
    assert names == {name for name, _ in model.named_parameters()}
    assert set(program.graph.state) == set(model.state_dict())  # "gain" is not persistent


def test_frozen_parameters_are_constants() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    batch = (torch.randn(3, 4), torch.randn(3, 1))
    program = capture_module(model, batch, F.mse_loss)
    assert [parameter.name for parameter in program.graph.parameters] == ["1.weight", "1.bias"]
    assert sorted(program.constants) == ["0.bias", "0.weight"]
    assert sorted(program.graph.state) == sorted(model.state_dict())


class Wrapped(nn.Module):
    """A linear layer and one line of the owner's."""

    def __init__(self, line: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.line = line

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.line(self.layer(x)), y)


BATCH = (torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (lambda x: F.alpha_dropout(x, 0.5, True), "alpha dropout"),
        (lambda x: x + torch.bernoulli(torch.sigmoid(x)), "aten.bernoulli.default draws random numbers"),
        (lambda x: x + torch.rand(3, 4), "aten.rand.default draws random numbers"),
        (lambda x: x + torch.randn_like(x), "aten.randn_like.default draws random numbers"),
        (lambda x: torch.fft.fft(x).real, "the operator aten.fft_"),
        (lambda x: torch.linalg.inv(x @ x.T) @ x, "the operator aten.linalg_inv"),
        (lambda x: x * x.sum().item(), "keep it a tensor"),
        (lambda x: x[x > 0].sum() + x, "boolean mask"),
        (lambda x: x + torch.empty(4), "memory without values"),
    ],
)
def test_refusals_name_operator_and_line(line: Callable[[torch.Tensor], torch.Tensor], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        capture_module(Wrapped(line), BATCH)
    assert f"{__file__}:" in str(caught.value)


def test_dropout_of_zero_is_left_out() -> None:
    model = Wrapped(nn.Dropout(0.0))
    program = capture_module(model, BATCH)
    assert not [node.op for node in program.graph.train.nodes if "dropout" in node.op]
    check_same(model, program, BATCH, model(*BATCH))


def test_branches_on_values_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot trace"):
        capture_module(Wrapped(lambda x: x if x.sum() > 0 else -x), BATCH)


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (Wrapped(torch.relu).requires_grad_(False), BATCH, "nothing to train"),
        (Wrapped(torch.relu).double(), tuple(part.double() for part in BATCH), "call model.float"),
        (Wrapped(torch.relu), (torch.randn(3, 5), torch.randn(3, 4)), "does not take a batch"),
        (TinyGPT(), (torch.full((2, 6), 11), torch.full((2, 6), 1)), "does not take a batch"),
    ],
)
def test_unusable_models(model: nn.Module, batch: tuple[torch.Tensor, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        capture_module(model, batch)


def test_a_result_that_is_no_loss_is_refused() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.layer(x)
            return out, F.mse_loss(out, y)

    with pytest.raises(UsageError, match="loss alone"):
        capture_module(Both(), BATCH)
    with pytest.raises(UsageError, match="scalar loss"):
        capture_module(Elementwise(), BATCH)


class Elementwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) - y).square()
