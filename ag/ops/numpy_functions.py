"""numpy's functions of tensors (NEP 13, NEP 18): the op of the same meaning, else numpy's result for the values.

    np.exp(t)          ag_exp(t), recorded
    np.linalg.norm(t)  np.linalg.norm(t.numpy()): no op does this
    np.linalg.norm(W)  inside with_grad_tape, W a parameter: a TypeError, as the gradient would be lost
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import inf
from operator import and_, or_, xor

import numpy as np

from ag.autograd.tape import is_recording
from ag.autograd.tensor import HOST_OPERATORS, Tensor
from ag.autograd.tree import tree_leaves, tree_map
from ag.engine.kernels.convert import Placeholder
from ag.engine.primitive import Array
from ag.engine.shape import normalize_axes
from ag.ops import functions
from ag.ops.activation import ag_tanh
from ag.ops.arithmetic import ag_abs, ag_add, ag_clamp, ag_div, ag_exp, ag_log, ag_mul, ag_scale, ag_sqrt, ag_sub
from ag.ops.indexing import ag_concat, ag_reshape, ag_transpose
from ag.ops.matmul import ag_matmul
from ag.ops.reduce import ag_max, ag_mean, ag_sum, prod
from ag.ops.reduce import min as least
from ag.ops.shapes import squeeze, stack, swapaxes, unsqueeze

__all__: list[str] = []

Axes = int | tuple[int, ...] | None


def _of_truth(combine: Callable[[Tensor, object], object]) -> Callable[..., object]:
    """A function of bits, which of truth values is that of truth."""
    return lambda x, y: combine(x, y) if isinstance(x, Tensor) and x.dtype == "bool" else combine(
        y, x) if isinstance(y, Tensor) and y.dtype == "bool" else NotImplemented


_UFUNCS: Mapping[np.ufunc, Callable[..., object]] = {
    **functions.UFUNCS,
    np.bitwise_and: _of_truth(and_), np.bitwise_or: _of_truth(or_), np.bitwise_xor: _of_truth(xor),
    np.invert: lambda x: ~x if x.dtype == "bool" else NotImplemented,
    np.add: ag_add, np.subtract: ag_sub, np.multiply: ag_mul, np.divide: ag_div, np.matmul: ag_matmul,
    np.power: lambda x, p: x**p if isinstance(x, Tensor) else functions.power(x, p),
    np.exp: ag_exp, np.log: ag_log, np.sqrt: ag_sqrt, np.tanh: ag_tanh, np.absolute: ag_abs,
    np.fabs: ag_abs, np.negative: lambda x: ag_scale(x, -1.0), np.positive: lambda x: x,
}
# Comparisons, and what each is with its operands exchanged.
_MIRRORED: Mapping[np.ufunc, np.ufunc] = {
    np.equal: np.equal, np.not_equal: np.not_equal, np.less: np.greater, np.less_equal: np.greater_equal,
    np.greater: np.less, np.greater_equal: np.less_equal,
}


def _clip(a: Tensor, a_min: float | None = None, a_max: float | None = None, *, min: float | None = None,
          max: float | None = None) -> object:
    lo, hi = a_min if min is None else min, a_max if max is None else max
    return ag_clamp(a, -inf if lo is None else lo, inf if hi is None else hi)


def _squeeze(a: Tensor, axis: Axes = None) -> object:
    axes = () if axis is None else normalize_axes(axis, a.ndim, "numpy.squeeze")
    return squeeze(a, axis) if all(a.shape[i] == 1 for i in axes) else NotImplemented


_FUNCTIONS: Mapping[Callable[..., object], Callable[..., object]] = {
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim, np.size: lambda a: a.size,
    np.sum: lambda a, axis=None, *, keepdims=False: ag_sum(a, axis, keepdims),
    np.mean: lambda a, axis=None, *, keepdims=False: ag_mean(a, axis, keepdims),
    np.max: (largest := lambda a, axis=None, *, keepdims=False: ag_max(a, axis, keepdims)),
    np.amax: largest, np.min: (smallest := lambda a, axis=None, *, keepdims=False: least(a, axis, keepdims)),
    np.amin: smallest, np.prod: lambda a, axis=None, *, keepdims=False: prod(a, axis, keepdims), np.clip: _clip,
    np.where: lambda condition, x, y: functions.where(condition, x, y),
    np.concatenate: lambda arrays, axis=0: ag_concat(list(arrays), axis),
    np.stack: lambda arrays, axis=0: stack(arrays, axis) if {*map(type, arrays)} == {Tensor} else NotImplemented,
    np.dot: lambda a, b: ag_matmul(a, b) if np.ndim(a) == np.ndim(b) == 2 else NotImplemented,
    np.reshape: lambda a, shape: ag_reshape(a, *((shape,) if np.ndim(shape) == 0 else shape)),
    np.ravel: lambda a: ag_reshape(a, -1),
    np.transpose: lambda a, axes=None: ag_transpose(a, *(axes or ())),
    np.squeeze: _squeeze, np.expand_dims: lambda a, axis: unsqueeze(a, axis),
    np.swapaxes: lambda a, axis1, axis2: swapaxes(a, axis1, axis2),
}
# Functions that have no gradient, so nothing is lost where they are computed on the host.
_QUESTIONS = {np.size, np.argmax, np.argmin, np.argsort, np.nonzero, np.flatnonzero, np.count_nonzero,
              np.any, np.all, np.allclose, np.isclose, np.array_equal, np.array_equiv,
              np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.save, np.savez, np.savetxt,
              np.array_repr, np.array_str, np.array2string,
              np.histogram, np.searchsorted, np.digitize, np.unique, np.iscomplexobj, np.isrealobj, np.result_type,
              np.shares_memory, np.may_share_memory,
              np.isnan, np.isfinite, np.isinf, np.signbit, np.logical_not, np.logical_and, np.logical_or}
_WRITING = {np.copyto, np.put, np.putmask, np.place, np.fill_diagonal, np.put_along_axis}


def _by_numpy(function: Callable[..., object], name: str, args: tuple[object, ...], options: dict[str, object],
              asks: bool) -> object:
    """Call numpy's function with the values."""
    if not asks and is_recording() and any(
            isinstance(x, Tensor) and x.requires_grad for x in tree_leaves((args, options))):
        raise TypeError(f"{name}: a tensor that requires a gradient was given inside with_grad_tape, and no op "
                        f"does this, so the gradient would be lost; compose it of ag.ops where that is possible, or "
                        f"give t.detach().")
    args, options = tree_map(lambda x: x.numpy() if isinstance(x, Tensor) else x, (args, options))
    return function(*args, **options)


