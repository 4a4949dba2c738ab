"""Divisions by numbers that are the same for a whole launch, as a multiplication and a shift.

No card divides integers: compilers spend about twenty instructions on a division by a number that they do not know.
The host knows it.  With L the least number for which 2^L >= d, and m = floor(2^(32 + L) / d) + 1,

    n / d  =  n m >> (32 + L)    for all n of 32 bits

as m d exceeds 2^(32 + L) by at most d <= 2^L, and so n m / 2^(32 + L) exceeds n / d by less than 1 / d (Granlund and
Montgomery, "Division by invariant integers using multiplication", 1994).  m has 33 bits, the first of which is 1: a
kernel multiplies with the others and adds n (shaders/quotient.glsl), which stays within 32 bits for n below `END`.  No
tensor has as many elements.  Knows numbers, no kernel; `plans` asks.
"""

from __future__ import annotations

from ag.engine.primitive import Params

__all__ = ["END", "divisors", "multiplier_and_shift", "steps"]

END = 1 << 31  # of dividends; divisors may be as large


def multiplier_and_shift(divisor: int) -> tuple[int, int]:
    """What to divide with by a number up to `END`; where that is 0, a launch has nothing to do."""
    if divisor == 0:
        return 0, 0
    shift = (divisor - 1).bit_length()
    return (1 << 32 + shift) // divisor + 1 - (1 << 32), shift


def divisors(numbers: int | tuple[int, ...]) -> list[int]:
    """The words of a kernel's ``by_<x>``: multiplier and shift of each number of x."""
    found = [multiplier_and_shift(int(d)) for d in (numbers if isinstance(numbers, tuple) else (numbers,))]
    return [word for pair in found for word in pair]


def steps(layout: Params) -> Params:
    """How operands are walked (shaders/walk.glsl), if the layout has axes: ``shape`` and each ``<x>_stride``.

    With sizes s and strides t, counted from the innermost axis, and q[k] = q[k - 1] / s[k - 1], the place along an axis
    is q[k] - s[k] q[k + 1], so an operand moves by t[k] - s[k - 1] t[k - 1] for each q[k].
    """
    count = layout.get("ndim")
    if count is None:
        return {}
    most, sizes = len(layout["shape"]), layout["shape"][:count][::-1]
    pairs = [multiplier_and_shift(size) for size in sizes[:-1]]
    pairs += [(0, 0)] * (most - 1 - len(pairs))
    shifts = [sum(shift << 8 * i for i, (_, shift) in enumerate(pairs[k : k + 4])) for k in range(0, most - 1, 4)]
    found: Params = {"multipliers": tuple(multiplier for multiplier, _ in pairs), "shifts": tuple(shifts)}
    for name in [name for name in layout if name.endswith("_stride")]:
        strides = layout[name][:count][::-1]
        moved = [0, *(size * stride for size, stride in zip(sizes, strides, strict=True))]
        walked = [stride - before for stride, before in zip(strides, moved, strict=False)]
        found[name.replace("_stride", "_step")] = (*walked, *[0] * (most - count))
    return found
