"""Launches of single kernels on a backend whose blocks lie between guard words, and what their references give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from table.rows import Array, bound

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.dtype import DType, as_dtype
from ag.engine.primitive import Primitive

# Where the result should be 0 it is as small as the rounding of their operands.
DIFFERENCES = {"attention_grad", "rms_norm_grad"}


@cache
def guarded(device: str) -> Backend:
    """A second backend on the device whose blocks have guard words."""
    if device == "cpu":
        kernels = library()
        return NumpyBackend(guard=64) if kernels is None else NativeBackend(kernels, guard=64)
    from ag.engine.backends.vulkan.backend import VulkanBackend

    return VulkanBackend(int(device.split(":")[1]), guard=256)


@dataclass
class Launch:
    """A primitive with host copies of its operands, outputs left out."""

    primitive: Primitive
    operands: list[Array]
    params: dict[str, Any]
    into: DType | None = None  # the element type of its output, if that is not its operand's

    def cut(self, n: int, **operands: Array) -> Launch:
        """The same on the first `n` elements, with some operands replaced by name."""
        longest = max(x.size for x in self.operands)
        by_name = zip(self.primitive.operands, self.operands, strict=True)
        return Launch(self.primitive, [operands.get(name, x[:n] if x.size == longest else x) for name, x in by_name],
                      self.params)

    def __str__(self) -> str:
        return f"{self.primitive.name}{[x.shape for x in self.operands]} {self.params}"


def run(backend: Backend, launch: Launch) -> list[Array]:
    """All operands after the launch, outputs first."""
    buffers = []
    for x in launch.operands:
        buffers.append(backend.alloc(x.shape, as_dtype(x.dtype, "tests")))
        backend.upload(x, buffers[-1])
    with np.errstate(all="ignore"):  # numpy warns of what IEEE 754 defines
        into = None if launch.into is None else backend.alloc(launch.primitive.shape(
            *[x.shape for x in launch.operands], **launch.params), launch.into)
        made = backend.launch(launch.primitive, *buffers, into=into, **launch.params)
    outputs = () if made is None else made if isinstance(made, tuple) else (made,)
    after = [backend.download(b) for b in (*outputs, *buffers)]
    backend.check_guards()
    return after


def reference(launch: Launch, float_type: type = np.float32) -> list[Array]:
    """The same from the primitive's numpy function on host copies."""
    primitive = launch.primitive
    inputs = [x.astype(float_type) if x.dtype == np.float32 else x.copy() for x in launch.operands]
    outputs: list[Array] = []
    if primitive.outputs:
        shapes = primitive.shape(*[x.shape for x in inputs], **launch.params)
        dtype = launch.into.numpy_name if launch.into else inputs[0].dtype
        outputs = [np.zeros(s, dtype) for s in (shapes if primitive.outputs > 1 else (shapes,))]
    with np.errstate(all="ignore"):
        primitive.reference(*outputs, *inputs, **launch.params)
    return outputs + inputs


def check(backend: Backend, launch: Launch, added: int = 0) -> None:
    """Outputs and updated operands are the reference's, all others are as they were.

    Where `added` is given, so many numbers as large as the operands are added on the way, and may cancel.
    """
    primitive = launch.primitive
    for i, (got, want, exact) in enumerate(
        zip(run(backend, launch), reference(launch), reference(launch, np.float64), strict=True)
    ):
        name = f"{launch}: {primitive.operands[i]}"
        if (i >= primitive.outputs and i not in primitive.updates) or want.dtype != np.float32:
            np.testing.assert_array_equal(got, want, name)
        elif exact.size:
            terms = max(1, added, sum(x.size for x in launch.operands) // exact.size)
            size = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
            if added or primitive.name in DIFFERENCES:
                size = max(size, *(np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in launch.operands))
            allowed = bound(32, 0, np.abs(exact), "f32") + bound(4, terms, size, "f32")
            with np.errstate(all="ignore"):  # what lies around operands is NaN, and a kernel may have read it
                off = np.where(got == exact, 0, np.abs(got - exact))  # infinite ones, too
            assert np.all(off <= allowed), f"{name}: {off.max()} off"
