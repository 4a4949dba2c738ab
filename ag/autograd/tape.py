"""The tape: what was computed from what, and the backward pass over it.

Inside `with_grad_tape` every op that touches a parameter leaves a node on its result.  There is no global list: the
record is freed with the last result.  `backward` visits nodes newest first and adds up the cotangents of all uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from contextvars import ContextVar, Token
from functools import reduce, wraps
from heapq import heappop, heappush
from inspect import iscoroutinefunction, isgeneratorfunction, signature
from itertools import accumulate
from math import prod
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from ag.autograd.half import SCALES, Scaling, launch_on, scaled, unscaled
from ag.autograd.tensor import Tensor, plain_tensor, tensor_given, type_name
from ag.engine.arena import Block, now
from ag.engine.buffer import LATEST, Buffer, Device, Run
from ag.engine.device import CONTEXT as OF_DEVICE
from ag.engine.dtype import F16, F32, DType
from ag.engine.interpreter import current
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, copied, copy
from ag.engine.kernels.reduce import sum_to
from ag.engine.primitive_types import PrimitiveTo, Returned
from ag.engine.shape import Shape
from ag.errors import TapeError
from ag.names import Making, wrong_arguments

P = ParamSpec("P")
R = TypeVar("R")

_NOT_SCALED = nullcontext()

# None: not recorded now, but when `backward` computes it again.
_recording: ContextVar[bool | None] = ContextVar("ag_tape", default=False)

is_recording = _recording.get
CONTEXT: tuple[ContextVar[Any], ...] = (*OF_DEVICE, _recording)  # under which a captured step is recorded


class _Switch:
    """Context manager and decorator that sets whether ops are recorded."""

    def __init__(self, on: bool | None) -> None:
        self._on = on
        self._tokens: list[Token[bool | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_recording.set(self._on))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _recording.reset(self._tokens.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: ``@ag.no_grad()``."""
        if not callable(function) or isgeneratorfunction(function) or iscoroutinefunction(function):
            raise TypeError(f"no_grad, with_grad_tape: a function is required to decorate, and {function!r:.60} is "
                            f"none, or goes on after its call; write `with` inside it.")

        on = self._on

        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with _Switch(on):  # one for each call: functions call themselves, and run in several threads
                return function(*args, **kwargs)

        return inside


@overload
def with_grad_tape() -> _Switch: ...
@overload
def with_grad_tape(fn: Callable[[], R]) -> R: ...
def with_grad_tape(fn: Callable[[], R] | None = None) -> _Switch | R:
    """Record what is computed, so that `backward` can be called on the result.

    Blocks nest, and each thread records for itself.  The record hangs on the results: when they die, so does it.
    Reference: ggmlR ``with_grad_tape``.

    Parameters
    ----------
    fn : callable, optional
        Called with the tape on; without it, a context manager is returned.

    Returns
    -------
    object
        What `fn` returned, or a context manager.

    Examples
    --------
    >>> W = ag.ag_param([[2.0]])
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_sum(W * W)
    >>> ag.backward(loss)[W].item()
    4.0
    """
    if fn is None:
        return _Switch(True)
    if not callable(fn):
        raise TypeError(f"with_grad_tape: fn is a {type(fn).__name__}; a function without arguments is required. Or "
                        f"write `with with_grad_tape():`.")
    with _Switch(True):
        return fn()


def no_grad() -> _Switch:
    """A context in which nothing is recorded; ``@ag.no_grad()`` above a function makes it one.

    Returns
    -------
    context manager

    Examples
    --------
    >>> W = ag.ag_param([[2.0]])
    >>> with ag.with_grad_tape(), ag.no_grad():
    ...     y = W * W
    >>> y.requires_grad
    False
    """
    return _Switch(False)


def record_later() -> _Switch:
    """Return a context for an activation checkpoint: `backward` computes its content again and records it then."""
    return _Switch(None)


