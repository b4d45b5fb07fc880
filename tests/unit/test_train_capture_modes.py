"""Training and evaluation as two passes: batch norm's statistics, dropout with masks that anybody can repeat."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gdf_market.errors import UsageError
from gdf_market.train.capture import InputTransform, capture_module, initial_parameters
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.noise import Noise
from gdf_market.train.program import Program

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code

SEED = bytes(range(32))
IMAGES, LABELS = torch.randn(6, 2, 8, 8), torch.randint(0, 3, (6,))


def loaded(model: nn.Module, samples: tuple[torch.Tensor, ...], *given: Any, **options: Any) -> ProgramModule:
    """Capture, send through bytes, and load the module's own weights."""
    program = Program.from_bytes(capture_module(model, samples, *given, **options).to_bytes())
    return ProgramModule(program, program.unflatten(initial_parameters(model, program)))


class TwoNorms(nn.Module):
    """Batch norm of images and of features, one of them used twice, and an instance norm that keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.again, self.instance = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        )
        self.features, self.head = nn.BatchNorm1d(4, momentum=0.3, affine=False), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = self.instance(F.relu(self.norm(self.again(x))))
        return self.head(self.features(x.amax((2, 3))))


def test_training_uses_batch_statistics_and_evaluation_the_gathered_ones() -> None:
    model = TwoNorms()
    before = copy.deepcopy(model.state_dict())
    module = loaded(model, (IMAGES, LABELS), F.cross_entropy)
    graph = module.program.graph
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # capture left no trace
    assert model.training
    assert model.norm.training
    assert graph.evaluate is not None
    assert not graph.separable
    norms = ("norm", "instance", "features")
    assert set(graph.train.updates) == {f"{norm}.running_{kind}" for norm in norms for kind in ("mean", "var")}
    loss = F.cross_entropy(model(IMAGES), LABELS)  # moves the module's statistics by one batch
    assert module(IMAGES, LABELS).item() == pytest.approx(loss.item(), rel=1e-6)
    first = module.evaluate(IMAGES, LABELS).item()
    module.gather_statistics(IMAGES, LABELS)
    for name, value in module.statistics().items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-5, atol=1e-6), name
    model.eval()
    assert module.evaluate(IMAGES, LABELS).item() == pytest.approx(
        F.cross_entropy(model(IMAGES), LABELS).item(), rel=1e-5
    )
    assert first != module.evaluate(IMAGES, LABELS).item()


def test_statistics_change_nothing_in_training() -> None:
    module = loaded(TwoNorms(), (IMAGES, LABELS), F.cross_entropy)
    first = module(IMAGES, LABELS).item()
    module.gather_statistics(IMAGES * 3 + 1, LABELS)
    assert module(IMAGES, LABELS).item() == first


def test_a_frozen_norm_stays_in_its_mode() -> None:
    model = TwoNorms()
    model.norm.eval()
    graph = loaded(model, (IMAGES, LABELS), F.cross_entropy).program.graph
    assert not any(name.startswith("norm.") for name in graph.train.updates)


def test_a_cumulative_norm_is_captured_with_torchs_default_momentum() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1))
    module = loaded(model, (torch.randn(4, 4), torch.randn(4, 1)), F.mse_loss)
    module.gather_statistics(torch.full((4, 4), 2.0), torch.randn(4, 1))
    expected = 0.1 * model[0](torch.full((1, 4), 2.0))[0]
    assert torch.allclose(module.statistics()["1.running_mean"], expected, atol=1e-6)
    assert model[1].momentum is None


def test_a_norm_over_several_processes_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SyncBatchNorm(4), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(UsageError, match=r"Module 1 is SyncBatchNorm.*nn.BatchNorm2d"):
        capture_module(model, (IMAGES, LABELS), F.cross_entropy)


# ---- dropout


class Dropping(nn.Module):
    """Plain dropout, dropout of channels, and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.channels = nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5)
        self.drop, self.head = nn.Dropout(0.25, inplace=True), nn.Linear(144, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.channels(self.conv(x)).flatten(1)))


def masked(module: ProgramModule, batch: int, first: int = 0, step: int = 0) -> float:
    module.noise = Noise(SEED, step, batch, first)
    return module(IMAGES[first : first + batch], LABELS[first : first + batch]).item()


