"""Products, convolutions, attention and pooling in C, beyond what every kernel is compared with in test_native.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.backends.cpu.random_products import attention
from engine.backends.cpu.random_sizes import Random
from helpers.guarded import Launch, guarded, reference, run
from table.rows import Array

from ag.engine.backends.cpu.library import library
from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window

pytestmark = pytest.mark.skipif(library() is None, reason="no kernels in C: not built, or AG_CPU is numpy")


def made(name: str, *operands: Array, **params: Any) -> Array:
    return run(guarded("cpu"), Launch(PRIMITIVES[name], list(operands), params))[0]


def normal(*sizes: int) -> Array:
    return np.random.default_rng(sum(sizes)).standard_normal(sizes).astype(np.float32)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_a_part_of_a_product_has_its_bits(ta: bool, tb: bool) -> None:
    a, b = normal(150, 1100), normal(1100, 100)

    def product(rows: int, cols: int) -> Array:
        x, y = a[:rows], b[:, :cols]
        return made("matmul", (x.T if ta else x).copy(), (y.T if tb else y).copy(), ta=ta, tb=tb)

    whole = product(150, 100)
    for rows, cols in ((2, 2), (3, 17), (8, 32), (13, 99), (149, 33), (150, 5)):
        np.testing.assert_array_equal(product(rows, cols), whole[:rows, :cols])


def test_a_batch_of_products_has_their_bits() -> None:
    a, b = normal(3, 40, 50), normal(3, 50, 60)
    together = made("batched_matmul", a, b, ta=False, tb=False, chunk=50)[0]
    for number in range(3):
        np.testing.assert_array_equal(together[number], made("matmul", a[number], b[number], ta=False, tb=False))


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad"])
def test_a_sample_of_a_convolution_has_its_bits(name: str) -> None:
    w, x = normal(10, 7, 3, 3), normal(7 if name == "conv2d" else 10, 9, 9, 37)
    params: dict[str, Any] = {"window": Window((3, 3), (1, 1), (1, 1)), "groups": 1}

    def convolved(x: Array) -> Array:
        return made(name, x, w, **params) if name == "conv2d" else made(name, w, x, image=(9, 9), **params)

    whole = convolved(x)
    for few in (slice(1), slice(16), slice(5, 37)):
        np.testing.assert_array_equal(convolved(x[..., few].copy()), whole[..., few])


def test_keys_in_the_future_do_not_reach_a_query() -> None:
    q, k, v = normal(6, 50, 3), normal(6, 50, 3), normal(8, 50, 3)
    params = {"heads": 2, "factor": 0.5, "causal": True, "rate": 0.0}
    want = made("attention", q, k, v, q, **params)
    k[:, 20:] = np.nan
    got = made("attention", q, k, v, q, **params)
    np.testing.assert_array_equal(got[:, :20], want[:, :20])
    assert np.isnan(got[:, 20:]).all()


@pytest.mark.parametrize("name", ["attention", "attention_grad"])
def test_special_values_in_attention(name: str) -> None:
    """NaN where the reference has it; where keys are hidden, that depends on how many are done together."""
    rng = Random(1, empty=0.0)
    for _ in range(8):
        launch = attention(name, rng)
        launch.params["causal"] = False
        for x in launch.operands[: 3 if name == "attention" else 4]:
            x[rng.random(x.shape) < 3 / x.size] = rng.choice(np.float32([np.nan, np.inf, -np.inf]))
        if name == "attention_grad":  # of one key, infinity would multiply 0 or a rounding error
            launch.operands[5] += 1
        for output in range(launch.primitive.outputs):
            got, want = run(guarded("cpu"), launch)[output], reference(launch)[output]
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(launch))


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pooling_is_exact(batch: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    special = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0, 2.0])
    for window in (Window((2, 3), (stride, stride), (3, 4)), Window((3, 2), (stride, 1), (1, 0), (2, 1))):
        x = rng.choice(special, (2, 7, 8, batch))
        backend, largest = guarded("cpu"), Launch(PRIMITIVES["max_pool2d"], [x], {"window": window})
        out, tap = run(backend, largest)[:2]
        g = rng.standard_normal(out.shape).astype(np.float32)
        for launch in (largest, Launch(PRIMITIVES["avg_pool2d"], [x], {"window": window}),
                       Launch(PRIMITIVES["max_pool2d_grad"], [tap, g], {"window": window, "image": (7, 8)}),
                       Launch(PRIMITIVES["avg_pool2d_grad"], [g], {"window": window, "image": (7, 8)})):
            for got, want in zip(run(backend, launch), reference(launch), strict=True):
                np.testing.assert_array_equal(got, want, str(launch))


WITHOUT_MEMORY = """
import ctypes, resource
from pathlib import Path
import numpy as np
import ag
from helpers.guarded import Launch, reference
from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.dtype import as_dtype
from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window

