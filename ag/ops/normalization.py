"""Layer norm, RMS norm and batch norm of a matrix [features, samples].

Mean and variance are saved; the backward pass standardises x again.
"""

from __future__ import annotations

from math import prod

from ag.autograd.op import Cotangents, Need, Result, Run, Wide, documented, op, part_of
from ag.autograd.tape import repeated_since
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels import norm as kernels
from ag.engine.kernels.elementwise import mul, scale, sub
from ag.engine.kernels.reduce import sum_over
from ag.engine.shape import Shape
from ag.errors import ShapeError

__all__ = ["ag_batch_norm_op", "ag_layer_norm_op", "ag_rms_norm_op"]

# What is saved: x as a matrix, gamma, mean and variance; and the shapes of all operands.
Normed = tuple[tuple[Buffer, Buffer, Buffer, Buffer], list[Shape]]
Scaled = tuple[tuple[Buffer, Buffer, Buffer], list[Shape]]  # of RMS norm, with mean squares only

_FEATURES, _SAMPLES = (0,), (1,)  # axes of the matrix to standardise over


def _operands(function: str, axes: Shape, eps: float, x: Buffer, **per_feature: Buffer) -> list[Buffer]:
    """`x` as [features, samples], and vectors as columns, after all that can be wrong was looked at."""
    features = x.shape[0] if x.ndim else 0
    if x.ndim < 2 or features == 0:
        raise ShapeError(f"{function}: x is {x.shape}; (features, batch) with at least one feature is required.")
    for name, value in per_feature.items():
        if value.shape not in ((features, 1), (features,)):
            raise ShapeError(f"{function}: x is {x.shape} and {name} is {value.shape}; "
                             f"{name} must be {(features, 1)}.")
    if x.size == 0 and axes == _SAMPLES:
        raise ShapeError(f"{function}: x is {x.shape}; statistics need at least one value per feature.")
    if not eps > 0:
        raise ValueError(f"{function}: eps is {eps}; it must be positive.")
    return [x.view((features, prod(x.shape[1:]))), *(value.view((features, 1)) for value in per_feature.values())]


def _chunk(x: Buffer) -> int:
    """Return the length of the pieces that sums along rows are cut into."""
    rows, length = x.shape
    return x.backend.target.split_row(length, rows)


def _row(run: Run, of_pieces: Buffer) -> Buffer:
    """The sums of rows, given those of their pieces."""
    return sum_over(run, of_pieces, _SAMPLES) if of_pieces.shape[1] > 1 else of_pieces


def _sums(run: Run, x: Buffer, g: Buffer, mean: Buffer, variance: Buffer, eps: float) -> tuple[Buffer, Buffer]:
    """Cotangents of gamma and beta."""
    dgamma, dbeta = run(kernels.norm_sums, x, g, mean, variance, eps=eps, chunk=_chunk(x))
    return _row(run, dgamma), _row(run, dbeta)


def _by_own_statistics(run: Run, function: str, x: Buffer, gamma: Buffer, beta: Buffer, eps: float) -> Result[Normed]:
    """Batch norm: the result, and what the gradient rule wants."""
    m, a, b = _operands(function, _SAMPLES, eps, x, gamma=gamma, beta=beta)
    length, chunk = m.shape[1], _chunk(m)
    mean, variance = run(kernels.norm_statistics, m, chunk=chunk)
    if length > chunk:
        mean, variance = run(kernels.joined_statistics, mean, variance, length=length, chunk=chunk)
    out = run(kernels.normalize, m, a, b, mean, variance, eps=eps).view(x.shape)
    return out, ((m, a, mean, variance), [x.shape, gamma.shape, beta.shape])


def _by_own_statistics_vjp(run: Run, g: Buffer, saved: Normed, need: Need, eps: float) -> Cotangents:
    (x, gamma, mean, variance), shapes = saved
    g = g.view(x.shape)
    dgamma, dbeta = _sums(run, x, g, mean, variance, eps)
    dx = run(kernels.batch_norm_grad, x, g, gamma, mean, variance, dgamma, dbeta, eps=eps) if need[0] else None
    return _wanted((dx, dgamma, dbeta), shapes, need)


