"""The stand-in of an array argument passes for the array and tells its shape, and refuses its values."""

from __future__ import annotations

import copy
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

X = [np.random.default_rng(k).normal(size=(3, 4)).astype(np.float32) for k in range(6)]
W = ag.ag_param(np.ones((2, 3), np.float32))

# What each computes of an array of shape (3, 4), reading its values.
READS: dict[str, Callable[[Any], object]] = {
    "asarray": lambda x: np.asarray(x)[0, 0], "array": np.array, "ascontiguousarray": np.ascontiguousarray,
    "norm": np.linalg.norm, "bincount": lambda x: np.bincount(x[0]), "dot": lambda x: np.dot(x[0], x[0]),
    "einsum": lambda x: np.einsum("ij->", x), "take": lambda x: np.take(x, 0), "concatenate": lambda x: np.concatenate(
        [x, x]), "where": lambda x: np.where(x > 0, x, 0), "any": np.any, "allclose": lambda x: np.allclose(x, 0),
    "unique": np.unique, "argsort": lambda x: x[np.argsort(x[:, 0])], "max": lambda x: x.max(), "mean": np.mean,
    "flat": lambda x: x.flat[0], "data": lambda x: x.data, "base": lambda x: x.base, "ctypes": lambda x: x.ctypes.data,
    "view": lambda x: x.view(np.ndarray)[0, 0], "interface": lambda x: x.__array_interface__["data"],
    "real": lambda x: x.real[0, 0], "T": lambda x: x.T[0, 0], "astype": lambda x: x.astype(float)[0, 0],
    "item": lambda x: x.item(0), "tolist": lambda x: x.tolist(), "tobytes": lambda x: x.tobytes(), "bytes": bytes,
    "memoryview": lambda x: memoryview(x)[0, 0], "frombuffer": lambda x: np.frombuffer(x, np.float32),
    "from_dlpack": lambda x: np.from_dlpack(x)[0, 0], "nditer": lambda x: [*np.nditer(x)],
    "float": lambda x: float(x[0, 0]), "round": lambda x: round(x[0, 0]), "format": lambda x: f"{x[0, 0]:.3f}",
    "pack": lambda x: struct.pack("f", x[0, 0]), "iter": lambda x: [*x], "in": lambda x: 0.5 in x, "sum": sum,
    "sorted": lambda x: sorted(x[0]), "compare": lambda x: (x > 0).sum(), "mask": lambda x: x[x > 0],
    "neg": lambda x: -x, "plus": lambda x: x + 1.0, "reflected": lambda x: 1.0 - x, "power": lambda x: x**2,
    "matmul": lambda x: x.T @ x, "pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy,
    "types of two": lambda x: np.result_type(x, x), "like another": lambda x: np.full_like(x, x),
    "by name": lambda x: np.zeros_like(a=x), "list of arguments": lambda x: ag.ag_tensor([x[0], x[1]]),
    "accuracy": lambda x: ag.training.accuracy(x, x),
}
WRITES: dict[str, Callable[[Any], object]] = {
    "item": lambda x: x.__setitem__((0, 0), 5.0), "times": lambda x: x.__imul__(2.0), "sort": lambda x: x.sort(),
    "fill": lambda x: x.fill(0), "shape": lambda x: setattr(x, "shape", (4, 3)), "flags": lambda x: x.setflags(True),
    "out": lambda x: np.add(x, 1.0, out=x), "put": lambda x: np.put(x, 0, 1.0), "copyto": lambda x: np.copyto(x, 0.0),
}


@pytest.mark.parametrize("look", [*READS.values(), *WRITES.values()], ids=[*READS, *(f"set {name}" for name in WRITES)])
def test_values_are_refused(look: Callable[[Any], object]) -> None:
    """C code that takes arrays only gets none, and says so."""
    given = X[0].copy()

    def step(x: Any) -> ag.Tensor:
        look(x)
        return ag.ag_sum(W @ x)

    with pytest.raises((ag.CaptureError, TypeError)) as raised:
        ag.ag_capture(step)(given)
    assert raised.type is ag.CaptureError or "bytes-like" in str(raised.value)
    assert given.tobytes() == X[0].tobytes()


USES: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda x: W @ x, "tensor": ag.ag_tensor, "plus": lambda x: ag.ag_tensor(x) + x,
    "reflected": lambda x: x - ag.ag_tensor(x) * 2.0, "ufunc": lambda x: np.add(x, ag.ag_tensor(x)),
    "concatenate": lambda x: np.concatenate([ag.ag_tensor(x), x]), "reshape": lambda x: ag.ag_tensor(x.reshape(4, 3)),
    "ravel": lambda x: ag.ag_tensor(np.ravel(x)), "squeeze": lambda x: ag.ag_tensor(np.squeeze(np.expand_dims(x, 0))),
    "shape": lambda x: ag.ag_tensor(x) * float(x.shape[0] + len(x) + x.ndim + x.size + x.nbytes + np.size(x)),
    "passes for one": lambda x: ag.ag_tensor(x) * float(isinstance(x, np.ndarray)),
    "like it": lambda x: ag.ag_tensor(x) * float(np.ones_like(x).sum()),
    "dtype": lambda x: ag.ag_tensor(x) * float(x.dtype == np.float32), "no such name": lambda x: ag.ag_tensor(
        x) * float(not hasattr(x, "cuda")),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_looks_at_no_value_is_replayed(use: Callable[[Any], ag.Tensor]) -> None:
    step = ag.ag_capture(lambda x: use(x) * 2.0)
    for x in X:
        assert step(x).numpy().tobytes() == (use(x) * 2.0).numpy().tobytes()
    assert step.program is not None


def test_after_an_error_it_is_an_array() -> None:
    """An argument that the step stored before its own error can be read."""
    kept: list[Any] = []

    def step(x: Any) -> ag.Tensor:
        kept.append(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ag.ag_capture(step)(X[0])
    np.testing.assert_array_equal(np.asarray(kept[0]), X[0])
    assert kept[0].max() == X[0].max() and (kept[0] * 2.0 == X[0] * 2.0).all() and len(kept[0].tolist()) == 3


def test_a_view_that_is_kept() -> None:
    kept: list[Any] = []

    def step(x: Any) -> ag.Tensor:
        kept.append(x.reshape(-1))
        return ag.ag_sum(W @ x)

    with expect_error("a captured step keeps an array", ag.CaptureError, "keeps its argument", "outside the step"):
        ag.ag_capture(step)(X[0])
