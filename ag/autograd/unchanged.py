"""What a gradient rule finds must be what the forward pass computed with: a value that changed since is an error.

Backends note when existing memory is overwritten (`ag.engine.buffer.note_written`), and a node knows when it was
recorded.  So the usual case costs one comparison per node, and where others write meanwhile, one per buffer; only where
one was overwritten is the rule given a launch that looks at every operand, as it may do without some:

    y = w * x; w.data = ...; backward     ->  an error if x wants a gradient, w * g; none if only w does, x * g

Where the forward pass is computed a second time instead (`ag.autograd.activation_checkpoint`), ops themselves look at
every operand: it must be what it was the first time.  And which ops with which numbers, on which memory of before, is
noted the first time (`Told`) and compared the second: a rate, a mode, an array or a tensor that is another one, or lies
elsewhere, is an error, too.

`ag.autograd.tensor.Node` and `ag.autograd.op` call this; it knows no op and no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from ag.engine.arena import now
from ag.engine.buffer import LATEST, Buffer, Run
from ag.engine.primitive import PrimitiveTo, Returned
from ag.errors import TapeError

__all__ = ["Told", "any_changed", "checked", "refuse_changed", "repeated_since", "repeating", "tell_used", "telling"]

repeating: ContextVar[int] = ContextVar("ag_repeating", default=0)

repeated_since = repeating.get  # until when what runs now had run for the first time; 0 if it runs for the first time


class Told:
    """What a function that is called twice told of the first call, or tells of the second, which must be the same.

    Parameters
    ----------
    outer : Told or None
        Of a call that this one is part of.
    first : Told, optional
        What the first call has told.
    compares : bool, optional
        Whether to note ops and arrays at all; what a captured step records is compared anyway.

    Attributes
    ----------
    used : dict of Tensor
        Of the first call: what it computed with, through which gradients flow.
    before : dict of int to Buffer
        Of the first call: what it computed with that was there before, by ``id``.
    """

    def __init__(self, outer: Told | None, first: Told | None = None, compares: bool = True) -> None:
        self._outer, self._first, self._compares = outer, first, compares
        self._began = now()
        self.items: list[tuple[str, object]] = []
        self.used: dict[Named, None] = {}
        self.before: dict[int, Buffer] = {}

    def again(self) -> Told:
        """For the second call."""
        return Told(None, self, self._compares)

    def note(self, what: str, value: object) -> None:
        """The next op, with its numbers, or the next host array, with its values."""
        if not self._compares:
            return
        item = what, _plain(value)
        if self._first is not None:
            before = self._first.items[len(self.items) : len(self.items) + 1]
            if before != [item]:
                raise _otherwise(before[0][0] if before else "nothing more", what)
        self.items.append(item)
        if self._outer is not None:
            self._outer.note(what, value)

    def use(self, tensors: Sequence[Named], gradients: bool = True) -> None:
        """Tensors of which something is computed, through which gradients flow or not."""
        if self._outer is not None:
            self._outer.use(tensors, False)
        for x in tensors:
            if self._first is None:
                if gradients and x.requires_grad:
                    self.used[x] = None
                if self._was_there(x.buffer):
                    self.before[id(x.buffer)] = x.buffer
            elif id(x.buffer) not in self._first.before and self._was_there(x.buffer):
                raise TapeError(f"ag_checkpoint: a function computes with {_called(x)} when it is called again by "
                                f"backward, and the first time it did not, or its values lay elsewhere. Replace "
                                f"tensors, make optimizers and move models after backward.")

    def _was_there(self, b: Buffer) -> bool:
        """Whether memory is older than the call."""
        return b.constant is None and b.block.made < self._began

    def end(self) -> None:
        """The second call has returned."""
        if self._first is not None and len(self.items) < len(self._first.items):
            raise _otherwise(self._first.items[len(self.items)][0], "nothing more")


telling: ContextVar[Told | None] = ContextVar("ag_telling", default=None)


def tell_used(tensors: Sequence[Named], gradients: bool) -> None:
    """Tell of tensors with which something other than an op computes, through which gradients flow or not."""
    if (told := telling.get()) is not None:
        told.use(tensors, gradients)


def _plain(value: object) -> object:
    """What can be compared of a value, without holding it."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, hash(value.tobytes())
    if isinstance(value, (tuple, list)):
        return tuple(_plain(x) for x in value)
    return repr(value) if isinstance(value, (bool, int, float, complex, str, slice, np.generic)) else type(value)


def _otherwise(before: str, now: str) -> TapeError:
    again = f"{now} with other numbers" if now == before else now
    return TapeError(f"ag_checkpoint: where a function did {before} the first time, it does {again} when it is called "
                     f"again by backward; it must do the same every time. Change settings, modes and arrays after "
                     f"backward.")


class Named(Protocol):
    """What must be known of a tensor to name it."""

    name: str | None
    requires_grad: bool
    node: Any

    @property
    def buffer(self) -> Buffer: ...


def any_changed(saved: object, since: int) -> bool:
    """Whether any buffer in what a rule saved was overwritten since."""
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


def checked(launch: Run, since: int, function: str, tensors: Iterable[Named], buffers: object) -> Run:
    """A launch for a rule that refuses what was overwritten since; 16-bit `buffers` at once, as rules widen those."""
    refuse_changed([x for x in buffers_in(buffers) if x.dtype.is_half], since, function, tensors)
    return _Checked(launch, since, function, tensors)


class _Checked:
    """`Backend.launch` where operands must be what they were; but for those that are only moved, as averages are."""

    def __init__(self, launch: Run, since: int, function: str, tensors: Iterable[Named]) -> None:
        self._launch = launch
        self._what = since, function, tensors

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        moved = [i - primitive.outputs for i in primitive.updates]
        refuse_changed([x for i, x in enumerate(operands) if i not in moved], *self._what)
        return self._launch(primitive, *operands, into=into, **params)
