"""Activation checkpointing, on the tape: `backward` computes a function's intermediate results again.

The user picks the function.  Rematerialization (`ag.engine.compile.rematerialize`) picks single launches instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from functools import partial

from ag.autograd.cotangent import Cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import is_recording, record_later, with_grad_tape
from ag.autograd.tensor import Node, Tensor, type_name
from ag.autograd.unchanged import Told, repeated_since, repeating, telling
from ag.autograd.watched import note_tensors
from ag.engine.arena import now
from ag.engine.buffer import Buffer
from ag.engine.program import OPEN, recording_here
from ag.engine.random import draws_kept, draws_repeated
from ag.engine.shape import Shape
from ag.errors import TapeError


def is_repeating() -> bool:
    """Return whether a checkpointed function runs for the second time."""
    return repeated_since() > 0


def ag_checkpoint(fn: Callable[..., Tensor], *args: object) -> Tensor:
    """Call a function without keeping its intermediate results; `backward` computes them again.

    It saves memory; files are written by `ag_save_checkpoint`.

    Parameters
    ----------
    fn : callable
        Such as a layer.  Takes `args` and returns one tensor; it may use parameters and other tensors of its own.  It
        is called a second time by `backward`, and must do the same then.
    *args : object
        Tensors and anything else that `fn` takes.

    Returns
    -------
    Tensor
        What `fn` returns.

    Raises
    ------
    TypeError
        If `fn` is no function, or returns anything but one tensor.
    TapeError
        From `backward`, if `fn` does something else the second time: gives another shape, draws other random numbers,
        calls other ops or the same with other numbers or arrays; or if a tensor it computes with was changed in
        between, replaced, or moved, as making an optimizer does.

    Notes
    -----
    Gradients are those without it, bit for bit, dropout included, in captured steps too; of a chain of layers, only
    what lies between the checkpoints is in memory at one time.  Default device and element type are in the second call
    what they were in the first.  Running averages of a batch norm are updated once; whatever else `fn` does besides
    computing happens twice.  Outside `with_grad_tape` it is just a call.

    References
    ----------
    Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.

    Examples
    --------
    >>> import ag
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
    told = Told(telling.get(), compares=recording_here() is None)  # captured: recordings are compared
    began, token = now(), telling.set(told)
    try:
        with record_later(), draws_kept() as keys:
            out = _one_tensor(fn(*args))
    finally:
        telling.reset(token)
    if OPEN:
        note_tensors((out,))  # it may be an older tensor
    told.use((out,))
    used = tuple(x for x in told.used if isinstance(x, Tensor) and (x.node is None or x.node.order < began))
    told.used.clear()
    again = partial(_computed_again, fn, args, context, keys, out.shape, now(), told)
    return Tensor(out.buffer, True, _Again("ag_checkpoint", _same, used, (True,) * len(used), again, ()))


class _Again(Node):
    """A call without a record; `saved` computes the result again, with a record."""

    __slots__ = ()

    def pull(self, total: Buffer) -> Iterable[tuple[Tensor, Cotangent | None]]:
        """Return the second result, with the cotangent of the first."""
        return Node(self.name, self.vjp, (self.saved(),), (True,), None, ()).pull(total)


def _same(run: Run, g: Buffer, saved: object, need: Need) -> Cotangents:
    return (g,)


def _computed_again(fn: Callable[..., Tensor], args: tuple[object, ...], context: Context, keys: list[Buffer],
                    shape: Shape, since: int, told: Told) -> Tensor:
    again = told.again()
    out, left = context.run(_recorded, fn, args, keys, since, again)
    if left or out.shape != shape:
        raise TapeError(f"ag_checkpoint: a function that returned a tensor of shape {shape} and drew {len(keys)} times "
                        f"from the random generator returns {out.shape} and draws {len(keys) - left} times when it is "
                        f"called again; it must do the same every time.")
    again.end()
    return out


def _recorded(fn: Callable[..., Tensor], args: tuple[object, ...], keys: list[Buffer],
              since: int, again: Told) -> tuple[Tensor, int]:
    repeating.set(since)
    telling.set(again)
    with with_grad_tape(), draws_repeated(keys) as left:
        return _one_tensor(fn(*args)), len(left)


def _one_tensor(out: object) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"ag_checkpoint: the function returns a {type_name(out)}; one tensor is required.")
    return out
