"""Launches with operands and results in 16 bits, against the same in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.guarded import Launch
from table.rows import Array

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.dtype import BF16, F16, F32, DType, as_dtype
from ag.engine.kernels.convert import loaded, stored

HALVES = (BF16, F16)


def on(backend: Backend, array: Array, dtype: DType) -> Buffer:
    """The array, already in the elements of its type, on a device."""
    buffer = backend.alloc(array.shape, dtype)
    backend.upload(loaded(array, dtype) if dtype.is_half else array, buffer)
    return buffer


def bits(array: Array) -> Array:
    """Its numbers, one for all NaNs."""
    found = array.view(np.uint32 if array.itemsize == 4 else np.uint16).copy()
    found[np.isnan(array) if array.dtype != np.uint16 else np.isnan(loaded(array, BF16))] = 1
    return found


def made(backend: Backend, launch: Launch, operands: list[Buffer], outputs: list[DType]) -> list[Array]:
    """Results and updated operands, as elements."""
    shapes = launch.primitive.shape(*[b.shape for b in operands], **launch.params) if launch.primitive.outputs else ()
    into: Any = [backend.alloc(s, d) for s, d in zip(shapes if launch.primitive.outputs > 1 else (shapes,), outputs,
                                                     strict=False)]
    given = None if not into else into[0] if len(into) == 1 else tuple(into)
    backend.launch(launch.primitive, *operands, into=given, **launch.params)
    after = [*into, *operands]
    backend.check_guards()
    return [stored(backend.download(after[i]), after[i].dtype) for i in (*range(len(into)), *launch.primitive.updates)]


def compare(backend: Backend, launch: Launch, takes: tuple[bool, ...]) -> None:
    """Operands and results in 16 bits, each or only some of them, against the same in float32."""
    rng = np.random.default_rng(3)
    primitive = launch.primitive
    for dtype in HALVES:
        wide, half = [], []
        for array, takes_half in zip(launch.operands, takes[primitive.outputs :], strict=True):
            is_half = takes_half and array.dtype == np.float32 and (primitive.moves or rng.random() < 0.7)
            exact = loaded(stored(array, dtype), dtype).astype(np.float32) if is_half else array
            wide.append(on(backend, exact, as_dtype(exact.dtype, "tests")))
            half.append(on(backend, stored(exact, dtype), dtype) if is_half else on(
                backend, array, as_dtype(array.dtype, "tests")))
        types = [dtype if t and (primitive.moves or rng.random() < 0.7) else F32 for t in takes[: primitive.outputs]]
        plain = [launch.into or F32] * primitive.outputs if not primitive.moves else [F32] * primitive.outputs
        expected = made(backend, launch, wide, plain)
        found = made(backend, launch, half, types if launch.into is None else plain)
        for want, got in zip(expected, found, strict=True):
            if got.dtype != want.dtype:
                with np.errstate(all="ignore"):
                    want = stored(want, dtype)
            np.testing.assert_array_equal(bits(got) if got.dtype != np.int32 else got,
                                          bits(want) if want.dtype != np.int32 else want, f"{launch} in {dtype}")