def test_masks_belong_to_rows_whatever_the_micro_batch() -> None:
    module = loaded(Dropping(), (IMAGES, LABELS), F.cross_entropy)
    assert module.program.graph.separable
    whole = masked(module, 6)
    assert whole == masked(module, 6)
    assert whole != masked(module, 6, step=1)
    for part in (1, 2, 3):
        parts = [masked(module, part, first) for first in range(0, 6, part)]
        assert sum(parts) / len(parts) == pytest.approx(whole, rel=1e-5)


def test_dropout_as_torch_means_it() -> None:
    """Whole channels go, at the right rate and scale; evaluation drops nothing."""
    model = Dropping()
    module = loaded(model, (IMAGES, LABELS), F.cross_entropy)
    seen: list[torch.Tensor] = []

    class Recorder:
        def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
            result = Noise(SEED, 0, 6).drop(node, tensor, p)
            seen.append(result)
            return result

    module.noise = Recorder()
    module(IMAGES, LABELS)
    channels, values = seen
    assert channels.shape == (6, 4, 1, 1)
    assert set(channels.unique().tolist()) == {0.0, 2.0}
    assert values.shape == (6, 144)
    model.eval()
    expected = F.cross_entropy(model(IMAGES), LABELS).item()
    assert module.evaluate(IMAGES, LABELS).item() == pytest.approx(expected, rel=1e-6)


def test_the_rate_and_the_mean_of_masks() -> None:
    ones = torch.ones(8, 50_000)
    for p in (0.1, 0.5, 0.9):
        dropped = Noise(SEED, 3, 8).drop(5, ones, p)
        assert (dropped == 0).double().mean().item() == pytest.approx(p, abs=0.005)
        assert dropped.double().mean().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(Noise(SEED, 3, 8).drop(5, ones, 0.0), ones)


def test_a_tensor_without_rows_is_drawn_whole() -> None:
    tensor = torch.ones(5, 6, 7)
    first, second = (Noise(SEED, 0, 4, first_row).drop(9, tensor, 0.5) for first_row in (0, 4))
    assert torch.equal(first, second)
    assert 0.2 < (first == 0).float().mean() < 0.8
    assert Noise(SEED, 0, 4).drop(9, torch.tensor(1.0), 0.5).shape == ()


