"""What the arguments of allowed operators may not ask for: randomness, changes in place, sizes that depend on data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.train.noise import cut_of
from gdf_market.train.operators import DROPOUT, resolve

MAX_PIECES = 4_096  # tensors that one split, chunk or unbind may return
MAX_LAYERS = 64  # of one recurrent operator, each direction counted
MAX_LAYER_STEPS = 16_384  # layers times steps of one recurrent operator: it takes each of them on its own

Named = dict[str, Any]


def check_call(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise a PeerError when the arguments ask an allowed operator for something that is not allowed."""
    if name == DROPOUT:
        ensure(len(args) == 2 and not kwargs, MalformedError("dropout takes a tensor and a probability"))
        ensure(isinstance(args[0], torch.Tensor), MalformedError("dropout of something that is no tensor"))
        ensure(args[0].is_floating_point(), MalformedError("dropout of integers"))
        cut_of(args[1])
    rule = _RULES.get(name)
    if rule is not None:
        rule(_named(name, args, kwargs))


def _named(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Named:
    """Return all arguments by their name in the operator's schema; the defaults fill the rest."""
    schema = resolve(name)._schema  # type: ignore[attr-defined]
    values = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    ensure(len(args) <= len(schema.arguments), MalformedError(f"{name} is given {len(args)} arguments"))
    values.update(zip((argument.name for argument in schema.arguments), args, strict=False))
    return values | kwargs


def _no_dropout(named: Named) -> None:
    ensure(named["dropout_p"] == 0, MalformedError("attention with dropout cannot be re-executed"))


def _bounded_recurrence(named: Named) -> None:
    """A recurrent operator takes layer by layer and step by step: a small argument could keep it busy for ever."""
    ensure(named["dropout"] == 0, MalformedError("recurrent layers with dropout cannot be re-executed"))
    given, states, layers = named["input"], named["hx"], named["num_layers"]
    whole = type(layers) is int and isinstance(given, torch.Tensor) and given.ndim == 3
    ensure(whole, MalformedError("a recurrent operator takes [rows, steps, values] and a number of layers"))
    layers *= 2 if named["bidirectional"] is True else 1
    ensure(0 < layers <= MAX_LAYERS, OversizedError(f"{layers} recurrent layers; at most {MAX_LAYERS}"))
    for state in states if isinstance(states, list | tuple) else [states]:
        fits = isinstance(state, torch.Tensor) and state.ndim == 3 and state.shape[0] == layers
        ensure(fits, MalformedError(f"a recurrent state that is none of {layers} layers"))
    steps = given.shape[1 if named["batch_first"] is True else 0]
    ensure(
        layers * steps <= MAX_LAYER_STEPS,
        OversizedError(f"{layers} recurrent layers of {steps} steps; at most {MAX_LAYER_STEPS} in all"),
    )


def _no_negative_padding(named: Named) -> None:
    padding = named["padding"]
    whole = isinstance(padding, str) or all(type(each) is int and each >= 0 for each in padding)
    ensure(whole, MalformedError(f"a convolution with padding {padding}"))


def _no_updates(named: Named) -> None:
    """Batch statistics are a function of the batch; running statistics may be read, but not moved on in place."""
    batch_statistics = named["training"] if "training" in named else named["use_input_stats"]
    given = named["running_mean"] is not None or named["running_var"] is not None
    reads = batch_statistics is False or (batch_statistics is True and not given)
    ensure(reads, MalformedError("a norm that updates its running statistics in place cannot be re-executed"))


def _dense(named: Named) -> None:
    ensure(named["sparse"] is False, MalformedError("sparse embedding gradients are not supported"))


def _fixed_classes(named: Named) -> None:
    ensure(type(named["num_classes"]) is int and named["num_classes"] > 0, MalformedError("one_hot without classes"))


def _integer_indices(named: Named) -> None:
    for index in named["indices"]:
        whole = index is None or (isinstance(index, torch.Tensor) and index.dtype in (torch.int64, torch.int32))
        ensure(whole, MalformedError("an index that is no integer tensor: its size would depend on values"))


def _no_outer_product(named: Named) -> None:
    """A loss of [n, 1] and [1, m] holds n * m values on its way to one, which its result does not show."""
    given = [value for value in named.values() if isinstance(value, torch.Tensor)]
    whole = torch.broadcast_shapes(*(tensor.shape for tensor in given))  # type: ignore[no-untyped-call]
    ensure(
        math.prod(whole) <= max(tensor.numel() for tensor in given),
        MalformedError("a loss of tensors that fit only when both are expanded"),
    )


def _few_pieces(size_of: Callable[[Named], int]) -> Callable[[Named], None]:
    def check(named: Named) -> None:
        pieces = size_of(named)
        ensure(0 < pieces <= MAX_PIECES, OversizedError(f"{pieces} pieces of a tensor; at most {MAX_PIECES}"))

    return check


def _split_pieces(named: Named) -> int:
    size = named["split_size"]
    ensure(size > 0, MalformedError(f"pieces of {size}"))
    return int(-(-named["self"].shape[named["dim"]] // size))


_ELEMENTWISE_LOSSES = (
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "huber_loss", "kl_div"),
    *("l1_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss"),
)
_CONVOLUTIONS = (
    *("conv1d.default", "conv2d.default", "conv3d.default", "convolution.default"),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
)
_RULES: dict[str, Callable[[Named], None]] = {
    "aten.scaled_dot_product_attention.default": _no_dropout,
    "aten.lstm.input": _bounded_recurrence,
    "aten.gru.input": _bounded_recurrence,
    "aten.rnn_tanh.input": _bounded_recurrence,
    "aten.rnn_relu.input": _bounded_recurrence,
    **{f"aten.{name}": _no_negative_padding for name in _CONVOLUTIONS},
    "aten.batch_norm.default": _no_updates,
    "aten.instance_norm.default": _no_updates,
    **{f"aten.{name}.default": _no_outer_product for name in _ELEMENTWISE_LOSSES},
    "aten.embedding.default": _dense,
    "aten.one_hot.default": _fixed_classes,
    "aten.index.Tensor": _integer_indices,
    "aten.index_put.default": _integer_indices,
    "aten.split.Tensor": _few_pieces(_split_pieces),
    "aten.unbind.int": _few_pieces(lambda named: int(named["self"].shape[named["dim"]])),
    "aten.chunk.default": _few_pieces(lambda named: int(named["chunks"])),
    "aten.tensor_split.sections": _few_pieces(lambda named: int(named["sections"])),
}
