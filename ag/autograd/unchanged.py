"""Checks that gradients are computed with the values of the forward pass: a tensor changed since is an error.

Backends note overwritten memory (`ag.engine.buffer.note_written`), and a node knows when it was recorded.  The usual
case costs one comparison per node.  If memory that a rule saved was overwritten, the rule gets a launch that checks
its operands: after ``y = w * x; w.data = ...`` only the gradient of `x` fails.
An activation checkpoint runs a function twice; `Told` compares ops, numbers, arrays and memory of both calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from ag.engine.arena import now
from ag.engine.buffer import LATEST, Buffer, Run
from ag.engine.primitive import PrimitiveTo, Returned
from ag.errors import TapeError

repeating: ContextVar[int] = ContextVar("ag_repeating", default=0)

repeated_since = repeating.get  # when the first call ended; 0 in a first call


class Told:
    """Notes of one of two calls of a function that must do the same: of the first, or of the second, which compares."""

    def __init__(self, outer: Told | None, first: Told | None = None, compares: bool = True) -> None:
        self._outer = outer  # of the call that this one is part of
        self._first = first  # of the first call; None in it
        self._compares = compares  # note ops and arrays; a captured step compares recordings instead
        self._began = now()
        self.items: list[tuple[str, object]] = []  # ops with their numbers, and arrays
        self.used: dict[Any, None] = {}  # tensors of the first call through which gradients flow
        self.before: dict[int, Buffer] = {}  # buffers of the first call that are older than it, by id

    def again(self) -> Told:
        """Return the notes of the second call."""
        return Told(None, self, self._compares)

    def note(self, what: str, value: object) -> None:
        """Note the next op with its numbers, or the next host array with its values; compare in the second call."""
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

    def use(self, tensors: Sequence[Any], gradients: bool = True) -> None:
        """Note the operands of an op, through which gradients flow or not."""
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
        """Return whether memory is older than the call."""
        return b.constant is None and b.block.made < self._began

    def end(self) -> None:
        """Compare the number of ops when the second call has returned."""
        if self._first is not None and len(self.items) < len(self._first.items):
            raise _otherwise(self._first.items[len(self.items)][0], "nothing more")


telling: ContextVar[Told | None] = ContextVar("ag_telling", default=None)


def tell_used(tensors: Sequence[Any], gradients: bool) -> None:
    """Note operands of a computation that is not an op."""
    if (told := telling.get()) is not None:
        told.use(tensors, gradients)


def _plain(value: object) -> object:
    """Return a comparable form of a value, without holding it."""
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
            what = next((_called(t) for t in tensors if t.buffer.overlaps(x) and t.buffer.backend is x.backend),
                        f"the result of {function}, of shape {x.shape},")
            raise TapeError(f"backward: {what} was changed after {function} had computed with it, and its gradient "
                            f"needs the values it had. Change it after backward, or compute the loss again.")


def _called(t: Any) -> str:
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
