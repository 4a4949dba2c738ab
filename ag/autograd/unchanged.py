"""What a gradient rule finds must be what the forward pass computed with: a value that changed since is an error.

Backends note when existing memory is overwritten (`ag.engine.buffer.note_written`), and a node knows when it was
recorded.  So the usual case costs one comparison per saved buffer; only where one was overwritten is the rule given a
launch that looks at every operand, as a rule may do without some of what was saved:

    y = w * x; w.data = ...; backward     ->  an error if x wants a gradient, w * g; none if only w does, x * g

Where the forward pass is computed a second time instead (`ag.autograd.activation_checkpoint`), ops look at every
operand themselves: it must be what it was the first time.  `ag.autograd.tensor.Node` and `ag.autograd.op` call this; it
knows no op and no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from ag.engine.buffer import Buffer, Run
from ag.engine.primitive import PrimitiveTo, Returned
from ag.errors import TapeError

__all__ = ["Checked", "any_changed", "buffers_in", "refuse_changed", "repeating", "repeated_since"]

repeating: ContextVar[int] = ContextVar("ag_repeating", default=0)

repeated_since = repeating.get  # until when what runs now had run for the first time; 0 if it runs for the first time


class Named(Protocol):
    """What must be known of a tensor to name it."""

    name: str | None
    requires_grad: bool
    node: Any

    @property
    def buffer(self) -> Buffer: ...


def any_changed(saved: object, since: int) -> bool:
    """Whether any buffer in what a rule saved was overwritten since."""
    if type(saved) is Buffer:
        return saved.block.changed > since and saved.changed_since(since)
    if isinstance(saved, (tuple, list)):
        for x in saved:
            if any_changed(x, since):
                return True
    return False


def buffers_in(saved: object) -> Iterator[Buffer]:
    """All buffers in what a rule saved."""
    if isinstance(saved, Buffer):
        yield saved
    elif isinstance(saved, (tuple, list)):
        for x in saved:
            yield from buffers_in(x)


def refuse_changed(buffers: Iterable[Buffer], since: int, function: str, tensors: Iterable[Named]) -> None:
    """Raise if a buffer that was there before is not what it was then.

    Parameters
    ----------
    buffers : iterable of Buffer
        What was made since is passed over.
    since : int
    function : str
        What used the buffers.
    tensors : iterable of Tensor
        By which one the message calls the buffer.
    """
    for x in buffers:
        if x.block.made < since and x.changed_since(since):
            what = next((_called(t) for t in tensors if t.buffer.overlaps(x) and t.buffer.backend is x.backend),
                        f"the result of {function}, of shape {x.shape},")
            raise TapeError(f"backward: {what} was changed after {function} had computed with it, and its gradient "
                            f"needs the values it had. Change it after backward, or compute the loss again.")


def _called(t: Named) -> str:
    kind = "parameter" if t.requires_grad and t.node is None else "tensor"
    return f"{kind} {t.name!r} of shape {t.buffer.shape}" if t.name else f"a {kind} of shape {t.buffer.shape}"


class Checked:
    """`Backend.launch` for the rule of an op, whose operands must be what they were when it was recorded."""

    def __init__(self, launch: Run, since: int, function: str, tensors: Iterable[Named]) -> None:
        self._launch = launch
        self._what = since, function, tensors

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        refuse_changed(operands, *self._what)
        return self._launch(primitive, *operands, into=into, **params)
