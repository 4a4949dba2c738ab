"""PyTorch's functions of layers and losses, `torch.nn.functional`, as calls of `ag`; see `ops.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from machine.pytorch import ops as tensors
from machine.pytorch.ops import Call, first, last, matmul, need, one, softmax

import ag
from ag import ops


def classes_first(x: Any) -> Any:
    """The classes of scores (batch, classes, ...) in front, which PyTorch has second; none is moved of one sample."""
    return ops.movedim(x, 1, 0) if x.ndim > 1 else x


def images(function: Call, axes: int) -> Call:
    """A function of images that may come without a batch."""
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        single = x.ndim == axes + 1
        found = function(ops.unsqueeze(x, -1) if single else last(x), *args, **kwargs)
        moved = [ops.squeeze(y, -1) if single else first(y) for y in (found if isinstance(found, tuple) else (found,))]
        return tuple(moved) if len(moved) > 1 else moved[0]
    return call


def pooling(name: str, axes: int) -> Call:
    function = images(getattr(ops, name), axes)

    def call(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
             return_indices: bool = False) -> Any:
        chosen = images(getattr(ops, name + "_with_indices"), axes) if return_indices else function
        stride = None if stride is None or stride == () else one(stride)
        return chosen(x, one(kernel_size), stride, one(padding), one(dilation), ceil_mode)

    def average(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                count_include_pad: bool = True, divisor_override: Any = None) -> Any:
        need(divisor_override is None)
        stride = None if stride is None or stride == () else one(stride)
        return function(x, one(kernel_size), stride, one(padding), ceil_mode, count_include_pad)

    return average if name.startswith("avg") else call


def adaptive(name: str, axes: int) -> Call:
    function = images(getattr(ops, name), axes)

    def call(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        chosen = images(getattr(ops, name + "_with_indices"), axes) if return_indices else function
        return chosen(x, output_size)
    return call


def conv(axes: int) -> Call:
    function = images(getattr(ops, f"conv{axes}d"), axes)

    def call(x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
             groups: int = 1) -> Any:
        return function(x, w, bias, one(stride), one(padding), one(dilation), groups)
    return call


def conv_transpose(axes: int) -> Call:
    function = images(getattr(ops, f"conv_transpose{axes}d"), axes)

    def call(x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
             groups: int = 1, dilation: Any = 1) -> Any:
        return function(x, w, bias, one(stride), one(padding), one(output_padding), groups, one(dilation))
    return call


def loss(name: str, **renamed: str) -> Call:
    """A loss of numbers, whose axes do not matter."""
    def call(*args: Any, size_average: Any = None, reduce: Any = None, **kwargs: Any) -> Any:
        need(size_average is reduce is None)
        return getattr(ops, name)(*args, **kwargs)
    return call


def by_class(name: str) -> Call:
    """A loss of classes, which are the second axis in PyTorch."""
    def call(x: Any, target: Any, weight: Any = None, reduction: str = "mean", **kwargs: Any) -> Any:
        soft = target.dtype != "i32"
        x = x if x.ndim > 1 else ops.unsqueeze(x, 0)
        target = target if target.ndim else ops.reshape(target, 1)
        if soft:
            target = classes_first(target if target.ndim > 1 else ops.unsqueeze(target, 0))
        return getattr(ops, name)(classes_first(x), target, weight=weight, reduction=reduction, **kwargs)
    return call


def one_sample(function: Call) -> Call:
    """`function`, whose result loses the batch where the first operand has none."""
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        single = x.ndim < 2
        y = function(ops.reshape(x, -1) if single else x, *args, **kwargs)
        return ops.reshape(y, *args[0].shape) if single and y.ndim and args[0].dtype == "i32" else (
            ops.reshape(y) if single and y.ndim else y)
    return call


def kl_div(x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
           log_target: bool = False) -> Any:
    y = ops.kl_div(last(x), last(target), reduction, log_target)
    return first(y) if y.ndim else y


def bce_with_logits(x: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
                    reduction: str = "mean", pos_weight: Any = None) -> Any:
    """Numbers of places of the last axis are numbers of the first here."""
    if weight is not None:
        weight = ops.transpose(ops.expand(weight, *x.shape))
    x, target = ops.transpose(x), ops.transpose(target)
    return ops.transpose(ops.binary_cross_entropy_with_logits(x, target, weight, reduction, pos_weight))


def multi_margin_loss(x: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None,
                      reduction: str = "mean") -> Any:
    return by_class("multi_margin_loss")(x, target, weight, reduction, p=p, margin=margin)


def rows(name: str, operands: int) -> Call:
    """A loss of vectors, which are rows in PyTorch and columns here."""
    def call(*args: Any, **kwargs: Any) -> Any:
        moved = [ops.movedim(x, -1, 0) for x in args[:operands]]
        return getattr(ops, name)(*moved, *args[operands:], **kwargs)
    return call


def gaussian_nll_loss(x: Any, target: Any, var: Any, **kwargs: Any) -> Any:
    shape = x.shape
    if isinstance(var, ag.Tensor) and var.shape != shape:
        var = ops.expand(var if var.ndim == x.ndim else ops.unsqueeze(var, -1), shape)
    return ops.gaussian_nll_loss(x, ops.expand(target, shape), var, **kwargs)


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    y = ops.softplus(x, beta)
    return y if threshold >= 20 else ops.where(ops.scale(x, beta) > threshold, x, y)


def prelu(x: Any, weight: Any) -> Any:
    return ops.prelu(x, ops.reshape(weight, *(-1,)[: x.ndim], *(1,) * (x.ndim - 2)))


def inplace(function: Call) -> Call:
    """An activation that PyTorch may write over its operand."""
    def call(*args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        return function(*args, **kwargs)
    return call


def column(x: Any) -> Any:
    return ops.reshape(x, -1, 1)


def batch_norm(x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Any:
    need(x.ndim > 1, "axes")
    n = x.shape[1]
    weight = ops.ones(n, 1) if weight is None else column(weight)
    bias = ops.zeros(n, 1) if bias is None else column(bias)
    own = () if training or running_mean is None else (column(running_mean), column(running_var))
    return ops.movedim(ops.batch_norm(ops.movedim(x, 1, 0), weight, bias, eps, *own), 0, 1)


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    n = math.prod(normalized_shape)
    rest = x.shape[: x.ndim - len(normalized_shape)]
    features = ops.transpose(ops.reshape(x, math.prod(rest), n))
    weight = ops.ones(n, 1) if weight is None else column(weight)
    bias = ops.zeros(n, 1) if bias is None else column(bias)
    return ops.reshape(ops.transpose(ops.layer_norm(features, weight, bias, eps)), *x.shape)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    n = math.prod(normalized_shape)
    rest = x.shape[: x.ndim - len(normalized_shape)]
    features = ops.transpose(ops.reshape(x, math.prod(rest), n))
    eps = (2.0**-52 if x.dtype == "f64" else 2.0**-23) if eps is None else eps
    weight = ops.ones(n, 1) if weight is None else column(weight)
    return ops.reshape(ops.transpose(ops.rms_norm(features, weight, eps)), *x.shape)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return first(ops.group_norm(last(x), num_groups, weight, bias, eps))


def instance_norm(x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
                  use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5) -> Any:
    need(use_input_stats)
    return first(ops.instance_norm(last(x), weight, bias, eps))


def local_response_norm(x: Any, *args: Any, **kwargs: Any) -> Any:
    return first(ops.local_response_norm(last(x), *args, **kwargs))


def interpolate(x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
                recompute_scale_factor: Any = None, antialias: bool = False) -> Any:
    need(not antialias and not recompute_scale_factor)
    return first(ops.interpolate(last(x), one(size), one(scale_factor), mode, bool(align_corners)))


def upsample_bilinear(x: Any, size: Any = None, scale_factor: Any = None) -> Any:
    return interpolate(x, size, scale_factor, "bilinear", True)


def pixels(name: str) -> Call:
    def call(x: Any, upscale_factor: int = 1, downscale_factor: int = 1) -> Any:
        factor = max(upscale_factor, downscale_factor)
        rest = x.shape[:-3]
        y = first(getattr(ops, name)(last(ops.reshape(x, -1, *x.shape[-3:]) if 0 not in x.shape else ops.reshape(
            x, math.prod(rest), *x.shape[-3:])), factor))
        return ops.reshape(y, *rest, *y.shape[-3:])
    return call


def unfold(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    return images(ops.unfold, 2)(x, one(kernel_size), one(dilation), one(padding), one(stride))


def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    return ops.squeeze(ops.pad(ops.unsqueeze(x, -1), pad, mode, value or 0.0), -1)


def constant_pad_nd(x: Any, widths: Any, value: float = 0.0) -> Any:
    return pad(x, widths, "constant", value)


def embedding(weight: Any, ids: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    need(max_norm is None and not scale_grad_by_freq and not sparse)
    if padding_idx is not None:
        index = padding_idx % weight.shape[0]
        kept = np.ones((weight.shape[0], 1), dtype=bool)
        kept[index] = False
        weight = ops.where(ag.ag_tensor(kept), weight, weight.detach())
    y = ops.embedding_lookup(ops.transpose(weight), ids)
    return ops.movedim(y, 0, -1)


def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
              scale: float | None = None, enable_gqa: bool = False) -> Any:
    """(batch, heads, time, d) as (heads * d, time, batch)."""
    need(dropout_p == 0.0, "random")
    batched = 4 in (q.ndim, k.ndim)
    q, k, v = (x if x.ndim == 4 else ops.unsqueeze(x, 0) for x in (q, k, v))
    n = max(q.shape[0], k.shape[0])
    q, k, v = (ops.expand(x, n, *x.shape[1:]) for x in (q, k, v))
    _, heads, time, _ = q.shape
    packed = [ops.reshape(ops.permute(x, 1, 3, 2, 0), x.shape[1] * x.shape[3], x.shape[2], x.shape[0])
              for x in (q, k, v)]
    terms: dict[str, Any] = {}
    if attn_mask is not None:
        mask = ops.reshape(attn_mask, *(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
        mask = ops.permute(mask, 1, 2, 3, 0)
        terms = {"attn_mask": mask} if attn_mask.dtype == "bool" else {"attn_bias": mask}
    y = ops.attention(*packed, causal=is_causal, heads=heads, kv_heads=k.shape[1], scale=scale, **terms)
    y = ops.permute(ops.reshape(y, heads, -1, time, n), 3, 0, 2, 1)
    return y if batched else ops.reshape(y, *y.shape[1:])


def dropout(name: str) -> Call:
    def call(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        need(p in (0.0, 1.0) or not training, "random")
        return getattr(ops, name)(x, p, training)
    return call


def one_hot(ids: Any, num_classes: int = -1) -> Any:
    if num_classes < 0:
        num_classes = int(ids.numpy().max()) + 1
    return ops.movedim(ops.one_hot(ids, num_classes), 0, -1)


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    y = matmul(x, ops.transpose(w) if w.ndim > 1 else w)
    return y if bias is None else ops.add(y, bias)


def bilinear(x1: Any, x2: Any, w: Any, bias: Any = None) -> Any:
    need(x1.ndim > 1, "axes")
    return ops.movedim(ops.bilinear(ops.movedim(x1, -1, 0), ops.movedim(x2, -1, 0), w, bias), 0, -1)


ACTIVATIONS = "relu relu6 elu celu selu silu mish hardsigmoid hardswish threshold"
SAME = "gelu hardshrink huber_loss logsigmoid softshrink softsign tanhshrink"
LOSSES = """
    binary_cross_entropy hinge_embedding_loss l1_loss margin_ranking_loss mse_loss poisson_nll_loss smooth_l1_loss
    soft_margin_loss
