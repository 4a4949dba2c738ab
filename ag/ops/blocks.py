"""Elementwise references block by block, so that what they compute on the way stays in the cache.

A numpy expression makes an array of every intermediate result; where these are larger than the cache, writing and
reading them takes ten times as long as computing them.  Used by the modules of `ag.ops`; knows arrays only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from ag.primitive import Call
from ag.tensor import Array

__all__ = ["in_blocks"]

_BLOCK = 1 << 14  # elements: a handful of arrays of 64 KiB stay in the second-level cache


def in_blocks(function: Callable[..., None]) -> Callable[..., Call]:
    """For ``@primitive(bound=True)``: bind `function`, whose operands have one shape, to each block of its operands."""

    @wraps(function)
    def bind(*arrays: Array, **params: Any) -> Call:
        count = arrays[0].size
        if count <= _BLOCK:
            return partial(function, *arrays, **params)
        flat = [x.reshape(-1) for x in arrays]
        blocks = [[x[i : i + _BLOCK] for x in flat] for i in range(0, count, _BLOCK)]

        def call() -> None:
            for block in blocks:
                function(*block, **params)

        return call

    return bind
