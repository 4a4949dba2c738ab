"""Tensors as users hold them: making, describing, reading and writing them, and the operators."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

X = np.array([[1.0, -2.0, 4.0], [0.5, 3.0, -1.0]], np.float32)
Y = np.array([[2.0, 4.0, -8.0], [1.0, 0.5, 0.25]], np.float32)

# ---------------------------------------------------------------------------------------------- making


def test_a_vector_is_one_sample(device: str) -> None:
    assert ag.ag_tensor([1.0, 2.0, 3.0]).shape == (3, 1)
    assert ag.ag_param(np.arange(3)).shape == (3, 1)
    assert ag.ag_tensor(2.0).shape == ()
    assert ag.ag_tensor(X).shape == (2, 3)
    assert ag.ag_tensor(np.zeros((2, 3, 4, 5))).shape == (2, 3, 4, 5)


def test_data_are_copied(device: str) -> None:
    source = X.copy()
    t = ag.ag_tensor(source)
    source[...] = 0
    np.testing.assert_array_equal(t.numpy(), X)
    t.numpy()[...] = 7
    np.testing.assert_array_equal(t.numpy(), X)


def test_dense_or_not(device: str) -> None:
    wide = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    for view in (wide.T, wide[::2, ::3], wide[::-1]):
        np.testing.assert_array_equal(ag.ag_tensor(view).numpy(), view)


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8, np.int64, np.float16, np.float64])
def test_all_kinds_of_numbers_become_float32(device: str, kind: type) -> None:
    t = ag.ag_tensor(np.array([[0, 1]]).astype(kind))
    assert (t.dtype, t.numpy().dtype, t.numpy().tolist()) == ("f32", np.float32, [[0, 1]])


@pytest.mark.parametrize(("name", "short"), [("f32", "f32"), ("float32", "f32"), ("f64", "f64"), ("i32", "i32")])
def test_element_types_have_short_names(name: str, short: str) -> None:
    assert ag.ag_tensor([1.0], dtype=name).dtype == short


def test_a_tensor_of_a_tensor() -> None:
    t = ag.ag_tensor(X)
    assert ag.ag_tensor(t) is t
    assert ag.ag_tensor(t, device="cpu", dtype="f32") is t
    moved = ag.ag_tensor(t, device="cpu:1", dtype="f64")
    assert (moved.device, moved.dtype) == ("cpu:1", "f64")
    copied = ag.ag_param(t)
    copied.data = Y
    np.testing.assert_array_equal(t.numpy(), X)


def test_ids_are_unique() -> None:
    assert len({ag.ag_tensor([1.0]).id for _ in range(10)}) == 10
    assert ag.is_ag_tensor(ag.ag_tensor([1.0]))
    assert not ag.is_ag_tensor(X)


def test_what_is_not_numeric() -> None:
    for make in (ag.ag_tensor, ag.ag_param):
        for data in ("text", [["a"]], None, object()):
            with expect_error("a tensor of something that is not a number", ag.DtypeError, make.__name__, "numbers"):
                make(data)


@pytest.mark.parametrize("take", [ag.ag_tensor, ag.ag_param, lambda x: ag.ag_tensor(1.0) + x,
                                  lambda x: ag.ag_tensor(1.0) == x, lambda x: setattr(ag.ag_tensor(1.0), "data", x)])
def test_lists_that_are_no_array(take: Callable[[Any], object]) -> None:
    endless: list[Any] = [1.0]
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for lists, why in ((endless, "contains itself"), (deep, "too deep"), ([[1.0, 2.0], [3.0]], "the same length")):
        with expect_error("lists that are no array", ag.ShapeError, why):
            take(lists)


def test_a_tensor_of_another_library_is_named_by_its_module() -> None:
    foreign = type("Tensor", (), {"__module__": "torch"})()
    x = ag.ag_tensor([[1.0]])
    for error, call in ((TypeError, lambda: ag.backward(foreign)), (ag.CaptureError, lambda: ag.ag_capture(ag.ag_sum)(
            foreign)), (ag.CaptureError, lambda: ag.ag_capture(lambda x: (ag.ag_sum(x), foreign))(x))):
        with expect_error("a tensor of another library", error, "a torch.Tensor", "tensor"):
            call()
    with ag.with_grad_tape(), expect_error("a tensor of another library", TypeError, "a torch.Tensor"):
        ag.ag_checkpoint(lambda: foreign)


def test_comparisons_under_any_seterr() -> None:
    x = ag.ag_tensor([float("nan"), 1e-30, 1e30])
    with np.errstate(all="raise"):
        assert (x < x).numpy().tolist() == [[False]] * 3
        assert (x.astype("f16") > 1e-300).numpy().tolist() == [[False], [False], [True]]
        assert (x == float("nan")).numpy().tolist() == [[False]] * 3
        assert (ag.ag_to_device(x, "cpu:1") < x).numpy().tolist() == [[False]] * 3


def test_unknown_names() -> None:
    with expect_error("an element type that does not exist", ag.DtypeError, "ag_tensor", "'f16x'", "f32, f64"):
        ag.ag_tensor([1.0], dtype="f16x")
    with expect_error("a default element type that does not exist", ag.DtypeError, "ag_dtype", "'double'", "f64"):
        ag.ag_dtype("double")
    with expect_error("a device that does not exist", ag.DeviceError, "unknown device 'gpu:0x'", "'vulkan:0'"):
        ag.ag_tensor([1.0], device="gpu:0x")
    with expect_error("an integer parameter", ag.DtypeError, "ag_param", "i32", "no gradients", "'f32'"):
        ag.ag_param([1], dtype="i32")
    assert (ag.ag_default_dtype(), ag.ag_default_device()) == ("f32", "cpu")


# ---------------------------------------------------------------------------------------------- describing


def test_description(device: str) -> None:
    t = ag.ag_tensor(X)
    assert (t.shape, t.ndim, t.size, len(t), t.dtype, t.device) == ((2, 3), 2, 6, 2, "f32", device)
    assert not t.requires_grad
    assert t.grad is None


def test_repr(device: str) -> None:
    assert repr(ag.ag_tensor([[1.0, 2.5]])) == f"<ag_tensor (1, 2) f32 on {device}\n[[1.  2.5]]>"
    assert repr(ag.ag_param(2.0)) == f"<ag_param () f32 on {device}\n2.>"
    assert len(repr(ag.ag_tensor(np.zeros((1000, 1000))))) < 1000


def test_repr_during_capture_does_not_read() -> None:
    texts = []

    def step(x: ag.Tensor) -> ag.Tensor:
        texts.append(repr(x))
        return x + 1.0

    ag.ag_capture(step)(ag.ag_tensor([[1.0]]))
    assert texts == ["<ag_tensor (1, 1) f32 on cpu, being captured>"]


def test_a_scalar_has_no_length() -> None:
    with expect_error("the length of a scalar", TypeError, "shape ()", ".size"):
        len(ag.ag_tensor(1.0))


# ---------------------------------------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("data", [[1.0, 2.0], np.zeros((0, 3))])
def test_several_elements_are_no_number(data: Any) -> None:
    t = ag.ag_tensor(data)
    with expect_error("item() of several elements", ag.ShapeError, f"item: the tensor has shape {t.shape}"):
        t.item()
    with pytest.raises(ag.ShapeError):
        float(t)


def test_data_can_be_assigned(device: str) -> None:
    t = ag.ag_tensor(X)
    doubled = t * 2.0
    buffer = t.buffer
    t.data = Y
    np.testing.assert_array_equal(t.data, Y)
    assert t.buffer is buffer
    np.testing.assert_array_equal(doubled.numpy(), 2 * X)  # computed before the assignment
    t.data = t.data + 1
    np.testing.assert_array_equal(t.data, Y + 1)


def test_data_of_another_shape(device: str) -> None:
    t = ag.ag_tensor(X)
    for wrong in (X.T, X.ravel(), 1.0):
        with expect_error("data of another shape are assigned", ag.ShapeError, str(np.shape(wrong)), "(2, 3)"):
            t.data = wrong
    np.testing.assert_array_equal(t.data, X)


def test_as_a_numpy_array(device: str) -> None:
    t = ag.ag_tensor(X)
    np.testing.assert_array_equal(np.asarray(t), X)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.from_dlpack(t), X)
    assert t.__dlpack_device__() == (1, 0)  # kDLCPU


def test_nothing_is_a_tensor_too(device: str) -> None:
    t = ag.ag_tensor(np.zeros((0, 3)))
    assert (t.shape, t.size, t.numpy().shape, (t + 1.0).shape) == ((0, 3), 0, (0, 3), (0, 3))


# ---------------------------------------------------------------------------------------------- operators

OPERATORS: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul, operator.truediv]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("number", [3, -0.5, np.float64(2.5), np.float32(0.25), np.int64(4)])
def test_arithmetic_with_numbers(device: str, op: Callable[[Any, Any], Any], number: Any) -> None:
    x = ag.ag_tensor(X)
    for got, want in ((op(x, number), op(X, number)), (op(number, x), op(number, X))):
        assert isinstance(got, ag.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_operators_are_recorded() -> None:
    x = ag.ag_param(X)
    with ag.with_grad_tape():
        loss = ((2.0 * x - Y) / 4.0 + x**2 * -x.T.T).sum()
    np.testing.assert_allclose(ag.backward(loss)[x].numpy(), 0.5 - 3 * X**2, rtol=1e-5)


# ---------------------------------------------------------------------------------------------- copies


def test_a_shallow_copy_is_another_tensor(device: str) -> None:
    p = ag.ag_param([[2.0]])
    q = copy.copy(p)
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * 3.0 + q * 5.0)
    grads = ag.backward(loss)
    assert (grads[p].item(), grads[q].item()) == (3.0, 5.0) and p.id != q.id
    q.data = [[7.0]]
    assert p.item() == 2.0


def test_what_cannot_be_copied_or_pickled(device: str) -> None:
    W = ag.ag_param(np.ones((2, 2)))
    with ag.with_grad_tape():
        y = W @ W
    with expect_error("deepcopy on the tape", ag.TapeError, "deepcopy", "(2, 2)", "detach"):
        copy.deepcopy(y)
    with expect_error("pickle on the tape", ag.TapeError, "pickle", "(2, 2)", "detach"):
        pickle.dumps(y)
    step = ag.ag_capture(lambda x: x * 2.0)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with expect_error("a copied captured step", TypeError, "ag_capture", "the function"):
            copied(step)
    with expect_error("memory of a device", TypeError, device, "ag_save_model", "numpy()"):
        pickle.dumps(W.buffer)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32"])
def test_pickled_tensors(device: str, dtype: str) -> None:
    t = ag.ag_tensor([[1.5, -2.25, 3e8]] if dtype in ("f32", "bf16") else [[1, -2, 3]], dtype=dtype)
    back = pickle.loads(pickle.dumps(t))
    assert (back.dtype, back.device, back.requires_grad, back.shape) == (dtype, t.device, False, t.shape)
    assert back.id != t.id and back.numpy().tobytes() == t.numpy().tobytes()


def test_a_pickled_parameter_keeps_name_and_gradient(device: str) -> None:
    model = ag.ag_sequential(ag.ag_linear(2, 2, bias=False))
    with ag.with_grad_tape():
        loss = ag.ag_sum(model(np.ones((2, 1))))
    gradients = ag.backward(loss)
    other, gradients_too = pickle.loads(pickle.dumps((model, gradients)))
    p, W = other.parameters()["layer1_W"], model[0].W
    assert p.requires_grad and p.name == "layer1_W"
    assert np.array_equal(p.numpy(), W.numpy()) and np.array_equal(p.grad.numpy(), W.grad.numpy())
    assert np.array_equal(gradients_too[p].numpy(), gradients[W].numpy())  # by the copied parameter
    p.data = p.data * 2
    assert not np.array_equal(p.numpy(), W.numpy())


def test_a_tensor_of_a_device_that_is_not_here_is_on_the_default_one(caplog: pytest.LogCaptureFixture) -> None:
    rebuild, (values, dtype, _, *rest) = ag.ag_tensor([[1.0]]).__reduce__()
    x = rebuild(values, dtype, "vulkan:97", *rest)
    assert (x.device, x.item()) == ("cpu", 1.0)
    assert "vulkan:97 are put on cpu" in caplog.text