class SequenceFirst(nn.Module):
    """Dropout over [time, batch, width]: its rows are not those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(9, 8), nn.Dropout(0.5), nn.Linear(8, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.embed(x.t()))).permute(1, 2, 0)


def test_masks_that_do_not_follow_rows_make_a_program_inseparable() -> None:
    tokens = torch.randint(0, 9, (4, 4))
    module = loaded(SequenceFirst(), (tokens, tokens), F.cross_entropy)
    assert not module.program.graph.separable
    module.noise = Noise(SEED, 0, 4)
    assert module(tokens, tokens).item() == module(tokens, tokens).item()


def _reference(q: Any, k: Any, v: Any, seen: torch.Tensor | None, mask: torch.Tensor) -> Any:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf) if seen.dtype is torch.bool else scores + seen
    return (torch.nan_to_num(torch.softmax(scores, -1)) * mask) @ v


class Attending(nn.Module):
    """Attention with dropout, its mask of one kind or another."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        additive = torch.randn(5, 5)
        visible = torch.ones(5, 5).tril().bool()
        visible[2] = False  # a row that sees nothing
        self.register_buffer("seen", {"additive": additive, "boolean": visible}.get(kind))
        self.causal = kind == "causal"

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = [layer(x).view(-1, 5, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        return F.mse_loss(F.scaled_dot_product_attention(*parts, self.seen, 0.5, self.causal), y)


@pytest.mark.parametrize("kind", ["plain", "causal", "additive", "boolean"])
def test_attention_with_dropout_is_its_definition(kind: str) -> None:
    model = Attending(kind)
    x, y = torch.randn(4, 5, 8), torch.randn(4, 2, 5, 4)
    module = loaded(model, (x, y))
    masks: list[torch.Tensor] = []

    class Recorder:
        def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
            masks.append(Noise(SEED, 0, 4).drop(node, torch.ones_like(tensor), p))
            return tensor * masks[-1]

    module.noise = Recorder()
    loss = module(x, y)
    parts = [layer(x).view(-1, 5, 2, 4).transpose(1, 2) for layer in (model.q, model.k, model.v)]
    seen = torch.ones(5, 5).tril().bool() if kind == "causal" else model.seen
    expected = F.mse_loss(_reference(*parts, seen, masks[0]), y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_layers_train_with_dropout(batch_first: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=batch_first)
            self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(x if batch_first else x.transpose(0, 1)).mean(1 if batch_first else 0))

    model = Encoder()
    x = torch.randn(6, 5, 8)
    module = loaded(model, (x, LABELS), F.cross_entropy)
    graph = module.program.graph
    assert sum(node.op == "noise.dropout" for node in graph.train.nodes) == 4  # attention, two residuals, the MLP
    assert graph.separable == batch_first
    model.eval()
    expected = F.cross_entropy(model(x), LABELS).item()
    assert module.evaluate(x, LABELS).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("kind", "both"), [("LSTM", True), ("GRU", False), ("RNN", False)])
def test_recurrent_layers_with_dropout_between_them(kind: str, both: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(4, 5, 3, dropout=0.4, batch_first=True, bidirectional=both)
            self.head = nn.Linear(10 if both else 5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out, state = self.rnn(x)
            state = state[0] if isinstance(state, tuple) else state
            return self.head(out[:, -1]) + state.sum()

    model = Tagger()
    x = torch.randn(6, 7, 4)
    module = loaded(model, (x, LABELS), F.cross_entropy)
    assert sum(node.op == "noise.dropout" for node in module.program.graph.train.nodes) == 2
    model.eval()

    class Nothing:
        def drop(self, node: int, tensor: torch.Tensor, p: float) -> torch.Tensor:
            return tensor

    module.noise = Nothing()  # layer by layer, without dropout, is the whole
    expected = F.cross_entropy(model(x), LABELS).item()
    assert module(x, LABELS).item() == pytest.approx(expected, rel=1e-5)
    assert module.evaluate(x, LABELS).item() == pytest.approx(expected, rel=1e-5)


# ---- calling the model


def test_bytes_become_numbers_between_0_and_1_inside_the_program() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
    pixels = torch.randint(0, 256, (6, 2, 8, 8), dtype=torch.uint8)
    scaled = {0: InputTransform("unit_interval")}
    module = loaded(model, (pixels, LABELS), F.cross_entropy, prepare=scaled)
    expected = F.cross_entropy(model(pixels.to(torch.float32).div(255)), LABELS).item()
    assert module(pixels, LABELS).item() == pytest.approx(expected, rel=1e-6)
    assert module.program.graph.samples[0].dtype == "uint8"
    with pytest.raises(UsageError, match="unit_interval"):
        InputTransform("other")
    with pytest.raises(UsageError, match="prepare names sample"):
        capture_module(model, (pixels, LABELS), F.cross_entropy, prepare={2: InputTransform("unit_interval")})


class Named(nn.Module):
    """Called as the classes of transformers are; returns an object, a dictionary or a tuple."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 3), kind

    def forward(self, labels: torch.Tensor, inputs: torch.Tensor) -> Any:
        loss = F.cross_entropy(self.layer(inputs), labels)
        return {"loss": loss, "logits": inputs} if self.kind is dict else (loss, inputs)


def test_keyword_arguments_and_a_loss_in_the_result() -> None:
    x = torch.randn(6, 4)
    model = Named(dict)
    module = loaded(model, (x, LABELS), names=("inputs", "labels"))
    assert module(x, LABELS).item() == pytest.approx(model(LABELS, x)["loss"].item(), rel=1e-6)
    with pytest.raises(UsageError, match="loss alone"):
        capture_module(Named(tuple), (x, LABELS), names=("inputs", "labels"))
    with pytest.raises(UsageError, match="name 1 samples, not 2"):
        capture_module(model, (x, LABELS), names=("inputs",))
    with pytest.raises(UsageError, match="common first dimension"):
        capture_module(model, (x, LABELS[:5]), names=("inputs", "labels"))


def test_parameters_order_is_that_of_the_flat_vector() -> None:
    model = TwoNorms()
    program = capture_module(model, (IMAGES, LABELS), F.cross_entropy)
    flat = initial_parameters(model, program)
    parts = [dict(model.named_parameters())[p.name].detach().numpy().ravel() for p in program.graph.parameters]
    assert np.array_equal(flat, np.concatenate(parts))
