"""How ops compute with 16-bit tensors: every rule gets a launch that widens its operands to float32.

`ag.engine.kernels.convert` has the conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ag.engine.buffer import Buffer
from ag.engine.dtype import F32
from ag.engine.kernels.convert import converted
from ag.engine.primitive import Primitive

__all__ = ["Widening", "launch_on"]


class Widening:
    """`Backend.launch` for rules whose operands may be 16-bit buffers: those are widened first.

    An object serves one call of a rule: it remembers what it widened, so that no operand is converted twice.
    """

    def __init__(self, launch: Callable[..., Any]) -> None:
        self._launch = launch
        self._widened: dict[tuple[int, int], tuple[Buffer, Buffer]] = {}

    def __call__(self, primitive: Primitive, *operands: Buffer, into: Any = None, **params: Any) -> Any:
        return self._launch(primitive, *[self._wide(x) for x in operands], into=into, **params)

    def _wide(self, x: Buffer) -> Buffer:
        if not x.dtype.is_half:
            return x
        known = self._widened.get((x.address, x.size))
        if known is None:
            known = self._widened[x.address, x.size] = x, converted(x, F32)
        return known[1].view(x.shape)


def launch_on(x: Buffer) -> Callable[..., Any]:
    """The launch of the device of `x` that can take `x`."""
    return Widening(x.backend.launch) if x.dtype.is_half else x.backend.launch
