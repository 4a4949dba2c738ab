"""Conversions between float32 and 16 bits, on every device, for every pattern of bits that matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.backends.cpu.random_launches import adam, sgd
from engine.backends.cpu.random_sizes import Random
from helpers.halves import HALVES, bits, on
from table.rows import Array

from ag.engine.backend import Backend
from ag.engine.dtype import BF16, F32, DType, as_dtype
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


@pytest.mark.parametrize("rule", [adam, sgd])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_an_update_of_16_bits_is_that_of_their_master(backend: Backend, dtype: DType, rule: Any) -> None:
    """One launch follows what was changed, updates the master and rounds it."""
    for seed in range(20):
        rng = Random(seed)
        launch = rule(rng)
        *operands, p = launch.operands
        held = stored(p, dtype)
        changed = rng.random(p.shape) < 0.1
        held[changed] = stored(rng.standard_normal(changed.sum()).astype(np.float32), dtype)
        found, want = ([on(backend, x, kind if kind in backend.dtypes else F32) for x in operands
                        for kind in [as_dtype(x.dtype, "tests")]] for _ in range(2))
        found.append(on(backend, held, dtype))
        is_bad = operands[-1][0] != 0
        backend.launch(launch.primitive, *found, **launch.params)
        backend.check_guards()
        if not is_bad:
            backend.launch(reconcile, want[0], on(backend, held, dtype), bfloat=dtype is BF16)
        backend.launch(launch.primitive, *want, want[0], **launch.params)
        for i in launch.primitive.updates[:-1]:
            np.testing.assert_array_equal(bits(backend.download(found[i])), bits(backend.download(want[i])))
        rounds_to = held if is_bad else stored(backend.download(want[0]), dtype)
        np.testing.assert_array_equal(bits(stored(backend.download(found[-1]), dtype)), bits(rounds_to))
