"""Gradient check: gradients of an op or a model against finite differences, in float64 on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ag.autograd.create import ag_param, ag_tensor
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor, tensor_given, type_name
from ag.engine.dtype import F64
from ag.engine.primitive import Array
from ag.log import Forgiving


def ag_gradcheck(fn: Callable[[object], Tensor], inputs: Mapping[str, Tensor] | Sequence[Tensor], eps: float = 1e-5,
                 atol: float = 1e-4, rtol: float = 1e-3, verbose: bool = False, quiet: bool = False) -> bool:
    """Compare the gradients of a function with central differences.

    Everything runs in float64 on the CPU, whatever device the inputs are on; a gradient rule is the same on all.
    Reference: ggmlR ``ag_gradcheck``.

    Parameters
    ----------
    fn : callable
        Takes `inputs` (the same container, with float64 CPU tensors in it) and returns a loss of one element.
    inputs : dict or list of Tensor
        Those with ``requires_grad`` are checked, entry by entry.
    eps : float, optional
        Step of the differences.
    atol, rtol : float, optional
        An entry passes if ``|analytic - numeric| <= atol + rtol * |numeric|``.
    verbose, quiet : bool, optional
        Print every entry, or nothing.

    Returns
    -------
    bool
        True if all entries pass.

    Raises
    ------
    ValueError, DtypeError
        If no input is a parameter, `eps` is out of range, or `fn` mixes in float32 tensors from outside `inputs`.

    Examples
    --------
    >>> W = ag.ag_param([[1.0, 2.0]])
    >>> ag.ag_gradcheck(lambda t: ag.ag_sum(t["W"] * t["W"]), {"W": W}, quiet=True)
    True
    """
    if not callable(fn):
        raise TypeError(f"ag_gradcheck: fn is a {type_name(fn)}; a function of the inputs is required.")
    if not isinstance(inputs, (Mapping, list, tuple)):
        raise TypeError(f"ag_gradcheck: inputs is a {type_name(inputs)}; a dict or list of tensors is required.")
    named: dict[str | int, Tensor] = dict(inputs.items()) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    if not 0 < eps < 1:
        raise ValueError(f"ag_gradcheck: eps is {eps}; it must be a small positive number, such as 1e-5.")
    values = {k: tensor_given("ag_gradcheck", t).numpy().astype(np.float64) for k, t in named.items()}
    if not any(t.requires_grad for t in named.values()):
        raise ValueError("ag_gradcheck: no input requires a gradient; make at least one with ag_param.")

    def loss_at(at: Mapping[str | int, Array]) -> tuple[Tensor, dict[str | int, Tensor]]:
        tensors = {}
        for k, v in at.items():
            make = ag_param if named[k].requires_grad else ag_tensor
            t64 = tensors[k] = make(v.reshape(1, -1) if v.ndim == 1 else v, device="cpu", dtype=F64.name)
            t64.buffer = t64.buffer.view(v.shape)
        with with_grad_tape():
            return fn(tensors if isinstance(inputs, Mapping) else list(tensors.values())), tensors

    loss, tensors = loss_at(values)
    grads = backward(loss)
    passed, out = True, Forgiving(sys.stdout)
    for k, t in named.items():
        if not t.requires_grad:
            continue
        analytic = grads[tensors[k]].numpy() if tensors[k] in grads else np.zeros(t.shape)
        numeric = np.empty(t.shape)
        for i in np.ndindex(t.shape):
            ends = []
            for sign in (1, -1):
                moved = values[k].copy()
                moved[i] += sign * eps
                ends.append(loss_at({**values, k: moved})[0].item())
            numeric[i] = (ends[0] - ends[1]) / (2 * eps)
        with np.errstate(all="ignore"):  # gradients may be tiny or infinite
            error = np.abs(analytic - numeric)
            wrong = ~(error <= atol + rtol * np.abs(numeric))
        passed = passed and not wrong.any()
        if not quiet:
            print(f"{k}: {'ok' if not wrong.any() else f'{wrong.sum()} of {wrong.size} wrong'}, "
                  f"largest difference {float(error.max(initial=0.0)):.3g}", file=out)
        if verbose:
            for i in np.ndindex(t.shape):
                print(f"  {k}{list(i)}: analytic {analytic[i]:.8g}, numeric {numeric[i]:.8g}", file=out)
    return passed
