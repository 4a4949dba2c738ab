"""Conversions between float32 and 16 bits, on every device, for every pattern of bits that matters."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.halves import HALVES, bits, on
from table.rows import Array

from ag.engine.backend import Backend
from ag.engine.dtype import BF16, F32, DType
from ag.engine.kernels.convert import loaded, narrow, reconcile, rounded, stored, widen


def every_float() -> Array:
    """Bits of float32: all upper halves with some lower ones, among them all special values and halves of ties."""
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).reshape(-1).view(np.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversions_are_those_of_the_reference(backend: Backend, dtype: DType) -> None:
    x, code = every_float(), dtype is BF16
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy_name)
    with np.errstate(all="ignore"):
        wide = on(backend, x, F32)
        narrowed = backend.alloc(x.shape, dtype)
        backend.launch(narrow, wide, into=narrowed, bfloat=code)
        np.testing.assert_array_equal(bits(stored(backend.download(narrowed), dtype)), bits(stored(x, dtype)))
        kept = backend.download(backend.launch(rounded, wide, bfloat=float(code)))
        normal = np.isnan(x) | (np.abs(x) >= np.float32(2.0**-126)) | (x == 0)  # devices may flush others
        exact = loaded(stored(x, dtype), dtype).astype(np.float32)
        np.testing.assert_array_equal(bits(kept)[normal], bits(exact)[normal])
        out = backend.alloc(halves.shape, F32)
        backend.launch(widen, on(backend, halves, dtype), into=out, bfloat=code)
        np.testing.assert_array_equal(bits(backend.download(out)), bits(loaded(halves, dtype).astype(np.float32)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_master_follows_what_was_changed(backend: Backend, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    master = rng.standard_normal(1031).astype(np.float32)
    held = stored(master, dtype)
    changed = rng.random(1031) < 0.1
    held[changed] = stored(rng.standard_normal(changed.sum()).astype(np.float32), dtype)
    into = on(backend, master, F32)
    backend.launch(reconcile, into, on(backend, held, dtype), bfloat=dtype is BF16)
    same = held == stored(master, dtype)
    np.testing.assert_array_equal(backend.download(into), np.where(same, master, loaded(held, dtype)))