def _refuse_writing(name: str) -> TypeError:
    return TypeError(f"{name}: a tensor was given where numpy is to write, in place or with out=; it writes into "
                     f"arrays only. Write x = x + t for a new tensor, or give t.numpy().")


def ufunc(function: np.ufunc, method: str, inputs: tuple[object, ...], options: dict[str, object]) -> object:
    """`numpy.ufunc` of tensors: ``__array_ufunc__``."""
    if method == "__call__" and not options and function in _UFUNCS and function not in _MIRRORED:
        result = _UFUNCS[function](*inputs)
        if result is not NotImplemented:
            return result
    name = f"numpy.{function.__name__}"
    if any(not isinstance(x, (Tensor, np.ndarray, np.generic)) and hasattr(type(x), "__array_ufunc__")
           for x in inputs):
        return NotImplemented
    if method == "at" or options.get("out") is not None:
        raise _refuse_writing(name)
    if method != "__call__":
        return _by_numpy(getattr(function, method), f"{name}.{method}", inputs, options, False)
    if not options and function in _MIRRORED:
        first, *second = inputs
        x, relation, y = (first, function, second[0]) if isinstance(first, Tensor) else (
            second[0], _MIRRORED[function], first)
        return HOST_OPERATORS["compare"](relation, x, y)
    return _by_numpy(function, name, inputs, options, function in _QUESTIONS)


def function(called: Callable[..., object], types: Sequence[type], args: tuple[object, ...],
             options: dict[str, object]) -> object:
    """Any other function of numpy, of tensors: ``__array_function__``."""
    if not all(issubclass(kind, (Tensor, np.ndarray, Placeholder)) for kind in types):
        return NotImplemented
    name = f"{called.__module__}.{called.__name__}"
    if options.get("out") is not None or (called in _WRITING and isinstance(args[0], Tensor)):
        raise _refuse_writing(name)
    if called in _FUNCTIONS:
        make = _FUNCTIONS[called]
        try:
            bound = signature(make).bind(*args, **options)
        except TypeError:  # an argument that ops do not have, such as numpy's dtype
            bound = None
        result = NotImplemented if bound is None else make(*bound.args, **bound.kwargs)
        if result is not NotImplemented:
            return result
    return _by_numpy(called, name, args, options, called in _QUESTIONS)


def array(x: Tensor) -> Array:
    """The values for an array that numpy makes of a tensor, perhaps of one in a list: ``__array__``."""
    if x.requires_grad and is_recording():
        raise TypeError(f"numpy: an array is to be made of a tensor of shape {x.shape} that requires a gradient inside "
                        f"with_grad_tape, where the gradient would be lost; compute with the functions of ag.ops "
                        f"(ag_concat joins tensors), or give t.detach() or t.numpy().")
    return x.numpy()


HOST_OPERATORS.update(ufunc=ufunc, function=function, array=array)
