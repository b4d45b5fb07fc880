"""Turns the owner's PyTorch module into a program, on the owner's machine, with ``torch.export``.

What cannot be a pure function of parameters, samples and dropout's masks (Python side effects, other randomness) and
every operator off the allow-list is refused with its name and the owner's line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from gdf_market.errors import PeerError, UsageError
from gdf_market.train.dry_run import dry_run
from gdf_market.train.exporting import check_forward, dtype_name, export, export_fixed
from gdf_market.train.graph import Forward, Graph, Group, Sample
from gdf_market.train.groups import with_groups
from gdf_market.train.program import Floats, Program, check_structure
from gdf_market.train.separability import is_separable
from gdf_market.train.tensors import Tensors
from gdf_market.train.translation import Translation
from gdf_market.train.wrapping import InputTransform, Loss, WithLoss, check_parameters, check_samples

if TYPE_CHECKING:
    from gdf_market.train.job import Job

__all__ = ["InputTransform", "capture", "capture_module", "initial_parameters"]


def capture_module(
    model: nn.Module,
    samples: Sequence[torch.Tensor],
    loss: Loss | None = None,
    *,
    names: Sequence[str] | None = None,
    prepare: Mapping[int, InputTransform] | None = None,
    param_groups: Sequence[Mapping[str, Any]] | None = None,
) -> Program:
    """Return the program of ``model`` (and ``loss``) for batches shaped like ``samples``.

    ``samples`` are of any dtype and shape; their first dimension is the batch, and real rows tell most about the loss.
    The program takes any batch size if the module does, else the one of ``samples``.  See WithLoss for how the model
    is called.  ``prepare`` maps the place of a sample to what the program does to it first.  ``param_groups`` is a list
    of ``{"params": [parameters, names or patterns], "lr_scale": x, "weight_decay_scale": y, "muon": bool}``.  The model
    is traced in the modes its modules are in, and in evaluation mode.  Raises UsageError naming what is refused, where,
    and what to do.
    """
    wrapped = WithLoss(model, loss, names, prepare)
    check_samples(wrapped, samples)
    check_parameters(wrapped)
    check_forward(wrapped, samples)
    try:
        program = _program(wrapped, tuple(samples), param_groups)
        check_structure(program)
        dry_run(program, len(samples[0]))
    except PeerError as error:
        raise UsageError(f"The model cannot be shipped: {error}.") from None
    separable = is_separable(program, initial_parameters(model, program), samples)
    return Program(msgspec.structs.replace(program.graph, separable=separable), program.constants)


def capture(job: Job) -> Program:
    """Return the program of a job's model and loss.  Raises UsageError as ``capture_module`` does."""
    return capture_module(job.model, job.example(), job.loss, names=job.names or None, param_groups=job.groups or None)


def initial_parameters(model: nn.Module, program: Program) -> Floats:
    """Return f32[n]: the module's trained parameters in the program's order."""
    known = dict(model.named_parameters(remove_duplicate=False))
    return program.flatten([known[parameter.name] for parameter in program.graph.parameters])


def _program(
    wrapped: WithLoss, samples: tuple[torch.Tensor, ...], param_groups: Sequence[Mapping[str, Any]] | None
) -> Program:
    tensors = Tensors()
    exported, batch = export(wrapped, samples)
    train = Translation(exported, tensors).forward()
    evaluate = _evaluation(wrapped, samples, tensors, batch) if _has_modes(wrapped) else None
    tensors.add_state(exported, list(wrapped.state_dict()))
    graph = Graph(
        version=2,
        batch=batch,
        separable=False,
        samples=tuple(Sample(dtype=dtype_name(s), shape=tuple(s.shape[1:])) for s in samples),
        parameters=tuple(tensors.parameters),
        groups=(Group(),),
        constants=tuple(tensors.constants),
        state=tensors.state,
        train=train,
        evaluate=None if evaluate == train else evaluate,
    )
    return Program(with_groups(graph, wrapped.model, param_groups), tensors.constants)


def _has_modes(wrapped: nn.Module) -> bool:
    return any(module.training for module in wrapped.modules())


def _evaluation(wrapped: nn.Module, samples: tuple[torch.Tensor, ...], tensors: Tensors, batch: int) -> Forward:
    with _evaluating(wrapped):
        exported = export_fixed(wrapped, samples) if batch else export(wrapped, samples)[0]
        return Translation(exported, tensors).forward()


@contextlib.contextmanager
def _evaluating(wrapped: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in wrapped.modules()]
    wrapped.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
