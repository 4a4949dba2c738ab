"""How ops compute with 16-bit tensors: in float32, rounded once at the end.

A rule is given a launch that widens what it works on, so that it sees float32 wherever it touches a 16-bit buffer; its
result is rounded to the type of its operands.  A result without axes, such as a loss, stays float32, and so does what
a rule keeps between its own launches.  The rule itself knows nothing of this; `ag.autograd.op` calls it so, and
`ag.engine.kernels.convert` has the conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from ag.engine.buffer import Buffer, Run
from ag.engine.dtype import F32, DType
from ag.engine.kernels.convert import converted
from ag.engine.primitive import PrimitiveTo, Returned

__all__ = ["Widening", "launch_on", "rounded", "widening"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Widening:
    """`Backend.launch` for rules whose operands may be 16-bit buffers: those are widened first.

    An object serves one call of a rule: it remembers what it widened, so that no operand is converted twice.
    """

    def __init__(self, launch: Run) -> None:
        self._launch = launch
        self._widened: dict[tuple[int, int], tuple[Buffer, Buffer]] = {}

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        return self._launch(primitive, *[self._wide(x) for x in operands], into=into, **params)

    def _wide(self, x: Buffer) -> Buffer:
        if not x.dtype.is_half:
            return x
        known = self._widened.get((x.address, x.size))
        if known is None:
            known = self._widened[x.address, x.size] = x, converted(x, F32)
        return known[1].view(x.shape)


def launch_on(x: Buffer) -> Run:
    """The launch of the device of `x` that can take `x`."""
    return Widening(x.backend.launch) if x.dtype.is_half else x.backend.launch


def widening(rule: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """A gradient rule for an op on 16-bit tensors."""

    def wide(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return rule(Widening(run), *args, **kwargs)

    return wide


def rounded(out: Buffer, saved: S, dtype: DType) -> tuple[Buffer, S]:
    """A rule's result in the 16-bit type of its operands, also where it is saved; in float32 if it has no axes."""
    result = converted(out, dtype if out.shape else F32)
    return result, saved if result is out else cast(S, _swapped(saved, out, result))


def _swapped(saved: object, old: Buffer, new: Buffer) -> object:
    """What a rule saved, with `new` in the place of `old` and of its views."""
    if type(saved) is tuple:
        return tuple(_swapped(x, old, new) for x in saved)
    if isinstance(saved, Buffer) and (saved.block, saved.address, saved.size) == (old.block, old.address, old.size):
        return new.view(saved.shape)
    return saved
