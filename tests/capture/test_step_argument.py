"""The placeholder of an array argument passes for it, records what numpy makes of it, and refuses its values."""

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
    "bincount": lambda x: np.bincount(x[0]), "allclose": lambda x: np.allclose(x, 0), "unique": np.unique,
    "flat": lambda x: x.flat[0], "data": lambda x: x.data, "base": lambda x: x.base, "ctypes": lambda x: x.ctypes.data,
    "view": lambda x: x.view(np.ndarray)[0, 0], "interface": lambda x: x.__array_interface__["data"],
    "item": lambda x: x.item(0), "tolist": lambda x: x.tolist(), "tobytes": lambda x: x.tobytes(), "bytes": bytes,
    "memoryview": lambda x: memoryview(x)[0, 0], "frombuffer": lambda x: np.frombuffer(x, np.float32),
    "from_dlpack": lambda x: np.from_dlpack(x)[0, 0], "nditer": lambda x: [*np.nditer(x)],
    "float": lambda x: float(x[0, 0]), "int": lambda x: int(x.max()), "round": lambda x: round(x[0, 0]),
    "format": lambda x: f"{x[0, 0]:.3f}", "text": lambda x: str(x[0, 0]), "key": lambda x: {x[0, 0]: 1},
    "pack": lambda x: struct.pack("f", x[0, 0]), "in": lambda x: 0.5 in x, "max": lambda x: max(x[0]),
    "sorted": lambda x: sorted(x[0]), "bool": lambda x: 1 if x[0, 0] > 0 else 2, "if any": lambda x: not np.any(x),
    "pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy, "one index": lambda x: [1, 2][x.argmax()],
    "types of two": lambda x: np.result_type(x, x), "like another": lambda x: np.full_like(x, x),
    "by name": lambda x: np.zeros_like(a=x), "list of arguments": lambda x: ag.ag_tensor([x[0], x[1]]),
    "accuracy": lambda x: ag.training.accuracy(x, x), "where": lambda x: np.where(x > 0),
    "divmod": lambda x: divmod(x, 2), "into": lambda x: np.add(x, 1.0, out=np.zeros((3, 4), np.float32)),
    "apply": lambda x: np.vectorize(float)(x), "of a part": lambda x: (x[0] * 2.0).tolist(),
    "reduced into": lambda x: x.sum(0, out=np.zeros(4, np.float32)),
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


