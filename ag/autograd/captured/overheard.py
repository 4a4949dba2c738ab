"""Who listens to the ops that a function calls, so as to write the function down in another form.

A listener is told of every op with its operands, numbers and result, of tensors that only stand in another place, and
of values that are read on the host, which is where a function may go on in plain Python.  One listens in a context,
so other threads are not heard.  Knows no tensor and no op; ops and tensors tell, `ag.io.onnx.trace` listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Listener", "listening"]


class Listener(Protocol):
    """What is told."""

    def op(self, function: object, name: str, operands: Sequence[object], params: Sequence[object],
           out: object) -> None:
        """An op ran: the function that callers see, what messages call it, tensors, other arguments, the result."""

    def same(self, x: object, other: object) -> None:
        """The tensor `other` has the values of `x`, as a copy or on another device."""

    def read(self, x: object) -> None:
        """The values of a tensor are read on the host."""


listening: ContextVar[Listener | None] = ContextVar("ag_listening", default=None)