def _wanted(gradients: tuple[Buffer | None, ...], shapes: list[Shape], need: Need) -> Cotangents:
    return tuple(d.view(s) if d is not None and wanted else None
                 for d, s, wanted in zip(gradients, shapes, need, strict=True))


@op
def ag_layer_norm_op(run: Run, x: Buffer, gamma: Buffer, beta: Buffer, eps: float = 1e-5) -> Result[Normed]:
    """Layer norm: each sample's features get mean 0 and variance 1, then ``gamma`` and ``beta``.

    The variance is the biased one; gradients flow through mean and variance too.
    Ba, Kiros, Hinton, "Layer Normalization".

    Parameters
    ----------
    x : Tensor of shape (features, ...)

    >>> ag.ag_layer_norm_op([[1.0], [3.0]], [[1.0], [1.0]], [[0.0], [0.0]]).numpy().round(3).tolist()
    [[-1.0], [1.0]]
    """
    m, a, b = _operands("ag_layer_norm_op", _FEATURES, eps, x, gamma=gamma, beta=beta)
    out, mean, variance = run(kernels.layer_norm, m, a, b, eps=eps)
    return out.view(x.shape), ((m, a, mean, variance), [x.shape, gamma.shape, beta.shape])


@ag_layer_norm_op.vjp
def _layer_norm_vjp(run: Run, g: Buffer, saved: Normed, need: Need, eps: float) -> Cotangents:
    (x, gamma, mean, variance), shapes = saved
    g = g.view(x.shape)
    dx = run(kernels.layer_norm_grad, x, g, gamma, mean, variance, eps=eps) if need[0] else None
    dgamma, dbeta = _sums(run, x, g, mean, variance, eps) if need[1] or need[2] else (None, None)
    return _wanted((dx, dgamma, dbeta), shapes, need)


@op
def ag_rms_norm_op(run: Run, x: Buffer, gamma: Buffer, eps: float = 1e-6) -> Result[Scaled]:
    """RMS norm: each sample's features divided by the root of their mean square, then times ``gamma``.

    Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Parameters
    ----------
    x : Tensor of shape (features, ...)
    eps : float, optional
        Added to the mean square; positive.  PyTorch's default is the machine epsilon, 2**-23 for float32.

    >>> ag.ag_rms_norm_op([[3.0], [-3.0]], [[1.0], [10.0]]).numpy().round(3).tolist()
    [[1.0], [-10.0]]
    """
    m, a = _operands("ag_rms_norm_op", _FEATURES, eps, x, gamma=gamma)
    out, square = run(kernels.rms_norm, m, a, eps=eps)
    return out.view(x.shape), ((m, a, square), [x.shape, gamma.shape])


@ag_rms_norm_op.vjp
def _rms_norm_vjp(run: Run, g: Buffer, saved: Scaled, need: Need, eps: float) -> Cotangents:
    (x, gamma, square), shapes = saved
    g = g.view(x.shape)
    dx = run(kernels.rms_norm_grad, x, g, gamma, square, eps=eps) if need[0] else None
    dgamma = _row(run, run(kernels.rms_norm_sums, x, g, square, eps=eps, chunk=_chunk(x))) if need[1] else None
    return _wanted((dx, dgamma), shapes, need)


@documented
def ag_batch_norm_op(x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5,
                     mean: TensorLike | None = None, variance: TensorLike | None = None) -> Tensor:
    """Batch norm: each feature gets mean 0 and variance 1 over all samples, then ``gamma`` and ``beta``.

    The batch's variance is the biased one; gradients flow through mean and variance too.
    Reference: ggmlR ``ag_batch_norm`` (whose gradient takes mean and variance for constants); Ioffe and Szegedy, "Batch
    Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift".

    Parameters
    ----------
    x : Tensor of shape (features, ...)
        Everything but the first axis counts as samples: pixels of images, steps of sequences.
    mean, variance : Tensor of shape (features, 1), optional
        Use these instead of the batch's own, as in eval mode; both or none.

    >>> ag.ag_batch_norm_op([[1.0, 3.0]], [[1.0]], [[0.0]]).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    """
    if mean is None and variance is None:
        return _by_batch(x, gamma, beta, eps)
    if mean is None or variance is None:
        missing = "mean" if mean is None else "variance"
        raise ValueError(f"ag_batch_norm_op: {missing} is missing; give both mean and variance, or neither.")
    return _by_statistics(x, gamma, beta, mean, variance, eps)


