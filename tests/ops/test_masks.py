"""Comparisons and questions are tensors of truth values, on every device, recorded and captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import ops

X = np.array([[-1.0, 0.0, 2.0, np.nan, np.inf, -np.inf, -0.0]], np.float32)
Y = np.array([[0.0, 0.0, 2.0, 1.0, np.inf, np.nan, 0.0]], np.float32)
PAIRS = {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "eq": np.equal,
         "ne": np.not_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
         "logical_xor": np.logical_xor}
QUESTIONS = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
             "logical_not": np.logical_not}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("name", [*PAIRS, *QUESTIONS])
def test_truth_values_are_numpys(device: str, name: str, dtype: str) -> None:
    if dtype == "f64" and device.startswith("vulkan"):
        device = "cpu"
    operands = [X, Y] if name in PAIRS else [X]
    with ag.ag_device(device):
        tensors = [ag.ag_tensor(x, dtype=dtype) for x in operands]
        want = (PAIRS | QUESTIONS)[name](*operands)
        step = ag.ag_capture(lambda *xs: getattr(ops, name)(*xs))
        for found in (getattr(ops, name)(*tensors), step(*tensors), step(*tensors), step(*tensors)):
            assert found.dtype == "bool" and found.device == device and not found.requires_grad
            assert found.numpy().dtype == bool and np.array_equal(found.numpy(), want)


def test_a_mask_is_a_factor_of_0_and_1(device: str) -> None:
    for dtype in ("f32", "f16", "bf16", *(["f64"] if device.startswith("cpu") else [])):
        with ag.ag_device(device):
            x = ag.ag_tensor([[-1.0, 0.5, 2.0]], dtype=dtype)
            mask = x > 0
            assert ((mask * x).dtype, (mask * x).numpy().tolist()) == (dtype, [[0.0, 0.5, 2.0]])
            assert (x - mask).numpy().tolist() == [[-1.0, -0.5, 1.0]] and mask.sum().item() == 2.0
            assert mask.astype("f32").numpy().tolist() == [[0.0, 1.0, 1.0]] and x.astype("bool").numpy().all()
            assert mask[:, 1:].dtype == mask.T.dtype == ops.reshape(mask, 3, 1).dtype == "bool"
            assert ops.concat([mask, ~mask], 1).numpy().tolist() == [[False, True, True, True, False, False]]
            joined = (mask & (x < 1)) | ~mask ^ (x == 0.5)
            assert joined.numpy().tolist() == [[True, True, False]]
            assert (mask & [[True, False, True]]).numpy().tolist() == [[False, False, True]]


def test_python_asks_a_mask(device: str) -> None:
    with ag.ag_device(device):
        x = ag.ag_tensor([[1.0, 2.0]])
        assert (x > 0).all() and not (x > 1).all() and (x > 1).any() and bool((x > 0)[0, 0]) is True
        assert ops.any(np.zeros((2, 0))).item() is False and ops.all(np.zeros((2, 0))).item() is True
        assert np.array_equal(np.arange(2)[None][x > 1], [1]) and np.array_equal(~np.asarray(x > 1), [[True, False]])
        assert repr(x > 1).endswith("[[False  True]]>") and ag.ag_tensor([[0, 3]], dtype="bool").numpy().tolist() == [
            [False, True]]
    with expect_error("truth of several", ag.ShapeError, "bool: ", ".any()"):
        bool(x > 0)
    with expect_error("the bits of numbers", TypeError, "&: a tensor of type f32", "truth values"):
        x & (x > 0)


def test_no_gradient_flows_through_questions() -> None:
    p = ag.ag_param([[1.0, 2.0]])
    with ag.with_grad_tape():
        made = [p > 1, p == p, ops.isnan(p), ops.argmax(p), ops.any(p > 0)]
        assert not any(t.requires_grad for t in made) and ops.floor(p).requires_grad
        with expect_error("a loss of nothing but answers", ag.TapeError, "backward: "):
            ag.backward((p > 1).sum())


DEAD: dict[str, Callable[[Any], Any]] = {
    "log": lambda x: ops.where(x > 0, ops.log(x), 0.0), "sqrt": lambda x: ops.where(x > 0, ops.sqrt(x), x),
    "quotient": lambda x: ops.where(ops.eq(x, 0.0), 1.0, 1.0 / x), "filled": lambda x: ops.masked_fill(
        ops.log(x), x <= 0, -1.0), "infinite": lambda x: ops.where(x > 0, x, -np.inf)}


@pytest.mark.parametrize("name", DEAD)
def test_what_is_not_chosen_sends_exactly_0(device: str, name: str) -> None:
    """Through `where` itself: what it sends to log(0) is 0, and log makes NaN of that, as everywhere."""
    with ag.ag_device(device):
        chosen = ag.ag_param([[4.0, 0.0, -1.0]])
        with ag.with_grad_tape():
            made = DEAD[name](chosen.detach())
            loss = ag.ag_sum(ops.where(made > 1e30, 0.0, ops.where(chosen > 0, chosen * chosen, made)))
        assert ag.backward(loss)[chosen].numpy().tolist() == [[8.0, 0.0, 0.0]]
        for bad in (np.nan, np.inf):
            a, b = ag.ag_param([[1.0, 2.0]]), ag.ag_param([[3.0, 4.0]])
            with ag.with_grad_tape():
                loss = ag.ag_sum(ops.where([[True, False]], a, b) * [[bad, 1.0]])
            grads = ag.backward(loss)
            assert grads[a].numpy()[0, 1] == 0 and grads[b].numpy().tolist() == [[0.0, 1.0]]


def test_a_chosen_zero_keeps_its_sign(device: str) -> None:
    with ag.ag_device(device):
        mask, zeros = ag.ag_tensor([[True, False, True]], dtype="bool"), ag.ag_tensor([[-0.0, -0.0, 0.0]])
        chosen = ops.where(mask, zeros, 1.0), ops.where(mask, 1.0, zeros), ops.masked_fill(zeros, mask, -0.0)
        assert [np.signbit(x.numpy()).tolist() for x in chosen] == [
            [[True, False, False]], [[False, True, False]], [[True, True, True]]]


@pytest.mark.parametrize("shape", [(1,), (7, 1), (300, 5), (5, 300), (3, 70, 5), (70_000,), (33, 65)])
def test_places_of_the_largest(device: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, *shape)).round(1).astype(np.float32)
    if x.size > 50:
        x.flat[[x.size // 3, x.size // 2]] = np.nan
    with ag.ag_device(device):
        t = ag.ag_tensor(x)
        for dim in (None, *range(len(shape) + 1)):
            for keepdim in (False, True):
                found = ops.argmax(t, dim, keepdim), ops.argmin(t, dim, keepdim)
                assert all(i.dtype == "i32" for i in found)
                assert np.array_equal(found[0].numpy(), np.argmax(x, dim, keepdims=keepdim))
                assert np.array_equal(found[1].numpy(), np.argmin(x, dim, keepdims=keepdim))
    with expect_error("the place of nothing", ag.ShapeError, "argmax: x is (2, 0) and dim is 1", "one element"):
        ops.argmax(np.zeros((2, 0)), 1)


def test_one_answer_in_16_bits() -> None:
    """Numbers are rounded as the tensor's were, by operators, methods, functions and in captured steps."""
    for dtype in ("f16", "bf16"):
        t = ag.ag_tensor([[0.1, 0.2]], dtype=dtype)
        step = ag.ag_capture(lambda x, t=t: (t >= x, t == x))
        captured = [step(np.array(0.1))[0] for _ in range(3)]
        for made in (t >= 0.1, t.ge(0.1), ops.ge(t, 0.1), np.greater_equal(t, 0.1), *captured):
            assert made.numpy().tolist() == [[True, True]]
        assert (t == 0.1).numpy().tolist() == step(np.array(0.1))[1].numpy().tolist() == [[True, False]]


