"""Interpreters hear, and may change, what a thread computes: the innermost first, then those around it.

Ops ask for the innermost, launches and memory for the recording, of which a thread has at most one.  Both are pointers
of the thread in C.  docs/architecture.md lists the interpreters, and which nests in which.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, TypeAlias, TypeVar

from ag.native import code as _code

R = TypeVar("R")
Above: TypeAlias = Any  # a type of a module that imports this one: tensors, buffers, devices, launches
_NOT_THEIRS = os.path.dirname(os.path.dirname(__file__)), threading.__file__, contextmanager.__code__.co_filename


class Interpreter:
    """A context in which a thread computes; passes everything on to the interpreter around it."""

    outer: Interpreter | None = None
    records = False  # whether it also gets launches, memory and host access: a `Recording`

    def __enter__(self) -> Interpreter:
        enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        leave(self)

    @property
    def exports(self) -> bool:
        """Tell whether ops are written down for another program."""
        return self.outer is not None and self.outer.exports

    def beside(self) -> Interpreter | None:
        """Return the twin for a thread that works for this one; None where not every op is to be heard of."""
        return None if self.outer is None else self.outer.beside()

    @property
    def repeats(self) -> int:
        """Return when the first call of a function ended that runs for the second time; 0 in a first call."""
        return 0 if self.outer is None else self.outer.repeats

    def uploaded(self, array: Above, dtype: object, device: Above) -> Above | None:
        """Return the buffer that already has a host array; None: upload it."""
        return None if self.outer is None else self.outer.uploaded(array, dtype, device)

    def before_op(self, name: str, inputs: Sequence[Above], values: Sequence[object], params: Sequence[object],
                  launch: Above) -> Above:
        """Hear of an op with its tensors, its operands as given, and its other arguments; return its `launch`."""
        return launch if self.outer is None else self.outer.before_op(name, inputs, values, params, launch)

    def after_op(self, function: object, name: str, inputs: Sequence[Above], params: Sequence[object],
                 out: Above) -> None:
        """Hear of the public function of an op, and of its result."""
        if self.outer is not None:
            self.outer.after_op(function, name, inputs, params, out)

    def uses(self, tensors: Sequence[Above], gradients: bool) -> None:
        """Hear of tensors in a computation that is not an op; `gradients`: whether these flow through it."""
        if self.outer is not None:
            self.outer.uses(tensors, gradients)

    def grad_read(self, x: Above, grad: Above) -> Above:
        """Hear that the gradient of a tensor is read; return the one that is to be seen."""
        return grad if self.outer is None else self.outer.grad_read(x, grad)

    def grad_written(self, x: Above) -> None:
        """Hear that the gradient of a tensor is set."""
        if self.outer is not None:
            self.outer.grad_written(x)

    def same(self, x: Above, other: Above) -> None:
        """Hear that the tensor `other` has the values of `x`."""
        if self.outer is not None:
            self.outer.same(x, other)

    def read(self, x: Above) -> None:
        """Hear that the host reads the values of a tensor."""
        if self.outer is not None:
            self.outer.read(x)


class _Local(threading.local):
    innermost: Interpreter | None = None
    recording: Interpreter | None = None


Change = Callable[[Interpreter], None]


def in_python() -> tuple[Callable[[], Interpreter | None], Callable[[], Above], Change, Change]:
    """Return `current`, `recording_here`, `enter` and `leave`, as ag/native/op.c has them."""
    local = _Local()

    def enter(interpreter: Interpreter) -> None:
        interpreter.outer, local.innermost = local.innermost, interpreter
        if interpreter.records:
            local.recording = interpreter

    def leave(interpreter: Interpreter) -> None:
        found = local.innermost
        while found is not None and found is not interpreter:
            found = found.outer
        if found is None:
            return
        local.innermost = found = interpreter.outer
        interpreter.outer = None
        while found is not None and not found.records:
            found = found.outer
        local.recording = found

    return lambda: local.innermost, lambda: local.recording, enter, leave


# hot path.  current: the innermost interpreter of this thread, or None.  recording_here: the one that records, or None.
# leave: leaves an interpreter with all inside it; nothing happens if the thread is not in it.
current: Callable[[], Interpreter | None]
recording_here: Callable[[], Above]
enter: Change
leave: Change
current, recording_here, enter, leave = in_python() if _code is None else (
    _code.current, _code.recording_here, _code.enter, _code.leave)


def along(call: Callable[..., R]) -> Callable[..., R]:
    """Return a call for another thread, with the twin of this one's interpreter."""
    twin = None if (here := current()) is None else here.beside()
    return call if twin is None else partial(_inside, twin, call)


def _inside(interpreter: Interpreter, call: Callable[..., R], *args: object) -> R:
    with interpreter:
        return call(*args)


def called_in() -> str:
    """Return the line of the program that called an op; empty if a thread of the library did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    if frame is None:
        return ""
    import linecache  # which takes time to load

    file, line = frame.f_code.co_filename, frame.f_lineno
    return f" Called in {file}, line {line}: `{linecache.getline(file, line).strip()}`."
