"""The operators a program may use, and what their arguments may ask for.

Rules kept here:
1. Functional ``aten`` operators only: nothing in place, no ``out=``, no views that escape their storage
   (``as_strided``, ``set_``), nothing that reads a file, the clock or a random generator.
2. Arguments that would bring randomness, mutation or unbounded lists back are refused before the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gdf_market.errors import MalformedError, OversizedError, ensure
from gdf_market.units import MAX_INT

MAX_PIECES = 4_096  # tensors that one split, chunk or unbind may return

_POINTWISE = """
__and__.Tensor __or__.Tensor abs.default add.Scalar add.Tensor addcdiv.default addcmul.default atan.default
bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor ceil.default celu.default clamp.Tensor clamp.default
clamp_max.default clamp_min.default cos.default div.Scalar div.Tensor div.Tensor_mode elu.default eq.Scalar eq.Tensor
erf.default exp.default expm1.default floor.default floor_divide.default fmod.Scalar ge.Scalar ge.Tensor gelu.default
gt.Scalar gt.Tensor hardsigmoid.default hardswish.default hardtanh.default isfinite.default isnan.default le.Scalar
le.Tensor leaky_relu.default lerp.Scalar lerp.Tensor log.default log10.default log1p.default log2.default
log_sigmoid.default logical_and.default logical_not.default logical_or.default lt.Scalar lt.Tensor masked_fill.Scalar
masked_fill.Tensor maximum.default minimum.default mish.default mul.Scalar mul.Tensor ne.Scalar ne.Tensor neg.default
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prelu.default reciprocal.default relu.default relu6.default
remainder.Scalar rsqrt.default rsub.Scalar selu.default sigmoid.default sign.default silu.default sin.default
softplus.default sqrt.default square.default sub.Scalar sub.Tensor tan.default tanh.default where.ScalarOther
where.ScalarSelf where.self
"""
_REDUCTION = """
_log_softmax.default _softmax.default all.default amax.default amin.default any.default argmax.default argmin.default
cumsum.default linalg_vector_norm.default log_softmax.int logsumexp.default max.default max.dim mean.default mean.dim
min.default min.dim norm.Scalar prod.default prod.dim_int softmax.int std.correction std.dim sum.default
sum.dim_IntList topk.default var.correction var.dim
"""
_SHAPE = """
_to_copy.default alias.default broadcast_tensors.default broadcast_to.default cat.default chunk.default clone.default
contiguous.default detach.default diagonal.default expand.default expand_as.default flatten.using_ints flip.default
gather.default index.Tensor index_select.default lift_fresh_copy.default movedim.int narrow.default permute.default
pixel_shuffle.default repeat.default repeat_interleave.self_int reshape.default roll.default select.int slice.Tensor
split.Tensor split_with_sizes.default squeeze.default squeeze.dim squeeze.dims stack.default sym_size.int t.default
to.device to.dtype to.dtype_layout transpose.int tril.default triu.default type_as.default unbind.int unflatten.int
unsqueeze.default view.default view_as.default
"""
_CREATE = """
arange.default arange.start arange.start_step full.default full_like.default new_full.default new_ones.default
new_zeros.default ones.default ones_like.default scalar_tensor.default zeros.default zeros_like.default
"""
_LAYER = """
_native_batch_norm_legit_no_training.default adaptive_avg_pool1d.default adaptive_avg_pool2d.default addmm.default
avg_pool1d.default avg_pool2d.default baddbmm.default batch_norm.default bmm.default constant_pad_nd.default
conv1d.default conv2d.default conv_transpose2d.input convolution.default einsum.default embedding.default
group_norm.default gru.input layer_norm.default linear.default lstm.input matmul.default max_pool1d.default
max_pool2d.default max_pool2d_with_indices.default mm.default native_group_norm.default native_layer_norm.default
one_hot.default outer.default pad.default rms_norm.default scaled_dot_product_attention.default upsample_nearest2d.vec
"""
_LOSS = """
binary_cross_entropy.default binary_cross_entropy_with_logits.default cross_entropy_loss.default huber_loss.default
kl_div.default l1_loss.default mse_loss.default nll_loss.default nll_loss_forward.default nll_loss_nd.default
smooth_l1_loss.default
"""

ATEN = frozenset(
    "aten." + name for group in (_POINTWISE, _REDUCTION, _SHAPE, _CREATE, _LAYER, _LOSS) for name in group.split()
)
INTEGER: dict[str, Callable[..., Any]] = {
    "int.add": operator.add,
    "int.sub": operator.sub,
    "int.mul": operator.mul,
    "int.floordiv": operator.floordiv,
}
ITEM = "item"  # one value of an operator that returns several
DROPOUT = "noise.dropout"  # (tensor, p): see noise.py


def is_allowed(name: str) -> bool:
    """Say whether a program may name this operator."""
    return name in ATEN or name in INTEGER or name in (ITEM, DROPOUT)


def resolve(name: str) -> Callable[..., Any]:
    """Return the callable of an operator's name; MalformedError if it is not on the list."""
    if name in ATEN:
        packet, overload = name.removeprefix("aten.").split(".")
        found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload)
        return found
    if name == ITEM:
        return _item
    if name == DROPOUT:
        return _dropout
    ensure(name in INTEGER, MalformedError(f"operator {name[:80]!r} is not on the list of allowed operators"))
    return lambda left, right: _integer(INTEGER[name], left, right)


