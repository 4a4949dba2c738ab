"""Every primitive on every backend equals its numpy reference, with guard words around all operands.

The launches are those that the case table makes, forward and backward, collected on a CPU device that keeps copies
of operands; a few primitives that only optimizers and capture launch are added.  So an op's row tests its kernels.
Those that know 16-bit elements are tested in autograd/test_mixed_precision.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.guarded import guarded
from table.cases import CASES
from table.rows import EPS, TINY, Array, bound, loss_of, restart_generator, tensor, weights_like

import ag
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.dtype import F32, as_dtype
from ag.engine.kernels.optimizer import STATE_WORDS
from ag.engine.primitive import PRIMITIVES, Primitive
from ag.engine.window import Window

SIZES = (1, 7, 1031)
DIFFERENCES = {"attention_grad"}  # where the result should be 0 it is as small as the rounding of its operands
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38, -3e38], np.float32)


@dataclass
class Launch:
    """A primitive with host copies of its operands, outputs left out."""

    primitive: Primitive
    operands: list[Array]
    params: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.primitive.name}{[x.shape for x in self.operands]} {self.params}"


class Collector(NumpyBackend):
    """A CPU device that remembers every distinct launch."""

    def __init__(self) -> None:
        super().__init__(99)
        self.launches: dict[str, Launch] = {}

    def launch(self, primitive: Primitive, *operands: Any, into: Any = None, **params: Any) -> Any:
        launch = Launch(primitive, [b.native.copy() for b in operands], params)
        self.launches.setdefault(str(launch), launch)
        return super().launch(primitive, *operands, into=into, **params)


@cache
def launches() -> list[Launch]:
    """All distinct launches of the case table, and those that no op makes."""
    device = Collector()
    for case in (case for case in CASES if case.row.name != "ag_to_device"):  # which launches nothing
        restart_generator(device)
        given = case.on(device, case.operands(), params=True)
        with ag.with_grad_tape():
            out = case.call(*given)
            loss = loss_of(out, tensor(weights_like(out), device))
        ag.backward(loss)
    rng = np.random.default_rng(0)
    extra = []
    gradients_are = [np.float32(pair)[:, None] for pair in ((1, 0), (0.3, 0), (0.3, 2), (1, 7))]  # (factor, bad)
    for n in SIZES:
        x, y, g = rng.standard_normal((3, n)).astype(np.float32)
        adam_state, sgd_state = np.zeros((2, STATE_WORDS), np.float32)
        adam_state[:4] = 0.125, 0.25, 0.0625, 3  # learning rate, 1 - beta1^t, 1 - beta2^t, t
        sgd_state[:2] = 0.125, 3
        adam = {"rate1": 0.125, "rate2": 0.03125, "eps": 1e-8, "weight_decay": 0.125, "last": True}
        sgd = {"mu": 0.875, "weight_decay": 0.25, "nesterov": True, "last": True}
        extra += [Launch(PRIMITIVES["copy"], [x], {}),
                  *[Launch(PRIMITIVES["adam_update"], [x, y, g * g, adam_state, g, factor, bad], adam)
                    for factor, bad in gradients_are],
                  *[Launch(PRIMITIVES["sgd_update"], [x, y, sgd_state, g, factor, bad], sgd)
                    for factor, bad in gradients_are]]
        chain = (("mul", 0, 1, 0.0), ("scale", 4, 4, 2.0), ("add", 5, 2, 0.0), ("tanh", 6, 6, 0.0), ("sub", 7, 3, 0.0))
        extra += [Launch(PRIMITIVES["fused"], [x, y, g, x[:1]], {"chain": chain}),
                  Launch(PRIMITIVES["fused_pair"], [x, y, g, x[:1]], {"chain": chain, "kept": 5})]
        extra += [Launch(PRIMITIVES["nonfinite"], [values, factor], {"chunk": chunk})
                  for values in (x, np.resize(SPECIAL, n)) for factor, _ in gradients_are for chunk in (1, 5, 4096)]
        extra += [Launch(PRIMITIVES["square_sums"], [x], {"chunk": chunk}) for chunk in (1, 5, 4096)]
    extra += [Launch(PRIMITIVES["clip_factor"], [np.array(square, np.float32)], {"max_norm": 2.0})
              for square in (0.0, 3.0, 4.0, 400.0, np.inf, np.nan)]
    means, variances = rng.standard_normal((2, 3, 4)).astype(np.float32)
    extra += [Launch(PRIMITIVES["joined_statistics"], [means, variances**2], {"length": 1000, "chunk": 256})]
    for bad in np.float32([0, 1, 300]):
        for scaling in ([4, 0.25, 0, 0], [4, 0.25, 2, 5], [16, 0.0625, 2, 0], [0.0625, 16, 1, 7]):
            extra += [Launch(PRIMITIVES["scale_update"], [np.float32(scaling), np.array(bad)],
                             {"interval": 3, "largest": 16.0})]
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3), (3, 6), (5, 1)))
    linear = {"ta": False, "tb": False, "chain": (("add", 0, 1, 0.0), ("tanh", 4, 4, 0.0), ("mul", 5, 2, 0.0))}
    extra += [Launch(PRIMITIVES["matmul_chain"], [a, b, c, b[:1], c[:1]], linear),
              Launch(PRIMITIVES["matmul_chain_pair"], [a, b, c, b[:1], c[:1]], {**linear, "kept": 4}),
              Launch(PRIMITIVES["matmul_sums"], [a, b], {"ta": False, "tb": False}),
              Launch(PRIMITIVES["matmul_sums"], [a, b.T.copy()], {"ta": False, "tb": True})]
    image, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 3, 4), (2, 2, 1, 1)))
    others = [image.reshape(2, -1), image[:, 0, 0, :1], image[:1, 0, 0, :1]]
    pixels = {"window": Window((1, 1)), "groups": 1}
    steps = (("mul", 0, 1, 0.0), ("add", 4, 2, 0.0), ("sub", 5, 3, 0.0))
    for kind in ("", "_direct"):
        extra += [Launch(PRIMITIVES[f"conv2d{kind}_chain"], [image, weights, *others], {**pixels, "chain": steps}),
                  Launch(PRIMITIVES[f"conv2d_input_grad{kind}_chain"], [weights, image, *others],
                         {**pixels, "image": (3, 3), "chain": steps})]
    tiled = [Launch(PRIMITIVES[x.primitive.name.removesuffix("_direct")], x.operands, x.params)  # as graphics cards do
             for x in device.launches.values() if x.primitive.name.endswith("_direct")]
    return list(device.launches.values()) + extra + tiled


@pytest.fixture
def backend(device: str) -> Iterator[Backend]:
    """A guarded backend whose guard words a test leaves alone."""
    found = guarded(device)
    yield found
    try:
        found.check_guards()
    except ag.ArenaError:
        guarded.cache_clear()  # one kernel's mistake must not fail the tests of all others
        raise


def run(backend: Backend, launch: Launch) -> list[Array]:
    """All operands after the launch, outputs first."""
    buffers = []
    for x in launch.operands:
        buffers.append(backend.alloc(x.shape, as_dtype(x.dtype, "tests")))
        backend.upload(x, buffers[-1])
    with np.errstate(all="ignore"):  # numpy warns of what IEEE 754 defines
        made = backend.launch(launch.primitive, *buffers, **launch.params)
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
        outputs = [np.zeros(s, inputs[0].dtype) for s in (shapes if primitive.outputs > 1 else (shapes,))]
    with np.errstate(all="ignore"):
        primitive.reference(*outputs, *inputs, **launch.params)
    return outputs + inputs


def check(backend: Backend, launch: Launch) -> None:
    """Outputs and updated operands are the reference's, all others are as they were."""
    primitive = launch.primitive
    for i, (got, want, exact) in enumerate(
        zip(run(backend, launch), reference(launch), reference(launch, np.float64), strict=True)
    ):
        name = f"{launch}: {primitive.operands[i]}"
        if (i >= primitive.outputs and i not in primitive.updates) or want.dtype != np.float32:
            np.testing.assert_array_equal(got, want, name)
        elif exact.size:
            terms = max(1, sum(x.size for x in launch.operands) // exact.size)
            size = np.abs(exact).max()
            if primitive.name in DIFFERENCES:
                size = max(size, *(np.abs(x).max(initial=0.0) for x in launch.operands))
            allowed = bound(32, 0, np.abs(exact), "f32") + bound(4, terms, size, "f32")
            assert np.all(np.abs(got - exact) <= allowed), f"{name}: {np.abs(got - exact).max()} off"


@pytest.mark.parametrize("name", sorted(n for n, p in PRIMITIVES.items() if "bfloat" not in p.params))
def test_equals_the_reference(backend: Backend, name: str) -> None:
    found = [launch for launch in launches() if launch.primitive.name == name]
    assert found, f"no case launches {name}: add a row to cases.py"
    for launch in found:
        check(backend, launch)


@pytest.mark.parametrize("name", sorted(n for n, p in PRIMITIVES.items() if p.in_place and "bfloat" not in p.params))
def test_output_may_be_an_input(backend: Backend, name: str) -> None:
    """A program lets results take the memory of operands that end with the launch."""
    primitive = PRIMITIVES[name]
    for launch in (launch for launch in launches() if launch.primitive.name == name):
        for output, i in primitive.in_place:
            buffers = [backend.alloc(y.shape, as_dtype(y.dtype, "tests")) for y in launch.operands]
            for y, b in zip(launch.operands, buffers, strict=True):
                backend.upload(y, b)
            operand = buffers[i - primitive.outputs]
            with np.errstate(all="ignore"):
                made = backend.launch(primitive, *buffers, **launch.params)
                fresh = made if primitive.outputs > 1 else (made,)
                if (fresh[output].shape, fresh[output].dtype) != (operand.shape, operand.dtype):
                    continue
                into = [operand if k == output else backend.alloc(b.shape, b.dtype) for k, b in enumerate(fresh)]
                backend.launch(primitive, *buffers, into=tuple(into) if len(into) > 1 else into[0], **launch.params)
            for got, want in zip(into, fresh, strict=True):
                np.testing.assert_array_equal(backend.download(got), backend.download(want), str(launch))


PROPAGATION = [
    ("relu", {}), ("clamp", {"lo": -0.5, "hi": 0.5}), ("copy", {}), ("scale", {"factor": 2.0}), ("exp", {}),
    ("log", {}), ("sqrt", {}), ("abs", {}), ("sigmoid", {}), ("tanh", {}), ("silu", {}), ("gelu", {}),
    ("gelu_tanh", {}), ("leaky_relu", {"slope": 0.5}), ("pow", {"p": 2.0}), ("pow", {"p": -1.0}), ("pow", {"p": 0.5}),
]


@pytest.mark.parametrize(("name", "params"), PROPAGATION)
def test_special_numbers(backend: Backend, name: str, params: dict[str, float]) -> None:
    launch = Launch(PRIMITIVES[name], [SPECIAL], params)
    np.testing.assert_allclose(run(backend, launch)[0], reference(launch)[0], rtol=32 * EPS["f32"], atol=TINY)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "equal"])