rng = np.random.default_rng(0)
normal = lambda *sizes: rng.standard_normal(sizes).astype(np.float32)
window = {"window": Window((1, 3), (1, 2), (0, 1)), "groups": 1}
attended = {"heads": 1, "factor": 1.0, "causal": True, "rate": 0.25}
q, k, v, key = normal(1, 3, 1), normal(1, 9000, 1), normal(2, 9000, 1), np.uint32([1, 2, 3, 4])
given = [("matmul", [normal(9, 600), normal(600, 9)], {"ta": False, "tb": False}),
         ("matmul", [normal(600, 9), normal(9, 600)], {"ta": True, "tb": True}),
         ("batched_matmul", [normal(2, 9, 60), normal(2, 60, 9)], {"ta": False, "tb": False, "chunk": 25}),
         ("conv2d", [normal(2, 3, 9000, 3), normal(3, 2, 1, 3)], window),
         ("conv2d_input_grad", [normal(3, 2, 1, 3), normal(3, 3, 4500, 3)], {**window, "image": (3, 9000)}),
         ("conv2d_weight_grad", [normal(2, 3, 9000, 3), normal(3, 3, 4500, 3)], {**window, "chunk": 20000}),
         ("attention", [q, k, v, key], attended),
         ("attention_grad", [q, k, v, normal(2, 3, 1), normal(1, 3, 1) + 9, normal(1, 3, 1), key], attended)]
none, ids = np.zeros(0, np.float32), np.zeros(0, np.int32)
terms = [normal(2, 1, 9000, 1), np.float32(normal(1, 3, 9000, 1) > 0), ids, ids, np.float32([0.01, 0.02])]
shared = {"heads": 2, "kv_heads": 1, "samples": 1, "factor": 1.0, "softcap": 2.0, "before": 100, "after": 8000,
          "rate": 0.25}
grown = [normal(2, 3, 1), k, v, normal(4, 3, 1), normal(2, 3, 1) + 9, normal(2, 3, 1), key, *terms]
given += [("masked_attention", [normal(2, 3, 1), k, v, key, *terms], shared),
          ("masked_attention_grad", grown, shared), ("attention_bias_grad", grown, shared)]
backend, kernels = NativeBackend(library(), guard=64), library()
ready = []
for name, operands, params in given:
    launch = Launch(PRIMITIVES[name], operands, params)
    made = launch.primitive.shape(*[x.shape for x in operands], **params)
    outputs = [backend.alloc(s, as_dtype("f32", "")) for s in (made if launch.primitive.outputs > 1 else [made])]
    inputs = [backend.alloc(x.shape, as_dtype(x.dtype, "")) for x in operands]
    for x, b in zip(operands, inputs): backend.upload(x, b)
    ready.append((launch, outputs, inputs, backend.words(launch.primitive, (*outputs, *inputs), params)[0]))

def mapped(): return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

c, taken = ctypes.CDLL(None), []
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.malloc_trim(0)
before = mapped()
resource.setrlimit(resource.RLIMIT_AS, (before, resource.RLIM_INFINITY))
for size in (1 << 20, 1 << 16, 1 << 14):  # what was freed and not given back
    while there := c.malloc(size): taken.append(there)
for *_, words in ready: kernels._run(words, 1, 1, 1)
for there in taken: c.free(there)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert mapped() == before, "there was memory"
slowly = [[b.native.copy() for b in outputs] for _, outputs, *_ in ready]
for (launch, outputs, _, words), found in zip(ready, slowly):
    kernels._run(words, 1, 1, 1)
    want = reference(launch, np.float64)
    for b, x, exact in zip(outputs, found, want):
        size = 1e-4 * np.abs(exact).max()
        np.testing.assert_allclose(b.native, exact, 1e-5, size, err_msg=str(launch))
        np.testing.assert_allclose(x, exact, 1e-5, size, err_msg=str(launch))
assert mapped() > before
backend.check_guards()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_without_memory_for_packing() -> None:
    tests = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], cwd=tests, capture_output=True, text=True,
                           check=False, timeout=120, env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"})
    assert found.returncode == 0, found.stderr