class Node:
    """One recorded op: its gradient rule, its inputs, and what the rule needs."""

    __slots__ = ("half", "inputs", "name", "need", "order", "params", "saved", "spent", "vjp")

    def __init__(self, name: str, vjp: Callable[..., tuple[Cotangent | None, ...]], inputs: tuple[Tensor, ...],
                 need: tuple[bool, ...], saved: Any, params: tuple[object, ...], half: bool = False) -> None:
        self.order = now()  # position in time: inputs come before
        self.name = name  # of the op, for messages
        self.vjp = vjp  # vjp(launch, cotangent, saved, need, *params): one cotangent or None per input
        self.inputs = inputs
        self.need = need  # inputs that want a cotangent
        self.saved = saved  # kept by the forward pass
        self.params = params
        self.half = half  # an input has 16 bits
        self.spent = False

    def __lt__(self, other: Node) -> bool:
        return self.order > other.order  # a heap of nodes yields the newest first

    def pull(self, total: Buffer) -> Iterable[tuple[Tensor, Cotangent | None]]:
        """Return the inputs, each with its cotangent or None, given the output's."""
        launch: Run = total.backend.launch
        if any_changed(self.saved, self.order):
            launch = Checked(launch, self.order, self.name, self.inputs, self.saved)
        cotangents = zip(self.inputs, self.vjp(launch, total, self.saved, self.need, *self.params), strict=True)
        return _stored(cotangents, total.dtype) if self.half or total.dtype.is_half else cotangents

    def spend(self) -> None:
        """Free what was saved; a second backward raises."""
        self.inputs, self.saved, self.spent = (), None, True


class Gradients(Mapping[Tensor, Tensor]):
    """Gradients of one call of `backward`, by parameter or by the parameter's name in its model."""

    __signature__ = Making()

    def __init__(self, by_id: dict[int, tuple[Tensor, Tensor]]) -> None:
        self._by_id = by_id

    def __reduce__(self) -> tuple[Callable[..., Gradients], tuple[object, ...]]:
        return _gradients_of, (list(self._by_id.values()),)  # copies have other ids

    def __repr__(self) -> str:
        shown = ", ".join(f"{p.name or f'a parameter {p.shape}'}: {g.shape}" for p, g in self._by_id.values())
        return f"Gradients({shown})"

    def __getitem__(self, key: Tensor | str) -> Tensor:
        if isinstance(key, str):
            named = self._called(key)
            if len(named) == 1:
                return named[0]
            names = ", ".join(sorted(p.name for p, _ in self._by_id.values() if p.name)) or "none"
            raise KeyError(f"{len(named)} parameters with a gradient are called {key!r}; names here: {names}")
        if not isinstance(key, Tensor):
            raise KeyError(f"a {type_name(key)} was looked up in gradients; a parameter or its name is required")
        if key.id not in self._by_id:
            raise KeyError(f"the loss does not depend on this parameter of shape {key.shape}")
        return self._by_id[key.id][1]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, Tensor):
            return key.id in self._by_id
        return isinstance(key, str) and bool(self._called(key))

    def _called(self, name: str) -> list[Tensor]:
        """Return the gradients of parameters called `name`, else of those whose names end in ``_name``."""
        exact = [g for p, g in self._by_id.values() if p.name == name]
        return exact or [g for p, g in self._by_id.values() if p.name is not None and p.name.endswith(f"_{name}")]

    def __iter__(self) -> Iterator[Tensor]:
        return (p for p, _ in self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)


def _gradients_of(pairs: list[tuple[Tensor, Tensor]]) -> Gradients:
    return Gradients({p.id: (p, g) for p, g in pairs})