def test_one_hot_keeps_ids_as_they_are(device: str) -> None:
    before = ag.ag_dtype("bf16")  # which has no 257
    try:
        with ag.ag_device(device):
            for ids in ([257, 0, -1], np.array([[257], [299]]), 3, ag.ag_tensor([[4.0, 8.0]]), ops.arange(3)):
                values = ids.numpy() if isinstance(ids, ag.Tensor) else np.asarray(ids)
                want = np.arange(300).reshape(300, *(1,) * values.ndim) == values
                assert np.array_equal(ops.one_hot(ids, 300).numpy(), want)
            step = ag.ag_capture(lambda ids: ops.one_hot(ids, 300))
            for ids in (np.array([257, 1]), np.array([2, 299])):
                assert np.array_equal(step(ids).numpy(), np.arange(300)[:, None] == ids)
            with expect_error("complex", ag.DtypeError, "one_hot: data of type complex128 was given"):
                ops.one_hot([1j], 3)
    finally:
        ag.ag_dtype(before)


def test_counts_are_float32_whatever_the_default() -> None:
    q = ag.ag_tensor(np.ones((601, 1)), dtype="f32")
    try:
        for dtype in ("bf16", "f16", "f64"):
            ag.ag_dtype(dtype)
            assert (q > 0).sum().item() == ops.count_nonzero(q).item() == 601
            assert (~(q > 0)).dtype == "bool" and ((q > 0) & (q < 2)).all()
    finally:
        ag.ag_dtype("f32")
    d = ag.ag_tensor([[1.0, -2.0]], dtype="f64")
    assert (ops.sum(d * (d > 0)) / ops.sum((d > 0).astype("f64"))).item() == 1.0


def test_masks_are_joined_with_masks() -> None:
    m = ag.ag_tensor([[True, False]], dtype="bool")
    assert ops.concat([m, [[False, True]]]).numpy().tolist() == [[True, False], [False, True]]
    with expect_error("a mask and numbers joined", ag.DtypeError, "ag_concat: operands are of types bool and float64"):
        ops.concat([m, [[2.5, 0.0]]])
    assert ops.prod(ag.ag_tensor([[True, False, True]], dtype="bool"), 1).numpy().tolist() == [0.0]


def test_operators_of_numbers_and_arrays() -> None:
    t, A = ag.ag_tensor([[1.0, 2.0]]), np.array([[2.0, 3.0]])
    for made, want in ((A**t, [[2, 9]]), (np.power(2, t), [[2, 4]]), (np.power(t, t), [[1, 4]]), (t**A, [[1, 8]])):
        assert made.numpy().tolist() == want
    mask = np.array([[True, False]])
    assert (mask & (t > 0)).numpy().tolist() == [[True, False]] and np.bitwise_or(mask, t > 1).numpy().all()
    assert np.invert(t > 1).numpy().tolist() == [[True, False]]
    p = q = ag.ag_param([[1.0, 2.0, 3.0]])
    p %= 2.0
    assert p is q and p.numpy().tolist() == [[1.0, 0.0, 1.0]]
    p //= 2.0
    assert p is q and p.numpy().tolist() == [[0.0, 0.0, 0.0]]
