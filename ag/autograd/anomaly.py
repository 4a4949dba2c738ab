"""Find the op that first made a NaN or an infinity: an interpreter that looks at what every op returns."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ag.autograd.half import SCALES
from ag.autograd.tape import Cotangent, called
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Run
from ag.engine.interpreter import Interpreter, current, recording_here
from ag.errors import CaptureError

_OURS = str(Path(__file__).parents[1])
_STARTERS = {threading.__file__, contextmanager.__code__.co_filename}  # below the functions of a thread


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Raise where an op first makes a NaN, or an infinity of finite numbers, forward or backward.

    Inside the context the values of every op are read, so training is several times slower.  Captured steps run
    uncaptured, also those of `fit` and `dp_train`, whose threads are watched, too.  A thread of your own needs a
    context of its own.  `backward` is watched where the loss was computed inside the context.  Gradients with a loss
    scale may overflow and are not reported.
    Reference: PyTorch ``torch.autograd.detect_anomaly``.

    Raises
    ------
    FloatingPointError
        By the op, with the line of the program that called it.  Also if an op is given a NaN, such as one in the data.
    CaptureError
        If it is entered inside a captured step.

    Examples
    --------
    >>> W = ag.ag_param([[-1.0]])
    >>> with ag.detect_anomaly(), ag.with_grad_tape():
    ...     loss = ag.ag_sum(ag.ag_log(W))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FloatingPointError: ag_log: its result of shape (1, 1) is NaN at (0, 0) (1 of 1), and its operands are finite...
    """
    if (recording := recording_here()) is not None:
        recording.refuse(CaptureError("detect_anomaly: it is entered inside a captured step, whose values cannot be "
                                      "read; enter it around the call of the step."))
    if (here := current()) is not None and here.watches:
        yield  # by the context around
        return
    with Anomaly():
        yield


class Anomaly(Interpreter):
    """Reads results of ops, and the cotangents that their gradient rules return."""

    watches = True

    def beside(self) -> Anomaly:
        return Anomaly()

    def after_op(self, function: object, name: str, inputs: Sequence[Tensor], params: Sequence[object],
                 out: Tensor) -> None:
        super().after_op(function, name, inputs, params, out)
        place = _place()
        if found := _found(out.buffer):
            nan, what = found
            given = [(x, *wrong) for x in inputs if (wrong := _found(x.buffer))]
            if bad := next((f"{called(x)} is {it}" for x, is_nan, it in given if is_nan), None):
                raise FloatingPointError(f"{name}: {bad}, and no op has made it.{place} Look at the data, the "
                                         f"parameters and the step before.")
            if nan or not given:
                operands = " and ".join([called(x) for x, *_ in given])
                of = f"infinities are in {operands}" if given else "its operands are finite"
                raise FloatingPointError(f"{name}: its result of shape {out.shape} is {what}, and {of}.{place}")
        if out.node is not None:
            out.node.vjp = partial(_pulled, out.node.vjp, name, inputs, place)


def _pulled(rule: Any, name: str, inputs: Sequence[Tensor], place: str, run: Run, g: Buffer, *rest: Any
            ) -> tuple[Cotangent | None, ...]:
    """Call a gradient rule, and read what it is given and returns."""
    cotangents: tuple[Cotangent | None, ...] = rule(run, g, *rest)
    if found := _found(g):
        if SCALES:
            return cotangents
        raise FloatingPointError(f"backward: the gradients of the result of {name} add up to what is {found[1]}.{place}")
    for x, cotangent in zip(inputs, cotangents, strict=True):
        if x.requires_grad and isinstance(cotangent, Buffer) and (found := _found(cotangent)):
            raise FloatingPointError(f"backward: the gradient of {name} for {called(x)} is {found[1]}, and that of its "
                                     f"result is finite.{place}")
    return cotangents


def _found(b: Buffer) -> tuple[bool, str] | None:
    """Return whether a buffer has a NaN, and the first value that is not finite; None: all are."""
    if not b.dtype.is_float:
        return None
    values = np.asarray(b.backend.look(b))
    if np.isfinite(values).all():
        return None
    nan = np.isnan(values)
    wrong = nan if nan.any() else ~np.isfinite(values)
    at = tuple(map(int, np.argwhere(wrong)[0]))
    value = "NaN" if nan.any() else "infinite"
    return bool(nan.any()), f"{value} at {at} ({wrong.sum()} of {values.size})" if at else value


def _place() -> str:
    """Return the line of the program that called an op; empty if a thread of the library did."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename.startswith(_OURS) or frame.f_code.co_filename in _STARTERS):
        frame = frame.f_back  # type: ignore[assignment]  # None below the first
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f" Called in {file}, line {line}" + (f": `{text}`." if text else ".")