def answered(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that runs in every step answer wrong arguments, as `ag.names` does for the others."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside of the function
        raise wrong_arguments(function.__name__, signature(function), args, kwargs)

    return call


@answered
def backward(loss: Tensor, retain: bool = False) -> Gradients:
    """Compute the gradients of a recorded loss with respect to every parameter it depends on.

    Every parameter's ``.grad`` receives this call's gradient once, and sums over calls until `zero_grad`.  A
    parameter that the loss does not reach is absent from the mapping and keeps its ``.grad``.
    Reference: ggmlR ``backward``; Griewank and Walther, "Evaluating Derivatives", ch. 3.

    Parameters
    ----------
    loss : Tensor of one element
        Computed inside `with_grad_tape`.
    retain : bool, optional
        Keep the record, so that `backward` can be called on it again.

    Returns
    -------
    Gradients
        Mapping from parameter (or its name in an `ag_sequential`) to its gradient, of this call only.

    Raises
    ------
    TapeError
        If the loss has more than one element, was not recorded, or its record was already used up.  If a tensor whose
        values a gradient needs was changed since, by an assignment or an optimizer's step.

    Examples
    --------
    >>> W = ag.ag_param([[3.0]])
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_mse_loss(W, [[1.0]])
    >>> ag.backward(loss)[W].item()
    4.0
    """
    if type(loss) is not Tensor:  # hot path, as in what follows: a step of small layers is mostly calls
        tensor_given("backward", loss)
    if prod(loss.buffer.shape) != 1:
        raise TapeError(f"backward: the loss has shape {loss.shape}; it must have one element. Use ag_sum or ag_mean.")
    if loss.node is None:
        raise TapeError("backward: this loss was not recorded; compute it inside `with with_grad_tape():` "
                        "from at least one ag_param. Gradients of gradients are not supported.")
    with Scaling(_reached(loss.node)) if SCALES else _NOT_SCALED:
        gradients = _propagate(loss, loss.node, retain)
        return Gradients({x.id: (x, _accumulated(x, plain_tensor(g))) for x, g in gradients.items()})


def _reached(root: Node) -> list[Tensor]:
    """Return the parameters that a backward pass from a node reaches."""
    seen, todo = {root}, [root]
    found: dict[Tensor, None] = {}
    while todo:
        for x in todo.pop().inputs:
            if x.requires_grad and x.node is None:
                found[x] = None
            elif x.requires_grad and x.node is not None and x.node not in seen:
                seen.add(x.node)
                todo.append(x.node)
    return [*found]


def _propagate(loss: Tensor, root: Node, retain: bool) -> dict[Tensor, Buffer]:
    """Return the gradients of the parameters that the loss depends on, each in memory of its own."""
    dtype = loss.buffer.dtype.wide
    backend, shape = loss.buffer.backend, loss.buffer.shape
    one = backend.constants.get((1.0, dtype)) or backend.constant(1.0, dtype)
    began = now()
    pending: dict[Node, Cotangent] = {root: one.view(shape) if shape else one}
    newest = [root]
    leaves: dict[Tensor, Buffer] = {}
    while newest:
        node = heappop(newest)
        if node.spent:
            raise TapeError(f"backward: the record of {node.name} was used up by an earlier backward; "
                            f"pass retain=True to that one, or compute the loss again.")
        for x, g in node.pull(whole(pending.pop(node))):
            if g is None or not x.requires_grad:
                continue
            if g.shape != x.buffer.shape:
                g = shaped_like(x, g)
            maker = x.node
            if maker is None:
                g = whole(g)
                if g.backend is not x.buffer.backend:
                    raise _moved(x, g.backend)
                leaves[x] = whole(plus(leaves[x], g)) if x in leaves else g
            elif maker in pending:
                pending[maker] = plus(pending[maker], g)
            else:
                pending[maker] = g
                heappush(newest, maker)
        if not retain:
            node.spend()
    return _of_their_own(leaves, began)


def _stored(cotangents: Iterable[tuple[Tensor, Cotangent | None]], made_of: DType
            ) -> Iterator[tuple[Tensor, Cotangent]]:
    """Convert cotangents of 16-bit ops to the types in which the tape stores them."""
    for x, g in cotangents:
        if g is None or not x.requires_grad:
            continue
        if isinstance(g, SliceCotangent) and x.node is not None and g.dtype is made_of is x.buffer.dtype:
            yield x, g
        else:
            yield x, stored_for(x, whole(shaped_like(x, g)), made_of)


def _moved(x: Tensor, before: Device) -> TapeError:
    return TapeError(f"backward: {called(x)} was moved to {x.device} after the loss had been computed with it on "
                     f"{before.name}. Move it after backward, or compute the loss again.")


def _of_their_own(gradients: dict[Tensor, Buffer], began: int) -> dict[Tensor, Buffer]:
    """Copy gradients in memory of before (`began`), or of another one, as for ``a + b``: callers write into them."""
    blocks: set[Block] = set()
    for x, g in gradients.items():
        if g.block.made < began or g.block in blocks:
            gradients[x] = g = copied(g)
        blocks.add(g.block)
    return gradients


def _accumulated(x: Tensor, g: Tensor) -> Tensor:
    """Add `g` to ``x.grad``, never in place: a mapping handed out earlier keeps its values."""
    if x._grad is None and current() is None:
        x._grad = g
        return g
    held = x.grad
    if held is not None:
        if not isinstance(held, Tensor) or (held.shape, held.dtype, held.device) != (g.shape, g.dtype, g.device):
            what = f"a {type(held).__name__}" if not isinstance(held, Tensor) else (
                f"one of shape {held.shape} and type {held.dtype} on {held.device}")
            raise TapeError(f"backward: the gradient is added to .grad of {called(x)}, which was set to {what}; a "
                            f"tensor of shape {g.shape} and type {g.dtype} on {g.device} is required. Set .grad to "
                            f"such a one, or to None.")
        x.grad = Tensor(g.buffer.backend.launch(add, held.buffer, g.buffer))
    else:
        x.grad = g
    return g


# ------------------------------------------------------------------------------------------ cotangents


class SliceCotangent:
    """The cotangent of a tensor of which slices were used: parts that cover it all, as q, k and v, are put together."""

    def __init__(self, shape: Shape, start: int, part: Buffer, spread: Callable[[], Buffer]) -> None:
        self.shape = shape
        self._parts = [(start, part, spread)]  # first element, cotangent, function that pads it with zeros

    @property
    def dtype(self) -> DType:
        return self._parts[0][1].dtype

    def extend(self, other: SliceCotangent) -> None:
        """Add the parts of another cotangent of the same tensor."""
        self._parts += other._parts

    def whole(self) -> Buffer:
        """Return the sum of all parts as a buffer."""
        parts = sorted(self._parts, key=lambda part: part[0])
        ends = list(accumulate(part.size for _, part, _ in parts))
        backend = parts[0][1].backend
        if len(parts) == 1 or ends[-1] != prod(self.shape) or [start for start, *_ in parts] != [0, *ends[:-1]]:
            return reduce(_sum, [spread() for *_, spread in self._parts])
        out = backend.alloc(self.shape, parts[0][1].dtype)
        for start, part, _ in parts:
            backend.launch(copy, part.words(), into=out.view(part.shape, start).words())
        return out


Cotangent = Buffer | SliceCotangent


def whole(g: Cotangent) -> Buffer:
    return g.whole() if isinstance(g, SliceCotangent) else g


def plus(known: Cotangent, g: Cotangent) -> Cotangent:
    """Add two cotangents of one tensor; slices stay slices, 16-bit numbers are added in float32."""
    if isinstance(known, SliceCotangent) and isinstance(g, SliceCotangent):
        known.extend(g)
        return known
    return _sum(whole(known), whole(g))


def _sum(a: Buffer, b: Buffer) -> Buffer:
    return converted(launch_on(b)(add, a, b), b.dtype)


def shaped_like(x: Tensor, g: Cotangent) -> Cotangent:
    """Undo broadcasting: `g` summed over the axes along which `x` was repeated."""
    shape = x.buffer.shape
    return g if g.shape == shape or isinstance(g, SliceCotangent) else sum_to(launch_on(g), g, shape)


def stored_for(x: Tensor, g: Buffer, made_of: DType) -> Buffer:
    """Convert `g` to its type for `x`; f16 cotangents, and what a rule has `made_of` them, carry the loss scale."""
    stored = F32 if x.node is None else x.buffer.dtype
    if (stored is F16) is not (made_of is F16):
        g = scaled(g) if stored is F16 else unscaled(g)
    return converted(g, stored)


# ------------------------------------------------------------------------------------------ changed values


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
    if isinstance(saved, Buffer):
        yield saved
    elif isinstance(saved, (tuple, list)):
        for x in saved:
            yield from buffers_in(x)


def refuse_changed(buffers: Iterable[Buffer], since: int, function: str, tensors: Iterable[Tensor]) -> None:
    """Raise if a buffer older than `since` was overwritten after it; messages name the tensor that it belongs to."""
    for x in buffers:
        if x.block.made < since and x.changed_since(since):
            what = next((called(t) for t in tensors if t.buffer.overlaps(x) and t.buffer.backend is x.backend),
                        f"the result of {function}, of shape {x.shape},")
            raise TapeError(f"backward: {what} was changed after {function} had computed with it, and its gradient "
                            f"needs the values it had. Change it after backward, or compute the loss again.")


def called(t: Tensor) -> str:
    kind = "parameter" if t.requires_grad and t.node is None else "tensor"
    return f"{kind} {t.name!r} of shape {t.buffer.shape}" if t.name else f"a {kind} of shape {t.buffer.shape}"


class Checked:
    """`Backend.launch` that refuses overwritten operands, except those it updates, such as running averages."""

    def __init__(self, launch: Run, since: int, function: str, tensors: Iterable[Tensor], buffers: object) -> None:
        self._launch = launch
        self._what = since, function, tensors
        refuse_changed([x for x in buffers_in(buffers) if x.dtype.is_half], *self._what)  # now, as rules widen them

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        moved = [i - primitive.outputs for i in primitive.updates]
        refuse_changed([x for i, x in enumerate(operands) if i not in moved], *self._what)
        return self._launch(primitive, *operands, into=into, **params)
