"""Clipping gradients to a global norm: devices add up squares, and the host where these overflow or vanish.

In a captured step the compiler lets the optimizer's launch multiply (`fold_scaling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum, hypot, inf, isfinite, isnan, nan, sqrt
from typing import Any

import numpy as np

from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.dtype import F16
from ag.engine.kernels.elementwise import mul, scale
from ag.engine.kernels.optimizer import clip_factor, pieces, square_sums
from ag.engine.kernels.reduce import CHUNK, sum_over
from ag.engine.primitive import Array
from ag.optim.flat import named_parameters
from ag.optim.optimizer import as_gradient, gradients_given
from ag.optim.settings import number_or_nan

__all__ = ["clip_grad_norm"]

LEAST_FACTOR = 1e-30  # smaller ones lose digits in float32


def clip_grad_norm(params: object, grads: Gradients | Mapping[Any, Any] | None, max_norm: float) -> float | Tensor:
    """Scale gradients so that their global norm is at most `max_norm`.

    A norm that is not finite is a FloatingPointError that names the parameter, and no gradient is changed.  With f16
    parameters it is returned instead, as the optimizer will skip the step.  A captured step cannot raise: there, a norm
    that is not finite leaves the gradients as they are.  Its norm is 0 where the square of no gradient is a normal
    number of its type.
    ggmlR ``clip_grad_norm``; Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks".

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    grads : Gradients, dict, or None
        Scaled in place, each once, even if it is given to several parameters; None uses every parameter's ``.grad``.
    max_norm : float
        Positive; ``inf`` only measures.

    Returns
    -------
    float
        The norm before clipping; waits for the device.  In a captured step, a tensor of shape (), to be read after it.

    Examples
    --------
    >>> ag.clip_grad_norm({"W": ag.ag_param([[3.0, 4.0]])}, {"W": ag.ag_tensor([[3.0, 4.0]])}, 1.0)
    5.0
    """
    if not number_or_nan(max_norm) > 0:
        raise ValueError(f"clip_grad_norm: max_norm is {max_norm!r}; it must be a positive number.")
    max_norm = float(max_norm)
    named = named_parameters(params, "clip_grad_norm")
    given = gradients_given(named, grads, "clip_grad_norm")
    arrays = {name: _writable(name, g) for name, g in given.items() if not isinstance(g, Tensor)}
    buffers = {name: as_gradient(name, named[name], g, "clip_grad_norm").buffer for name, g in given.items()}
    places = dict.fromkeys((g.backend, g.dtype) for g in buffers.values())
    totals = [_Squares([g for g in buffers.values() if (g.backend, g.dtype) == place]) for place in places]
    alone = totals[0] if len(totals) == 1 and not arrays else None
    if alone is not None and alone.near.backend.recording is not None:
        least = least_norm(buffers.values())
        if max_norm < least:
            raise ValueError(f"clip_grad_norm: max_norm is {max_norm!r}; a captured step takes squares in "
                             f"{alone.near.dtype} and needs at least {least:.1e} here. Clip outside of the step.")
        return Tensor(_clip(buffers, alone, max_norm))
    norm = sqrt(fsum(float(t.near.backend.download(t.near)) for t in totals))
    if not isfinite(norm) and alone is not None:
        _, far = alone.clipped(inf)
        norm = float(far.backend.download(far))  # where its square overflows
    if not least_norm(buffers.values()) <= norm < inf:  # squares may overflow or vanish where gradients do not
        may_skip = any(p.buffer.dtype is F16 for p in named.values())
        alone, norm = None, norm_on_the_host({name: arrays.get(name, g) for name, g in buffers.items()}, may_skip)
    if norm > max_norm:
        if alone is not None and max_norm / norm > LEAST_FACTOR:
            _clip(buffers, alone, max_norm)
            return norm
        for factor in factors(max_norm, norm):
            for buffer in _distinct({name: g for name, g in buffers.items() if name not in arrays}):
                buffer.backend.launch(scale, buffer, factor=factor, into=buffer)
            for array in {(x.ctypes.data, x.shape, x.strides): x for x in arrays.values()}.values():
                with np.errstate(all="ignore"):
                    array[...] = array * np.float32(factor) if array.dtype.itemsize < 4 else array * factor
    return norm


def least_norm(grads: Iterable[Buffer]) -> float:
    """The norm from which on the squares that vanished in a device's sum change no digit of it."""
    sizes = [(g.size, g.dtype.numpy_name) for g in grads]
    tiny = max((float(np.finfo(name).tiny) for _, name in sizes), default=0.0)
    return sqrt(tiny * sum(size for size, _ in sizes)) * 2.0**12