def test_special_pairs(backend: Backend, name: str) -> None:
    launch = Launch(PRIMITIVES[name], [SPECIAL.reshape(-1, 1), SPECIAL], {})
    np.testing.assert_allclose(run(backend, launch)[0], reference(launch)[0], rtol=32 * EPS["f32"], atol=TINY)


@pytest.mark.parametrize("name", ["relu_grad", "clamp_grad", "abs_grad"])
def test_special_gradients(backend: Backend, name: str) -> None:
    y, g = (x.reshape(-1).copy() for x in np.meshgrid(SPECIAL, SPECIAL))
    launch = Launch(PRIMITIVES[name], [y, g], {"lo": -0.5, "hi": 0.5} if name == "clamp_grad" else {})
    np.testing.assert_array_equal(run(backend, launch)[0], reference(launch)[0])


COLUMNS = np.array([[1e30, 0, np.nan, np.inf, -np.inf], [-1e30, 0, 1, 2, -np.inf], [0, 0, 3, 4, -np.inf]], np.float32)


@pytest.mark.parametrize(("name", "others", "params"), [
    ("softmax", [], {"axis": 0}), ("max", [], {"axis": 0, "chunk": 3}), ("log_softmax", [], {"axis": 0}),
    ("softmax_cross_entropy", [np.full(COLUMNS.shape, 1 / 3, np.float32)], {"factor": 0.5}),
    ("softmax_cross_entropy_ids", [np.array([0, 1, 2, 0, 1], np.int32)], {"factor": 0.5}),
])
def test_largest_number_is_subtracted(
    backend: Backend, name: str, others: list[Array], params: dict[str, Any]
) -> None:
    launch = Launch(PRIMITIVES[name], [COLUMNS, *others], params)
    for g, w in zip(run(backend, launch), reference(launch), strict=True):
        np.testing.assert_allclose(g, w, rtol=32 * EPS["f32"], atol=TINY)


def test_an_overwritten_guard_word_is_found(backend: Backend) -> None:
    device = NumpyBackend(guard=64) if isinstance(backend, NumpyBackend) else backend
    buffer = device.alloc((3,), F32)
    end = buffer.address + buffer.nbytes
    before = device._read_bytes(end, 4)
    device._write_bytes(end, b"oops")
    with pytest.raises(ag.ArenaError, match=r"memory after <Buffer \(3,\) f32 .* was overwritten"):
        device.check_guards()
    device._write_bytes(end, before)