"""

_LAYERS: dict[str, Call] = {
    **{name: inplace(getattr(ops, name)) for name in ACTIVATIONS.split()},
    **{name: getattr(ops, name) for name in SAME.split()},
    **{name: loss(name) for name in LOSSES.split()},
    **{f"adaptive_{kind}_pool{axes}d": adaptive(f"adaptive_{kind}_pool{axes}d", axes)
       for kind in ("avg", "max") for axes in (1, 2, 3)},
    **{f"{kind}_pool{axes}d": pooling(f"{kind}_pool{axes}d", axes) for kind in ("avg", "max") for axes in (1, 2, 3)},
    **{f"conv{axes}d": conv(axes) for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": conv_transpose(axes) for axes in (1, 2)},
    **{name: dropout(name) for name in ("dropout", "dropout2d")},
    **{name: one_sample(by_class(name)) for name in ("cross_entropy", "nll_loss")},
    **{name: pixels(name) for name in ("pixel_shuffle", "pixel_unshuffle")},
    "batch_norm": batch_norm,
    "bilinear": bilinear,
    "binary_cross_entropy_with_logits": bce_with_logits,
    "cosine_embedding_loss": rows("cosine_embedding_loss", 2),
    "cosine_similarity": lambda a, b, dim=1, eps=1e-8: ops.cosine_similarity(a, b, dim, eps),
    "embedding": embedding,
    "gaussian_nll_loss": gaussian_nll_loss,
    "glu": lambda x, dim=-1: ops.glu(x, dim),
    "group_norm": group_norm,
    "hardtanh": inplace(lambda x, min_val=-1.0, max_val=1.0: ops.hardtanh(x, min_val, max_val)),
    "instance_norm": instance_norm,
    "interpolate": interpolate,
    "kl_div": kl_div,
    "layer_norm": layer_norm,
    "leaky_relu": inplace(lambda x, negative_slope=0.01: ops.leaky_relu(x, negative_slope)),
    "linear": linear,
    "local_response_norm": local_response_norm,
    "multi_margin_loss": one_sample(multi_margin_loss),
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12: ops.normalize(x, p, dim, eps),
    "one_hot": one_hot,
    "pad": pad,
    "prelu": prelu,
    "rms_norm": rms_norm,
    "scaled_dot_product_attention": attention,
    "softmin": softmax("softmin"),
    "softplus": softplus,
    "triplet_margin_loss": rows("triplet_margin_loss", 3),
    "unfold": unfold,
    "upsample_bilinear": upsample_bilinear,
    "upsample_nearest": lambda x, size=None, scale_factor=None: interpolate(x, size, scale_factor),
}
CALLS: dict[str, Call] = {**tensors.CALLS, **{f"nn.functional.{name}": call for name, call in _LAYERS.items()},
                          "constant_pad_nd": constant_pad_nd}
