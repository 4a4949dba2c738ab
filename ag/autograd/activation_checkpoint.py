"""Activation checkpointing, on the tape: `backward` computes a function's intermediate results again.

The user picks the function.  Rematerialization (`ag.engine.compile.rematerialize`) picks single launches instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial

import numpy as np

from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import (
    Checked,
    Cotangent,
    Node,
    called,
    is_recording,
    record_later,
    repeated_since,
    with_grad_tape,
)
from ag.autograd.tensor import Tensor, type_name
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Device
from ag.engine.interpreter import Interpreter, along, current, recording_here
from ag.engine.primitive import Array
from ag.engine.random import draws_kept, draws_repeated
from ag.engine.shape import Shape
from ag.errors import TapeError


def is_repeating() -> bool:
    """Return whether a checkpointed function runs for the second time."""
    return repeated_since() > 0


def ag_checkpoint(fn: Callable[..., Tensor], *args: object) -> Tensor:
    """Call a function without keeping its intermediate results; `backward` computes them again.

    Gradients are those without it, bit for bit, dropout included, in captured steps too.  Running averages of a batch
    norm are updated once; whatever else `fn` does besides computing happens twice.
    Reference: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.

    Parameters
    ----------
    fn : callable
        Such as a layer.  Takes `args` and returns one tensor; it may use other tensors, too, and must do the same when
        `backward` repeats the call.
    *args : object
        Tensors and anything else that `fn` takes.

    Returns
    -------
    Tensor

    Raises
    ------
    TapeError
        From `backward`, if `fn` does something else the second time, or if a tensor it computes with was changed in
        between, replaced, or moved, as making an optimizer does.

    Examples
    --------
    >>> W = ag.ag_param([[2.0]])
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_checkpoint(lambda x: ag.ag_sum(x * W * W), ag.ag_tensor([[3.0]]))
    >>> ag.backward(loss)[W].item()
    12.0
    """
    if not callable(fn):
        raise TypeError(f"ag_checkpoint: a {type(fn).__name__} was given; a function is required, whose intermediate "
                        f"results are not kept. Files are written by ag_save_checkpoint.")
    if not is_recording():
        return fn(*args)
    context = copy_context()
    first = Comparison(compares=recording_here() is None)  # captured: recordings are compared
    began = now()
    with first, record_later(), draws_kept() as keys:
        out = _one_tensor(fn(*args))
    if (here := current()) is not None:
        here.uses((out,), False)  # it may be an older tensor
    first.uses((out,), True)
    used = tuple(x for x in first.used if isinstance(x, Tensor) and (x.node is None or x.node.order < began))
    first.used.clear()
    again = along(partial(_computed_again, fn, args, context, keys, out.shape, now(), first))
    return Tensor(out.buffer, True, _Again("ag_checkpoint", same_gradient, used, (True,) * len(used), again, ()))


class _Again(Node):
    """A call without a record; `saved` computes the result again, with a record."""

    __slots__ = ()

    def pull(self, total: Buffer) -> Iterable[tuple[Tensor, Cotangent | None]]:
        """Return the second result, with the cotangent of the first."""
        return Node(self.name, self.vjp, (self.saved(),), (True,), None, ()).pull(total)


def same_gradient(run: Run, g: Buffer, saved: object, need: Need) -> Cotangents:
    """Stand for the gradient rule of a result with its operand's values."""
    return (g,)


def _computed_again(fn: Callable[..., Tensor], args: tuple[object, ...], context: Context, keys: list[Buffer],
                    shape: Shape, since: int, first: Comparison) -> Tensor:
    again = Comparison(first, first.compares, since)
    out, left = context.run(_recorded, fn, args, keys, again)
    if left or out.shape != shape:
        raise TapeError(f"ag_checkpoint: a function that returned a tensor of shape {shape} and drew {len(keys)} times "
                        f"from the random generator returns {out.shape} and draws {len(keys) - left} times when it is "
                        f"called again; it must do the same every time.")
    again.end()
    return out


def _recorded(fn: Callable[..., Tensor], args: tuple[object, ...], keys: list[Buffer],
              again: Comparison) -> tuple[Tensor, int]:
    with again, with_grad_tape(), draws_repeated(keys) as left:
        return _one_tensor(fn(*args)), len(left)


def _one_tensor(out: object) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"ag_checkpoint: the function returns a {type_name(out)}; one tensor is required.")
    return out


_END = "nothing more", None


class Comparison(Interpreter):
    """Notes ops, numbers, arrays and memory of the first call of a function, or compares those of the second."""

    def __init__(self, first: Comparison | None = None, compares: bool = True, since: int = 0) -> None:
        self._first = first  # None in the first call
        self.compares = compares  # note ops and arrays; a captured step compares recordings instead
        self._since = since  # when the first call had ended
        self._began = now()
        self._items: list[tuple[str, object]] = []  # ops of the first call with their numbers, and arrays
        self._left = None if first is None else iter(first._items)  # of these, in the second call
        self._before: dict[int, Buffer] = {}  # buffers of the first call that are older than it, by id
        self.used: dict[Tensor, None] = {}  # tensors of the first call through which gradients flow

    @property
    def repeats(self) -> int:
        return self._since or super().repeats

    def before_op(self, name: str, inputs: Sequence[Tensor], values: Sequence[object], params: Sequence[object],
                  launch: Run) -> Run:
        if self.compares:
            self._note(name, [params, [x for x in values if isinstance(x, (int, float))]])
        self._use(inputs, is_recording() is not False)
        launch = super().before_op(name, inputs, values, params, launch)
        return Checked(launch, self._since, name, inputs, [x.buffer for x in inputs]) if self._since else launch

    def uploaded(self, array: Array, dtype: object, device: Device) -> Buffer | None:
        slot = super().uploaded(array, dtype, device)
        if slot is None:
            self._note(f"an array of shape {array.shape}", array)
        return slot

    def uses(self, tensors: Sequence[Tensor], gradients: bool) -> None:
        self._use(tensors, gradients)
        super().uses(tensors, False)

    def _note(self, what: str, value: object) -> None:
        """Note the next op with its numbers, or the next host array with its values; compare in the second call."""
        if not self.compares:
            return
        item = what, _plain(value)
        if self._left is None:
            self._items.append(item)
        elif (before := next(self._left, _END)) != item:
            raise _otherwise(before[0], what)

    def _use(self, tensors: Sequence[Tensor], gradients: bool) -> None:
        for x in tensors:
            if self._first is None:
                if gradients and x.requires_grad:
                    self.used[x] = None
                if self._was_there(x.buffer):
                    self._before[id(x.buffer)] = x.buffer
            elif id(x.buffer) not in self._first._before and self._was_there(x.buffer):
                raise TapeError(f"ag_checkpoint: a function computes with {called(x)} when it is called again by "
                                f"backward, and the first time it did not, or its values lay elsewhere. Replace "
                                f"tensors, make optimizers and move models after backward.")

    def _was_there(self, b: Buffer) -> bool:
        """Return whether memory is older than the call, and no constant, which the first call may have made."""
        return b.block.made < self._began and not (b.block.changes and b.block.changes.fixed)

    def end(self) -> None:
        """Compare the number of ops when the second call has returned."""
        if self._left is not None and (before := next(self._left, _END)) is not _END:
            raise _otherwise(before[0], _END[0])


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