def factors(max_norm: float, norm: float) -> list[float]:
    """Factors that scale `norm` to `max_norm` one after the other; none is too small for float32."""
    factor = max_norm / norm
    return [factor] if factor > LEAST_FACTOR else [sqrt(max_norm) / sqrt(norm)] * 2


def _writable(name: str, gradient: object) -> Array:
    """An array that can be scaled in place."""
    if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f" or not gradient.flags.writeable:
        kind = f"an array of {gradient.dtype}" if isinstance(gradient, np.ndarray) else f"a {type(gradient).__name__}"
        raise TypeError(f"clip_grad_norm: the gradient of {name!r} is {kind} that cannot be scaled in place; give a "
                        f"tensor or a writable array of floats.")
    return gradient


class _Squares:
    """The square of the norm of gradients of one device, added up there: as it is, and scaled down."""

    def __init__(self, grads: list[Buffer]) -> None:
        sizes = [pieces((g.size,), chunk=CHUNK)[0] for g in grads]
        self._launch = grads[0].backend.launch
        near, self._far = (grads[0].backend.alloc((sum(sizes),), grads[0].dtype) for _ in range(2))
        at = 0
        for g, size in zip(grads, sizes, strict=True):
            into = near.view((size,), at), self._far.view((size,), at)
            self._launch(square_sums, g.view((g.size,)), into=into, chunk=CHUNK)
            at += size
        self.near = sum_over(self._launch, near, (0,)).view(())

    def clipped(self, max_norm: float) -> tuple[Buffer, Buffer]:
        """The factor of the gradients, and their norm."""
        return self._launch(clip_factor, self.near, sum_over(self._launch, self._far, (0,)).view(()), max_norm=max_norm)


def _clip(grads: Mapping[str, Buffer], squares: _Squares, max_norm: float) -> Buffer:
    """Scale gradients of one device, and return their norm there."""
    factor, norm = squares.clipped(max_norm)
    if isfinite(max_norm):
        for buffer in _distinct(grads):
            buffer.backend.launch(mul, buffer, factor, into=buffer)
    return norm


def _distinct(grads: Mapping[str, Buffer]) -> Iterable[Buffer]:
    """Each memory once, however many parameters it was given to."""
    return {(g.backend, g.address): g for g in grads.values()}.values()


def norm_on_the_host(grads: Mapping[str, Buffer | Array], may_be_infinite: bool = False) -> float:
    """The norm in float64; unless it may be infinite, an error names the first gradient that is not finite."""
    norms = {name: _length(g if isinstance(g, np.ndarray) else g.backend.download(g)) for name, g in grads.items()}
    for name, norm in norms.items():
        if not isfinite(norm) and not may_be_infinite:
            raise FloatingPointError(f"clip_grad_norm: the gradient of {name} has norm {norm}; gradients are "
                                     f"unchanged. Lower lr or look for a division by zero.")
    return nan if any(map(isnan, norms.values())) else hypot(*norms.values())  # of inf and NaN, hypot makes inf


@np.errstate(all="ignore")
def _length(array: Array) -> float:
    """The norm of an array, scaled by its largest number, so that no square overflows or vanishes."""
    wide = np.abs(array.astype(np.float64))
    largest = float(wide.max(initial=0))
    return largest * float(np.linalg.norm(wide / largest)) if 0 < largest < inf else largest
