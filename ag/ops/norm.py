"""Layer norm and batch norm: the same standardisation, over features or over samples.

Both are made of sums and products over x as a matrix [features, samples], so rows and columns may be as long as they
like; only the reciprocal deviation and the running statistics need kernels of their own.  The gradients include what
flows through mean and variance.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ag.buffer import Buffer
from ag.core_primitives import add, sum_over
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, op, part_of
from ag.ops.arithmetic import mul, scale, sub
from ag.primitive import primitive
from ag.shape import Shape
from ag.tensor import Array, Tensor, TensorLike

__all__ = ["ag_batch_norm_op", "ag_layer_norm_op", "batch_norm_train"]

_FEATURES, _SAMPLES = (0,), (1,)  # axes of the matrix to standardise over


@primitive()
def inverse_std(out: Array, variance: Array, *, eps: float) -> None:
    np.add(variance, eps, out=out)
    np.sqrt(out, out=out)
    np.divide(1.0, out, out=out)


@primitive(outputs=0, updates=("running",))
def running_update(running: Array, value: Array, *, momentum: float, factor: float) -> None:
    # The exponential average moves towards factor * value.
    running += momentum * (factor * value - running)


def _matrix(function: str, x: Any, *per_feature: tuple[str, Any]) -> tuple[Shape, list[Buffer]]:
    """`x` as [features, samples] and vectors as columns; returns the shape of `x` and all the views."""
    features = x.shape[0] if x.ndim else 0
    if x.ndim < 2 or features == 0:
        raise ShapeError(f"{function}: x is {x.shape}; (features, batch) with at least one feature is required.")
    for name, value in per_feature:
        if value.shape not in ((features, 1), (features,)):
            raise ShapeError(f"{function}: x is {x.shape} and {name} is {value.shape}; "
                             f"{name} must be {(features, 1)}.")
    columns = [value.view((features, 1)) for _, value in per_feature]
    return x.shape, [x.view((features, prod(x.shape[1:]))), *columns]


def _standardized(run: Run, x: Buffer, axes: Shape, eps: float) -> tuple[Buffer, Buffer, Buffer, Buffer]:
    """(x - mean) / sqrt(variance + eps) over `axes`; the reciprocal deviation, mean and biased variance."""
    share = 1.0 / prod(x.shape[a] for a in axes)
    mean = sum_over(run, x, axes, share)
    apart = run(sub, x, mean)
    variance = sum_over(run, run(mul, apart, apart), axes, share)
    rate = run(inverse_std, variance, eps=eps)
    return run(mul, apart, rate), rate, mean, variance


def _affine(run: Run, h: Buffer, gamma: Buffer, beta: Buffer) -> Any:
    return run(add, run(mul, h, gamma), beta)


def _affine_vjp(run: Run, g: Buffer, h: Buffer, gamma: Buffer, need: Need) -> tuple[Buffer | None, ...]:
    """Cotangents of h, gamma and beta, the last two as columns."""
    return (
        run(mul, g, gamma) if need[0] else None,
        sum_over(run, run(mul, g, h), _SAMPLES) if need[1] else None,
        sum_over(run, g, _SAMPLES) if need[2] else None,
    )


def _standardized_vjp(run: Run, g: Buffer, h: Buffer, rate: Buffer, axes: Shape) -> Buffer:
    """rate (g - mean(g) - h mean(g h)), with means over `axes`: what mean and variance send back is in it."""
    share = 1.0 / prod(h.shape[a] for a in axes)
    along = run(mul, h, sum_over(run, run(mul, g, h), axes, share))
    apart = run(sub, run(sub, g, sum_over(run, g, axes, share)), along)
    return run(mul, apart, rate)  # type: ignore[no-any-return]


def _norm(run: Run, function: str, x: Any, gamma: Any, beta: Any, axes: Shape, eps: float) -> tuple[Any, ...]:
    """Result, what the gradient rule wants, mean and biased variance."""
    shape, (m, a, b) = _matrix(function, x, ("gamma", gamma), ("beta", beta))
    if m.shape[1] == 0 and axes == _SAMPLES:
        raise ShapeError(f"{function}: x is {shape}; statistics need at least one value per feature.")
    if not eps > 0:
        raise ValueError(f"{function}: eps is {eps}; it must be positive.")
    h, rate, mean, variance = _standardized(run, m, axes, float(eps))
    return _affine(run, h, a, b).view(shape), (h, rate, a, (shape, gamma.shape, beta.shape)), mean, variance


def _norm_vjp(run: Run, g: Buffer, saved: Any, need: Need, axes: Shape) -> Cotangents:
    h, rate, gamma, shapes = saved
    dh, *columns = _affine_vjp(run, g.view(h.shape), h, gamma, need)
    dx = None if dh is None else _standardized_vjp(run, dh, h, rate, axes)
    return tuple(None if d is None else d.view(s) for d, s in zip((dx, *columns), shapes, strict=True))


@op
def ag_layer_norm_op(
    run: Run, x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5
) -> tuple[Any, Any]:
    """Layer norm: each sample's features get mean 0 and variance 1, then ``gamma`` and ``beta``.

    Parameters
    ----------
    x : Tensor of shape (features, ...)
    gamma, beta : Tensor of shape (features, 1)
        Factor and offset of each feature.
    eps : float, optional
        Added to the variance; positive.

    Returns
    -------
    Tensor of the shape of x

    Raises
    ------
    ShapeError
        If there is no feature, or `gamma` or `beta` has another number of them.
    ValueError
        If `eps` is not positive.

    Notes
    -----
    The variance is the biased one.  Gradients flow to all three tensors, through mean and variance too.

    References
    ----------
    Ba, Kiros, Hinton, "Layer Normalization".

    Examples
    --------
    >>> import ag
    >>> y = ag.ag_layer_norm_op([[1.0], [3.0]], [[1.0], [1.0]], [[0.0], [0.0]])
    >>> y.numpy().round(3).tolist()
    [[-1.0], [1.0]]
    """
    return _norm(run, "ag_layer_norm_op", x, gamma, beta, _FEATURES, eps)[:2]


@ag_layer_norm_op.vjp
def _layer_norm_vjp(run: Run, g: Buffer, saved: Any, need: Need, eps: float) -> Cotangents:
    return _norm_vjp(run, g, saved, need, _FEATURES)


def ag_batch_norm_op(
    x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5,
    mean: TensorLike | None = None, variance: TensorLike | None = None,
) -> Tensor:
    """Batch norm: each feature gets mean 0 and variance 1 over all samples, then ``gamma`` and ``beta``.

    Parameters
    ----------
    x : Tensor of shape (features, ...)
        Everything but the first axis counts as samples: pixels of images, steps of sequences.
    gamma, beta : Tensor of shape (features, 1)
        Factor and offset of each feature.
    eps : float, optional
        Added to the variance; positive.
    mean, variance : Tensor of shape (features, 1), optional
        Use these instead of the batch's own, as in eval mode; both or none.

    Returns
    -------
    Tensor of the shape of x

    Raises
    ------
    ShapeError
        If there is no feature or no sample, or another operand has another number of features.
    ValueError
        If `eps` is not positive, or only one of `mean` and `variance` is given.

    Notes
    -----
    The batch's variance is the biased one.  Gradients flow to every tensor, through mean and variance too.

    References
    ----------
    ggmlR ``ag_batch_norm`` (whose gradient takes mean and variance for constants); Ioffe and Szegedy, "Batch
    Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift".

    Examples
    --------
    >>> import ag
    >>> ag.ag_batch_norm_op([[1.0, 3.0]], [[1.0]], [[0.0]]).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    """
    if mean is None and variance is None:
        return _by_batch(x, gamma, beta, eps)
    if mean is None or variance is None:
        missing = "mean" if mean is None else "variance"
        raise ValueError(f"ag_batch_norm_op: {missing} is missing; give both mean and variance, or neither.")
    return _by_statistics(x, gamma, beta, mean, variance, eps)


@part_of("ag_batch_norm_op", mixed=True)
def _by_batch(run: Run, x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float) -> tuple[Any, Any]:
    return _norm(run, "ag_batch_norm_op", x, gamma, beta, _SAMPLES, eps)[:2]


@_by_batch.vjp
def _by_batch_vjp(run: Run, g: Buffer, saved: Any, need: Need, eps: float) -> Cotangents:
    return _norm_vjp(run, g, saved, need, _SAMPLES)


@part_of("ag_batch_norm", mixed=True)
def batch_norm_train(
    run: Run, x: TensorLike, gamma: TensorLike, beta: TensorLike, running_mean: TensorLike, running_var: TensorLike,
    eps: float, momentum: float,
) -> tuple[Any, Any]:
    """`ag_batch_norm_op` that also moves running statistics, in place, towards the mean and the unbiased variance."""
    _matrix("ag_batch_norm", x, ("running_mean", running_mean), ("running_var", running_var))
    out, saved, mean, variance = _norm(run, "ag_batch_norm", x, gamma, beta, _SAMPLES, eps)
    count = saved[0].shape[1]
    if count < 2:
        raise ShapeError(f"ag_batch_norm: x is {x.shape}; "  # type: ignore[union-attr]
                         f"the running variance needs at least two values per feature in train mode.")
    run(running_update, running_mean, mean, momentum=momentum, factor=1.0)
    run(running_update, running_var, variance, momentum=momentum, factor=count / (count - 1))
    return out, saved


@batch_norm_train.vjp
def _batch_norm_train_vjp(run: Run, g: Buffer, saved: Any, need: Need, eps: float, momentum: float) -> Cotangents:
    return *_norm_vjp(run, g, saved, need[:3], _SAMPLES), None, None


@part_of("ag_batch_norm_op", mixed=True)
def _by_statistics(
    run: Run, x: TensorLike, gamma: TensorLike, beta: TensorLike, mean: TensorLike, variance: TensorLike, eps: float
) -> tuple[Any, Any]:
    operands: Any = (x, gamma, beta, mean, variance)
    names = ("gamma", "beta", "mean", "variance")
    shape, (m, a, b, centre, var) = _matrix("ag_batch_norm_op", x, *zip(names, operands[1:], strict=True))
    if not eps > 0:
        raise ValueError(f"ag_batch_norm_op: eps is {eps}; it must be positive.")
    rate = run(inverse_std, var, eps=float(eps))
    h = run(mul, run(sub, m, centre), rate)
    return _affine(run, h, a, b).view(shape), (h, rate, a, [t.shape for t in operands])


@_by_statistics.vjp
def _by_statistics_vjp(run: Run, g: Buffer, saved: Any, need: Need, eps: float) -> Cotangents:
    h, rate, gamma, shapes = saved
    wanted = (need[0] or need[3] or need[4], need[1], need[2])
    dh, dgamma, dbeta = _affine_vjp(run, g.view(h.shape), h, gamma, wanted)
    dx = dmean = dvariance = None
    if dh is not None:
        apart = run(mul, dh, rate)
        dx = apart if need[0] else None
        dmean = sum_over(run, run(scale, apart, factor=-1.0), _SAMPLES) if need[3] else None
        if need[4]:  # h = (x - mean) rate and d rate / d variance = -rate^3 / 2
            each = run(mul, run(mul, apart, h), rate)
            dvariance = sum_over(run, each, _SAMPLES, -0.5)
    found = (dx, dgamma, dbeta, dmean, dvariance)
    return tuple(None if d is None else d.view(s) for d, s in zip(found, shapes, strict=True))
