"""Gradient clipping: scale all gradients so that their global norm is at most a given one.

    norm = sqrt(sum of all squares);  every gradient *= min(1, max_norm / norm)

This runs on the device if all gradients are tensors of one device, else with the norm on the host.  One launch per
gradient adds up its squares and another multiplies it; in a captured step the compiler lets the optimizer's launch
multiply instead (`ag.engine.compile.fold_scaling`).  Knows parameters and gradients, and no kind of optimizer.
Training loops, the optimizers of `dp_train` on the host (`ag.parallel.trainer.host_optimizer`) and ZeRO
(`ag.parallel.replicas.zero`) call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum, hypot, isfinite, sqrt
from typing import Any

import numpy as np

from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.dtype import F16
from ag.engine.kernels.elementwise import mul, scale
from ag.engine.kernels.elementwise import sqrt as sqrt_of
from ag.engine.kernels.optimizer import clip_factor, pieces, square_sums
from ag.engine.kernels.reduce import CHUNK, sum_over
from ag.engine.primitive import Array
from ag.optim.flat import named_parameters
from ag.optim.gradients import as_gradient, gradients_given
from ag.optim.settings import number_or_nan

__all__ = ["clip_grad_norm"]


def clip_grad_norm(params: object, grads: Gradients | Mapping[Any, Any] | None, max_norm: float) -> float | Tensor:
    """Scale gradients so that their global norm is at most `max_norm`.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    grads : Gradients, dict, or None
        Scaled in place, tensors and arrays alike, each once, even if it is given to several parameters; None uses
        every parameter's ``.grad``.
    max_norm : float
        Positive; ``inf`` only measures.

    Returns
    -------
    float
        The norm before clipping, over all gradients together; waits for the device.  In a captured step, a tensor of
        shape () instead, to be read after the step.

    Raises
    ------
    FloatingPointError
        If the norm is not finite, naming the parameter; no gradient is changed.  With f16 parameters the norm is
        returned instead, as the optimizer will skip the step.
    TypeError
        If a gradient cannot be scaled in place, such as a list.
    ValueError
        If `max_norm` is not positive, or a dict has a gradient of something that is none of the parameters.

    Notes
    -----
    A captured step cannot raise: there, a norm that is not finite leaves the gradients as they are.

    References
    ----------
    ggmlR ``clip_grad_norm``; Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks".

    Examples
    --------
    >>> import ag
    >>> W = ag.ag_param([[3.0, 4.0]])
    >>> grads = {"W": ag.ag_tensor([[3.0, 4.0]])}
    >>> ag.clip_grad_norm({"W": W}, grads, 1.0)
    5.0
    """
    if not number_or_nan(max_norm) > 0:
        raise ValueError(f"clip_grad_norm: max_norm is {max_norm!r}; it must be a positive number.")
    max_norm = float(max_norm)
    named = named_parameters(params, "clip_grad_norm")
    given = gradients_given(named, grads, "clip_grad_norm")
    arrays = {name: _writable(name, g) for name, g in given.items() if not isinstance(g, Tensor)}
    buffers = {name: as_gradient(name, named[name], g, "clip_grad_norm").buffer for name, g in given.items()}
    places = dict.fromkeys(g.backend for g in buffers.values())
    totals = [_square([g for g in buffers.values() if g.backend is backend]) for backend in places]
    if len(totals) == 1 and not arrays:
        total = totals[0]
        if total.backend.recording is not None:
            _clip(buffers, total, max_norm)
            return Tensor(total.backend.launch(sqrt_of, total))
    norm = sqrt(fsum(float(t.backend.download(t)) for t in totals))
    if isfinite(norm) and norm > max_norm and len(totals) == 1 and not arrays:
        _clip(buffers, total, max_norm)
        return norm
    if not isfinite(norm) and any(p.buffer.dtype is F16 for p in named.values()):
        return norm
    if not isfinite(norm):
        norm = _norm_on_the_host(buffers)  # a square may overflow where the gradient does not
    if norm > max_norm:
        for buffer in _distinct({name: g for name, g in buffers.items() if name not in arrays}):
            buffer.backend.launch(scale, buffer, factor=max_norm / norm, into=buffer)
        for array in {(x.ctypes.data, x.shape, x.strides): x for x in arrays.values()}.values():
            np.multiply(array, max_norm / norm, out=array)
    return norm


def _writable(name: str, gradient: object) -> Array:
    """An array that can be scaled in place."""
    if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f" or not gradient.flags.writeable:
        kind = f"an array of {gradient.dtype}" if isinstance(gradient, np.ndarray) else f"a {type(gradient).__name__}"
        raise TypeError(f"clip_grad_norm: the gradient of {name!r} is {kind} that cannot be scaled in place; give a "
                        f"tensor or a writable array of floats.")
    return gradient


def _square(grads: list[Buffer]) -> Buffer:
    """The square of the norm of gradients of one device, added up there."""
    backend = grads[0].backend
    sizes = [pieces((g.size,), chunk=CHUNK)[0] for g in grads]
    sums, at = backend.alloc((sum(sizes),), grads[0].dtype), 0
    for g, size in zip(grads, sizes, strict=True):
        backend.launch(square_sums, g.view((g.size,)), into=sums.view((size,), at), chunk=CHUNK)
        at += size
    return sum_over(backend.launch, sums, (0,)).view(())


def _clip(grads: Mapping[str, Buffer], square: Buffer, max_norm: float) -> None:
    """Scale gradients of one device, given the square of their norm there."""
    if isfinite(max_norm):
        factor = square.backend.launch(clip_factor, square, max_norm=float(max_norm))
        for buffer in _distinct(grads):
            buffer.backend.launch(mul, buffer, factor, into=buffer)


def _distinct(grads: Mapping[str, Buffer]) -> Iterable[Buffer]:
    """Each memory once, however many parameters it was given to."""
    return {(g.backend, g.address): g for g in grads.values()}.values()


def _norm_on_the_host(grads: Mapping[str, Buffer]) -> float:
    """The norm in float64, or an error that names the first gradient that is not finite."""
    norms = {name: float(np.linalg.norm(g.backend.download(g).astype(np.float64))) for name, g in grads.items()}
    for name, norm in norms.items():
        if not isfinite(norm):
            raise FloatingPointError(f"clip_grad_norm: the gradient of {name} has norm {norm}; gradients are "
                                     f"unchanged. Lower lr or look for a division by zero.")
    return hypot(*norms.values())
