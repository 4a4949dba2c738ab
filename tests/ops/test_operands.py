"""Show what ops make of their operands and numbers: vectors, integers, and tensors where numbers are meant."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

Array = np.ndarray[Any, Any]
V = np.array([1.0, 2.0, 4.0], np.float32)
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv]

HOST = {"an array": V, "a list": V.tolist(), "a tuple": tuple(V.tolist()), "integers": V.astype(int)}
BESIDE: dict[str, tuple[Callable[[], ag.Tensor], Array]] = {  # a tensor; what the vector is beside it
    "a column": (lambda: ag.ag_tensor(V + 1), V[:, None]),
    "a row": (lambda: ag.ag_tensor(V[None] + 1), V[None]),
    "one axis": (lambda: ag.ag_tensor(np.stack([V, V + 1]))[1], V),
    "a number": (lambda: ag.ag_tensor(2.0), V[:, None]),
    "rows": (lambda: ag.ag_tensor(np.ones((2, 3))), V[None]),
    "columns of several axes": (lambda: ag.ag_tensor(np.ones((2, 3, 1))), V[:, None]),
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("beside", BESIDE)
def test_a_host_vector_is_what_it_fits(device: str, beside: str, op: Callable[[Any, Any], Any]) -> None:
    make, vector = BESIDE[beside]
    t = make()
    for host in HOST.values():
        for got, want in ((op(t, host), op(t.numpy(), vector)), (op(host, t), op(vector, t.numpy()))):
            assert got.shape == want.shape
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("op", OPERATORS)
def test_a_host_vector_is_not_guessed(op: Callable[[Any, Any], Any]) -> None:
    square = ag.ag_tensor(np.ones((3, 3)))
    for host in HOST.values():
        for a, b in ((square, host), (host, square)):
            with expect_error("a vector that may be a row or a column", ag.ShapeError, "vector of 3 numbers", "(3, 3)",
                              "(1, 3) or (3, 1)"):
                op(a, b)
    with expect_error("a vector of another length than the column", ag.ShapeError, "(3, 1) and (2, 1)"):
        op(ag.ag_tensor(V), V[:2])


@pytest.mark.parametrize("op", OPERATORS)
def test_one_axis_and_a_column_make_no_matrix(op: Callable[[Any, Any], Any]) -> None:
    column, rows = ag.ag_tensor(V), ag.ag_tensor(np.ones((2, 3)))
    for flat in (rows[0], rows.sum(dim=0), ag.ag_reshape(column, 3)):
        for a, b in ((column, flat), (flat, column)):
            with expect_error("a tensor of one axis and a column", ag.ShapeError, "one axis", "(3, 1)", "(1, 3)"):
                op(a, b)
    with ag.with_grad_tape(), expect_error("means of a parameter's rows", ag.ShapeError, "(3,) and (3, 1)"):
        op(ag.ag_param(np.ones((3, 4))).mean(dim=1), column)


@pytest.mark.slow_on("swiftshader")
def test_a_vector_is_a_column_in_every_op(device: str) -> None:
    column = ag.ag_tensor(V)
    for f in (ag.ag_exp, ag.ag_relu, ag.ag_softmax, ag.ag_transpose, ag.ag_flatten, lambda x: ag.ag_scale(x, 2.0),
              lambda x: ag.ag_slice(x, 0), lambda x: ag.ag_sum(x, 0), lambda x: ag.ag_concat([x, x]),
              lambda x: ag.ag_concat([column, x]), lambda x: ag.ag_matmul(np.ones((2, 3)), x),
              lambda x: ag.ag_mse_loss(column * 2.0, x), lambda x: ag.ag_mse_loss(x, V.tolist()),
              lambda x: ag.ag_cross_entropy_loss(column, x), lambda x: ag.ag_softmax_cross_entropy_loss(column, x),
              lambda x: ag.ag_softmax_cross_entropy_loss(x, [2]), lambda x: ag.ag_layer_norm_op(x, x, x),
              lambda x: ag.ag_rms_norm_op(x, x),
              lambda x: ag.ag_batch_norm_op(np.eye(3), x, x), lambda x: ag.ag_attention(x, x, x),
              lambda x: ag.ag_conv2d(np.ones((2, 1, 1, 1)), np.ones((3, 2, 1, 1)), x),
              lambda x: ag.ag_linear(3, 3)(x).shape, lambda x: column - x):
        got, want = f(V), f(column)
        if isinstance(want, ag.Tensor):
            assert got.shape == want.shape
            np.testing.assert_array_equal(got.numpy(), want.numpy())
        else:
            assert got == want


def test_a_vector_is_no_first_factor() -> None:
    """As a column it would make an outer product."""
    with expect_error("a vector times a row", ag.ShapeError, "ag_matmul: A is (3,)", "two axes"):
        V @ ag.ag_tensor([[1.0, 2.0]])


def test_a_vector_is_assigned_to_a_column() -> None:
    t = ag.ag_tensor(V)
    t.data = [4.0, 5.0, 6.0]
    assert t.numpy().tolist() == [[4.0], [5.0], [6.0]]
    with expect_error("a vector assigned to a row", ag.ShapeError, "(3,)", "(1, 3)"):
        ag.ag_tensor(V[None]).data = V


def test_a_tensor_keeps_its_axes() -> None:
    flat = ag.ag_tensor(np.ones((2, 3)))[0]
    assert ag.ag_tensor(flat).shape == ag.ag_tensor(flat, dtype="f64").shape == ag.ag_param(flat).shape == (3,)


I32 = np.array([[3, -5], [7, 2]], np.int32)
COMPUTING: dict[str, Callable[[Any], Any]] = {
    "ag_add": lambda t: t + t, "ag_sub": lambda t: t - 4, "ag_mul": lambda t: 1.5 * t, "ag_div": lambda t: t / 2,
    "ag_scale": lambda t: -t, "ag_pow": lambda t: t**2, "ag_abs": abs, "ag_matmul": lambda t: t @ t,
    "ag_sum": lambda t: t.sum(), "ag_mean": lambda t: t.mean(dim=0), "ag_max": ag.ag_max, "ag_exp": ag.ag_exp,
    "ag_relu": ag.ag_relu, "ag_sigmoid": ag.ag_sigmoid, "ag_softmax": ag.ag_softmax, "ag_gelu": ag.ag_gelu,
    "ag_clamp": lambda t: ag.ag_clamp(t, 0.0), "ag_mse_loss": lambda t: ag.ag_mse_loss(t, I32),
    "ag_softmax_cross_entropy_loss": lambda t: ag.ag_softmax_cross_entropy_loss(t, [0, 1]),
    "ag_cross_entropy_loss": lambda t: ag.ag_cross_entropy_loss(t, t),
    "ag_layer_norm_op": lambda t: ag.ag_layer_norm_op(t, t[:, :1], t[:, :1]),
    "ag_rms_norm_op": lambda t: ag.ag_rms_norm_op(t, t[:, :1]),
    "ag_attention": lambda t: ag.ag_attention(t, t, t), "ag_dropout": lambda t: ag.ag_dropout(0.5)(t),
    "ag_embedding_lookup": lambda t: ag.ag_embedding_lookup(t, [0]),
    "ag_max_pool2d": lambda t: ag.ag_max_pool2d(t.reshape(1, 2, 2, 1), 2),
    "ag_global_avg_pool": lambda t: ag.ag_global_avg_pool(t.reshape(1, 2, 2, 1)),
    "ag_conv2d": lambda t: ag.ag_conv2d(t.reshape(1, 2, 2, 1), t.reshape(1, 1, 2, 2)),
}


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("dtype", ["i32", "u32"])
def test_nothing_is_computed_with_integers(device: str, dtype: str, name: str) -> None:
    t = ag.ag_tensor(abs(I32), dtype=dtype)
    for record in (ag.no_grad, ag.with_grad_tape):
        with record(), pytest.raises(ag.DtypeError, match=rf"operands are of type {dtype}.*astype\(.f32.\)\.$"):
            COMPUTING[name](t)


def test_integers_are_not_mixed_with_floats(device: str) -> None:
    t = ag.ag_tensor(I32, dtype="i32")
    for other in (ag.ag_tensor(I32), ag.ag_tensor(2.0), ag.ag_tensor(I32, dtype="f16"),
                  ag.ag_tensor(abs(I32), dtype="u32")):
        for call in (lambda a, b: a + b, lambda a, b: b * a, lambda a, b: a @ b, lambda a, b: ag.ag_concat([a, b])):
            with expect_error("integers and floats", ag.DtypeError, "element types", "i32", "t.astype"):
                call(t, other)


def test_integers_are_moved(device: str) -> None:
    t = ag.ag_tensor(I32, dtype="i32")
    for got, want in ((t[1], I32[1]), (t[:, ::-1], I32[:, ::-1]), (t.T, I32.T), (t.reshape(4), I32.reshape(4)),
                      (ag.ag_concat([t, t], 1), np.hstack([I32, I32])), (ag.ag_flatten(t), I32),
                      (ag.ag_concat([t, [[8, 9]]]), np.vstack([I32, [[8, 9]]])), (ag.ag_to_device(t, "cpu:1"), I32)):
        assert got.dtype == "i32"
        np.testing.assert_array_equal(got.numpy(), want)
    with expect_error("a fraction among integers", ag.DtypeError, "i32", "1.5", "whole numbers"):
        ag.ag_concat([t, [[1.5, 2.0]]])


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_integers_become_floats(device: str, name: str) -> None:
    values = np.array([[-(2**31), 2**31 - 1, 2**24 + 1, 3]])
    t = ag.ag_tensor(values, dtype="i32").astype(name)
    assert t.dtype == name
    np.testing.assert_array_equal(t.numpy(), ag.ag_tensor(values.astype(np.float32), dtype=name).numpy())
    ids = ag.ag_tensor([[0, 2**32 - 1, 2**31 + 2**7, 2**31 + 2**7 + 1, 2**31 + 3 * 2**7, 5]], dtype="u32")
    np.testing.assert_array_equal(ids.astype(name).numpy(), ag.ag_tensor(ids.numpy().astype(np.float32), dtype=name))
    assert ids.astype("bool").numpy().tolist() == [[False, *[True] * 5]]
    step = ag.ag_capture(lambda x: (x.astype(name), ag.ops.argmax(x.astype("f32"), 1).astype(name) * 2.0))
    for i in (0, 1, 2, 0, 1):
        found, place = step(ag.ag_tensor(np.roll([[7, -1, 2]], i), dtype="i32"))
        assert found.numpy().tolist() == [np.roll([7, -1, 2], i).tolist()] and place.item() == 2 * i
    assert step.replayed


@pytest.mark.parametrize(("dtype", "wrong"), [
    ("i32", 2**31), ("i32", -(2**31) - 1), ("i32", 2**40 + 3), ("i32", 1.5), ("i32", np.nan), ("i32", np.inf),
    ("i32", 1e30), ("i32", np.float32(2**31)), ("i32", np.uint64(2**63)), ("u32", -1), ("u32", 2**32), ("u32", -0.5),
    ("i32", 10**30)])
def test_what_an_integer_cannot_hold_is_refused(device: str, dtype: str, wrong: Any) -> None:
    t = ag.ag_tensor([[1, 2]], dtype=dtype)
    with expect_error("too large for an integer", ag.DtypeError, "required"):
        ag.ag_tensor([[1, wrong]], dtype=dtype)
    with expect_error("too large for an integer", ag.DtypeError, "required"):
        ag.ag_tensor(wrong, dtype=dtype)
    with expect_error("too large for an integer", ag.DtypeError, "required"):
        t.data = np.array([[1, wrong]])
    assert t.numpy().tolist() == [[1, 2]]


@pytest.mark.parametrize(("dtype", "values"), [("i32", [-(2**31), 2**31 - 1, 0]), ("u32", [0, 2**32 - 1, 7])])
def test_what_an_integer_can_hold(device: str, dtype: str, values: list[int]) -> None:
    for given in (values, np.array(values), np.array(values, float), [float(v) for v in values]):
        assert ag.ag_tensor(given, dtype=dtype).numpy().ravel().tolist() == values
    assert ag.ag_tensor([True, False], dtype=dtype).numpy().ravel().tolist() == [1, 0]


def test_floats_that_are_too_large_are_infinite(device: str) -> None:
    assert ag.ag_tensor([1e39, -1e39]).numpy().ravel().tolist() == [np.inf, -np.inf]
    assert (ag.ag_tensor([1.0]) * 1e39).item() == np.inf
    assert ag.ag_tensor([70000.0], dtype="f16").item() == np.inf


def test_integers_are_no_default() -> None:
    with expect_error("integers as the default element type", ag.DtypeError, "ag_dtype", "i32", "floating"):
        ag.ag_dtype("i32")
    assert ag.ag_default_dtype() == "f32"


IMAGES = np.ones((2, 4, 4, 2), np.float32)
FOUR = ("ag_conv2d", "ag_max_pool2d", "ag_avg_pool2d", "ag_max_pool", "ag_avg_pool")
OPERANDS = ("TensorLike", "Sequence[TensorLike]", "Tensor", "ArrayLike", "TensorLike | None",
            "TensorLike | Sequence[float] | None")


def numbers_of(name: str) -> list[str]:
    parameters = inspect.signature(getattr(ag, name)).parameters.values()
    return [p.name for p in parameters if p.annotation not in OPERANDS and p.name not in ("activation", "keepdim")]


FUNCTIONS = [name for name in ag.__all__ if name.startswith("ag_") and getattr(ag, name).__module__.startswith(
    ("ag.ops.", "ag.nn.")) and numbers_of(name) and name not in ("ag_sequential", "ag_residual", "ag_train", "ag_eval")]
GIVEN: dict[str, Any] = {
    "in_features": 2, "out_features": 2, "num_features": 2, "in_ch": 2, "out_ch": 2, "kernel": 1, "size": 2, "p": 2.0,
    "scalar": 2.0, "key": 0, "vocab_size": 3, "dim": 0, "d_model": 2, "n_heads": 1, "rate": 0.5, "dtype": "f16",
    "device": "cpu:1", "shape": 4, "axes": 0, "depth": 18, "num_classes": 2, "width": 2}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", ["a parameter", "a recorded tensor", "a tensor"])
def test_a_tensor_is_no_number(name: str, kind: str) -> None:
    """It would be a constant, and never learn."""
    function = getattr(ag, name)
    p = ag.ag_param(1.0) if kind != "a tensor" else ag.ag_tensor(1.0)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in numbers_of(name) or parameter.name == "bias":
            continue
        images = IMAGES if name in FOUR else np.ones((2, 2), np.float32)
        given = {q.name: images for q in inspect.signature(function).parameters.values()
                 if q.annotation in OPERANDS and q.default is q.empty}
        given |= {q: GIVEN[q] for q in numbers_of(name) if q in GIVEN}
        if "t" in given:
            given["t"] = ag.ag_tensor(images)
        if "tensors" in given:
            given["tensors"] = [images]
        with ag.with_grad_tape():
            number = p * 1.0 if kind == "a recorded tensor" else p
            args = [given.pop("x"), number] if parameter.kind is parameter.VAR_POSITIONAL else []
            keywords = {k: v for k, v in given.items() if k not in ("shape", "axes")} if not args else {}
            with pytest.raises((TypeError, ValueError, ag.DeviceError), match=r"^ag_\w+: ") as raised:
                function(*args, **(keywords if args else {**keywords, parameter.name: number}))
        if parameter.annotation == "float" or name in ("ag_pow", "ag_scale", "ag_leaky_relu", "ag_clamp"):
            assert type(raised.value) is TypeError
            assert f"{parameter.name} is a tensor of shape ()" in str(raised.value)


@pytest.mark.parametrize("bad", ["2", None, 1j, [2.0], np.array([2.0]), np.array("2")], ids=repr)
@pytest.mark.parametrize("call", [
    lambda p: ag.ag_pow([[2.0]], p), lambda p: ag.ag_scale([[2.0]], p), lambda p: ag.ag_clamp([[2.0]], p),
    lambda p: ag.ag_leaky_relu([[2.0]], p)])
def test_what_is_no_number(call: Callable[[Any], Any], bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^ag_\w+: \w+ is .*; a number is required\.$"):
        call(bad)


@pytest.mark.parametrize("good", [2, 2.0, True, np.float32(2), np.int8(2), np.array(2.0), np.bool_(True)], ids=repr)
def test_what_is_a_number(good: Any) -> None:
    assert ag.ag_pow([[3.0]], good).item() == 3.0 ** float(good)
    assert (ag.ag_tensor([[3.0]]) * good).item() == 3.0 * float(good)


def test_a_tensor_in_a_list_would_lose_its_gradient() -> None:
    p = ag.ag_param(2.0)
    for data in ([p, 1.0], [[1.0], [p]], (p, p)):
        for call in (ag.ag_tensor, ag.ag_exp, lambda x: ag.ag_tensor([[1.0], [2.0]]) + x, ag.ag_param):
            with expect_error("a parameter in a list", TypeError, "requires a gradient", "ag_concat"):
                call(data)
    assert ag.ag_tensor([ag.ag_tensor(1.0), 2.0]).numpy().tolist() == [[1.0], [2.0]]


def test_numbers_beyond_floats(device: str) -> None:
    t = ag.ag_tensor([[1.0]])
    with expect_error("a number of 401 digits", ag.DtypeError, "ag_add", "beyond the range"):
        t + 10**400
    with expect_error("an exponent of 401 digits", ValueError, "ag_pow: p", "beyond the range"):
        t ** 10**400
    assert (t + 10**20).item() == np.float32(1e20)


@pytest.mark.parametrize("bad", [True, 1.0, "0", [[0]], 1j, np.array([0])], ids=repr)
def test_an_axis_is_a_whole_number(bad: Any) -> None:
    for name in ("ag_sum", "ag_mean", "ag_max", "ag_softmax", "ag_log_softmax"):
        with pytest.raises(TypeError, match=rf"^{name}: dim is .*; a whole number is required\.$"):
            getattr(ag, name)(np.ones((2, 2)), bad)
    assert ag.ag_sum(np.ones((2, 3)), np.int64(1)).shape == ag.ag_sum(np.ones((2, 3)), [1]).shape == (2,)
    assert ag.ag_reshape(np.ones(4), (2, np.int64(2))).shape == ag.ag_reshape(np.ones(4), [2, 2]).shape == (2, 2)
    with pytest.raises(TypeError, match=r"^ag_reshape: a size is .*; a whole number is required\.$"):
        ag.ag_reshape(np.ones(4), (2.0, 2))
