"""Every kernel against its numpy reference, on every driver, at one element, odd sizes and more than a workgroup.

Tolerances are relative, in float32 eps (1.2e-7); Vulkan allows a division 2.5, exp 3 + 2 |x| and log 3 ulp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("kp", reason="kernels need kp; install it with: pip install ./third_party/kp")

from helpers.harness import reference

import ag.engine.kernels  # noqa: F401  importing declares the primitives
from ag.engine.kernels.random import philox
from ag.engine.primitive import PRIMITIVES

if TYPE_CHECKING:
    from helpers.harness import Array, Driver

pytestmark = pytest.mark.vulkan

EPS = float(np.finfo(np.float32).eps)
SIZES = (1, 7, 129, 1000)
NAN, INF = np.nan, np.inf
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5], np.float32)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> Array:
    return np.exp(normal(*shape, seed=seed))


def empty(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def check(driver: Driver, name: str, *arrays: Array, ulp: float = 0.0, atol: float = 0.0, **params: Any) -> None:
    """The kernel's operands afterwards are the reference's, within `ulp` float32 eps."""
    got = driver.run(PRIMITIVES[name], arrays, **params)
    want = reference(PRIMITIVES[name], arrays, **params)
    for operand, g, w in zip(PRIMITIVES[name].operands, got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=ulp * EPS, atol=atol, err_msg=f"{name} on {driver.name}: {operand}")


# ---------------------------------------------------------------------------------------------- elementwise

UNARY: list[tuple[str, dict[str, float], float]] = [
    ("copy", {}, 0), ("scale", {"factor": -2.5}, 0), ("exp", {}, 16), ("log", {}, 300), ("relu", {}, 0),
    ("clamp", {"lo": -0.5, "hi": 1.0}, 0), ("clamp", {"lo": 1.0, "hi": -0.5}, 0), ("clamp", {"lo": 0.0, "hi": INF}, 0),
    ("sigmoid", {}, 512), ("tanh", {}, 4),
    *(("pow", {"p": p}, 4) for p in (0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5)),
    *(("pow", {"p": p}, 300) for p in (1.5, -0.7)),
]
GRADIENTS: list[tuple[str, dict[str, float], float]] = [
    ("relu_grad", {}, 0), ("sigmoid_grad", {}, 4), ("tanh_grad", {}, 4), ("clamp_grad", {"lo": -0.5, "hi": 1.0}, 0),
    *(("pow_grad", {"p": p}, 4) for p in (0.0, 1.0, 2.0, 3.0, -1.0)), ("pow_grad", {"p": 1.5}, 4),
]


@pytest.mark.parametrize(("name", "params", "ulp"), UNARY)
@pytest.mark.parametrize("n", SIZES)
def test_unary(driver: Driver, name: str, params: dict[str, float], ulp: float, n: int) -> None:
    x = positive(n) if name == "log" else normal(n)
    check(driver, name, empty(n), x, ulp=ulp, **params)


@pytest.mark.parametrize(("name", "params", "ulp"), UNARY)
def test_unary_special_values(driver: Driver, name: str, params: dict[str, float], ulp: float) -> None:
    check(driver, name, empty(SPECIAL.size), SPECIAL, ulp=ulp, **params)


@pytest.mark.parametrize(("name", "params", "ulp"), GRADIENTS)
@pytest.mark.parametrize("n", SIZES)
def test_gradient(driver: Driver, name: str, params: dict[str, float], ulp: float, n: int) -> None:
    # tanh_grad subtracts y^2 from 1, which is also where its absolute error comes from
    check(driver, name, empty(n), normal(n), normal(n, seed=1), ulp=ulp, atol=4 * EPS, **params)


@pytest.mark.parametrize(("name", "params", "ulp"), GRADIENTS)
def test_gradient_keeps_nan(driver: Driver, name: str, params: dict[str, float], ulp: float) -> None:
    v, g = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    check(driver, name, empty(v.size), v, g, ulp=ulp, **params)


def test_tanh_and_sigmoid_over_the_whole_range(driver: Driver) -> None:
    x = np.concatenate([np.geomspace(1e-30, 100, 5000), -np.geomspace(1e-30, 100, 5000)]).astype(np.float32)
    check(driver, "tanh", empty(x.size), x, ulp=4)
    check(driver, "sigmoid", empty(x.size), x, atol=2 * EPS)


@pytest.mark.parametrize("p", [65.0, 66.0, -67.0])
def test_large_whole_powers(driver: Driver, p: float) -> None:
    x = np.concatenate([SPECIAL, np.linspace(-1.5, 1.5, 30, dtype=np.float32)])
    check(driver, "pow", empty(x.size), x, p=p, ulp=300, atol=1e-37)  # smaller ones may be flushed to 0


def test_copy_moves_any_bits(driver: Driver) -> None:
    x = np.array([1, 0x7F800001, 0x80000001, 0xFFFFFFFF], np.uint32)  # denormals and signalling NaN
    (out, _) = driver.run(PRIMITIVES["copy"], (np.zeros(4, np.uint32), x))
    np.testing.assert_array_equal(out, x)


def test_more_than_65535_workgroups(driver: Driver) -> None:
    n = 65535 * 128 + 5
    x = np.arange(n, dtype=np.float32)
    check(driver, "relu", empty(n), x)


# ---------------------------------------------------------------------------------------------- shapes

BROADCASTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()), ((1,), (1,)), ((7,), (7,)), ((1000,), ()), ((), (129,)), ((3, 5), (5,)), ((3, 1), (3, 5)),
    ((3, 1), (1, 5)), ((2, 1, 4, 1), (3, 1, 129)), ((2, 1) * 4, (1, 2) * 4),
]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize(("a", "b"), BROADCASTS)
def test_broadcast(driver: Driver, name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    out = empty(*np.broadcast_shapes(a, b))
    check(driver, name, out, normal(*a), normal(*b, seed=1), ulp=2.5 if name == "div" else 0)


def test_division_by_zero(driver: Driver) -> None:
    check(driver, "div", empty(3), np.array([1, -1, 0], np.float32), empty(1))


@pytest.mark.parametrize("axes", [(0,), (1, 0), (2, 0, 1), (0, 2, 1, 3), (7, 6, 5, 4, 3, 2, 1, 0)])
def test_permute(driver: Driver, axes: tuple[int, ...]) -> None:
    x = normal(*(11, 13, 2, 3, 2, 3, 2, 3)[: len(axes)])
    check(driver, "permute", empty(*(x.shape[a] for a in axes)), x, axes=axes)


@pytest.mark.parametrize(("x", "shape"), [((), ()), ((1,), (129,)), ((3, 1), (3, 500)), ((1, 5, 1), (7, 5, 3))])
def test_expand(driver: Driver, x: tuple[int, ...], shape: tuple[int, ...]) -> None:
    check(driver, "expand", empty(*shape), normal(*x), shape=shape, factor=0.3, ulp=1)


# ---------------------------------------------------------------------------------------------- reductions

ROWS = [((1,), 0), ((7,), 0), ((1000,), 0), ((3, 33), 1), ((129, 5), 0), ((2, 300, 3), 1)]


@pytest.mark.parametrize(("shape", "axis"), ROWS)
def test_sum(driver: Driver, shape: tuple[int, ...], axis: int) -> None:
    x = positive(*shape)
    for chunk in (shape[axis], 100):
        out = empty(*shape[:axis], -(-shape[axis] // chunk), *shape[axis + 1 :])
        check(driver, "sum", out, x, axis=axis, chunk=chunk, scale=0.5, ulp=8)


def test_sum_of_nothing_is_zero(driver: Driver) -> None:
    check(driver, "sum", empty(3, 1), empty(3, 0), axis=1, chunk=0, scale=1.0)


def test_sum_keeps_digits(driver: Driver) -> None:
    n = 1 << 17
    x = np.full(n, 0.1, np.float32)
    out, _ = driver.run(PRIMITIVES["sum"], (empty(1), x), axis=0, chunk=n, scale=1.0)
    np.testing.assert_allclose(out, n * float(x[0]), rtol=16 * EPS)


@pytest.mark.parametrize(("shape", "axis"), ROWS)
def test_softmax(driver: Driver, shape: tuple[int, ...], axis: int) -> None:
    x = 10 * normal(*shape)
    check(driver, "softmax", empty(*shape), x, axis=axis, ulp=32)
    y = reference(PRIMITIVES["softmax"], (empty(*shape), x), axis=axis)[0]
    check(driver, "softmax_grad", empty(*shape), y, normal(*shape, seed=1), axis=axis, ulp=8, atol=8 * EPS)


def test_softmax_of_extremes(driver: Driver) -> None:
    x = np.array([[1e30, 0, NAN, INF, -INF], [-1e30, 0, 1, 2, -INF], [0, 0, 3, 4, -INF]], np.float32)
    check(driver, "softmax", empty(3, 5), x, axis=0, ulp=4)
    check(driver, "log_softmax", empty(3, 5), x, axis=0, ulp=8)


@pytest.mark.parametrize(("classes", "batch"), [(1, 1), (3, 32), (7, 129), (1000, 3)])
def test_softmax_cross_entropy(driver: Driver, classes: int, batch: int) -> None:
    x, losses, dx = 5 * normal(classes, batch), empty(1, batch), empty(classes, batch)
    t = positive(classes, batch, seed=1)  # need not sum to 1
    check(driver, "softmax_cross_entropy", losses, dx, x, t, factor=0.7, ulp=64, atol=4 * EPS * t.sum())
    ids = np.random.default_rng(2).integers(0, classes, batch).astype(np.int32)
    check(driver, "softmax_cross_entropy_ids", losses, dx, x, ids, factor=0.7, ulp=64, atol=16 * EPS)
    check(driver, "log_softmax", dx, x, axis=0, ulp=64, atol=16 * EPS)


def test_a_large_vocabulary(driver: Driver) -> None:
    classes = 50257  # three passes of one invocation would be more than lavapipe's 65,535 rounds
    x, t = normal(classes, 1), positive(classes, 1, seed=1) / classes
    check(driver, "softmax_cross_entropy", empty(1, 1), empty(classes, 1), x, t, factor=1.0, ulp=64, atol=EPS)


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_a_label_that_is_no_class_gives_nan(driver: Driver, wrong: int) -> None:
    ids = np.array([0, wrong, 2], np.int32)
    arrays = (empty(1, 3), empty(3, 3), normal(3, 3), ids)
    losses, dx, *_ = driver.run(PRIMITIVES["softmax_cross_entropy_ids"], arrays, factor=1.0)
    assert np.isnan(losses[0]).tolist() == [False, True, False]
    assert np.isnan(dx).tolist() == [[False, True, False]] * 3


# ---------------------------------------------------------------------------------------------- products

PRODUCTS = [(1, 1, 1), (1, 5, 7), (5, 1, 129), (3, 4, 0), (64, 64, 16), (65, 63, 17), (130, 70, 33), (7, 200, 300)]


@pytest.mark.parametrize(("rows", "cols", "inner"), PRODUCTS)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul(driver: Driver, rows: int, cols: int, inner: int, ta: bool, tb: bool) -> None:
    a, b = normal(rows, inner), normal(inner, cols, seed=1)
    arrays = (empty(rows, cols), a.T.copy() if ta else a, b.T.copy() if tb else b)
    check(driver, "matmul", *arrays, ta=ta, tb=tb, ulp=4, atol=2 * EPS * inner)


# ---------------------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize("stream", [(0, 0), (0xFFFFFFFF, 0), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_rng_draw(driver: Driver, stream: tuple[int, int]) -> None:
    state = np.array([1, 2, *stream], np.uint32)
    check(driver, "rng_draw", np.zeros(4, np.uint32), state)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_dropout(driver: Driver, n: int, rate: float) -> None:
    key = np.array([0x12345678, 0x9ABCDEF0, 7, 0x80000001], np.uint32)
    check(driver, "dropout", empty(n), np.append(normal(n - 1), np.float32(NAN)), key, rate=rate, ulp=2 / (1 - rate))


def test_dropout_draws_the_bits_of_philox(driver: Driver) -> None:
    # With rate = u_i each element up to u_i vanishes: the mask locates every uniform number exactly.
    key = np.array([1, 2, 3, 4], np.uint32)
    uniform = (philox((1, 2), (3, 4), 64) >> np.uint32(8)) * 2.0**-24
    for rate in np.sort(uniform)[::9]:
        for shift in (0.0, 2.0**-24):
            (out, *_) = driver.run(PRIMITIVES["dropout"], (empty(64), np.ones(64, np.float32), key), rate=rate + shift)
            np.testing.assert_array_equal(out != 0, uniform >= rate + shift)


# ---------------------------------------------------------------------------------------------- optimizers

MU = 1 - 2.0**-4  # held exactly by float32, so that mu means the same to kernel and reference

FACTOR_AND_BAD = np.ones(1, np.float32), np.zeros(1, np.float32)
ADAM: Any = {"rate1": 0.1, "rate2": 0.001, "eps": 1e-8, "weight_decay": 0.01}


def adam_operands(n: int) -> tuple[Array, ...]:
    state = np.array([1e-2, 0.3, 0.004, 3, 0, 0, 0, 0], np.float32)
    return normal(n), normal(n, seed=1), positive(n, seed=2), state, normal(n, seed=3), *FACTOR_AND_BAD


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_adam_update(driver: Driver, n: int, last: bool) -> None:
    check(driver, "adam_update", *adam_operands(n), **ADAM, last=last, ulp=4, atol=EPS)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("mu", "nesterov"), [(0.0, False), (MU, False), (MU, True)])
def test_sgd_update(driver: Driver, n: int, mu: float, nesterov: bool, last: bool) -> None:
    state = np.array([0.5, 3, 0, 0, 0, 0, 0, 0], np.float32)
    arrays = (normal(n), normal(n, seed=1), state, normal(n, seed=2), *FACTOR_AND_BAD)
    check(driver, "sgd_update", *arrays, mu=mu, weight_decay=0.25, nesterov=nesterov, last=last, ulp=4, atol=EPS)


def test_the_state_moves_on_once_per_launch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.MAX_GROUPS", 97)  # folded: workgroups behind the end take tickets, too
    n, steps = 98 * 128 * 3, 10
    operands = adam_operands(n)
    got = driver.run(PRIMITIVES["adam_update"], operands, times=steps, **ADAM, last=True)
    assert got[3].tolist()[4:] == [0, 0, 0, 0]
    want = list(operands)
    for _ in range(steps):
        want = reference(PRIMITIVES["adam_update"], want, **ADAM, last=True)
    np.testing.assert_allclose(got[3], want[3], rtol=16 * EPS)
    for k in range(3):
        np.testing.assert_allclose(got[k], want[k], rtol=32 * EPS, atol=8 * EPS)
    again = driver.run(PRIMITIVES["adam_update"], operands, times=steps, **ADAM, last=True)
    np.testing.assert_array_equal(again[0], got[0])
