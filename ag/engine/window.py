"""Arithmetic on windows that move over images: convolution and pooling.

An image tensor is ``[channels, height, width, batch]``.  A `Window` looks at it from a grid of places; element
``(i, j)`` of the window, a tap, looks at one pixel from each place, or at padding.  Everything here is pure functions
of sizes, and knows neither arrays nor devices.  `ag.ops.conv` and `ag.ops.pool` make windows; the primitives of these
ops ask them for output shapes, kernel layouts and slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import index
from typing import NamedTuple

from ag.engine.shape import Layout, Shape
from ag.errors import ShapeError

__all__ = ["Pair", "Window", "check_steps", "pair", "places", "taps", "window_layout"]

Pair = tuple[int, int]
_MOST_STEPS = 65_535  # of all loops of an invocation together: one driver silently ends them there


class Window(NamedTuple):
    """A window and how it moves, each as (height, width)."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @property
    def extent(self) -> Pair:
        """Pixels from the first to the last tap."""
        high, wide = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return high, wide


def pair(value: object, least: int, name: str, function: str) -> Pair:
    """An integer for both directions, or a pair (height, width), as a pair."""
    try:
        high, wide = (index(n) for n in (value if isinstance(value, (tuple, list)) else (value, value)))
    except (TypeError, ValueError):
        high = wide = least - 1
    if min(high, wide) < least or max(high, wide) >= 1 << 31:  # kernels count in 32 bits
        raise ValueError(f"{function}: {name} is {value!r}; an integer of at least {least} is required, or a pair "
                         f"(height, width) of them.")
    return high, wide


def places(image: Shape, window: Window) -> Pair:
    """How many places a window has on an image, down and across."""
    padded = tuple(n + 2 * p for n, p in zip(image, window.padding, strict=True))
    if 0 in image or any(e > n for e, n in zip(window.extent, padded, strict=True)):
        raise ShapeError(f"the window covers {window.extent} pixels and the image has {image}, with "
                         f"padding {padded}; the window must fit into the padded image, which must not be empty.")
    high, wide = ((n - e) // s + 1 for n, e, s in zip(padded, window.extent, window.stride, strict=True))
    return high, wide


def taps(image: Shape, grid: Shape, window: Window) -> Iterator[tuple[Pair, tuple[slice, slice], tuple[slice, slice]]]:
    """Each tap with the places from which it looks at pixels, and these pixels; taps that only see padding left out.

    Both are pairs of slices with equally many elements.
    """
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            down, across = (_seen(image[a], grid[a], window, a, tap) for a, tap in enumerate((i, j)))
            if down and across:
                yield (i, j), (down[0], across[0]), (down[1], across[1])


def _seen(pixels: int, count: int, window: Window, axis: int, tap: int) -> tuple[slice, slice] | None:
    """Along one axis: the places from which a tap looks at pixels, and these pixels."""
    step, first = window.stride[axis], tap * window.dilation[axis] - window.padding[axis]  # seen from place 0
    start = max(0, -(first // step))
    stop = min(count, (pixels - 1 - first) // step + 1)
    if start >= stop:
        return None
    return slice(start, stop), slice(first + start * step, first + (stop - 1) * step + 1, step)


def window_layout(image: Shape, seen: Shape, window: Window, elements: int) -> Layout:
    """What every kernel over windows is given: `image` and `seen` are the tensors under and above the windows."""
    return {"n": elements, "batch": image[3], "image": image[1:3], "places": seen[1:3], **window._asdict()}


def check_steps(window: Window, depth: int, function: str) -> None:
    """Refuse loops over all taps and, inside, `depth` channels that a kernel cannot finish."""
    if prod(window.kernel) * (depth + 2) > _MOST_STEPS:
        raise ShapeError(f"{function}: a window of {window.kernel} over {depth} channels takes more than {_MOST_STEPS} "
                         f"steps, the most that a kernel can make; use a smaller window or more groups.")
