"""The owner's module made ready to be traced: samples in, loss out, both conventions of calling a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gdf_market.errors import UsageError, ensure
from gdf_market.train.places import own_name

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class InputTransform:
    """What the program does to a sample first.

    ``unit_interval``: bytes 0..255 as float32 in [0, 1], divided as torchvision's ToTensor does.
    """

    kind: str

    def __post_init__(self) -> None:
        ensure(self.kind == "unit_interval", UsageError(f"InputTransform kind {self.kind!r}; use 'unit_interval'."))

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample.to(torch.float32).div(255)


class WithLoss(nn.Module):
    """``forward(*samples) -> loss``.

    With ``loss``, the last sample is the target: ``loss(model(*others), target)``.  Without, the model returns the
    loss, or an object or dictionary with ``loss``, as Hugging Face's models do.  With ``names``, the model is given its
    samples as keyword arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        names: Sequence[str] | None = None,
        prepare: Mapping[int, InputTransform] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._names = None if names is None else tuple(names)
        self._prepare = dict(prepare or {})
        self.training = model.training  # of this wrapper alone: each submodule keeps its own mode

    def forward(self, *samples: torch.Tensor) -> Any:
        ready = [self._prepare[i](sample) if i in self._prepare else sample for i, sample in enumerate(samples)]
        if self.loss is not None:
            return self.loss(self._call(ready[:-1]), ready[-1])
        return _loss_of(self._call(ready))

    def _call(self, samples: list[torch.Tensor]) -> Any:
        if self._names is None:
            return self.model(*samples)
        return self.model(**dict(zip(self._names, samples, strict=True)))


def _loss_of(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    ensure(
        isinstance(loss, torch.Tensor),
        UsageError(
            f"The model must return its loss alone, or an object with .loss, and not {type(result).__name__}; give Job "
            "a loss otherwise, or labels among the samples."
        ),
    )
    return loss


def check_samples(wrapped: WithLoss, samples: Sequence[torch.Tensor]) -> None:
    """Raise UsageError unless samples, names and transforms fit together."""
    ensure(len(samples) > 0, UsageError("The model is given no samples."))
    rows = {tuple(sample.shape[:1]) for sample in samples}
    ensure(len(rows) == 1 and () not in rows, UsageError("Samples need one common first dimension, the batch."))
    given = len(samples) - (wrapped.loss is not None)
    names = wrapped._names
    ensure(names is None or len(names) == given, UsageError(f"{names} name {len(names or ())} samples, not {given}."))
    unknown = [place for place in wrapped._prepare if not 0 <= place < len(samples)]
    ensure(not unknown, UsageError(f"prepare names sample {unknown[:1]}, of {len(samples)}."))


def check_parameters(wrapped: nn.Module) -> None:
    """Raise UsageError for parameters that cannot be trained, and modules that cannot be repeated."""
    trained = [name for name, p in wrapped.named_parameters() if p.requires_grad]
    ensure(
        bool(trained), UsageError("The model has no parameter with requires_grad=True, so there is nothing to train.")
    )
    for name, parameter in wrapped.named_parameters():
        ensure(
            not isinstance(parameter, nn.parameter.UninitializedParameter),
            UsageError(f"Parameter {own_name(name)} has no shape yet; call the model once before the job is made."),
        )
        ensure(
            name.startswith("model.") or not parameter.requires_grad,
            UsageError(f"The loss has a trained parameter {name}; put it into the model."),
        )
        ensure(
            parameter.dtype is torch.float32 or not parameter.requires_grad,
            UsageError(f"Parameter {own_name(name)} is {parameter.dtype}; train in float32: call model.float()."),
        )
        ensure(
            parameter.device.type == "cpu",
            UsageError(
                f"Parameter {own_name(name)} is on {parameter.device}; call model.cpu() before the job is made."
            ),
        )
    for name, module in wrapped.named_modules():
        ensure(
            not isinstance(module, nn.SyncBatchNorm),
            UsageError(
                f"Module {own_name(name)} is SyncBatchNorm, which needs several processes at every step; use "
                "nn.BatchNorm2d: its statistics are gathered from the averaged model."
            ),
        )
