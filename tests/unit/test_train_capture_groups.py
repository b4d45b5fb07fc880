"""Groups of parameters and separability: what is concluded from a graph, and what the owner overrides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gdf_market.errors import UsageError
from gdf_market.train.capture import capture_module
from gdf_market.train.graph import MAX_GROUPS, Graph, Group
from gdf_market.units import PPM

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code

TOKENS = torch.randint(0, 11, (4, 6))


class Language(nn.Module):
    """Embedding, hidden layer, norm and head; tied if asked."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.hidden, self.norm = nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(torch.relu(self.hidden(self.embed(x)))))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def groups(graph: Graph) -> dict[str, Group]:
    return {parameter.name: graph.groups[parameter.group] for parameter in graph.parameters}


def captured(model: nn.Module, **options: Any) -> dict[str, Group]:
    return groups(capture_module(model, (TOKENS, TOKENS), **options).graph)


def test_matrices_decay_and_muon_takes_the_hidden_ones() -> None:
    found = captured(Language())
    assert found["embed.weight"] == found["head.weight"] == Group()
    assert found["hidden.weight"] == Group(muon=True)
    assert found["hidden.bias"] == found["norm.weight"] == Group(decay_ppm=0)


def test_a_tied_table_is_no_hidden_matrix() -> None:
    found = captured(Language(tied=True))
    assert [name for name, group in found.items() if group.muon] == ["hidden.weight"]


def test_kernels_are_for_muon_but_the_first() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3), nn.LogSoftmax(1)),
    )
    batch = (torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,)))
    found = groups(capture_module(model, batch, F.nll_loss).graph)
    assert {name for name, group in found.items() if group.muon} == {"2.weight", "5.weight"}


def test_recurrent_weights_are_hidden() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    found = groups(capture_module(Recurrent(), (torch.randn(4, 5, 4), torch.randn(4, 1)), F.mse_loss).graph)
    assert {name for name, group in found.items() if group.muon} == {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}


def test_the_owner_overrides() -> None:
    model = Language()
    found = captured(
        model,
        param_groups=[
            {"params": [model.embed.weight], "lr_scale": 0.5, "weight_decay_scale": 0},
            {"params": ["*.bias", "norm.*"], "lr_scale": 2},
            {"params": "hidden.weight", "muon": False},
        ],
    )
    assert found["embed.weight"] == Group(lr_ppm=PPM // 2, decay_ppm=0)
    assert found["norm.weight"] == found["hidden.bias"] == Group(lr_ppm=2 * PPM, decay_ppm=0)
    assert found["hidden.weight"] == found["head.weight"] == Group()


STRANGER = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("param_groups", "expected"),
    [
        ([{"params": ["nothing.*"]}], r"param_groups\[0\]: 'nothing.\*' is no trained parameter"),
        ([{"params": [STRANGER]}], r"a parameter of shape \[3\] is no trained parameter"),
        ([{"params": ["head.weight"]}, {"params": ["head.*"]}], "head.weight is in two groups"),
        ([{"params": []}], "has no params"),
        ([{"params": ["head.*"], "lr": 1}], "lr_scale"),
        ([{"params": ["head.*"], "lr_scale": -1}], "from 0 to 1000"),
        ([{"params": ["head.*"], "lr_scale": float("nan")}], "from 0 to 1000"),
        ([{"params": ["head.*"], "weight_decay_scale": True}], "from 0 to 1000"),
        ([{"params": ["hidden.bias"], "muon": True}], "matrices and kernels only"),
    ],
)
def test_groups_that_do_not_fit_are_refused(param_groups: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        captured(Language(), param_groups=param_groups)


def test_the_number_of_groups_is_bounded() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(MAX_GROUPS // 2 + 1)))
    batch = (torch.randn(4, 2), torch.randn(4, 2))
    each = [{"params": [name], "lr_scale": 0.01 * i} for i, (name, _) in enumerate(model.named_parameters())]
    with pytest.raises(UsageError, match="use fewer"):
        capture_module(model, batch, F.mse_loss, param_groups=each)


# ---- separability


def separable(loss: Any, y: torch.Tensor) -> bool:
    return capture_module(nn.Linear(4, 3), (torch.randn(len(y), 4), y), loss).graph.separable


CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


def test_means_over_rows_are_separable() -> None:
    assert separable(F.cross_entropy, CLASSES)
    assert separable(F.cross_entropy, CLASSES[:2])  # fewer rows than it takes: repeated
    assert separable(lambda out, y: F.cross_entropy(out, y, reduction="sum") / y.shape[0], CLASSES)


def test_other_losses_are_not() -> None:
    weights = torch.tensor([1.0, 2.0, 5.0])
    assert not separable(lambda out, y: F.cross_entropy(out, y, weights), CLASSES)
    assert not separable(lambda out, y: F.cross_entropy(out, y, reduction="sum"), CLASSES)
    assert not separable(lambda out, y: F.cross_entropy(out, y, ignore_index=0), CLASSES)
    assert not separable(lambda out, y: F.mse_loss(out, y.unsqueeze(1).expand(-1, 3).float()).sqrt(), CLASSES)
    assert not separable(lambda out, y: F.cross_entropy(out @ out.T, torch.arange(len(y))), CLASSES)


def test_padding_that_is_spread_evenly_is_seen() -> None:
    """Each given row has one ignored token, so that as they are the rows weigh the same."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).transpose(1, 2)

    y = torch.tensor([[0, 1, -100], [-100, 2, 0], [1, -100, 1], [2, 0, -100]])
    assert not capture_module(Tagger(), (torch.randn(4, 3, 4), y), F.cross_entropy).graph.separable
    assert capture_module(Tagger(), (torch.randn(4, 3, 4), y.clamp(min=0)), F.cross_entropy).graph.separable