@part_of("ag_batch_norm_op")
def _by_batch(run: Run, x: Wide, gamma: Wide, beta: Wide, eps: float) -> Result[Normed]:
    return _by_own_statistics(run, "ag_batch_norm_op", x, gamma, beta, eps)


_by_batch.vjp(_by_own_statistics_vjp)


@part_of("ag_batch_norm")
def batch_norm_train(run: Run, x: Wide, gamma: Wide, beta: Wide, running_mean: Wide, running_var: Wide, eps: float,
                     momentum: float) -> Result[Normed]:
    """`ag_batch_norm_op` that also moves running statistics, in place, towards the mean and the unbiased variance."""
    _operands("ag_batch_norm", _SAMPLES, eps, x, running_mean=running_mean, running_var=running_var)
    out, saved = _by_own_statistics(run, "ag_batch_norm", x, gamma, beta, eps)
    (m, _, mean, variance), _ = saved
    count = m.shape[1]
    if count < 2:
        raise ShapeError(f"ag_batch_norm: x is {x.shape}; "
                         f"the running variance needs at least two values per feature in train mode.")
    again = repeated_since() > 0  # this batch was averaged in the first time
    move_statistics(run, running_mean, running_var, mean, variance, count, 0.0 if again else momentum)
    return out, saved


def move_statistics(run: Run, running_mean: Buffer, running_var: Buffer, mean: Buffer, variance: Buffer, count: int,
                    momentum: float) -> None:
    """Move running statistics, in place, towards the mean and the unbiased variance of `count` samples."""
    run(kernels.running_update, running_mean, mean, variance, momentum=momentum, factor=1.0)
    run(kernels.running_update, running_var, variance, variance, momentum=momentum, factor=count / (count - 1))


@batch_norm_train.vjp
def _batch_norm_train_vjp(run: Run, g: Buffer, saved: Normed, need: Need, eps: float, momentum: float) -> Cotangents:
    return *_by_own_statistics_vjp(run, g, saved, need[:3], eps), None, None


@part_of("ag_batch_norm_op")
def _by_statistics(run: Run, x: Wide, gamma: Wide, beta: Wide, mean: Wide, variance: Wide,
                   eps: float) -> Result[Normed]:
    m, a, b, centre, var = _operands("ag_batch_norm_op", _FEATURES, eps, x, gamma=gamma, beta=beta, mean=mean,
                                     variance=variance)
    out = run(kernels.normalize, m, a, b, centre, var, eps=eps).view(x.shape)
    return out, ((m, a, centre, var), [t.shape for t in (x, gamma, beta, mean, variance)])


@_by_statistics.vjp
def _by_statistics_vjp(run: Run, g: Buffer, saved: Normed, need: Need, eps: float) -> Cotangents:
    (x, gamma, mean, variance), shapes = saved
    g = g.view(x.shape)
    dx = dmean = dvariance = None
    dgamma, dbeta = _sums(run, x, g, mean, variance, eps) if need[1] or need[2] else (None, None)
    if need[0] or need[3] or need[4]:
        rate = run(kernels.inverse_std, variance, eps=eps)
        apart = run(mul, g, run(mul, gamma, rate))
        dx = apart if need[0] else None
        dmean = sum_over(run, run(scale, apart, factor=-1.0), _SAMPLES) if need[3] else None
        if need[4]:  # with h = (x - mean) rate, d rate / d variance = -rate^3 / 2
            h = run(mul, run(sub, x, mean), rate)
            dvariance = sum_over(run, run(mul, run(mul, apart, h), rate), _SAMPLES, -0.5)
    return _wanted((dx, dgamma, dbeta, dmean, dvariance), shapes, need)