T = ag.ag_tensor
ONES = np.ones((3, 4), np.float32)
USES: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda x: W @ x, "tensor": T, "plus": lambda x: T(x) + x, "reflected": lambda x: x - T(x) * 2.0,
    "ufunc": lambda x: np.add(x, T(x)), "concatenate": lambda x: np.concatenate([T(x), x]),
    "rows": lambda x: sum(W[:1, :1] * row * k for k, row in enumerate(x)), "sum": lambda x: T(sum(sum(x))),
    "reshape": lambda x: T(x.reshape(4, 3)), "ravel": lambda x: T(np.ravel(x)),
    "squeeze": lambda x: T(np.squeeze(np.expand_dims(x, 0))),
    "shape": lambda x: T(x) * float(x.shape[0] + len(x) + x.ndim + x.size + x.nbytes + np.size(x)),
    "passes for one": lambda x: T(x) * float(isinstance(x, np.ndarray)),
    "a number is none": lambda x: T(x) * float(isinstance(x.max(), np.ndarray) or isinstance(x[0, 0], np.float32)),
    "like it": lambda x: T(x) * float(np.ones_like(x).sum()), "dtype": lambda x: T(x) * float(x.dtype == np.float32),
    "no such name": lambda x: T(x) * float(not hasattr(x, "cuda")),
    # made again with numpy by every replay
    "scaled": lambda x: W @ (x / 255), "normalized": lambda x: W @ ((x - x.mean()) / (x.std() + 1e-5)),
    "a slice": lambda x: T(x[:, ::2]), "a row": lambda x: T(x[1]), "a part twice": lambda x: T(x[:1]) + T(x[1:2]),
    "a mask": lambda x: T(x * (x > 0)), "where": lambda x: T(np.where(x > 0, x, 0)), "negative": lambda x: T(-x),
    "by another array": lambda x: T(x + ONES), "an array by it": lambda x: T(ONES - x),
    "a list": lambda x: T(x + [1.0] * 4), "a number by it": lambda x: T(1.0 - x), "power": lambda x: T(x**2),
    "product": lambda x: T(x.T @ x), "joined": lambda x: W @ np.concatenate([x, x[:, :1]], 1),
    "stacked": lambda x: T(np.stack([x, x * 2.0])), "summed": lambda x: T(x.astype(np.float64).sum(0)),
    "largest": lambda x: T(x) * x.max(), "norm": lambda x: T(x / np.linalg.norm(x, axis=0)),
    "sorted": lambda x: T(x[np.argsort(x[:, 0])]), "clipped": lambda x: T(np.clip(x, -0.5, 0.5)),
    "rounded": lambda x: T(x.round(1)), "taken": lambda x: T(np.take(x, [0, 2], 0)),
    "padded": lambda x: T(np.pad(x, 1)),
    "einsum": lambda x: T(np.einsum("ij,kj->ik", x, x)), "copied": lambda x: T(x.copy()), "real": lambda x: T(x.real),
    "dot": lambda x: T(np.dot(x[0], x[1])), "of many": lambda x: T(((x * 2 + 1) / 3).T[::-1]),
    "a new axis": lambda x: T(x[None, ..., 0]), "exp": lambda x: T(np.exp(x)),
    "log1p": lambda x: T(np.log1p(np.abs(x))),
    "labels": lambda x: ag.ag_softmax_cross_entropy_loss(W @ x, np.argmax(x[:2], 0)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_reads_no_value_in_python_is_replayed(use: Callable[[Any], ag.Tensor]) -> None:
    step = ag.ag_capture(lambda x: use(x) * 2.0)
    for x in X:
        assert step(x).numpy().tobytes() == (use(x) * 2.0).numpy().tobytes()
    assert step._in_vain == 0 and len(step._programs) == 1


def test_what_numpy_makes_of_several_arguments(device: str) -> None:
    with ag.ag_device(device):
        step = ag.ag_capture(lambda x, y, d: ag.ag_tensor(np.concatenate([x, y * d["k"]])) + d["z"][:1])
        for k in range(1, 6):
            args = X[k], X[k - 1], {"k": 2.0, "z": X[0] * k}
            expected = np.concatenate([args[0], args[1] * 2.0]) + args[2]["z"][:1]
            assert step(*args).numpy().tobytes() == expected.astype(np.float32).tobytes()
        assert step._in_vain == 0


def test_arrays_of_another_shape_by_their_values() -> None:
    """Such a call runs uncaptured, and is right."""
    step = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_tensor(x[x > 0])))
    for k, x in enumerate((X[0], X[0], X[0], X[1], X[0], np.abs(X[2]), X[0])):
        assert step(x + 0.0).item() == ag.ag_sum(ag.ag_tensor(x[x > 0])).item(), k


def test_an_array_of_the_step_that_changes_is_noticed() -> None:
    own = np.ones(4, np.float32)
    step = ag.ag_capture(lambda x: ag.ag_tensor(x * own) * 1.0)
    for k in range(6):
        own[0] = 1.0 if k < 4 else 5.0
        assert step(X[k]).numpy().tobytes() == (X[k] * own).tobytes()


def test_labels_that_numpy_makes_are_checked() -> None:
    step = ag.ag_capture(lambda x, y: ag.ag_softmax_cross_entropy_loss(W @ x, y - 1))
    for _ in range(4):
        step(X[0], np.array([1, 2, 1, 2]))
    with pytest.raises(IndexError):
        step(X[0], np.array([1, 2, 1, 4]))
    step(X[0], np.array([1, 2, 1, 2]))


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
