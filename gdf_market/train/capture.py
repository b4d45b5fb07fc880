"""Turns the owner's PyTorch module into a program, on the owner's machine, with ``torch.export``.

What cannot be a pure function of parameters and samples (dropout, batch
statistics, Python side effects) and every operator off the allow-list is
refused with its name and the owner's line.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram

from gdf_market.errors import PeerError, UsageError, ensure
from gdf_market.train.dry_run import dry_run
from gdf_market.train.operators import ATEN
from gdf_market.train.program import Program, check_structure
from gdf_market.train.translation import IDENTITIES, Translation, dtype_name, own_name, place

if TYPE_CHECKING:
    from gdf_market.train.job import Job

Loss = Callable[..., torch.Tensor]


class _WithLoss(nn.Module):
    """The owner's module followed by its loss; the last sample is the target."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *samples: torch.Tensor) -> torch.Tensor:
        if self.loss is None:
            result: torch.Tensor = self.model(*samples)
            return result
        return self.loss(self.model(*samples[:-1]), samples[-1])


def capture_module(model: nn.Module, samples: Sequence[torch.Tensor], loss: Loss | None = None) -> Program:
    """Return the program of ``model`` (and ``loss``) for batches shaped like ``samples``.

    The first dimension of each sample is the batch; the program takes any
    batch size if the module does, else the one of ``samples``.  Raises
    UsageError naming what is refused, where, and what to do.
    """
    wrapped = _WithLoss(model, loss)
    _check_parameters(wrapped)
    _check_forward(wrapped, samples)
    exported, batch = _export(wrapped, tuple(samples))
    program = Translation(exported, wrapped).program(samples, batch)
    try:
        check_structure(program)
        dry_run(program, len(samples[0]))
    except PeerError as error:
        raise UsageError(f"The model cannot be shipped: {error}.") from None
    return program


def capture(job: Job) -> Program:
    """Return the program of a job's model and loss.  Raises UsageError as ``capture_module`` does."""
    return capture_module(job.model, job.example(), job.loss)


def initial_parameters(model: nn.Module, program: Program) -> Any:
    """Return f32[n]: the module's trained parameters in the program's order."""
    known = dict(model.named_parameters(remove_duplicate=False))
    return program.flatten([known[parameter.name] for parameter in program.graph.parameters])


def _check_parameters(wrapped: nn.Module) -> None:
    trained = [(name, p) for name, p in wrapped.named_parameters() if p.requires_grad]
    ensure(
        bool(trained), UsageError("The model has no parameter with requires_grad=True, so there is nothing to train.")
    )
    for name, parameter in wrapped.named_parameters():
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


def _check_forward(wrapped: nn.Module, samples: Sequence[torch.Tensor]) -> None:
    """Run the module once as the owner wrote it: its own error is the clearest there is."""
    try:
        with torch.no_grad():
            wrapped(*samples)
    except Exception as error:
        shapes = ", ".join(f"{dtype_name(sample)}{list(sample.shape)}" for sample in samples)
        raise UsageError(
            f"The model's forward does not take a batch ({shapes}): {_summary(error)}. Check its context and "
            "vocabulary against the job's."
        ) from error


def _export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...]) -> tuple[ExportedProgram, int]:
    """Return the exported program and the batch size it is fixed to, 0 for any."""
    samples = tuple(sample.clone() for sample in samples)  # one tensor given twice would be traced as one input
    free = {0: torch.export.Dim("batch", min=1, max=65_536)}
    try:
        return _quietly_export(wrapped, samples, ((free,) * len(samples),)), 0
    except _RefusedError:
        raise
    except Exception:  # many kinds, and none of them documented: try again with the batch size fixed
        try:
            return _quietly_export(wrapped, samples, None), len(samples[0])
        except _RefusedError:
            raise
        except Exception as error:
            raise UsageError(
                f"torch.export cannot trace the model: {_summary(error)}. Its forward must compute one loss from "
                "its tensors without Python branches on their values."
            ) from error


def _quietly_export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...], dynamic: Any) -> ExportedProgram:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a failed first attempt is no news to the owner
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(wrapped, samples, dynamic_shapes=dynamic, strict=False)
            _refuse_randomness(exported)
            return exported.run_decompositions({}) if _mutates(exported) else exported  # {}: only functionalise
    finally:
        logger.setLevel(level)


def _mutates(exported: ExportedProgram) -> bool:
    targets = (node.target for node in exported.graph.nodes if node.op == "call_function")
    return any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets)


def _refuse_randomness(exported: ExportedProgram) -> None:
    for node in exported.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = str(node.target)
        if torch.Tag.nondeterministic_seeded not in node.target.tags or name in ATEN:
            continue
        if name in IDENTITIES and (node.args[1] == 0 or node.args[2] is False):
            continue
        raise _RefusedError(
            f"{name} draws random numbers{place(node)}; auditors could not repeat the unit. "
            "Set dropout to p=0 or call model.eval() before the job is made."
        )


class _RefusedError(UsageError):
    """Raised inside the export attempt: trying again with a fixed batch would not help."""


def _summary(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
