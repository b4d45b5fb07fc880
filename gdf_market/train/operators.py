"""The operators a program may use.

Rules kept here:
1. Functional ``aten`` operators only: nothing in place, no ``out=``, no views that escape their storage
   (``as_strided``, ``set_``), nothing that reads a file, the clock or a random generator.
2. No uninitialised memory (``aten.empty``): every value is a function of the inputs.
3. Arguments that would bring randomness, mutation or unbounded lists back are refused (operator_rules.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from gdf_market.errors import MalformedError, ensure
from gdf_market.units import MAX_INT

_POINTWISE = """
__and__.Tensor __or__.Tensor __xor__.Tensor abs.default acos.default acosh.default add.Scalar add.Tensor
addcdiv.default addcmul.default asin.default asinh.default atan.default atan2.default atanh.default bitwise_and.Scalar
bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor bitwise_xor.Tensor bucketize.Tensor ceil.default celu.default
clamp.Tensor clamp.default clamp_max.default clamp_min.default copysign.Tensor cos.default cosh.default
cosine_similarity.default deg2rad.default div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode elu.default eq.Scalar
eq.Tensor erf.default erfc.default exp.default exp2.default expm1.default fill.Scalar fill.Tensor floor.default
floor_divide.default fmod.Scalar fmod.Tensor frac.default ge.Scalar ge.Tensor gelu.default glu.default gt.Scalar
gt.Tensor hardshrink.default hardsigmoid.default hardswish.default hardtanh.default isfinite.default
isin.Tensor_Scalar isin.Tensor_Tensor isinf.default isnan.default le.Scalar le.Tensor leaky_relu.default lerp.Scalar
lerp.Tensor lgamma.default log.default log10.default log1p.default log2.default log_sigmoid.default
logaddexp.default logaddexp2.default logical_and.default logical_not.default logical_or.default logical_xor.default
logit.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor max.other maximum.default min.other
minimum.default mish.default
mul.Scalar mul.Tensor nan_to_num.default ne.Scalar ne.Tensor neg.default pow.Scalar pow.Tensor_Scalar
pow.Tensor_Tensor prelu.default rad2deg.default reciprocal.default relu.default relu6.default remainder.Scalar
remainder.Tensor round.default rsqrt.default rsub.Scalar selu.default sgn.default sigmoid.default sign.default
silu.default sin.default sinc.default sinh.default softplus.default softshrink.default sqrt.default square.default
sub.Scalar sub.Tensor tan.default tanh.default threshold.default trunc.default where.Scalar where.ScalarOther
where.ScalarSelf where.self xlogy.Tensor
"""
_REDUCTION = """
_log_softmax.default _safe_softmax.default _softmax.default all.default all.dim amax.default amin.default any.default
any.dim argmax.default argmin.default argsort.stable cumprod.default cumsum.default
linalg_vector_norm.default log_softmax.int logcumsumexp.default logsumexp.default max.default max.dim mean.default
mean.dim min.default min.dim norm.Scalar norm.ScalarOpt_dim pairwise_distance.default prod.default prod.dim_int
softmax.int sort.stable std.correction std.default std.dim std_mean.correction sum.default
sum.dim_IntList topk.default var.correction var.default var.dim var_mean.correction
"""
_SHAPE = """
_to_copy.default alias.default broadcast_tensors.default broadcast_to.default cat.default channel_shuffle.default
chunk.default clone.default contiguous.default copy.default detach.default diag_embed.default diagonal.default
expand.default expand_as.default flatten.using_ints flip.default gather.default index.Tensor index_add.default
index_put.default index_select.default lift_fresh_copy.default meshgrid.default meshgrid.indexing movedim.int
movedim.intlist narrow.default numpy_T.default permute.default pixel_shuffle.default pixel_unshuffle.default
repeat.default repeat_interleave.self_int reshape.default roll.default scatter.src scatter.value scatter_add.default
select.int select_scatter.default slice.Tensor slice_scatter.default split.Tensor split_with_sizes.default
squeeze.default squeeze.dim squeeze.dims stack.default sym_size.int t.default tensor_split.sections to.device to.dtype
to.dtype_layout to.other transpose.int tril.default triu.default type_as.default unbind.int unflatten.int unfold.default
unsqueeze.default view.default view_as.default
"""
_CREATE = """
arange.default arange.start arange.start_step eye.default eye.m full.default full_like.default linspace.default
new_full.default new_ones.default new_zeros.default ones.default ones_like.default scalar_tensor.default zeros.default
zeros_like.default
"""
_LAYER = """
_native_batch_norm_legit_no_training.default _weight_norm.default adaptive_avg_pool1d.default
adaptive_avg_pool2d.default
adaptive_max_pool1d.default adaptive_max_pool2d.default addbmm.default addmm.default addmv.default avg_pool1d.default
avg_pool2d.default avg_pool3d.default baddbmm.default batch_norm.default bilinear.default bmm.default
constant_pad_nd.default conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default
conv_transpose1d.default conv_transpose2d.input convolution.default dot.default einsum.default embedding.default
group_norm.default gru.input gru_cell.default im2col.default instance_norm.default layer_norm.default linear.default
lstm.input lstm_cell.default matmul.default max_pool1d.default max_pool2d.default max_pool2d_with_indices.default
mm.default mv.default native_group_norm.default native_layer_norm.default one_hot.default outer.default pad.default
rms_norm.default rnn_relu.input rnn_relu_cell.default rnn_tanh.input rnn_tanh_cell.default
scaled_dot_product_attention.default tensordot.default upsample_bilinear2d.vec upsample_nearest1d.vec
upsample_nearest2d.vec
"""
_LOSS = """
binary_cross_entropy.default binary_cross_entropy_with_logits.default cosine_embedding_loss.default
cross_entropy_loss.default hinge_embedding_loss.default huber_loss.default kl_div.default l1_loss.default
margin_ranking_loss.default mse_loss.default nll_loss.default nll_loss_forward.default nll_loss_nd.default
poisson_nll_loss.default smooth_l1_loss.default soft_margin_loss.default triplet_margin_loss.default
"""

ATEN = frozenset(
    "aten." + name for group in (_POINTWISE, _REDUCTION, _SHAPE, _CREATE, _LAYER, _LOSS) for name in group.split()
)
# those that take the device as an argument: a program names it each time
CREATES = frozenset(f"aten.{name}" for name in _CREATE.split() if not name.startswith("new_") and "_like" not in name)
INTEGER: dict[str, Callable[..., Any]] = {
    "int.add": operator.add,
    "int.sub": operator.sub,
    "int.mul": operator.mul,
    "int.floordiv": operator.floordiv,
    "int.mod": operator.mod,
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


def _item(values: Any, index: Any) -> Any:
    ensure(isinstance(values, tuple | list), MalformedError("item of a value that is not a list"))
    ensure(type(index) is int and 0 <= index < len(values), MalformedError(f"item {index!r} of {len(values)}"))
    return values[index]


def _dropout(tensor: Any, p: Any) -> Any:
    raise AssertionError("the interpreter draws the mask")


def _integer(function: Callable[..., Any], left: Any, right: Any) -> int:
    both = type(left) is int and type(right) is int
    ensure(both, MalformedError("integer arithmetic on a value that is no integer"))
    ensure(function in (operator.add, operator.sub, operator.mul) or right != 0, MalformedError("division by zero"))
    result: int = function(left, right)
    ensure(abs(result) <= MAX_INT, MalformedError("integer beyond 2**53"))
    return result
