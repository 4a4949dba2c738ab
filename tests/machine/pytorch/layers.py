"""PyTorch's functions of layers and losses in terms of ag's (ops.py has the others, and says how)."""

from __future__ import annotations

from typing import Any

import numpy as np
from machine.pytorch.ops import express, need, number, operand

import ag

Tensor = Any


def batch_last(x: Tensor) -> Tensor:
    """The first axis becomes the last."""
    return ag.ag_transpose(x, *range(1, x.ndim), 0)


def batch_first(x: Tensor) -> Tensor:
    return ag.ag_transpose(x, x.ndim - 1, *range(x.ndim - 1))


def column(x: Tensor) -> Tensor:
    return x.reshape(-1, 1)


def pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[-1]))


def conv(x: Tensor, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    if isinstance(padding, str):
        stride_is_one = pair(stride) == (1, 1)
        need(padding == "valid" or stride_is_one, "padding 'same' with a stride")
        total = [d * (k - 1) for d, k in zip(pair(dilation), w.shape[2:], strict=True)]
        need(padding == "valid" or all(t % 2 == 0 for t in total), "padding of one side")
        padding = (0, 0) if padding == "valid" else (total[0] // 2, total[1] // 2)
    out = ag.ag_conv2d(
        batch_last(x), w, None if b is None else column(b), pair(stride), pair(padding), pair(dilation), groups
    )
    return batch_first(out)


@express("nn.functional.conv2d")
def conv2d(
    x: Tensor,
    w: Tensor,
    b: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: Any = None,
) -> Tensor:
    b = bias if b is None else b
    if operand(x).ndim == 3:
        out = conv(x.reshape(1, *x.shape), w, b, stride, padding, dilation, groups)
        return out.reshape(*out.shape[1:])
    return conv(x, w, b, stride, padding, dilation, groups)


@express("nn.functional.conv1d")
def conv1d(
    x: Tensor,
    w: Tensor,
    b: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: Any = None,
) -> Tensor:
    def wide(n: Any, other: int) -> Any:
        return n if isinstance(n, str) else (other, n if isinstance(n, int) else int(n[0]))

    need(operand(x).ndim == 3, "one sample")
    out = conv(
        x.reshape(x.shape[0], x.shape[1], 1, x.shape[2]),
        w.reshape(w.shape[0], w.shape[1], 1, w.shape[2]),
        bias if b is None else b,
        wide(stride, 1),
        wide(padding, 0),
        wide(dilation, 1),
        groups,
    )
    return out.reshape(out.shape[0], out.shape[1], out.shape[3])


@express("nn.functional.max_pool2d")
def max_pool2d(
    x: Tensor,
    size: Any = None,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    kernel_size: Any = None,
) -> Tensor:
    need(pair(dilation) == (1, 1) and not ceil_mode and not return_indices, "dilation, ceil_mode or indices")
    return _pooled(ag.ag_max_pool2d, x, kernel_size if size is None else size, stride, padding)


@express("nn.functional.avg_pool2d")
def avg_pool2d(
    x: Tensor,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Tensor:
    need(not ceil_mode and divisor_override is None, "ceil_mode or another divisor")
    need(not count_include_pad or pair(padding) == (0, 0), "the padding counts")
    return _pooled(ag.ag_avg_pool2d, x, size, stride, padding)


def _pooled(fn: Any, x: Tensor, size: Any, stride: Any, padding: Any) -> Tensor:
    single = operand(x).ndim == 3
    images = x.reshape(1, *x.shape) if single else x
    stride = None if stride is None or stride == [] or stride == () else pair(stride)
    out = batch_first(fn(batch_last(images), pair(size), stride, pair(padding)))
    return out.reshape(*out.shape[1:]) if single else out


@express("nn.functional.adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, size: Any) -> Tensor:
    need(size in (1, (1, 1), [1, 1]) and operand(x).ndim == 4, "another size than 1")
    out = ag.ag_global_avg_pool(batch_last(x))
    return out.T.reshape(*x.shape[:2], 1, 1)


@express("nn.functional.layer_norm")
def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    n, lead = int(np.prod(shape)), x.shape[: operand(x).ndim - len(tuple(shape))]
    need(n > 0 and x.size > 0 and eps > 0, "no features, or eps not positive")
    features = x.reshape(-1, n).T
    gamma = np.ones((n, 1)) if weight is None else column(weight)
    beta = np.zeros((n, 1)) if bias is None else column(bias)
    out = ag.ag_layer_norm_op(features, *_like(x, gamma, beta), eps)
    return out.T.reshape(*lead, *shape)


@express("nn.functional.rms_norm")
def rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    n, lead = int(np.prod(shape)), x.shape[: operand(x).ndim - len(tuple(shape))]
    eps = float(np.finfo(x.numpy().dtype).eps) if eps is None else eps
    need(n > 0 and x.size > 0 and eps > 0, "no features, or eps not positive")
    need(len(tuple(shape)) > 0, "no axis to normalise over")
    gamma = np.ones((n, 1)) if weight is None else column(weight)
    return ag.ag_rms_norm_op(x.reshape(-1, n).T, *_like(x, gamma), eps).T.reshape(*lead, *shape)


def _like(x: Tensor, *arrays: Any) -> list[Tensor]:
    return [a if isinstance(a, ag.Tensor) else ag.ag_tensor(a, dtype=x.dtype, device=x.device) for a in arrays]


@express("nn.functional.batch_norm")
def batch_norm(
    x: Tensor,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    need(operand(x).ndim >= 2 and x.size, "a vector, or nothing")
    n = x.shape[1]
    gamma, beta = _like(
        x, np.ones((n, 1)) if weight is None else column(weight), np.zeros((n, 1)) if bias is None else column(bias)
    )
    fixed = {} if training else {"mean": column(mean), "variance": column(var)}
    out = ag.ag_batch_norm_op(batch_last(x), gamma, beta, eps, **fixed)
    return batch_first(out)


@express("nn.functional.scaled_dot_product_attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    need(
        attn_mask is None and dropout_p == 0 and scale is None and not enable_gqa, "a mask, dropout, a scale or groups"
    )
    need(q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and q.shape[-1] == v.shape[-1], "other sizes for keys or values")
    need(not is_causal or q.shape[-2] == k.shape[-2], "causal with other lengths")
    turned = [ag.ag_transpose(t.reshape(-1, *t.shape[-2:]), 2, 1, 0) for t in (q, k, v)]
    out = ag.ag_transpose(ag.ag_attention(*turned, causal=is_causal), 2, 1, 0)
    return out.reshape(*q.shape[:-1], v.shape[-1])


@express("nn.functional.embedding")
def embedding(
    ids: Any,
    weight: Tensor,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if isinstance(ids, ag.Tensor):  # op_db puts the weight first
        ids, weight = weight, ids
    need(
        padding_idx is None and max_norm is None and not scale_grad_by_freq and not sparse, "padding_idx, max_norm, ..."
    )
    out = ag.ag_embedding_lookup(weight.T, ids)
    return batch_last(out) if out.ndim > 1 else out


# ---------------------------------------------------------------------------------------------- losses


@express("nn.functional.mse_loss")
def mse_loss(
    x: Tensor, y: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Any = None
) -> Tensor:
    need(reduction == "mean" and size_average is None and reduce is None and weight is None, "another reduction")
    return ag.ag_mse_loss(operand(x), operand(y))


@express("nn.functional.cross_entropy")
def cross_entropy(
    x: Tensor,
    y: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    need(
        weight is None and reduction == "mean" and number(label_smoothing, "label_smoothing") == 0,
        "weights or reduction",
    )
    need(operand(x).ndim > 1 or isinstance(y, np.ndarray), "one sample")
    if isinstance(y, ag.Tensor):
        need(x.ndim == 2, "soft labels in space")
        return ag.ag_softmax_cross_entropy_loss(x.T, y.T)
    need(not (y == ignore_index).any(), "ignore_index")
    if x.ndim == 1:
        return ag.ag_softmax_cross_entropy_loss(column(x), y.reshape(1))
    return ag.ag_softmax_cross_entropy_loss(ag.ag_transpose(x, 1, 0, *range(2, x.ndim)), y)
