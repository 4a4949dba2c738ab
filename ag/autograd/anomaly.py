"""Find the op that first makes a NaN or an infinity: an interpreter that reads what every op returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from ag.autograd.half import is_scaling
from ag.autograd.tape import Cotangent, called
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Run
from ag.engine.interpreter import Interpreter, called_in, recording_here
from ag.errors import CaptureError


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
