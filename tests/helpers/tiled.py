"""A backend that makes all products in tiles of one kind, with guard words around every operand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from table.rows import Array

from ag.engine.backends.shader.tiles import TILES
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32
from ag.engine.primitive import Primitive

ON_ONE, SLOW = pytest.mark.not_on("swiftshader"), pytest.mark.slow
KINDS = [  # the chosen one on both drivers and M on one; the slow leg has all on lavapipe, and three on SwiftShader
    pytest.param("", id="chosen"), pytest.param("M", marks=pytest.mark.slow_on("swiftshader")),
    *(pytest.param(kind, marks=[SLOW] if kind == "V" else [SLOW, ON_ONE]) for kind in TILES if kind != "M"),
]


@contextmanager
def tiled_backend(device: str, kind: str) -> Iterator[Any]:
    """A backend of its own on a Vulkan device; an empty `kind` leaves the choice to it."""
    from ag.engine.backends.vulkan.backend import VulkanBackend

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AG_MATMUL_TILE", kind)
        backend = VulkanBackend(int(device.split(":")[1]), guard=256)
    yield backend
    backend.synchronize()
    backend.check_guards()


def make_directly(backend: Any, rows: int) -> None:
    """Let a backend compute convolutions of up to so many rows element by element, as another device might."""
    backend._kernels.tiles = replace(backend._kernels.tiles, direct_rows=rows)


def on(backend: Any, x: Array, skip: int = 0) -> Buffer:
    """`x` on the device, `skip` words behind the start of its block."""
    buffer: Buffer = backend.alloc((x.size + skip,), F32).view(x.shape, skip)
    backend.upload(x, buffer)
    return buffer


def blank(backend: Any, shape: tuple[int, ...], skip: int = 0) -> Buffer:
    """An output of which every element must be written."""
    return on(backend, np.full(shape, np.nan, np.float32), skip)


def launched_twice(backend: Any, primitive: Primitive, operands: list[Buffer], params: dict[str, Any],
                   out: Buffer) -> Array:
    """Return what the launch writes to `out`; a second launch must write the same bits to other memory."""
    backend.launch(primitive, *operands, into=out, **params)
    again = backend.launch(primitive, *operands, **params)
    got: Array = backend.download(out)
    np.testing.assert_array_equal(backend.download(again).view(np.uint32), got.view(np.uint32))
    return got


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Normal numbers in float32."""
    return rng.standard_normal(shape).astype(np.float32)
