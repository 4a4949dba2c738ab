"""Find wrong gradients, by finite differences, and the op that first makes a NaN or an infinity."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from ag.autograd.create import ag_param, ag_tensor
from ag.autograd.half import is_scaling
from ag.autograd.tape import Cotangent, backward, called, with_grad_tape
from ag.autograd.tensor import Tensor, tensor_given, type_name
from ag.engine.buffer import Buffer, Run
from ag.engine.dtype import F64
from ag.engine.interpreter import Interpreter, called_in, recording_here
from ag.engine.primitive import Array
from ag.errors import CaptureError
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


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Raise where an op first makes a NaN, or an infinity of finite numbers, forward or backward.

    Every result is read, which is several times slower.  Captured steps run op by op.  A thread of your own needs a
    context of its own.  `backward` is watched where the loss was computed inside.  Gradients that overflow under a loss
    scale are not reported.
    Reference: PyTorch ``torch.autograd.detect_anomaly``.

    Yields
    ------
    None

    Raises
    ------
    FloatingPointError
        With the op and the line of the program that called it; also if an op is given a NaN, as by the data.
    CaptureError
        If it is entered inside a captured step.

    Examples
    --------
    >>> with ag.detect_anomaly():
    ...     y = ag.ag_log(ag.ag_tensor([[-1.0]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FloatingPointError: ag_log: its result of shape (1, 1) is NaN at (0, 0) (1 of 1), made of finite operands...
    """
    if (recording := recording_here()) is not None:
        recording.refuse(CaptureError("detect_anomaly: it is entered inside a captured step, whose values cannot be "
                                      "read; enter it around the call of the step."))
    with Anomaly():
        yield


class Anomaly(Interpreter):
    """Reads results of ops, and the cotangents that their gradient rules return."""

    def beside(self) -> Anomaly:
        return Anomaly()

    def after_op(self, function: object, name: str, inputs: Sequence[Tensor], params: Sequence[object],
                 out: Tensor) -> None:
        super().after_op(function, name, inputs, params, out)
        place, what = called_in(), _not_finite(out.buffer)
        given = {called(x): wrong for x in inputs if (wrong := _not_finite(x.buffer))} if what else {}
        for operand, wrong in given.items():
            if "NaN" in wrong:
                raise FloatingPointError(f"{name}: {operand} is {wrong}, which no op has made.{place} Look at the "
                                         f"data, the parameters and the step before.")
        if what and ("NaN" in what or not given):
            raise FloatingPointError(f"{name}: its result of shape {out.shape} is {what}, made of "
                                     f"{' and '.join(given) or 'finite operands'}.{place}")
        if out.node is not None:
            out.node.vjp = partial(_pulled, out.node.vjp, name, inputs, place)

    def grad_written(self, x: Tensor) -> None:
        super().grad_written(x)
        grad = x.peek_grad()
        if isinstance(grad, Tensor) and not is_scaling() and (what := _not_finite(grad.buffer)):
            raise FloatingPointError(f"backward: the gradients of {called(x)} add up to what is {what}.{called_in()}")


def _pulled(rule: Callable[..., tuple[Cotangent | None, ...]], name: str, inputs: Sequence[Tensor], place: str,
            run: Run, g: Buffer, *rest: object) -> tuple[Cotangent | None, ...]:
    """Call a gradient rule, and read what it is given and returns."""
    cotangents = rule(run, g, *rest)
    if what := _not_finite(g):
        if is_scaling():
            return cotangents
        raise FloatingPointError(f"backward: the gradients of the result of {name} add up to what is {what}.{place}")
    for x, cotangent in zip(inputs, cotangents, strict=True):
        if x.requires_grad and isinstance(cotangent, Buffer) and (what := _not_finite(cotangent)):
            raise FloatingPointError(f"backward: the gradient of {name} for {called(x)} is {what}, made of a finite "
                                     f"one.{place}")
    return cotangents


def _not_finite(b: Buffer) -> str | None:
    """Return where the first NaN is, or else the first infinity; None if there is neither."""
    values = np.asarray(b.backend.look(b)) if b.dtype.is_float else np.empty(0)
    wrong = nan if (nan := np.isnan(values)).any() else np.isinf(values)
    if not wrong.any():
        return None
    at = tuple(map(int, np.argwhere(wrong)[0]))
    return f"{'NaN' if nan.any() else 'infinite'} at {at} ({wrong.sum()} of {values.size})"