def check_call(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise a PeerError when the arguments ask an allowed operator for something that is not allowed."""
    rule = _RULES.get(name)
    if rule is not None:
        rule(_named(name, args, kwargs))


def _named(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by their name in the operator's schema; the defaults fill the rest."""
    schema = resolve(name)._schema  # type: ignore[attr-defined]
    values = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    ensure(len(args) <= len(schema.arguments), MalformedError(f"{name} is given {len(args)} arguments"))
    values.update(zip((argument.name for argument in schema.arguments), args, strict=False))
    return values | kwargs


def _item(values: Any, index: Any) -> Any:
    ensure(isinstance(values, tuple | list), MalformedError("item of a value that is not a list"))
    ensure(type(index) is int and 0 <= index < len(values), MalformedError(f"item {index!r} of {len(values)}"))
    return values[index]


def _dropout(tensor: Any, p: Any) -> Any:
    raise AssertionError("the interpreter draws the mask")


def _integer(function: Callable[..., Any], left: Any, right: Any) -> int:
    both = type(left) is int and type(right) is int
    ensure(both, MalformedError("integer arithmetic on a value that is no integer"))
    ensure(function is not operator.floordiv or right != 0, MalformedError("division by zero"))
    result: int = function(left, right)
    ensure(abs(result) <= MAX_INT, MalformedError("integer beyond 2**53"))
    return result


def _no_dropout(named: dict[str, Any]) -> None:
    ensure(named["dropout_p"] == 0, MalformedError("attention with dropout cannot be re-executed"))


def _no_layer_dropout(named: dict[str, Any]) -> None:
    ensure(named["dropout"] == 0, MalformedError("recurrent layers with dropout cannot be re-executed"))


def _fixed_statistics(named: dict[str, Any]) -> None:
    ensure(named["training"] is False, MalformedError("batch norm that updates its statistics cannot be re-executed"))


def _dense(named: dict[str, Any]) -> None:
    ensure(named["sparse"] is False, MalformedError("sparse embedding gradients are not supported"))


def _few_pieces(size_of: Callable[[dict[str, Any]], int]) -> Callable[[dict[str, Any]], None]:
    def check(named: dict[str, Any]) -> None:
        pieces = size_of(named)
        ensure(0 < pieces <= MAX_PIECES, OversizedError(f"{pieces} pieces of a tensor; at most {MAX_PIECES}"))

    return check


def _split_pieces(named: dict[str, Any]) -> int:
    size = named["split_size"]
    ensure(size > 0, MalformedError(f"pieces of {size}"))
    return int(-(-named["self"].shape[named["dim"]] // size))


_RULES: dict[str, Callable[[dict[str, Any]], None]] = {
    "aten.scaled_dot_product_attention.default": _no_dropout,
    "aten.lstm.input": _no_layer_dropout,
    "aten.gru.input": _no_layer_dropout,
    "aten.batch_norm.default": _fixed_statistics,
    "aten.embedding.default": _dense,
    "aten.split.Tensor": _few_pieces(_split_pieces),
    "aten.unbind.int": _few_pieces(lambda named: int(named["self"].shape[named["dim"]])),
    "aten.chunk.default": _few_pieces(lambda named: int(named["chunks"])),
}
