"""Checks that gradients are computed with the values of the forward pass: a tensor changed since is an error.

Backends note overwritten memory (`ag.engine.buffer.note_written`), and a node knows when it was recorded.  The usual
case costs one comparison per node.  If memory that a rule saved was overwritten, the rule gets a launch that checks
its operands: after ``y = w * x; w.data = ...`` only the gradient of `x` fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ag.engine.buffer import LATEST, Buffer, Run
from ag.engine.interpreter import current
from ag.engine.primitive import PrimitiveTo, Returned
from ag.errors import TapeError


def repeated_since() -> int:
    """Return when the first call of a checkpointed function ended that runs for the second time; 0 otherwise."""
    here = current()
    return 0 if here is None else here.repeats


def any_changed(saved: object, since: int) -> bool:
    """Return whether a buffer in what a rule saved was overwritten since."""
    if LATEST.last <= since:
        return False
    for x in saved if type(saved) is tuple else (saved,):
        if type(x) is Buffer:
            changes = x.block.changes
            if changes is not None and changes.last > since and x.changed_since(since):
                return True
        elif type(x) is tuple and any(y.changed_since(since) for y in buffers_in(x)):
            return True
    return False


def buffers_in(saved: object) -> Iterator[Buffer]:
    """Yield all buffers in what a rule saved."""
    if isinstance(saved, Buffer):
        yield saved
    elif isinstance(saved, (tuple, list)):
        for x in saved:
            yield from buffers_in(x)


def refuse_changed(buffers: Iterable[Buffer], since: int, function: str, tensors: Iterable[Any]) -> None:
    """Raise if a buffer older than `since` was overwritten after it; messages name the tensor that it belongs to."""
    for x in buffers:
        if x.block.made < since and x.changed_since(since):
            what = next((called(t) for t in tensors if t.buffer.overlaps(x) and t.buffer.backend is x.backend),
                        f"the result of {function}, of shape {x.shape},")
            raise TapeError(f"backward: {what} was changed after {function} had computed with it, and its gradient "
                            f"needs the values it had. Change it after backward, or compute the loss again.")


def called(t: Any) -> str:
    kind = "parameter" if t.requires_grad and t.node is None else "tensor"
    return f"{kind} {t.name!r} of shape {t.buffer.shape}" if t.name else f"a {kind} of shape {t.buffer.shape}"


def checked(launch: Run, since: int, function: str, tensors: Iterable[Any], buffers: object) -> Run:
    """Return a launch that refuses overwritten operands; 16-bit `buffers` are checked now, as rules widen those."""
    refuse_changed([x for x in buffers_in(buffers) if x.dtype.is_half], since, function, tensors)
    return _Checked(launch, since, function, tensors)


class _Checked:
    """`Backend.launch` that refuses overwritten operands, except those it updates, such as running averages."""

    def __init__(self, launch: Run, since: int, function: str, tensors: Iterable[Any]) -> None:
        self._launch = launch
        self._what = since, function, tensors

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        moved = [i - primitive.outputs for i in primitive.updates]
        refuse_changed([x for i, x in enumerate(operands) if i not in moved], *self._what)
        return self._launch(primitive, *operands, into=into, **params)
