"""``torch.export`` of the owner's module, made quiet, strict and free of side effects; refusals name the place."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from gdf_market.errors import UsageError, ensure
from gdf_market.train.inlining import inline_regions
from gdf_market.train.markers import mark
from gdf_market.train.places import own_name, place_of_caller, place_of_error

MAX_BATCH = 65_536


def check_forward(wrapped: nn.Module, samples: Sequence[torch.Tensor]) -> None:
    """Run the module once as the owner wrote it: its own error is the clearest there is.

    Buffers and the random generator are as before afterwards.  Raises UsageError also for attributes that changed.
    """
    buffers = [(buffer, buffer.detach().clone()) for buffer in wrapped.buffers()]
    before = _attributes(wrapped)
    try:
        with torch.random.fork_rng([]), torch.no_grad(), _no_fast_path():
            result = wrapped(*samples)
    except UsageError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{dtype_name(sample)}{list(sample.shape)}" for sample in samples)
        raise UsageError(
            f"The model's forward does not take a batch ({shapes}){place_of_error(error, wrapped)}: {summary(error)}. "
            f"{_fields_with(error, samples)}Check the data's shapes and largest values against the model's, and "
            "whether Job needs a loss=."
        ) from error
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    changed = [name for name, value in _attributes(wrapped).items() if before.get(name, value) != value]
    ensure(
        not changed,
        UsageError(
            f"The model's forward changes the attribute {own_name(min(changed, default=''))}; every step is computed "
            "from weights and samples alone, so keep no counts or lists in forward."
        ),
    )
    _check_loss(result)


def _fields_with(error: Exception, samples: Sequence[torch.Tensor]) -> str:
    """Return which integer fields hold a value that an error of torch names, such as a label beyond the classes.

    The greatest value of each field of the data is in its sample.
    """
    named = {int(number) for number in re.findall(r"(?<![\w.])-?\d{1,15}(?![\w.])", str(error).rstrip("."))}
    found = [
        f"field {number} of the data holds values up to {int(sample.max())}"
        for number, sample in enumerate(samples)
        if not sample.is_floating_point() and sample.numel() and named & set(sample.reshape(-1).tolist())
    ]
    return f"{' and '.join(found).capitalize()} (fields count from 0). " if found else ""


def _check_loss(result: Any) -> None:
    if isinstance(result, torch.Tensor):
        ensure(
            result.shape == (),
            UsageError(
                f"The model cannot be shipped: it returns {dtype_name(result)}{list(result.shape)}, not a scalar loss; "
                "take the mean, or give Job a loss."
            ),
        )


def export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...]) -> tuple[ExportedProgram, int]:
    """Return the functional exported program and the batch size it is fixed to, 0 for any.

    Raises UsageError for what cannot be traced.
    """
    samples = tuple(sample.clone() for sample in samples)  # one tensor given twice would be traced as one input
    free = {0: torch.export.Dim("batch", min=1, max=MAX_BATCH)}
    try:
        return _export(wrapped, samples, ((free,) * len(samples),)), 0
    except UsageError:
        raise
    except Exception:  # many kinds, and none of them documented: try again with the batch size fixed
        return export_fixed(wrapped, samples), len(samples[0])


def export_fixed(wrapped: nn.Module, samples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Return the exported program for batches of exactly this size.  Raises UsageError."""
    try:
        return _export(wrapped, samples, None)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"torch.export cannot trace the model{place_of_error(error, wrapped)}: {summary(error)}. Its forward must "
            "compute one loss from its tensors without Python branches on their values: torch.where chooses between "
            "two results."
        ) from error


def _export(wrapped: nn.Module, samples: tuple[torch.Tensor, ...], dynamic: Any) -> ExportedProgram:
    refused: list[UsageError] = []
    with _quiet(), _no_fast_path(), _no_mask_detection(), _no_custom_gradients(refused), _fixed_momentum(wrapped):
        try:
            exported = torch.export.export(wrapped, samples, dynamic_shapes=dynamic, strict=False)
            inline_regions(exported.graph_module)
            mark(exported.graph_module)
            return exported.run_decompositions({}) if _mutates(exported) else exported  # {}: only functionalise
        except Exception:
            if refused:
                raise refused[0] from None
            raise


def _mutates(exported: ExportedProgram) -> bool:
    targets = (node.target for node in exported.graph.nodes if node.op == "call_function")
    return any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A failed attempt is no news to the owner: it is told as an error, or made good by the next attempt."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        silent = io.StringIO()  # torch prints the graph of a failed attempt
        with warnings.catch_warnings(), contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Transformer layers in evaluation mode are not to become one operator that has no gradient."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _no_mask_detection() -> Iterator[None]:
    """nn.TransformerEncoder looks whether a mask is the causal one, by its values; as a mask it means the same."""
    place, name = nn.modules.transformer, "_detect_is_causal_mask"
    original = getattr(place, name, None)

    def given(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    if original is not None:
        setattr(place, name, given)
    try:
        yield
    finally:
        if original is not None:
            setattr(place, name, original)


@contextlib.contextmanager
def _no_custom_gradients(refused: list[UsageError]) -> Iterator[None]:
    """Tracing would drop the backward pass that an owner wrote, without a word; so the call itself is refused."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
        if kind.__module__.startswith("torch._"):
            return original.__get__(None, kind)(*args, **kwargs)
        refused.append(
            UsageError(
                f"The model uses the custom autograd function {kind.__name__}{place_of_caller()}; a program's "
                "gradients are those of its operators. Write the line with operators that have that gradient, such "
                "as x + (y - x).detach() for a straight-through estimate."
            )
        )
        raise refused[-1]

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010  (mypy takes it for a method)
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", original)  # noqa: B010


@contextlib.contextmanager
def _fixed_momentum(wrapped: nn.Module) -> Iterator[None]:
    """momentum=None (a mean over all batches) reads a counter's value, which a trace cannot: 0.1, torch's default."""
    norms = [m for m in wrapped.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.momentum is None]
    for norm in norms:
        norm.momentum = 0.1
    try:
        yield
    finally:
        for norm in norms:
            norm.momentum = None


def _attributes(wrapped: nn.Module) -> dict[str, object]:
    """Return the plain numbers, and lengths of containers, that the modules hold as attributes."""
    found: dict[str, object] = {}
    for prefix, module in wrapped.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            if isinstance(value, int | float | str):
                found[f"{prefix}.{name}"] = value
            elif isinstance(value, list | dict | set):
                found[f"{prefix}.{name}"] = len(value)
    return found


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def summary(error: Exception) -> str:
    """Return the first line of an error, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
