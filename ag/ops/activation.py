"""Activations and softmax; layers take the names in `__all__` without the prefix, as in ``activation="relu"``.

An op whose output gives its derivative saves the output, which the next layer keeps anyway.
"""

from __future__ import annotations

from ag.autograd.op import Cotangents, Need, Result, Run, along_axes, launching, op
from ag.engine.buffer import Buffer
from ag.engine.kernels import activation as kernels
from ag.engine.kernels.norm import log_softmax, log_softmax_grad, softmax, softmax_grad
from ag.engine.shape import normalize_axis

__all__ = ["ag_relu", "ag_sigmoid", "ag_tanh", "ag_softmax", "ag_leaky_relu", "ag_silu", "ag_gelu", "ag_log_softmax"]

@op
def ag_relu(run: Run, x: Buffer) -> Result[Buffer]:
    """Rectified linear unit, ``max(x, 0)``; its gradient at 0 is 0.

    >>> ag.ag_relu([[-1.0, 2.0]]).numpy().tolist()
    [[0.0, 2.0]]
    """
    y = run(kernels.relu, x)
    return y, y


@op
def ag_sigmoid(run: Run, x: Buffer) -> Result[Buffer]:
    """Logistic function, ``1 / (1 + exp(-x))``.

    Nothing overflows, and ``ag_log(ag_sigmoid(x))`` is right where the sigmoid is tiny.

    >>> ag.ag_sigmoid([[0.0]]).item()
    0.5
    """
    y = run(kernels.sigmoid, x)
    return y, y


@op
def ag_tanh(run: Run, x: Buffer) -> Result[Buffer]:
    """Hyperbolic tangent.

    >>> ag.ag_tanh([[0.0]]).item()
    0.0
    """
    y = run(kernels.tanh, x)
    return y, y


@along_axes
@op
def ag_softmax(run: Run, x: Buffer, dim: int = 0) -> Result[Buffer]:
    """Softmax along one axis: positive numbers that sum to 1; nothing overflows.

    Parameters
    ----------
    dim : int, optional
        Axis that sums to 1; default 0, the features, so each sample is normalised.

    >>> ag.ag_softmax([[1.0], [1.0]]).numpy().tolist()
    [[0.5], [0.5]]
    """
    y = run(softmax, x, axis=normalize_axis(dim, x.ndim, "ag_softmax"))
    return y, y


@ag_softmax.vjp
def _softmax_vjp(run: Run, g: Buffer, y: Buffer, need: Need, dim: int) -> Cotangents:
    return (run(softmax_grad, y, g, axis=dim % g.ndim),)


@along_axes
@op
def ag_log_softmax(run: Run, x: Buffer, dim: int = 0) -> Result[Buffer]:
    """Logarithm of the softmax along one axis, exact where the softmax itself is too small to be held.

    Parameters
    ----------
    dim : int, optional
        Axis along which the probabilities sum to 1; default 0, the features.

    >>> ag.ag_log_softmax([[0.0], [1000.0]]).numpy().tolist()
    [[-1000.0], [0.0]]
    """
    y = run(log_softmax, x, axis=normalize_axis(dim, x.ndim, "ag_log_softmax"))
    return y, y


@ag_log_softmax.vjp
def _log_softmax_vjp(run: Run, g: Buffer, y: Buffer, need: Need, dim: int) -> Cotangents:
    return (run(log_softmax_grad, y, g, axis=dim % g.ndim),)


@op
def ag_leaky_relu(run: Run, x: Buffer, slope: float = 0.01) -> Result[Buffer]:
    """Leaky rectified linear unit, ``x`` where ``x > 0``, else ``slope * x``; its gradient at 0 is `slope`.

    Maas, Hannun, Ng, "Rectifier nonlinearities improve neural network acoustic models", ICML 2013.

    Parameters
    ----------
    slope : float, optional
        Slope for negative arguments.

    >>> ag.ag_leaky_relu([[-2.0, 2.0]], 0.5).numpy().tolist()
    [[-1.0, 2.0]]
    """
    return run(kernels.leaky_relu, x, slope=slope), x


@op
def ag_silu(run: Run, x: Buffer) -> Result[Buffer]:
    """Sigmoid linear unit (swish), ``x / (1 + exp(-x))``.

    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units for neural network function approximation in reinforcement
    learning", Neural Networks 107 (2018).

    >>> round(ag.ag_silu([[1.0]]).item(), 4)
    0.7311
    """
    return run(kernels.silu, x), x


@op
def ag_gelu(run: Run, x: Buffer, approximate: str = "none") -> Result[Buffer]:
    """Gaussian error linear unit, ``x`` times the normal distribution function of ``x``.

    Reference: Hendrycks, Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415.

    Parameters
    ----------
    approximate : {"none", "tanh"}, optional
        ``"none"`` is exact, by the error function; ``"tanh"`` the approximation that GPT-2 was trained with.

    >>> round(ag.ag_gelu([[1.0]]).item(), 4)
    0.8413
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f"ag_gelu: approximate is {approximate!r:.60}; use 'none' or 'tanh'.")
    return run(kernels.gelu if approximate == "none" else kernels.gelu_tanh, x), x


@ag_gelu.vjp
def _gelu_vjp(run: Run, g: Buffer, x: Buffer, need: Need, approximate: str) -> Cotangents:
    return (run(kernels.gelu_grad if approximate == "none" else kernels.gelu_tanh_grad, x, g),)


ag_relu.vjp(launching(kernels.relu_grad))
ag_sigmoid.vjp(launching(kernels.sigmoid_grad))
ag_tanh.vjp(launching(kernels.tanh_grad))
ag_leaky_relu.vjp(launching(kernels.leaky_relu_grad, "slope"))
ag_silu.vjp(launching(kernels.silu_grad))
