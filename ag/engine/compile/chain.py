"""A chain of elementwise functions, as the passes build it up and the kernels `fused` and `fused_pair` compute it.

Registers name what instructions read: 0 to 3 are the operands, 4 + k is the result of instruction k
(`ag.engine.kernels.fused`).  For example relu(x + b) has operands (x, b) and steps ``("add", 0, 1, 0.0)``,
``("relu", 4, 4, 0.0)``.  Knows the primitives `fused` and `fused_pair`, and which others are declared `fusable`; none
of these by name.  Elementwise and epilogue fusion both use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.kernels.fused import OPERANDS, Instruction, fused, fused_pair
from ag.engine.program import Launch
from ag.engine.shape import Shape

__all__ = ["Chain", "shaped"]


@dataclass
class Chain:
    """Launches that compute one result, and perhaps store another on the way.

    Attributes
    ----------
    shape : tuple of int
        To which all operands broadcast.
    operands : list of Buffer
        The first registers.
    steps : list of Instruction
    out : Buffer
        The result.
    kept : (Buffer, int) or None
        Another result that is stored too, and its register.
    members : list of int
        Positions of the launches it stands for, in order.
    """

    shape: Shape
    operands: list[Buffer]
    steps: list[Instruction]
    out: Buffer
    kept: tuple[Buffer, int] | None = None
    members: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, launch: Launch, position: int) -> Chain | None:
        """What a launch computes; None if it is not elementwise, or writes where it was told to."""
        rule, buffers, params = launch.primitive, launch.buffers, launch.params
        if not launch.fresh:
            return None
        out, members = buffers[0], [position]
        if rule is fused:
            return cls(out.shape, [*buffers[1:]], [*params["chain"]], out, None, members)
        if rule is fused_pair:
            return cls(out.shape, [*buffers[2:]], [*params["chain"]], out, (buffers[1], params["kept"]), members)
        if not rule.fusable:
            return None
        operands = [*dict.fromkeys(buffers[1:])]
        value = float(params[rule.params[0]]) if rule.params else 0.0
        step = (rule.name, operands.index(buffers[1]), operands.index(buffers[-1]), value)
        return cls(out.shape, operands, [step], out, None, members)

    @property
    def flat(self) -> bool:
        """Whether all operands have as many elements as the result, or 1, so that its shape does not matter."""
        return all(x.size in (1, prod(self.shape)) for x in self.operands)

    def launch(self) -> Launch:
        """One launch that computes it."""
        operands = (*self.operands, *(self.operands[0],) * (OPERANDS - len(self.operands)))
        out, steps = shaped(self.out, self.out.shape, self.shape), tuple(self.steps)
        if self.kept is None:
            return Launch(fused, (out, *operands), {"chain": steps}, True)
        kept, register = self.kept
        also = kept if kept.shape == self.shape else kept.view(self.shape)
        return Launch(fused_pair, (out, also, *operands), {"chain": steps, "kept": register}, True)


def shaped(x: Buffer, old: Shape, new: Shape) -> Buffer:
    """An operand of a chain over `old` as one of a chain over `new`."""
    if old == new or x.shape == new:
        return x
    return x.view(() if x.size == 1 else new)
